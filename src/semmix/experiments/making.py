"""`semmix table`: plan a table of the paper, say what it costs, run what is missing, show it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from semmix.calibration import Interval, mean_interval
from semmix.core.checks import check_positive
from semmix.core.errors import require, unknown_name
from semmix.core.progress import say
from semmix.core.runtime import Runtime
from semmix.experiments.catalog import TABLES, Budget, plan_table, table_called, within
from semmix.experiments.cells import METHODS_BY_NAME, OWN, RECIPES, Cell, Protocol, TableSettings, protocol_called
from semmix.experiments.cost import cost_of, images_seen
from semmix.experiments.paper import COLUMNS
from semmix.experiments.results import RunFolder, keep_run, measure_run
from semmix.experiments.running import plain_cell, run_cell, run_together
from semmix.methods import method
from semmix.report.rows import show_estimate
from semmix.report.table import Table
from semmix.runs import Run, Search

_AFTER_T = ("temperature", "ece_ts", "aece_ts")
"""Columns that depend on how the temperature is found."""


@dataclass(frozen=True)
class Line:
    """One cell and what came of it."""

    cell: Cell
    ours: dict[str, Interval]
    """By metric; empty where nothing was run."""
    runs: Sequence[Run]
    """The runs behind `ours`, one for each seed."""
    command: str
    """What fills it, or what is missing before anything can; empty once it is filled."""

    def delta(self, key: str) -> float | None:
        """Return ours less the paper's, where there are both."""
        both = key in self.ours and key in self.cell.paper
        return self.ours[key].value - self.cell.paper[key] if both else None

    def show(self, key: str) -> str:
        """Return ours, the paper's and the difference, as far as they are there."""
        metric, difference = COLUMNS[key], self.delta(key)
        ours = show_estimate(metric, self.ours[key]) if key in self.ours else None
        paper = metric.show(self.cell.paper[key]) if key in self.cell.paper else None
        change = "" if difference is None else f" ({metric.show(difference, signed=True)})"
        return _pair(ours, paper) + change


def ranks(lines: Sequence[Line], key: str) -> list[tuple[int | None, int | None]]:
    """Return each line's rank among those of its group: ours, and the paper's; equal values share a rank.

    Ours counts only lines that were run, so ranks mean little until a group is full.
    """
    sign, groups = -1 if COLUMNS[key].higher_is_better else 1, [line.cell.group for line in lines]

    def ranked(values: list[float | None]) -> list[int | None]:
        members = [(None if value is None else sign * value, of) for value, of in zip(values, groups, strict=True)]
        rivals = {of: [value for value, other in members if value is not None and other == of] for of in groups}
        return [None if mine is None else 1 + sum(value < mine for value in rivals[of]) for mine, of in members]

    ours = ranked([line.ours[key].value if key in line.ours else None for line in lines])
    return list(zip(ours, ranked([line.cell.paper.get(key) for line in lines]), strict=True))


def _pair(ours: object, paper: object) -> str:
    """Return `ours / paper`, with a blank for what is not there.

    >>> _pair(None, 3)
    '  / 3'
    """
    if paper is None:
        return "" if ours is None else str(ours)
    return f"{' ' if ours is None else ours} / {paper}"


def lines_table(lines: Sequence[Line], columns: Sequence[str], search: Search = "nll") -> Table:
    """Return the table to read: ours, the paper's, and the difference; ranked by ECE where it is shown.

    `columns` are keys of `COLUMNS`; where `search` says that temperatures were found on a grid, so do the headings.
    """
    key = "ece" if "ece" in columns else columns[0]
    heads = [COLUMNS[name].title for name in columns]
    if search == "ece-grid":
        heads = [head.replace("T", "grid T") if c in _AFTER_T else head for c, head in zip(columns, heads, strict=True)]
    rows = [
        [line.cell.name, str(len(line.runs)), *map(line.show, columns), _pair(*rank)]
        for line, rank in zip(lines, ranks(lines, key), strict=True)
    ]
    return Table(["Cell", "Seeds", *heads, f"Rank by {COLUMNS[key].heading}"], rows)


def numbers_table(lines: Sequence[Line], columns: Sequence[str], search: Search = "nll") -> Table:
    """Return every number in full precision, shares as fractions, for CSV: a line per cell and metric."""
    headings = ("cell", "seeds", "metric", "ours", "low", "high", "paper", "delta", "rank", "paper_rank", "to_fill")
    rows = []
    for key in columns:
        name = f"{key}_grid" if search == "ece-grid" and key in _AFTER_T else key
        for line, rank in zip(lines, ranks(lines, key), strict=True):
            value = line.ours.get(key)
            ours = [value.value, value.low, value.high] if value else [None] * 3
            numbers = [*ours, line.cell.paper.get(key), line.delta(key), *rank]
            texts = ["" if number is None else str(number) for number in numbers]
            rows.append([line.cell.name, str(len(line.runs)), name, *texts, line.command])
    return Table(headings, rows)


def render(lines: Sequence[Line], columns: Sequence[str], form: str, search: Search = "nll") -> str:
    """Return the table as `text`, `markdown`, `latex` or `csv`."""
    table = numbers_table if form == "csv" else lines_table
    return table(lines, columns, search).render(form)


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
        require(self.jobs >= 1, "no process to do the runs", f"jobs={self.jobs}", "use at least one job")
        trains = self.seeds is None or self.seeds >= 1
        require(trains, "nothing to train", f"seeds={self.seeds}", "use at least one seed")
        if self.scale is not None:
            check_positive(scale=self.scale)
        method("csm", num_classes=2, **self.options)  # a misspelt option is named at once
        if self.from_ is not None:
            require(self.from_.is_dir(), "no results here", self.from_, "name the folder that --keep filled")
            fix = "leave out --from to run what is missing, or --keep to show what is there"
            require(self.keep is None, "--from runs nothing that could be kept", self.keep, fix)

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
    notes += [f"budget {config.budget}: not to be compared with the paper"] if config.budget != "full" else []
    runs = dict.fromkeys(str(run.folder) for line in lines for run in line.runs)
    if table.figure and runs:
        notes.append(f"the figure: {shlex.join(['semmix', 'report', *runs])}")
    blank = [f"  {line.cell.name}: {line.command}" for line in lines if line.command]
    return [*notes, *(["to fill:", *blank] if blank else [])]
