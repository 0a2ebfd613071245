"""The command line: every command is a dataclass of its options with a method `run`; tyro reads the options."""

import io
import os
import sys
from importlib import import_module
from typing import Any

from semmix import __version__
from semmix.core.errors import SemmixError, unknown_name

COMMANDS = {
    "fit": "From a folder of images, or a data set, to a calibrated model and a report.",
    "data list": "Show the data sets semmix knows and which are here.",
    "data get": "Download a data set.",
    "data import": "Import a data set from files you have.",
    "data check": "Verify a data set or report on an image folder.",
    "generator train": "Train a class-conditional diffusion model on a training split.",
    "generator sample": "Draw a grid of class samples from a generator.",
    "generator convert": "Turn an official EDM or EDM2 .pkl into a generator folder, without running it.",
    "generator score": "Measure how good a generator's images are.",
    "mix": "Draw mixed sets that slide from class to class.",
    "verify": "Check every shard of a store of mixed sets.",
    "annotate": "Read back how much of each class the mixed images show.",
    "export": "Write a trained classifier as a model folder (ONNX, torch.export, card), or mixed sets.",
    "train": "Train a classifier by any of the calibration methods.",
    "predict": "Answer images: class, calibrated confidence, prediction set, warning, or a question.",
    "serve": "Answer images over HTTP.",
    "choose": "Find when to ask a person, from what a wrong answer and a question cost.",
    "evaluate": "Measure and calibrate logits or probabilities from any model.",
    "table": "Make a table of the paper: ours beside the published numbers.",
    "keep": "Keep finished runs in a form small enough to commit.",
    "report": "Write one self-contained HTML page about finished runs.",
    "balance": "Ask whether a loss treats sharp and soft labels alike.",
    "zoo list": "Show the trained models at hand, or those that a source offers.",
    "zoo get": "Fetch a trained model from a server, a folder or the Hugging Face hub.",
    "doctor": "Show what is installed, and run a self-test.",
}
"""What `semmix` lists. `generator train` is the class GeneratorTrainCommand in cli/generator.py."""

OF_ROOMS = {
    "choose": ("deploy.threshold", "Choose", "choose_command"),
    "evaluate": ("evaluation", "EvaluateConfig", "evaluate_file"),
    "predict": ("deploy.predict", "Predict", "predict_command"),
    "report": ("report", "ReportConfig", "run_report"),
    "serve": ("deploy.serve", "Serve", "serve_command"),
    "table": ("experiments.making", "TableConfig", "make_table"),
}
"""Commands whose options and work are another room's: its module, the class of the options, the function."""
IN_FILE = {"keep": "export", "verify": "mix"}
"""Commands in the file of another one."""

RESUMING = {"fit", "data get", "generator train", "mix", "annotate", "train", "table", "zoo get"}
"""Commands that go on where they were stopped; the others begin anew."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):  # letters that a terminal cannot show are replaced, not the end
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    name = None
    try:
        name, rest = split_command(argv)
        if name is None:
            print(overview([word for word in argv[:1] if word != "help" and not word.startswith("-")]))
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
    return f"the same command {'goes on from here' if name in RESUMING else 'begins anew'}"


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
    raise unknown_name("command", " ".join(argv[:2]) if is_group else argv[0], COMMANDS)


def overview(group: list[str]) -> str:
    """Return the list of commands, or of one group of them."""
    chosen = {name: text for name, text in COMMANDS.items() if not group or name.split()[0] == group[0]}
    width = max(map(len, chosen))
    lines = [f"  {name:{width}}  {text}" for name, text in chosen.items()]
    head = "semmix makes an image classifier say how sure it really is."
    return "\n".join([head, "", *lines, "", "semmix COMMAND --help explains a command."])


def command_class(name: str) -> Any:
    """Return the class of a command, loading its module."""
    first, title = name.split()[0], f"{name.title().replace(' ', '')}Command"
    if name in OF_ROOMS:
        room, options, work = OF_ROOMS[name]
        module = import_module(f"semmix.{room}")
        return type(title, (getattr(module, options),), {"run": getattr(module, work)})
    return getattr(import_module(f"semmix.cli.{IN_FILE.get(first, first)}"), title)


def run_command(name: str, arguments: list[str]) -> int:
    """Read the command's options and run it; return its exit status."""
    import tyro

    from semmix.cli.options import HELP, TEXT_READERS, TYRO_STYLE

    command = command_class(name)
    with TEXT_READERS:
        if hasattr(command, "show_help") and not set(HELP).isdisjoint(arguments):
            command.show_help(arguments)
            raise SystemExit(0)
        given = tyro.cli(command, prog=f"semmix {name}", description=COMMANDS[name], args=arguments, config=TYRO_STYLE)
    status = given.run()  # what a command returns beside it is for Python
    return status if isinstance(status, int) else 0


def run() -> None:
    """Entry point of the installed `semmix`."""
    raise SystemExit(main())
