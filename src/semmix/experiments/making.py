"""`semmix table`: plan a table of the paper, say what it costs, run what is missing, show it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from semmix.calibration import mean_interval
from semmix.core.checks import check_positive
from semmix.core.errors import SemmixError, unknown_name
from semmix.core.progress import say
from semmix.core.runtime import Runtime
from semmix.experiments.catalog import TABLES, Budget, plan_table, table_called, within
from semmix.experiments.cells import METHODS_BY_NAME, OWN, Cell, TableSettings
from semmix.experiments.cost import cost_of, images_seen
from semmix.experiments.jobs import run_together
from semmix.experiments.protocols import RECIPES, Protocol, protocol_called
from semmix.experiments.results import RunFolder, keep_run, measure_run
from semmix.experiments.running import plain_cell, run_cell
from semmix.experiments.show import Line, render
from semmix.methods import method
from semmix.runs import Search


@dataclass(frozen=True, kw_only=True)
class TableConfig(TableSettings):
    """Make a table of the paper: ours beside the published numbers."""

    name: Annotated[Positional[str], arg(help=f"Table or figure: {', '.join(TABLES)}.")]
    """Table or figure."""
    dataset: Annotated[str | None, arg(help=f"Data set: {', '.join(RECIPES)}.")] = None
    """Data set; those of the paper by default."""
    classifier: str | None = None
    """Network to train instead of the table's, as semmix train takes it."""
    cells: str = "*"
    """Cells to make, as a pattern such as cifar10/resnet50/*."""
    methods: tuple[str, ...] = ()
    """Methods to make; all of the table by default."""
    seeds: int | None = None
    """Trainings of each cell; 3 by default, 1 for the smoke budget."""
    budget: Budget = "full"
    """full: as published; short: a tenth; smoke: to see that it runs at all."""
    temperature: Search | None = None
    """How T is found on validation images. nll: least NLL, as everywhere in semmix; ece-grid: least ECE
    among 0.1, 0.2, ..., 10, as published, under headings that say grid T. By default that of the protocol:
    nll for semmix, ece-grid for code and paper."""
    out: Path = Path("runs/tables")
    """Folder of generators, mixed sets and runs; run the same command again to go on."""
    keep: Path | None = None
    """Also keep each run here as soon as it is finished, small enough to commit."""
    from_: Annotated[Path | None, arg(name="from")] = None
    """Run nothing: compute every number from the kept runs in this folder."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    """How to print."""
    plan: bool = False
    """Run nothing: list the cells and what they cost."""
    device: str = "auto"
    """auto, cpu or cuda."""
    jobs: int = 1
    """Runs at a time, each in a process of its own; they take turns on the GPUs there are."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise SemmixError("no process to do the runs", f"jobs={self.jobs}", "use at least one job")
        if self.seeds is not None and self.seeds < 1:
            raise SemmixError("nothing to train", f"seeds={self.seeds}", "use at least one seed")
        if self.scale is not None:
            check_positive(scale=self.scale)
        method("csm", num_classes=2, **self.options)  # a misspelt option is named at once
        if self.from_ is not None and not self.from_.is_dir():
            fix = "name the folder that --keep filled"
            raise SemmixError("no results here", self.from_, fix)
        if self.from_ is not None and self.keep is not None:
            fix = "leave out --from to run what is missing, or --keep to show what is there"
            raise SemmixError("--from runs nothing that could be kept", self.keep, fix)

    @property
    def measured_by(self) -> Protocol:
        """The protocol, with the temperature that was asked for."""
        protocol = protocol_called(self.protocol)
        return replace(protocol, temperature=self.temperature or protocol.temperature)


def make_table(config: TableConfig) -> None:
    """Plan, run what is missing, and print what there is."""
    cells, runs = chosen_cells(config), RunFolder(config.from_ or config.out / "runs")
    if config.plan:
        say("\n".join(plan_lines(cells, runs, config.device)))
        return
    if config.from_ is None:
        run_missing(cells, runs, config)
    lines = table_lines(cells, runs, config)
    say(render(lines, table_called(config.name).columns, config.format, config.measured_by.temperature))
    if config.format == "text":
        say("\n".join(footnotes(lines, config)))


def chosen_cells(config: TableConfig) -> list[Cell]:
    """Return the cells the command asks for, within its budget."""
    every = plan_table(config.name, config.dataset, config, config.classifier)
    cells = [cell for cell in every if fnmatch(cell.name, config.cells)]
    if not cells:
        raise unknown_name("cell", config.cells, [cell.name for cell in every])
    wanted = {METHODS_BY_NAME.get(name, name) for name in config.methods}  # named `csm` or `CSM`
    known = {cell.train.method for cell in cells}
    for name in sorted(wanted - known):
        raise unknown_name(f"method of table {config.name}", name, known)
    cells = [within(cell, config.budget) for cell in cells if not wanted or cell.train.method in wanted]
    return [replace(cell, seeds=config.seeds or cell.seeds) for cell in cells]


def plan_lines(cells: Sequence[Cell], runs: RunFolder, device: str = "auto") -> list[str]:
    """Return one line for each cell and one for the cost of what is missing."""
    lines = []
    for cell in cells:
        state = f"{cell.seeds - len(runs.missing(cell))} of {cell.seeds} seeds done"
        state = f"needs {cell.needs}" if cell.needs else state
        lines.append(f"{cell.name}  {images_seen(cell):,} images each; {state}")
    return [*lines, str(cost_of(_to_do(cells, runs), device))]


def _to_do(cells: Sequence[Cell], runs: RunFolder) -> list[tuple[Cell, int]]:
    """Return the cells that can run, each with its seeds to train; the same runs only once."""
    able = {cell.run_name(0): cell for cell in cells if not cell.needs}
    to_do = {name: (cell, runs.untrained(cell)) for name, cell in able.items()}
    for cell, missing in [*to_do.values()]:
        if missing and cell.mixing and cell.mixing.encoder == OWN:
            encoder = plain_cell(cell)
            to_do.setdefault(encoder.run_name(0), (encoder, runs.untrained(encoder)))
    return [*to_do.values()]


def run_missing(cells: Sequence[Cell], runs: RunFolder, config: TableConfig) -> None:
    """Say what is to do and do it: the first seed of every cell, then the second, ..."""
    if config.keep:
        for run in {run for cell in cells for run in runs.finished(cell)}:
            keep_run(run, config.keep)
    cost = cost_of(_to_do(cells, runs), config.device)
    if cost.num_runs:
        say(str(cost))
    missing = [(cell, seed) for cell in cells if not cell.needs for seed in runs.missing(cell)]
    missing.sort(key=lambda job: job[1])
    runtime = Runtime(device=config.device)
    if config.jobs > 1:
        run_together(missing, config.out, config.jobs, config.keep, runtime)
    else:
        for cell, seed in missing:
            run_cell(cell, seed, config.out, config.keep, runtime)


def table_lines(cells: Sequence[Cell], folder: RunFolder, config: TableConfig) -> list[Line]:
    """Return the table's lines from the finished runs; a cell without any is blank."""
    protocol, lines = config.measured_by, []
    for cell in cells:
        runs = [] if cell.needs else folder.finished(cell)
        numbers = [measure_run(run, cell, protocol) for run in runs]
        for run in runs:
            run.release()  # a table may have more runs than memory holds
        ours = {key: mean_interval([n[key] for n in numbers]) for key in (numbers[0] if numbers else ())}
        to_fill = f"needs {cell.needs}" if cell.needs else ""
        if not to_fill and folder.missing(cell):
            to_fill = command_for(cell, config)
        lines.append(Line(cell, ours, runs, to_fill))
    return lines


def command_for(cell: Cell, config: TableConfig) -> str:
    """Return the command that fills a cell."""
    words = ["semmix", "table", cell.table, "--dataset", cell.data.dataset, "--cells", cell.name]
    words += ["--seeds", str(cell.seeds)]
    defaults = TableConfig(name=cell.table)
    for option in ("classifier", "budget", "protocol", "generator", "encoder", "scale", "emphasis", "out"):
        value = getattr(config, option)
        words += [f"--{option}", str(value)] if value != getattr(defaults, option) else []
    words += ["--options", *(f"{name}={value}" for name, value in config.options.items())] if config.options else []
    words += ["--keep", str(config.from_)] if config.from_ else []
    return shlex.join(words)


def footnotes(lines: Sequence[Line], config: TableConfig) -> list[str]:
    """Return what a reader of the table must know."""
    table = table_called(config.name)
    notes = ["ours ± 95 % interval over seeds / the paper's (ours less the paper's)"]
    if config.budget != "full":
        notes.append(f"budget {config.budget}: not to be compared with the paper")
    runs = dict.fromkeys(str(run.folder) for line in lines for run in line.runs)
    if table.figure and runs:
        notes.append(f"the figure: {shlex.join(['semmix', 'report', *runs])}")
    blank = [f"  {line.cell.name}: {line.command}" for line in lines if line.command]
    return [*notes, *(["to fill:", *blank] if blank else [])]
