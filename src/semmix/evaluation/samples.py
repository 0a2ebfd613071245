"""Predictions ready to be measured, and a watch for what people get wrong on the way there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from semmix.calibration import TemperatureScaler, least_positive, softmax
from semmix.core.errors import SemmixError
from semmix.evaluation.parts import ROWS_PER_BLOCK, SUM_TOLERANCE, Array, Part

Kind = Literal["logits", "probs"]

LOOKED_AT = 20_000
"""Rows on which guesses are made."""

ZEROS_SHARE = 1e-4
"""What all zeros of a row together may take from its confidence."""

LEAST, MOST = -1e-6, 1 + 1e-2
"""What rounding may make of probabilities of 0 and 1."""

SUMS_KEPT = 5e-4
"""So far from one the sums of rows are left alone, well within what the metrics accept."""

MOST_ROWS = 0.5
"""Where so many rows are probabilities, all of them are meant to be."""


@dataclass(frozen=True)
class Samples:
    """Scores `[N, K]`, read only where sliced, and class indices `[N]`."""

    scores: Any
    labels: Array
    kind: Kind
    zero: float
    """What a probability of exactly zero is taken for."""
    unit: float = 1.0
    """What a probability of one is written as: 100 in percent."""

    @property
    def num_classes(self) -> int:
        return self.scores.shape[1]

    def __len__(self) -> int:
        return len(self.labels)

    def logits(self, where: slice) -> Array:
        """Return the logits of some rows in float64; of probabilities, their logarithm."""
        return np.log(self._given_probs(where)) if self.kind == "probs" else self._rows(where)

    def probs(self, where: slice) -> Array:
        """Return the probabilities of some rows, as they were given if they were.

        A logarithm and back would move them by a last bit, and apart where they are equal.
        """
        if self.kind == "logits":
            return softmax(self._rows(where))
        probs = self._given_probs(where)
        sums = probs.sum(1, keepdims=True)
        return np.where(np.abs(sums - 1) > SUMS_KEPT, probs / sums, probs)

    def slices(self) -> Iterator[slice]:
        """Yield where blocks of rows stand that together are all of them."""
        for first in range(0, len(self), ROWS_PER_BLOCK):
            yield slice(first, min(first + ROWS_PER_BLOCK, len(self)))

    def _given_probs(self, where: slice) -> Array:
        probs = _refuse_outside(self._rows(where) / self.unit, where.start or 0)
        return np.where(probs > 0, np.minimum(probs, 1.0), self.zero)

    def _rows(self, where: slice) -> Array:
        rows = np.asarray(self.scores[where], np.float64)
        return _refuse_infinite(rows, where.start or 0)


def random_rows(num_rows: int, most: int, seed: int) -> Array:
    """Return a mask of at most `most` random rows."""
    chosen = np.zeros(num_rows, bool)
    random = np.random.default_rng(seed)
    chosen[random.choice(num_rows, min(num_rows, most), replace=False, shuffle=False)] = True
    return chosen


def first_label(parts: Iterable[Part]) -> int:
    """Return 1 where labels count from 1 to K, else 0; all parts are taken together.

    Not every part holds every class: columns of a table that are numbered from 1 tell it too.
    """
    parts = [part for part in parts if part.labels.size and not _is_one_hot(part.labels)]
    classes = [_class_indices(part.labels) for part in parts]
    if any(labels.min() < 1 for labels in classes) or any(part.names_columns for part in parts):
        return 0
    pairs = zip(parts, classes, strict=True)
    return int(any(_reach_last(part, int(labels.max())) for part, labels in pairs))


def _reach_last(part: Part, highest: int) -> bool:
    """Return whether labels, none of them 0, must count from 1."""
    num_classes = max([2, *part.scores.shape[1:]])
    numbers = [int(found[0]) for name in part.columns if (found := re.findall(r"\d+", name)[-1:])]
    return highest == num_classes or sorted(numbers) == list(range(1, num_classes + 1))


def make_samples(part: Part, kind: Kind | None, first: int = 0) -> tuple[Samples, list[str]]:
    """Return the part as samples, with a warning for each mistake that was mended.

    Labels count from `first`.
    """
    if len(part.scores) != len(part.labels) or 0 in part.scores.shape:
        seen = f"scores {list(part.scores.shape)}, labels {list(part.labels.shape)}"
        raise SemmixError("scores and labels do not fit", seen, "pass one label per row")
    head = _look_at_scores(part)
    kind, unit, warnings = _judge_kind(head, kind, part.name)
    scores = _two_columns(part.scores, kind) if head.ndim == 1 else part.scores
    labels, more = _judge_labels(part.labels, scores.shape[1], first)
    least = least_positive(np.asarray(scores[:LOOKED_AT], np.float64) / unit)
    zero = min(least, ZEROS_SHARE / scores.shape[1])
    return Samples(scores, labels, kind, zero, unit), [*part.warnings, *warnings, *more]


def compare_parts(test: Samples, val: Samples) -> list[str]:
    """Return a warning when the parts share samples: calibrators would be fitted on the test."""
    if test.num_classes != val.num_classes:
        seen = f"{val.num_classes} classes in validation, {test.num_classes} in test"
        raise SemmixError("the two parts differ in classes", seen, "pass parts of the same model")
    rows = [np.ascontiguousarray(part.scores[:LOOKED_AT], np.float64) for part in (val, test)]
    keys = [{row.tobytes() for row in part} for part in rows]
    shared = len(keys[0] & keys[1])
    if shared < 0.5 * min(map(len, keys)):
        return []
    return [
        f"{shared / len(keys[1]):.0%} of the test rows are also in the validation part: "
        "calibrators are fitted on what they are judged by, and the figures after calibration are "
        "worth nothing"
    ]


def look_closer(test: Samples) -> list[str]:
    """Return warnings about predictions that are what they claim, but hardly can be right."""
    logits, labels = test.logits(slice(0, LOOKED_AT)), test.labels[:LOOKED_AT]
    warnings = []
    accuracy = float((logits.argmax(1) == labels).mean())
    if accuracy < _best_of_guessing(test.num_classes, len(labels)):
        warnings.append(f"accuracy {accuracy:.1%} is near chance: are rows and labels in the same order?")
    if len(labels) >= 1000 and len(labels) == len(test):
        fitted = TemperatureScaler().fit(logits, labels).temperature
        if accuracy < 1 and abs(fitted - 1) < 1e-4:  # what is all right leaves 1 as it is
            warnings.append("the best temperature on the test part is exactly 1: was it fitted on this part?")
    return warnings + _warn_of_zeros(test)


def _best_of_guessing(num_classes: int, num_rows: int) -> float:
    """Return an accuracy that guesses hardly exceed: three standard deviations above theirs."""
    share = 1 / num_classes
    return share + min(share / 2, 3 * (share * (1 - share) / num_rows) ** 0.5)


def _warn_of_zeros(test: Samples) -> list[str]:
    """Return a warning when labels have a probability of exactly zero, as rounding makes them."""
    if test.kind == "logits":
        return []
    head = np.asarray(test.scores[:LOOKED_AT])
    share = float((head[np.arange(len(head)), test.labels[:LOOKED_AT]] == 0).mean())
    if share == 0:
        return []
    return [
        f"{share:.2%} of the labels have a probability of exactly 0, taken for {test.zero:.0e}: "
        "the NLL and the calibrators depend on it; pass logits, or probabilities with more digits"
    ]


def _look_at_scores(part: Part) -> Array:
    """Return the first rows, `[N, K]`, or `[N]` if there is but one column."""
    head = np.asarray(part.scores[:LOOKED_AT])
    if head.dtype.kind not in "fiub":
        raise SemmixError("scores must be numbers", head.dtype, "pass logits or probabilities")
    _refuse_infinite(head, 0)
    one_column = head.ndim == 2 and head.shape[1] == 1
    return (head[:, 0] if one_column else head).astype(np.float64)


def _judge_kind(head: Array, wanted: Kind | None, name: str) -> tuple[Kind, float, list[str]]:
    """Return what the scores are, and their unit, by their values, their name and the wish."""
    unit = 100.0 if head.ndim == 2 and _share_of_probs(head / 100) >= MOST_ROWS else 1.0
    rows = head / unit if head.ndim == 2 else _two_columns(head, "probs")
    claimed = wanted or ("probs" if "prob" in name.lower() else None)
    share = _share_of_probs(rows)
    # Log-odds may lie in [0, 1] too: of one column, all of it or its name has to tell.
    enough = MOST_ROWS if head.ndim == 2 or claimed == "probs" else 1.0
    if share >= enough and (head.ndim == 2 or wanted != "logits"):
        _refuse_outside(rows, 0)
        return "probs", unit, _warn_of_probs(rows, unit, wanted or name, name)
    if not _inside(rows).all():
        seen = f"from {head.min():.3g} to {head.max():.3g}"
        told = f"{name!r} lie outside [0, 1] ({seen}): read as logits, not probabilities"
        return "logits", 1.0, [told] if claimed == "probs" else []
    if claimed == "probs":
        return "probs", 1.0, _warn_of_sums(rows, name)
    told = f"{name!r} lie in [0, 1] but do not sum to one: read as logits"
    return "logits", 1.0, [] if wanted else [told]


def _warn_of_probs(rows: Array, unit: float, called: str, name: str) -> list[str]:
    """Return what had to be mended of scores that are probabilities."""
    warnings = []
    if unit == 100:
        warnings.append(f"{name!r} are percentages, rows sum to 100: divided by 100")
    if "logit" in called.lower():
        warnings.append(f"{name!r} are probabilities, whatever they are called: read as such")
    return warnings + _warn_of_sums(rows, name)


def _warn_of_sums(rows: Array, name: str) -> list[str]:
    off = float(np.abs(rows.sum(1) - 1).max())
    if off <= 1e-3:
        return []
    return [f"rows of {name!r} do not sum to one (off by up to {off:.2g}): normalised"]


def _inside(rows: Array) -> Array:
    """Return which rows lie in [0, 1]."""
    return (rows.min(1) >= LEAST) & (rows.max(1) <= MOST)


def _share_of_probs(rows: Array) -> float:
    """Return the share of rows that lie in [0, 1] and sum to one."""
    return float((_inside(rows) & (np.abs(rows.sum(1) - 1) <= SUM_TOLERANCE)).mean())


def _refuse_infinite(rows: Array, first_row: int) -> Array:
    """Return the rows if all of them are finite."""
    finite = np.isfinite(rows)
    if finite.all():
        return rows
    row = first_row + int(np.argwhere(~finite)[0][0])
    raise SemmixError("scores hold NaN or infinity", f"row {row}", "drop or mend these rows")


def _refuse_outside(rows: Array, first_row: int) -> Array:
    """Return the rows if all of them lie in [0, 1]."""
    inside = _inside(rows)
    if inside.all():
        return rows
    row = int(np.argmin(inside))
    value = rows[row].min() if rows[row].min() < LEAST else rows[row].max()
    seen = f"{value:.4g} in row {first_row + row}"
    fix = "drop or mend such rows; if these are log-odds, pass --kind logits"
    raise SemmixError("probabilities lie outside [0, 1]", seen, fix)


def _judge_labels(labels: Array, num_classes: int, first: int) -> tuple[Array, list[str]]:
    """Return class indices from 0, from those that count from `first` or from one-hot rows."""
    if _is_one_hot(labels):
        return _from_one_hot(labels, num_classes)
    classes = _class_indices(labels)
    low, high = int(classes.min()), int(classes.max())
    if low < first or high >= num_classes + first:
        fix = f"{num_classes} columns of scores need labels from 0 to {num_classes - 1}"
        raise SemmixError("labels are out of range", f"from {low} to {high}", fix)
    told = f"labels go from 1 to {num_classes}: one was subtracted"
    return classes - first, [told] if first else []


def _is_one_hot(labels: Array) -> bool:
    return labels.ndim == 2 and labels.shape[1] > 1


def _class_indices(labels: Array) -> Array:
    """Return whole numbers `[N]`."""
    if labels.dtype.kind not in "fiub":
        raise SemmixError("labels must be class indices", labels[:3].tolist(), "use 0 to K-1")
    numbers = labels.reshape(len(labels))
    whole = np.isfinite(numbers) & (numbers == np.rint(numbers))
    if not whole.all():
        row = int(np.argmin(whole))
        fix = "use 0 to K-1, and drop rows without a label"
        raise SemmixError("labels must be class indices", f"{numbers[row]} in row {row}", fix)
    return numbers.astype(np.int64)


def _from_one_hot(labels: Array, num_classes: int) -> tuple[Array, list[str]]:
    if labels.dtype.kind not in "fiub":
        raise SemmixError("labels must be class indices", labels[:1].tolist(), "use 0 to K-1")
    one_hot = ((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)
    if labels.shape[1] != num_classes:
        fix = f"{num_classes} columns of scores need one-hot rows of {num_classes}, or labels [N]"
        raise SemmixError("one-hot labels do not fit", list(labels.shape), fix)
    if not one_hot.all():
        row = int(np.argmin(one_hot))
        seen = f"{labels[row][:8].tolist()} in row {row}"
        fix = "pass one class per row; to compare with people's shares, pass them as --human FILE"
        raise SemmixError("rows of labels must be one-hot", seen, fix)
    return labels.argmax(1), ["labels are one-hot rows: the class of each was taken"]


def _two_columns(scores: Any, kind: Kind) -> Array:
    """Return both columns of a binary problem given by class 1 alone."""
    ones = np.asarray(scores[:], np.float64).reshape(len(scores))
    return np.stack([1 - ones if kind == "probs" else np.zeros_like(ones), ones], -1)
