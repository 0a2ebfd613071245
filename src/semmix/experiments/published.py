"""The paper's own numbers, as printed there: one CSV file for each table, kept in the package."""

import csv
from functools import cache
from importlib.resources import files

from semmix.calibration import METRICS, Metric
from semmix.core.errors import SemmixError, unknown_name

_NAMES = "acc ece aece oe ue nll brier ece_ts aece_ts temperature auroc piece hours"
COLUMNS = {name: METRICS[name] for name in _NAMES.split()}
"""What a table may show: the columns of the CSV files that hold results, and some more."""

_PACKAGE = "semmix.experiments"
_RENAMED = {"hours_a4000": "hours"}


def list_published() -> list[str]:
    """Return the names of the tables with published numbers."""
    folder = files(_PACKAGE) / "paper_tables"
    return sorted(item.name.removesuffix(".csv") for item in folder.iterdir())


@cache
def published_rows(table: str) -> tuple[dict[str, str], ...]:
    """Return the lines of one published table as text, exactly as its file has them."""
    if table not in list_published():
        raise unknown_name("published table", table, list_published())
    path = files(_PACKAGE) / "paper_tables" / f"{table}.csv"
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def published(table: str, **keys: str) -> dict[str, float]:
    """Return the numbers of the line whose keys are these; shares as fractions, not per cent.

    >>> published("eq_data", method="CSM")["ece"]
    0.0091
    """
    found = [row for row in published_rows(table) if keys.items() <= row.items()]
    if len(found) != 1:
        fix = f"the keys must name one line of {table}.csv"
        raise SemmixError(f"{len(found)} published lines have these keys", keys, fix)
    (row,) = found
    named = {_RENAMED.get(name, name): text for name, text in row.items()}
    return {k: _number(COLUMNS[k], text) for k, text in named.items() if k in COLUMNS and text}


def _number(metric: Metric, text: str) -> float:
    return round(float(text) / 100, 6) if metric.unit == "%" else float(text)
