"""Predictions from tables, CSV or Parquet: which columns hold labels and scores, in which order."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from semmix.core.errors import SemmixError, some_of
from semmix.core.files import delimiter_of
from semmix.evaluation.parts import (
    LABEL_WORDS,
    PREDICTED_WORDS,
    ROWS_PER_BLOCK,
    SCORE_WORDS,
    SUM_TOLERANCE,
    Array,
    Names,
    Part,
    best_labels,
    best_scores,
    is_ignored,
    words,
)

Batches = Iterator[tuple[Array, Array]]

ROW_WORDS = {"confidence", "conf", "entropy", "margin", "loss", "weight", "weights", "fold"}
"""Columns so called tell of a row, not of a class."""

LOOKED_AT = 100
"""Rows by which columns are judged."""


class Column(NamedTuple):
    """A column of a table: where it stands, its name, its first values."""

    place: int
    name: str
    head: list[Any]

    @property
    def is_text(self) -> bool:
        return bool(self.head) and all(isinstance(value, str | None) for value in self.head)

    @property
    def is_whole(self) -> bool:
        numbers = [value for value in self.head if isinstance(value, int | float)]
        return len(numbers) == len(self.head) and all(float(x).is_integer() for x in numbers)

    @property
    def is_answer(self) -> bool:
        """Whether it holds the classes a model chose, as `pred` does; `pred_0` holds scores."""
        named = words(self.name)
        known = named <= {*PREDICTED_WORDS, *LABEL_WORDS, "name"} and self.name[-1:].isalpha()
        return known and bool(named & PREDICTED_WORDS) and (self.is_text or self.is_whole)


class Choice(NamedTuple):
    """Columns to read: that of the labels, and one per class."""

    label: Column
    scores: list[Column]
    warnings: list[str]
    """What was mended."""

    @property
    def span(self) -> str:
        first, last = self.scores[0].name, self.scores[-1].name
        return first if first == last else f"{first} to {last}"


# --- choosing columns -----------------------------------------------------------------------------


def choose_columns(columns: list[Column], names: Names) -> Choice:
    """Return which columns to read, by the names given or the likeliest ones."""
    label = _choose_label(columns, names.labels)
    others = [column for column in columns if column is not label and not _is_number_of_row(column)]
    if names.scores:
        scores = [column for column in others if column.name.startswith(names.scores)]
    else:
        scores = _likely_scores(others)
    if not scores:
        fix = f"pass --scores PREFIX; columns: {_list(columns)}"
        raise SemmixError("which columns hold the scores?", names.scores, fix)
    # Labels that are names of columns mean the same in any order of these.
    return Choice(label, *((scores, []) if label.is_text else in_order_of_numbers(scores)))


def in_order_of_numbers(columns: list[Column]) -> tuple[list[Column], list[str]]:
    """Return columns that differ by a number in its order, with a warning if that moved any."""
    numbered = _numbered(columns)
    if len(columns) == 1 or len(numbered) != 1 or len(*numbered.values()) < len(columns):
        return columns, []
    (by_number,), count = numbered.values(), len(columns)
    ordered = [column for _, column in by_number]
    if not _is_series(by_number):
        what = f"the score columns are not numbered 0 to {count - 1} or 1 to {count}"
        fix = "number them so, without gaps, or choose others by --scores PREFIX"
        raise SemmixError(what, _list(ordered), fix)
    told = f"score columns stand as {_list(columns)}: read in the order of their numbers"
    return ordered, [] if ordered == columns else [told]


def _choose_label(columns: list[Column], wanted: str | None) -> Column:
    name = wanted or best_labels(column.name for column in columns)
    for column in columns:
        if column.name == name:
            return column
    fix = f"pass --labels NAME; columns: {_list(columns)}"
    raise SemmixError("which column holds the labels?", name, fix)


def _is_number_of_row(column: Column) -> bool:
    """Return whether it is a column such as `id`, or the one without a name that pandas writes."""
    return not column.name or is_ignored(column.name)


def _numbered(columns: list[Column]) -> dict[tuple[str, str], list[tuple[int, Column]]]:
    """Return columns with a number in their name, in its order, by the rest of the name."""
    found = [(re.fullmatch(r"(.*?)(\d+)(\D*)", column.name), column) for column in columns]
    numbered: dict[tuple[str, str], list[tuple[int, Column]]] = {}
    for match, column in found:
        if match:
            numbered.setdefault((match[1], match[3]), []).append((int(match[2]), column))
    return {stem: sorted(held, key=lambda pair: pair[0]) for stem, held in numbered.items()}


def _is_series(numbered: list[tuple[int, Column]]) -> bool:
    """Return whether the numbers go from 0 or 1 without gaps."""
    numbers = [number for number, _ in numbered]
    return numbers in (list(range(len(numbers))), list(range(1, len(numbers) + 1)))


def _likely_scores(columns: list[Column]) -> list[Column]:
    """Return columns called scores, or all with numbers; answers only where there is no other."""
    for likely in ([column for column in columns if not column.is_answer], columns):
        if scores := _called_scores(likely) or _numbers_of_classes(likely):
            return _only_series(scores)
    return []


def _called_scores(columns: list[Column]) -> list[Column]:
    """Return the columns of one kind of score: logits, say, and no probabilities beside them."""
    best = best_scores(column.name for column in columns)
    word = next((word for word in SCORE_WORDS if best and word in words(best)), None)
    return [column for column in columns if word in words(column.name)]


def _numbers_of_classes(columns: list[Column]) -> list[Column]:
    """Return columns of numbers, without those that tell of a row unless there are no others."""
    numbers = [column for column in columns if not column.is_text]
    if _sum_to_one(numbers):
        return numbers
    return [column for column in numbers if not words(column.name) & ROW_WORDS] or numbers


def _only_series(columns: list[Column]) -> list[Column]:
    """Return the columns numbered one by one, such as `p0` and `p1`, where there are such.

    Probabilities that sum to one are complete: classes may be called `healthy`, `type1`, `type2`.
    """
    if _sum_to_one(columns):
        return columns
    series = [held for held in _numbered(columns).values() if len(held) > 1 and _is_series(held)]
    if len(series) > 1:
        fix = "pass --scores PREFIX, how those of one kind begin"
        raise SemmixError("which columns hold the scores?", _list(columns), fix)
    places = {column.place for held in series for _, column in held}
    return [column for column in columns if column.place in places] if series else columns


def _sum_to_one(columns: list[Column]) -> bool:
    """Return whether the first rows are probabilities of all classes, or percentages."""
    heads = [column.head for column in columns]
    if not all(isinstance(value, int | float) for head in heads for value in head):
        return False
    rows = list(zip(*heads, strict=False))
    return any(
        all(min(row) >= 0 and abs(sum(row) / unit - 1) <= SUM_TOLERANCE for row in rows) for unit in (1, 100)
    ) and bool(rows)


def _list(columns: list[Column]) -> str:
    return some_of([column.name for column in columns])


# --- reading --------------------------------------------------------------------------------------


def read_csv(path: Path, names: Names) -> Part:
    """Return the part in a CSV file with a header."""
    delimiter, columns, num_rows = _look_at_csv(path)
    if all(_is_number(column.name) for column in columns):
        fix = "give it a first line of column names, such as label,prob_0,prob_1"
        raise SemmixError("the CSV file has no header", _list(columns), fix)
    _refuse_decimal_commas(delimiter, columns)
    choice = choose_columns(columns, names)
    batches = _csv_batches(path, delimiter, choice)
    return _make_part(path, columns, choice, num_rows, batches)


def read_csv_matrix(path: Path) -> tuple[Array, list[str]]:
    """Return all columns but those of row numbers, and what was mended; a header is optional."""
    delimiter, columns, _ = _look_at_csv(path)
    has_names = not all(_is_number(column.name) for column in columns)
    warnings: list[str] = []
    if has_names:
        columns = [column for column in columns if not _is_number_of_row(column)]
        columns, warnings = in_order_of_numbers(columns)
    with open(path, encoding="utf-8-sig") as file:
        lines = islice(file, int(has_names), None)
        return _parse(lines, delimiter, columns), warnings


def _look_at_csv(path: Path) -> tuple[str, list[Column], int]:
    """Return what separates columns, the columns, and the number of rows after the first line."""
    with open(path, encoding="utf-8-sig") as file:
        header = file.readline()
        rows = (line for line in file if line.strip())
        first = list(islice(rows, LOOKED_AT))
        num_rows = len(first) + sum(1 for _ in rows)
    delimiter = delimiter_of(header)
    names, *cells = csv.reader([header, *first], delimiter=delimiter)
    _refuse_cells_without_a_name(names, cells)
    columns = [
        Column(k, name.strip().strip("\"'"), [_value(row[k]) for row in cells if k < len(row)])
        for k, name in enumerate(names)
    ]
    return delimiter, columns, num_rows


def _refuse_cells_without_a_name(names: list[str], cells: list[list[str]]) -> None:
    """Refuse rows that are longer than the first line: all columns may be one too far left."""
    for row in cells:
        if any(cell.strip() for cell in row[len(names) :]):
            seen = f"{', '.join(row[:3])}, … has {len(row)} cells, the first line {len(names)}"
            fix = "name every column, also that of R's row names; put text with commas in quotes"
            raise SemmixError("a row is longer than the first line", seen, fix)


def _refuse_decimal_commas(delimiter: str, columns: list[Column]) -> None:
    """Refuse numbers as a spreadsheet in many languages writes them, with semicolons between."""
    texts = (value for column in columns for value in column.head if isinstance(value, str))
    comma = next((text for text in texts if "," in text and _is_number(_pointed(text))), None)
    if delimiter != "," and comma is not None:
        fix = f"write {_pointed(comma)}: a spreadsheet does where its language is set to English"
        raise SemmixError("numbers are written with a comma", comma, fix)


def _pointed(number: str) -> str:
    return number.replace(",", ".")


def _value(cell: Any) -> Any:
    """Return what a cell says, as a number where it is one."""
    return float(cell) if isinstance(cell, str) and _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv_batches(path: Path, delimiter: str, choice: Choice) -> Batches:
    with open(path, encoding="utf-8-sig") as file:
        next(file)
        rows = (line for line in file if line.strip())
        while lines := list(islice(rows, ROWS_PER_BLOCK)):
            labels = _parse(lines, delimiter, [choice.label], str if choice.label.is_text else float)
            yield _parse(lines, delimiter, choice.scores), labels[:, 0]


def _parse(lines: Iterable[str], delimiter: str, columns: list[Column], kind: type = float) -> Array:
    places = [column.place for column in columns]
    return np.loadtxt(lines, kind, delimiter=delimiter, usecols=places, ndmin=2, quotechar='"', comments=None)


def read_parquet(path: Path, names: Names) -> Part:
    """Return the part in a Parquet file; a column of lists holds the scores of all classes."""
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        fix = "pip install 'semmix[parquet]'"
        raise SemmixError("reading parquet needs pyarrow", path.name, fix) from error
    file = parquet.ParquetFile(path)
    columns = _look_at_parquet(file)
    choice = choose_columns(columns, names)
    lists = [c for c in choice.scores if types.is_nested(file.schema_arrow.types[c.place])][:1]
    choice = choice._replace(scores=lists or choice.scores)
    batches = _parquet_batches(file, choice, is_list=bool(lists))
    return _make_part(path, columns, choice, file.metadata.num_rows, batches)


def _look_at_parquet(file: Any) -> list[Column]:
    first = next(file.iter_batches(LOOKED_AT), None)
    return [
        Column(k, name, [] if first is None else [_value(x) for x in first.column(k).to_pylist()])
        for k, name in enumerate(file.schema_arrow.names)
    ]


def _parquet_batches(file: Any, choice: Choice, is_list: bool) -> Batches:
    wanted = [column.name for column in choice.scores]
    for batch in file.iter_batches(ROWS_PER_BLOCK, columns=[*wanted, choice.label.name]):
        arrays = [batch.column(name) for name in wanted]
        if is_list:
            scores = arrays[0].flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
        else:
            scores = np.stack([column.to_numpy(zero_copy_only=False) for column in arrays], 1)
        yield scores, batch.column(choice.label.name).to_numpy(zero_copy_only=False)


def _make_part(path: Path, columns: list[Column], choice: Choice, num_rows: int, batches: Batches) -> Part:
    names = tuple(column.name for column in choice.scores)
    scores, labels = _collect(num_rows, batches, names if choice.label.is_text else None)
    used = [choice.label, *choice.scores]
    unused = [column for column in columns if column not in used and column.name]
    origin = f"{path.name}: scores from {choice.span!r} {list(scores.shape)}, "
    origin += f"labels from {choice.label.name!r}"
    origin += f", not used: {_list(unused)}" if unused else ""
    by_name, warnings = choice.label.is_text, tuple(choice.warnings)
    return Part(scores, labels, choice.span, origin, names, by_name, warnings)


def _collect(num_rows: int, batches: Batches, names: tuple[str, ...] | None) -> tuple[Array, Array]:
    """Return whole columns, filled batch by batch so that no table is held twice."""
    scores, labels, start = None, np.empty(num_rows), 0
    for rows, row_labels in batches:
        if scores is None:
            scores = np.empty((num_rows, rows.shape[1]), rows.dtype)
        scores[start : start + len(rows)] = rows
        labels[start : start + len(rows)] = _places(row_labels, names) if names else row_labels
        start += len(rows)
    if scores is None:
        raise SemmixError("the table has no rows", num_rows, "check the file")
    return scores, labels


def _places(labels: Array, names: tuple[str, ...]) -> Array:
    """Return which of the columns each label names."""
    texts, inverse = np.unique(labels.astype(str), return_inverse=True)
    places = {name: place for place, name in enumerate(names) if len(names) > 1}
    for text in texts:
        if text.strip() not in places:
            fix = f"use 0 to K-1, or the names of the score columns: {', '.join(names[:12])}"
            raise SemmixError("labels must be class indices or names of columns", repr(str(text)), fix)
    return np.array([places[text.strip()] for text in texts])[inverse]
