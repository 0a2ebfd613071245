"""Ours beside the paper's: the lines of a table, their ranks, and four ways to print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semmix.calibration import Interval, Metric
from semmix.experiments.cells import Cell
from semmix.experiments.published import COLUMNS
from semmix.report.rows import show_estimate
from semmix.report.table import Table
from semmix.runs import Run


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


def delta(line: Line, key: str) -> float | None:
    """Return ours less the paper's, where there are both."""
    if key not in line.ours or key not in line.cell.paper:
        return None
    return line.ours[key].value - line.cell.paper[key]


def rank_key(columns: Sequence[str]) -> str:
    """Return the metric by which lines are ranked: ECE where it is shown."""
    return "ece" if "ece" in columns else columns[0]


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
    return [
        None
        if mine is None
        else 1
        + sum(
            theirs is not None and theirs < mine and other == group
            for theirs, other in zip(values, groups, strict=True)
        )
        for mine, group in zip(values, groups, strict=True)
    ]


def lines_table(lines: Sequence[Line], columns: Sequence[str]) -> Table:
    """Return the table to read: ours, the paper's, and the difference."""
    key = rank_key(columns)
    heads = [COLUMNS[c].title for c in columns]
    rows = [
        [line.cell.name, str(len(line.runs)), *(_text(line, c) for c in columns), _pair(*rank)]
        for line, rank in zip(lines, ranks(lines, key), strict=True)
    ]
    return Table(["Cell", "Seeds", *heads, f"Rank by {COLUMNS[key].heading}"], rows)


def numbers_table(lines: Sequence[Line], columns: Sequence[str]) -> Table:
    """Return every number in full precision, shares as fractions, for CSV: a line per cell and metric."""
    headings = ("cell", "seeds", "metric", "ours", "low", "high", "paper", "delta", "rank", "paper_rank", "to_fill")
    rows = []
    for key in columns:
        for line, rank in zip(lines, ranks(lines, key), strict=True):
            value = line.ours.get(key)
            ours = [value.value, value.low, value.high] if value else [None] * 3
            numbers = [*ours, line.cell.paper.get(key), delta(line, key), *rank]
            texts = ["" if number is None else str(number) for number in numbers]
            rows.append([line.cell.name, str(len(line.runs)), key, *texts, line.command])
    return Table(headings, rows)


def _text(line: Line, key: str) -> str:
    metric, difference = COLUMNS[key], delta(line, key)
    ours = show_estimate(metric, line.ours[key]) if key in line.ours else ""
    paper = metric.show(line.cell.paper[key]) if key in line.cell.paper else ""
    change = "" if difference is None else f" ({_signed(metric, difference)})"
    return _pair(ours or None, paper or None) + change


def _signed(metric: Metric, value: float) -> str:
    return metric.show(value, signed=True)


def _pair(ours: object, paper: object) -> str:
    """Return `ours / paper`, with a blank for what is not there.

    >>> _pair(None, 3)
    '  / 3'
    """
    if paper is None:
        return "" if ours is None else str(ours)
    return f"{' ' if ours is None else ours} / {paper}"


def render(lines: Sequence[Line], columns: Sequence[str], form: str) -> str:
    """Return the table as `text`, `markdown`, `latex` or `csv`."""
    return numbers_table(lines, columns).csv() if form == "csv" else lines_table(lines, columns).render(form)
