"""Predictions ready to be measured, and a watch for the mistakes people make on the way there."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from semmix.calibration import TemperatureScaler, least_positive, softmax
from semmix.calibration._inputs import check_finite
from semmix.core.errors import SemmixError, require
from semmix.evaluation.columns import SUM_TOLERANCE, Array, Part

Kind = Literal["logits", "probs"]

ROWS_PER_BLOCK = 1 << 16
LOOKED_AT = 20_000
"""Rows on which guesses are made."""
ZEROS_SHARE = 1e-4
"""What all zeros of a row together may take from its confidence."""
LEAST, MOST = -1e-6, 1 + 1e-2
"""What rounding may make of probabilities of 0 and 1."""
SUMS_KEPT = 5e-4
"""Rows whose sums are this near to one are left as they are, well within what the metrics accept."""
MOST_ROWS = 0.5
"""Where this share of the rows are probabilities, all of them are meant to be."""


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
        """Return the probabilities of some rows.

        Probabilities do not pass through a logarithm and back: rounding would make equal ones differ.
        """
        if self.kind == "logits":
            return softmax(self._rows(where))
        probs = self._given_probs(where)
        sums = probs.sum(1, keepdims=True)
        return np.where(np.abs(sums - 1) > SUMS_KEPT, probs / sums, probs)

    def slices(self) -> Iterator[slice]:
        """Yield the slices of the blocks of rows that make up all of them."""
        for first in range(0, len(self), ROWS_PER_BLOCK):
            yield slice(first, min(first + ROWS_PER_BLOCK, len(self)))

    def _given_probs(self, where: slice) -> Array:
        probs = _refuse_outside(self._rows(where) / self.unit, where.start or 0)
        return np.where(probs > 0, np.minimum(probs, 1.0), self.zero)

    def _rows(self, where: slice) -> Array:
        rows = np.asarray(self.scores[where], np.float64)
        check_finite(rows, "scores", where.start or 0)
        return rows


def random_rows(num_rows: int, most: int, seed: int) -> Array:
    """Return a mask of at most `most` random rows."""
    chosen = np.zeros(num_rows, bool)
    random = np.random.default_rng(seed)
    chosen[random.choice(num_rows, min(num_rows, most), replace=False, shuffle=False)] = True
    return chosen


def make_all(
    parts: Mapping[str, Part], kind: Kind | None, folds: int
) -> tuple[Samples, Samples | None, list[str], list[str]]:
    """Return the test part and the validation part, if any, as samples; what was read; warnings."""
    for part in parts.values():
        for what, rows in ((repr(part.name), part.scores), ("the array of labels", part.labels)):
            fix = "pass scores [N, K] or [N], and labels [N]"
            require(rows.ndim in (1, 2), f"{what} has the wrong shape", list(rows.shape), fix)
        if part.labels.dtype.kind not in "fiub":
            raise SemmixError("labels must be class indices", part.labels[:3].tolist(), "use 0 to K-1")
    samples, notes, warnings, first = {}, [], [], first_label(parts.values())
    for role, part in parts.items():
        samples[role], told = make_samples(part, kind, first)
        notes.append(f"{role} from {part.origin}, read as {samples[role].kind}")
        warnings += [f"{role}: {warning}" for warning in told]
    test, val = samples["test"], samples.get("val")
    if val is None:
        notes.append(f"no validation part: calibrators are cross-fitted in {folds} folds")
    else:
        warnings += compare_parts(test, val)
    return test, val, notes, warnings + look_closer(test)


def first_label(parts: Iterable[Part]) -> int:
    """Return 1 where labels count from 1 to K, else 0; all parts are taken together.

    Not every part holds every class: columns of a table that are numbered from 1 tell it too.
    """
    counted = [(p, _class_indices(p.labels)) for p in parts if p.labels.size and not _is_one_hot(p.labels)]
    if any(labels.min() < 1 or part.names_columns for part, labels in counted):
        return 0
    for part, labels in counted:
        num_classes = max([2, *part.scores.shape[1:]])
        numbers = [int(found[0]) for name in part.columns if (found := re.findall(r"\d+", name)[-1:])]
        if labels.max() == num_classes or sorted(numbers) == list(range(1, num_classes + 1)):
            return 1
    return 0


def make_samples(part: Part, kind: Kind | None, first: int = 0) -> tuple[Samples, list[str]]:
    """Return the part, whose labels count from `first`, as samples, with a warning for each correction."""
    if len(part.scores) != len(part.labels) or 0 in part.scores.shape:
        seen = f"scores {list(part.scores.shape)}, labels {list(part.labels.shape)}"
        raise SemmixError("scores and labels do not fit", seen, "pass one label per row")
    head = np.asarray(part.scores[:LOOKED_AT])
    require(head.dtype.kind in "fiub", "scores must be numbers", head.dtype, "pass logits or probabilities")
    head = head.astype(np.float64)
    check_finite(head, "scores")
    if head.shape[1:] == (1,):
        head = head[:, 0]
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
        f"{shared / len(keys[1]):.0%} of the test rows are also in the validation part: calibrators are "
        "fitted on what they are judged by, and the figures after calibration are worth nothing"
    ]


def look_closer(test: Samples) -> list[str]:
    """Return warnings about predictions that can be read, but hardly can be right."""
    logits, labels = test.logits(slice(0, LOOKED_AT)), test.labels[:LOOKED_AT]
    warnings = []
    accuracy, share = float((logits.argmax(1) == labels).mean()), 1 / test.num_classes
    # Guesses hardly exceed three standard deviations above their mean accuracy.
    if accuracy < share + min(share / 2, 3 * (share * (1 - share) / len(labels)) ** 0.5):
        warnings.append(f"accuracy {accuracy:.1%} is near chance: are rows and labels in the same order?")
    if len(labels) >= 1000 and len(labels) == len(test):
        fitted = TemperatureScaler().fit(logits, labels).temperature
        if accuracy < 1 and abs(fitted - 1) < 1e-4:  # without a mistake the temperature stays 1
            warnings.append("the best temperature on the test part is exactly 1: was it fitted on this part?")
    if test.kind == "probs":
        head = np.asarray(test.scores[:LOOKED_AT])
        if zeros := float((head[np.arange(len(head)), labels] == 0).mean()):
            told = f"{zeros:.2%} of the labels have a probability of exactly 0, taken for {test.zero:.0e}: "
            told += "the NLL and the calibrators depend on it; pass logits, or probabilities with more digits"
            warnings.append(told)
    return warnings


def _judge_kind(head: Array, wanted: Kind | None, name: str) -> tuple[Kind, float, list[str]]:
    """Return what the scores are, and their unit, by their values, their name and the wish."""
    unit = 100.0 if head.ndim == 2 and _share_of_probs(head / 100) >= MOST_ROWS else 1.0
    rows = head / unit if head.ndim == 2 else _two_columns(head, "probs")
    claimed = wanted or ("probs" if "prob" in name.lower() else None)
    # Log-odds may lie in [0, 1] too: of one column, all of it or its name has to tell.
    enough = MOST_ROWS if head.ndim == 2 or claimed == "probs" else 1.0
    off = float(np.abs(rows.sum(1) - 1).max())
    sums = [f"rows of {name!r} do not sum to one (off by up to {off:.2g}): normalised"] if off > 1e-3 else []
    if _share_of_probs(rows) >= enough and (head.ndim == 2 or wanted != "logits"):
        _refuse_outside(rows, 0)
        warnings = [f"{name!r} are percentages, rows sum to 100: divided by 100"] if unit == 100 else []
        if "logit" in (wanted or name).lower():
            warnings.append(f"{name!r} are probabilities, whatever they are called: read as such")
        return "probs", unit, warnings + sums
    if not _inside(rows).all():
        seen = f"from {head.min():.3g} to {head.max():.3g}"
        told = f"{name!r} lie outside [0, 1] ({seen}): read as logits, not probabilities"
        return "logits", 1.0, [told] if claimed == "probs" else []
    if claimed == "probs":
        return "probs", 1.0, sums
    told = f"{name!r} lie in [0, 1] but do not sum to one: read as logits"
    return "logits", 1.0, [] if wanted else [told]


def _inside(rows: Array) -> Array:
    """Return which rows lie in [0, 1]."""
    return (rows.min(1) >= LEAST) & (rows.max(1) <= MOST)


def _share_of_probs(rows: Array) -> float:
    """Return the share of rows that lie in [0, 1] and sum to one."""
    return float((_inside(rows) & (np.abs(rows.sum(1) - 1) <= SUM_TOLERANCE)).mean())


def _refuse_outside(rows: Array, first_row: int) -> Array:
    """Return the rows if all of them lie in [0, 1]."""
    inside = _inside(rows)
    if inside.all():
        return rows
    row = int(np.argmin(inside))
    value = rows[row].min() if rows[row].min() < LEAST else rows[row].max()
    seen = f"{value:.4g} in row {first_row + row}"
    fix = "drop or correct such rows; if these are log-odds, pass --kind logits"
    raise SemmixError("probabilities lie outside [0, 1]", seen, fix)


def _judge_labels(labels: Array, num_classes: int, first: int) -> tuple[Array, list[str]]:
    """Return class indices from 0, from those that count from `first` or from one-hot rows."""
    if _is_one_hot(labels):
        fix = f"{num_classes} columns of scores need one-hot rows of {num_classes}, or labels [N]"
        require(labels.shape[1] == num_classes, "one-hot labels do not fit", list(labels.shape), fix)
        one_hot = ((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)
        if not one_hot.all():
            row = int(np.argmin(one_hot))
            seen = f"{labels[row][:8].tolist()} in row {row}"
            fix = "pass one class per row; to compare with people's shares, pass them as --human FILE"
            raise SemmixError("rows of labels must be one-hot", seen, fix)
        return labels.argmax(1), ["labels are one-hot rows: the class of each was taken"]
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
    numbers = labels.reshape(len(labels))
    whole = np.isfinite(numbers) & (numbers == np.rint(numbers))
    if not whole.all():
        row = int(np.argmin(whole))
        fix = "use 0 to K-1, and drop rows without a label"
        raise SemmixError("labels must be class indices", f"{numbers[row]} in row {row}", fix)
    return numbers.astype(np.int64)


def _two_columns(scores: Any, kind: Kind) -> Array:
    """Return both columns of a binary problem given by class 1 alone."""
    ones = np.asarray(scores[:], np.float64).reshape(len(scores))
    return np.stack([1 - ones if kind == "probs" else np.zeros_like(ones), ones], -1)
