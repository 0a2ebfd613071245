"""Scores and labels in a table, CSV or Parquet: which columns hold them, and in which order."""

import csv
import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semmix.core.errors import SemmixError, require, some_of
from semmix.core.extras import import_extra
from semmix.core.files import delimiter_of

Array = NDArray[Any]

SUM_TOLERANCE = 2e-2
"""How far rows of probabilities may be from summing to one, or to 100, by rounding."""
PROB_WORDS = ("probs", "prob", "probabilities", "proba", "softmax")
OUTPUT_WORDS = ("scores", "score", "outputs", "output", "predictions", "preds", "pred")
SCORE_WORDS = ("logits", "logit", *PROB_WORDS, *OUTPUT_WORDS, "p")
LABEL_WORDS = ("labels", "label", "targets", "target", "truth", "true", "gt", "y", "class")
PREDICTED_WORDS = {"pred", "preds", "prediction", "predictions", "predicted"}
IGNORED_WORDS = {"train", "training", "features", "index", "idx", "id", "ids", "unnamed"}
"""Arrays and columns so called hold neither scores nor labels."""
ROW_WORDS = {"confidence", "conf", "entropy", "margin", "loss", "weight", "weights", "fold"}
"""Columns so called describe a row, not a class."""
LOOKED_AT = 100
"""Rows by which columns are judged."""


class Part(NamedTuple):
    """Scores as they stand in a file, `[N, K]` or `[N]`, read only where sliced, and labels."""

    scores: Any
    labels: Array
    """Class indices `[N]`, or one-hot rows `[N, K]`."""
    name: str
    """What the scores are called there."""
    origin: str
    """A sentence on where scores and labels were found."""
    columns: tuple[str, ...] = ()
    """The columns of a table, one per class."""
    names_columns: bool = False
    """Whether labels were given as names of columns, whose places they are now."""
    warnings: tuple[str, ...] = ()
    """What was corrected while reading."""


class Names(NamedTuple):
    """Names of the arrays or columns to read; None is guessed."""

    scores: str | None = None
    labels: str | None = None


class Column(NamedTuple):
    """A column of a table: where it stands, its name, its first values."""

    place: int
    name: str
    head: list[Any]

    @property
    def is_text(self) -> bool:
        return bool(self.head) and all(isinstance(value, str | None) for value in self.head)

    @property
    def numbers_rows(self) -> bool:
        """Whether it is a column such as `id`, or the one without a name that pandas writes."""
        return not self.name or bool(words(self.name) & IGNORED_WORDS)

    @property
    def is_prediction(self) -> bool:
        """Whether it holds the classes a model chose, as `pred` does; `pred_0` holds scores."""
        named = words(self.name)
        known = named <= {*PREDICTED_WORDS, *LABEL_WORDS, "name"} and self.name[-1:].isalpha()
        whole = all(isinstance(value, int | float) and float(value).is_integer() for value in self.head)
        return known and bool(named & PREDICTED_WORDS) and (self.is_text or whole)


Numbered = list[tuple[int, Column]]
"""Columns with the number in their names, in its order."""


# --- names ----------------------------------------------------------------------------------------


def words(name: str) -> set[str]:
    """Return the words of a name: `val_logits.2` gives `val` and `logits`."""
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))


def likeliest(names: Iterable[str], likely: Iterable[str] = SCORE_WORDS) -> str | None:
    """Return the first name that holds the earliest of the `likely` words."""
    names = list(names)
    return next((name for word in likely for name in names if word in words(name)), None)


def best_labels(names: Iterable[str]) -> str | None:
    """Return the name that most likely is that of labels; `pred_label` is not the truth."""
    return likeliest(not_predicted(names), LABEL_WORDS)


def not_predicted(names: Iterable[str]) -> list[str]:
    """Return the names that do not stand for a model's predictions."""
    return [name for name in names if not words(name) & PREDICTED_WORDS]


# --- choosing columns -----------------------------------------------------------------------------


def choose_columns(columns: list[Column], names: Names) -> tuple[Column, list[Column], list[str]]:
    """Return the column of labels, one column per class, and warnings; names not given are guessed."""
    require(any(column.head for column in columns), "the table has no rows", 0, "check the file")
    wanted = names.labels or best_labels(column.name for column in columns)
    label = next((column for column in columns if column.name == wanted), None)
    if label is None:
        fix = f"pass --labels NAME; columns: {_list(columns)}"
        raise SemmixError("which column holds the labels?", wanted, fix)
    others = [column for column in columns if column is not label and not column.numbers_rows]
    if names.scores:
        scores = [column for column in others if column.name.startswith(names.scores)]
    else:
        scores = _likely_scores(others)
    if not scores:
        fix = f"pass --scores PREFIX; columns: {_list(columns)}"
        raise SemmixError("which columns hold the scores?", names.scores, fix)
    # Labels that are names of columns mean the same in any order of these.
    ordered, warnings = (scores, []) if label.is_text else in_order_of_numbers(scores)
    return label, ordered, warnings


def in_order_of_numbers(columns: list[Column]) -> tuple[list[Column], list[str]]:
    """Return columns that differ by a number in its order, with a warning if that moved any."""
    numbered, count = _numbered(columns), len(columns)
    if count == 1 or [len(held) for held in numbered] != [count]:
        return columns, []
    ordered = [column for _, column in numbered[0]]
    if not _is_gapless(numbered[0]):
        what = f"the score columns are not numbered 0 to {count - 1} or 1 to {count}"
        fix = "number them so, without gaps, or choose others by --scores PREFIX"
        raise SemmixError(what, _list(ordered), fix)
    told = f"score columns stand as {_list(columns)}: read in the order of their numbers"
    return ordered, [] if ordered == columns else [told]


def _numbered(columns: list[Column]) -> list[Numbered]:
    """Return columns with a number in their name, in its order, those alike but for it together."""
    found: dict[tuple[str, str], Numbered] = {}
    for column in columns:
        if match := re.fullmatch(r"(.*?)(\d+)(\D*)", column.name):
            found.setdefault((match[1], match[3]), []).append((int(match[2]), column))
    return [sorted(held, key=lambda pair: pair[0]) for held in found.values()]


def _is_gapless(numbered: Numbered) -> bool:
    """Return whether the numbers go from 0 or 1 without gaps."""
    first = numbered[0][0]
    return first in (0, 1) and [number - first for number, _ in numbered] == list(range(len(numbered)))


def _likely_scores(columns: list[Column]) -> list[Column]:
    """Return columns called scores, or all with numbers; predicted classes only where there is no other."""
    for likely in ([column for column in columns if not column.is_prediction], columns):
        # Columns of one kind of score: logits, say, and no probabilities beside them.
        word = next((word for word in SCORE_WORDS if any(word in words(c.name) for c in likely)), None)
        scores = [column for column in likely if word in words(column.name)]
        if not scores:
            scores = [column for column in likely if not column.is_text]
            if not _sum_to_one(scores):
                scores = [column for column in scores if not words(column.name) & ROW_WORDS] or scores
        if scores:
            return _only_series(scores)
    return []


def _only_series(columns: list[Column]) -> list[Column]:
    """Return the columns numbered one by one, such as `p0` and `p1`, where there are such.

    Probabilities that sum to one are complete: classes may be called `healthy`, `type1`, `type2`.
    """
    series = [held for held in _numbered(columns) if len(held) > 1 and _is_gapless(held)]
    if not series or _sum_to_one(columns):
        return columns
    if len(series) > 1:
        fix = "pass --scores PREFIX, how those of one kind begin"
        raise SemmixError("which columns hold the scores?", _list(columns), fix)
    places = {column.place for _, column in series[0]}
    return [column for column in columns if column.place in places]


def _sum_to_one(columns: list[Column]) -> bool:
    """Return whether the first rows are probabilities of all classes, or percentages."""
    if not all(isinstance(value, int | float) for column in columns for value in column.head):
        return False
    rows = np.array(list(zip(*(column.head for column in columns), strict=False)), np.float64)
    if rows.size == 0 or rows.min() < 0:
        return False
    return any((np.abs(rows.sum(1) / unit - 1) <= SUM_TOLERANCE).all() for unit in (1, 100))


def _list(columns: list[Column]) -> str:
    return some_of([column.name for column in columns])


# --- reading --------------------------------------------------------------------------------------


def read_csv(path: Path, names: Names) -> Part:
    """Return the part in a CSV file with a header."""
    delimiter, columns = _look_at_csv(path)
    if not _has_names(columns):
        fix = "give it a first line of column names, such as label,prob_0,prob_1"
        raise SemmixError("the CSV file has no header", _list(columns), fix)
    texts = (value for column in columns for value in column.head if isinstance(value, str))
    comma = next((text for text in texts if "," in text and isinstance(_value(text.replace(",", ".")), float)), None)
    if delimiter != "," and comma is not None:
        fix = f"write {comma.replace(',', '.')}: a spreadsheet does where its language is set to English"
        raise SemmixError("numbers are written with a comma", comma, fix)
    label, scores, warnings = choose_columns(columns, names)
    places = {label.place: _place_in(scores)} if label.is_text else None
    rows = _parse(path, delimiter, [label, *scores], 1, places)
    return _make_part(path, columns, label, scores, warnings, rows[:, 1:], rows[:, 0])


def read_csv_matrix(path: Path) -> tuple[Array, list[str]]:
    """Return all columns but those of row numbers, and warnings; a header is optional."""
    delimiter, columns = _look_at_csv(path)
    warnings: list[str] = []
    if has_names := _has_names(columns):
        columns = [column for column in columns if not column.numbers_rows]
        columns, warnings = in_order_of_numbers(columns)
    return _parse(path, delimiter, columns, int(has_names)), warnings


def _look_at_csv(path: Path) -> tuple[str, list[Column]]:
    """Return what separates columns, and the columns as the first line and those below it tell them."""
    with open(path, encoding="utf-8-sig") as file:
        header = file.readline()
        first = list(islice((line for line in file if line.strip()), LOOKED_AT))
    delimiter = delimiter_of(header)
    names, *cells = csv.reader([header, *first], delimiter=delimiter)
    for row in cells:
        if any(cell.strip() for cell in row[len(names) :]):  # all columns may be one too far left
            seen = f"{', '.join(row[:3])}, … has {len(row)} cells, the first line {len(names)}"
            fix = "name every column, also that of R's row names; put text with commas in quotes"
            raise SemmixError("a row is longer than the first line", seen, fix)
    columns = [
        Column(k, name.strip().strip("\"'"), [_value(row[k]) for row in cells if k < len(row)])
        for k, name in enumerate(names)
    ]
    return delimiter, columns


def _has_names(columns: list[Column]) -> bool:
    """Return whether the first line holds more than numbers."""
    return any(isinstance(_value(column.name), str) for column in columns)


def _value(cell: Any) -> Any:
    """Return what a cell says, as a number where its text is one."""
    try:
        return float(cell) if isinstance(cell, str) else cell
    except ValueError:
        return cell


def _parse(path: Path, delimiter: str, columns: list[Column], skip: int, converters: Any = None) -> Array:
    """Return columns in float64 from the lines behind the first `skip`."""
    options: dict[str, Any] = {"delimiter": delimiter, "quotechar": '"', "comments": None, "ndmin": 2}
    places = [column.place for column in columns]
    with open(path, encoding="utf-8-sig") as file:
        lines = (line for line in islice(file, skip, None) if line.strip())
        return np.loadtxt(lines, usecols=places, converters=converters, encoding="utf-8", **options)


def read_parquet(path: Path, names: Names) -> Part:
    """Return the part in a Parquet file; a column of lists holds the scores of all classes."""
    parquet, types = (import_extra(f"pyarrow.{part}", "parquet", "reading parquet") for part in ("parquet", "types"))
    file = parquet.ParquetFile(path)
    schema = file.schema_arrow
    head = next(file.iter_batches(LOOKED_AT), schema.empty_table())
    columns = [Column(k, name, [_value(x) for x in head.column(k).to_pylist()]) for k, name in enumerate(schema.names)]
    label, scores, warnings = choose_columns(columns, names)
    scores = [c for c in scores if types.is_nested(schema.types[c.place])][:1] or scores
    table = file.read([column.name for column in (*scores, label)])
    held = [table.column(column.name) for column in scores]
    if types.is_nested(held[0].type):
        lists = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in held[0].chunks]
        rows = np.concatenate(lists).reshape(len(table), -1)
    else:
        rows = np.stack([column.to_numpy() for column in held], 1)
    truth = table.column(label.name)
    labels = np.array([*map(_place_in(scores), truth.to_pylist())]) if label.is_text else truth.to_numpy()
    return _make_part(path, columns, label, scores, warnings, rows, labels)


def _place_in(columns: list[Column]) -> Callable[[Any], int]:
    """Return what tells the place of the column that a label names."""
    places = {column.name: place for place, column in enumerate(columns) if len(columns) > 1}

    def place(label: Any) -> int:
        if (text := str(label)).strip() not in places:
            fix = f"use 0 to K-1, or the names of the score columns: {_list(columns)}"
            raise SemmixError("labels must be class indices or names of columns", repr(text), fix)
        return places[text.strip()]

    return place


def _make_part(
    path: Path,
    columns: list[Column],
    label: Column,
    chosen: list[Column],
    warnings: list[str],
    scores: Any,
    labels: Any,
) -> Part:
    names = tuple(column.name for column in chosen)
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    unused = [column for column in columns if column not in (label, *chosen) and column.name]
    origin = f"{path.name}: scores from {span!r} {list(scores.shape)}, labels from {label.name!r}"
    origin += f", not used: {_list(unused)}" if unused else ""
    return Part(scores, np.asarray(labels), span, origin, names, label.is_text, tuple(warnings))
