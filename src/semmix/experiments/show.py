"""Ours beside the paper's: the lines of a table, their ranks, and how they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass

from semmix.calibration import Interval
from semmix.experiments.cells import Cell
from semmix.experiments.published import COLUMNS
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
    """Return each line's rank among those of its group: ours, and the paper's.

    Ours counts only lines that were run, so ranks mean little until a group is full.
    """
    sign = -1 if COLUMNS[key].higher_is_better else 1
    ours = [sign * line.ours[key].value if key in line.ours else None for line in lines]
    paper = [sign * line.cell.paper[key] if key in line.cell.paper else None for line in lines]
    groups = [line.cell.group for line in lines]
    return list(zip(_ranks(ours, groups), _ranks(paper, groups), strict=True))


def _ranks(values: Sequence[float | None], groups: Sequence[str]) -> list[int | None]:
    """Return 1 + the number of better values in the same group; equal values share a rank."""
    members = list(zip(values, groups, strict=True))

    def num_better(mine: float, group: str) -> int:
        return sum(value is not None and value < mine for value, other in members if other == group)

    return [None if mine is None else 1 + num_better(mine, group) for mine, group in members]


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

    Args:
        lines: The lines.
        columns: Keys of `COLUMNS`.
        search: How the temperatures were found; the headings name the grid.
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
