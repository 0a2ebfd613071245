"""The command line. A command is a dataclass and a function that takes it; tyro does the rest."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import NamedTuple

from semmix import __version__
from semmix.core.errors import SemmixError, unknown_name


class Command(NamedTuple):
    """Where a command lives; its module is loaded when it is called."""

    help: str
    module: str
    config: str
    function: str
    defaults: str | None = None
    """Function from the arguments to a config whose values are the defaults."""
    resumes: bool = False
    """Whether, run again after a stop, it goes on where it was; else it begins anew."""


COMMANDS = {
    "fit": Command(
        "From a folder of images, or a data set, to a calibrated model and a report.",
        "semmix.fitting.choose",
        "FitConfig",
        "fit",
        "recipe_for",
        resumes=True,
    ),
    "data list": Command(
        "Show the data sets semmix knows and which are here.", "semmix.data", "DataListConfig", "list_data"
    ),
    "data get": Command("Download a data set.", "semmix.data", "DataGetConfig", "get_data", resumes=True),
    "data import": Command("Import a data set from files you have.", "semmix.data", "DataImportConfig", "import_data"),
    "data check": Command(
        "Verify a data set or report on an image folder.", "semmix.data", "DataCheckConfig", "check_data"
    ),
    "generator train": Command(
        "Train a class-conditional diffusion model on a training split.",
        "semmix.cli.commands",
        "GeneratorTrain",
        "train_generator_command",
        resumes=True,
    ),
    "generator sample": Command(
        "Draw a grid of class samples from a generator.", "semmix.cli.commands", "GeneratorSample", "sample_command"
    ),
    "generator convert": Command(
        "Turn an official EDM or EDM2 .pkl into a generator folder, without running it.",
        "semmix.cli.commands",
        "GeneratorConvert",
        "convert_command",
    ),
    "generator score": Command(
        "Measure how good a generator's images are.", "semmix.diffusion.quality", "GeneratorScore", "score_command"
    ),
    "mix": Command(
        "Draw mixed sets that slide from class to class.", "semmix.cli.commands", "Mix", "mix_command", resumes=True
    ),
    "verify": Command("Check every shard of a store of mixed sets.", "semmix.cli.commands", "Verify", "verify_command"),
    "annotate": Command(
        "Read back how much of each class the mixed images show.",
        "semmix.cli.commands",
        "Annotate",
        "annotate_command",
        resumes=True,
    ),
    "export": Command(
        "Write a trained classifier as a model folder (ONNX, torch.export, card), or mixed sets.",
        "semmix.cli.commands",
        "Export",
        "export_command",
    ),
    "train": Command(
        "Train a classifier by any of the calibration methods.",
        "semmix.cli.commands",
        "Train",
        "train_command",
        resumes=True,
    ),
    "predict": Command(
        "Answer images: class, calibrated confidence, prediction set, warning, or a question.",
        "semmix.deploy.predict",
        "Predict",
        "predict_command",
    ),
    "serve": Command("Answer images over HTTP.", "semmix.deploy.serve", "Serve", "serve_command"),
    "choose": Command(
        "Find when to ask a person, from what a wrong answer and a question cost.",
        "semmix.deploy.threshold",
        "Choose",
        "choose_command",
    ),
    "evaluate": Command(
        "Measure and calibrate logits or probabilities from any model.",
        "semmix.evaluation",
        "EvaluateConfig",
        "evaluate_file",
    ),
    "table": Command(
        "Make a table of the paper: ours beside the published numbers.",
        "semmix.experiments.table",
        "TableConfig",
        "make_table",
        resumes=True,
    ),
    "keep": Command(
        "Keep finished runs in a form small enough to commit.", "semmix.experiments.results", "KeepConfig", "keep_runs"
    ),
    "report": Command(
        "Write one self-contained HTML page about finished runs.", "semmix.report", "ReportConfig", "run_report"
    ),
    "balance": Command(
        "Ask whether a loss treats sharp and soft labels alike.",
        "semmix.calibration.balance",
        "BalanceConfig",
        "run_balance",
    ),
    "doctor": Command(
        "Show what is installed, and run a self-test.", "semmix.cli.doctor", "DoctorConfig", "run_doctor"
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    _print_any_letter()
    name = None
    try:
        name, rest = split_command(argv)
        if name is None:
            print(overview(argv[:1] if argv[:1] and not argv[0].startswith("-") else []))
            return 0
        return run_command(name, rest)
    except SemmixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        fix = f"check the path and the free space; {_what_the_same_command_does(name)}"
        print(f"error: {error}\n  -> {fix}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; {_what_the_same_command_does(name)}", file=sys.stderr)
        return 130


def _what_the_same_command_does(name: str | None) -> str:
    """Return what becomes of work that was stopped."""
    resumes = name is not None and COMMANDS[name].resumes
    return f"the same command {'goes on from here' if resumes else 'begins anew'}"


def _print_any_letter() -> None:
    """Have letters that a terminal cannot show replaced, rather than end the work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def split_command(argv: list[str]) -> tuple[str | None, list[str]]:
    """Return the command's name and the arguments after it; None asks for the overview."""
    if argv[:1] == ["--version"]:
        print(f"semmix {__version__}")
        raise SystemExit(0)
    if not argv or argv[0] in ("-h", "--help", "help"):
        return None, []
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in COMMANDS:
            return name, argv[words:]
    is_group = any(name.startswith(f"{argv[0]} ") for name in COMMANDS)
    if is_group and (len(argv) == 1 or argv[1] in ("-h", "--help")):
        return None, []
    wanted = " ".join(argv[:2]) if is_group else argv[0]
    raise unknown_name("command", wanted, COMMANDS)


def overview(group: list[str]) -> str:
    """Return the list of commands, or of one group of them."""
    chosen = {name: c for name, c in COMMANDS.items() if not group or name.split()[0] == group[0]}
    width = max(map(len, chosen))
    lines = [f"  {name:{width}}  {command.help}" for name, command in chosen.items()]
    head = "semmix makes an image classifier say how sure it really is."
    return "\n".join([head, "", *lines, "", "semmix COMMAND --help explains a command."])


def run_command(name: str, arguments: list[str]) -> int:
    """Read the command's arguments and call it; a function may return an exit status."""
    import tyro

    command = COMMANDS[name]
    module = import_module(command.module)
    defaults = {}
    if command.defaults:
        defaults = {"default": getattr(module, command.defaults)(arguments)}
    config = tyro.cli(
        getattr(module, command.config),
        prog=f"semmix {name}",
        description=command.help,
        args=arguments,
        **defaults,
        config=(tyro.conf.PositionalMetavarFromFieldName,),
    )
    status = getattr(module, command.function)(config)
    return status if isinstance(status, int) and not isinstance(status, bool) else 0


def run() -> None:
    """Entry point of the installed `semmix`."""
    raise SystemExit(main())
