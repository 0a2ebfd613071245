"""Predictions ready to be measured, and a watch for what people get wrong on the way there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from semmix._errors import SemmixError
from semmix.calibration import TemperatureScaler
from semmix.calibration._inputs import least_positive
from semmix.evaluate.read import ROWS_PER_BLOCK, Array, Part

Kind = Literal["logits", "probs"]

LOOKED_AT = 20_000
"""Rows on which guesses are made."""

ZEROS_SHARE = 1e-4
"""What all zeros of a row together may take from its confidence."""


@dataclass(frozen=True)
class Samples:
    """Scores `[N, K]`, read only where sliced, and class indices `[N]`."""

    scores: Any
    labels: Array
    kind: Kind
    zero: float
    """What a probability of exactly zero is taken for."""

    @property
    def num_classes(self) -> int:
        return self.scores.shape[1]

    def __len__(self) -> int:
        return len(self.labels)

    def logits(self, where: slice) -> Array:
        """Return the logits of some rows in float64; of probabilities, their logarithm."""
        rows = np.asarray(self.scores[where], np.float64)
        if self.kind == "probs":
            return np.log(np.maximum(rows, self.zero))
        return rows

    def blocks(self) -> Iterator[tuple[slice, Array, Array]]:
        """Yield where a block of rows stands, its logits and its labels."""
        for first in range(0, len(self), ROWS_PER_BLOCK):
            where = slice(first, min(first + ROWS_PER_BLOCK, len(self)))
            yield where, self.logits(where), self.labels[where]


def random_rows(num_rows: int, most: int, seed: int) -> Array:
    """Return a mask of at most `most` random rows."""
    chosen = np.zeros(num_rows, bool)
    random = np.random.default_rng(seed)
    chosen[random.choice(num_rows, min(num_rows, most), replace=False, shuffle=False)] = True
    return chosen


def make_samples(part: Part, kind: Kind | None) -> tuple[Samples, list[str]]:
    """Return the part as samples, with a warning for each mistake that was mended."""
    if len(part.scores) != len(part.labels) or len(part.labels) == 0:
        seen = f"{len(part.scores)} rows of scores, {len(part.labels)} labels"
        raise SemmixError("scores and labels do not fit", seen, "pass one label per row")
    head = np.asarray(part.scores[:LOOKED_AT], np.float64)
    if not np.isfinite(head).all():
        row = int(np.argwhere(~np.isfinite(head))[0][0])
        raise SemmixError("scores hold NaN or infinity", f"row {row}", "drop or mend these rows")
    kind, warnings = _judge_kind(head, kind, part.name)
    scores = _two_columns(part.scores, kind) if head.ndim == 1 else part.scores
    labels, more = _judge_labels(part.labels, scores.shape[1])
    least = least_positive(np.asarray(scores[:LOOKED_AT], np.float64))
    zero = min(least, ZEROS_SHARE / scores.shape[1])
    return Samples(scores, labels, kind, zero), warnings + more


def compare_parts(test: Samples, val: Samples) -> list[str]:
    """Return a warning when the parts share samples: calibrators would be fitted on the test."""
    if test.num_classes != val.num_classes:
        seen = f"{val.num_classes} classes in validation, {test.num_classes} in test"
        raise SemmixError("the two parts differ in classes", seen, "pass parts of the same model")
    rows = [np.ascontiguousarray(part.scores[:LOOKED_AT], np.float64) for part in (val, test)]
    keys = [{row.tobytes() for row in part} for part in rows]
    shared = len(keys[0] & keys[1]) / len(keys[0])
    if shared < 0.5:
        return []
    return [
        f"{shared:.0%} of the validation rows are also in the test part: calibrators are fitted on "
        "what they are judged by, and the figures after calibration are worth nothing"
    ]


def look_closer(test: Samples) -> list[str]:
    """Return warnings about predictions that are what they claim, but hardly can be right."""
    logits, labels = test.logits(slice(0, LOOKED_AT)), test.labels[:LOOKED_AT]
    warnings = []
    accuracy = float((logits.argmax(1) == labels).mean())
    if accuracy < 1.5 / test.num_classes:
        warnings.append(
            f"accuracy {accuracy:.1%} is near chance: are rows and labels in the same order?"
        )
    if len(labels) >= 1000 and len(labels) == len(test):
        fitted = TemperatureScaler().fit(logits, labels).temperature
        if abs(fitted - 1) < 1e-4:
            warnings.append(
                "the best temperature on the test part is exactly 1: was it fitted on this part?"
            )
    return warnings + _warn_of_zeros(test)


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


def _judge_kind(head: Array, wanted: Kind | None, name: str) -> tuple[Kind, list[str]]:
    """Return what the scores are, judged by their values, their name and what was asked for."""
    inside = head.min() >= -1e-6 and head.max() <= 1 + 1e-2
    totals = head.sum(1) if head.ndim == 2 else np.ones(1)
    off = float(np.abs(totals - 1).max())
    claimed = wanted or ("probs" if "prob" in name.lower() else None)
    if not inside and claimed == "probs":
        seen = f"from {head.min():.3g} to {head.max():.3g}"
        return "logits", [
            f"{name!r} lie outside [0, 1] ({seen}): read as logits, not probabilities"
        ]
    if wanted or not inside:
        return wanted or "logits", []
    if off > 1e-3 and claimed == "probs":
        return "probs", [f"rows of {name!r} do not sum to one (off by up to {off:.2g}): normalised"]
    if off > 1e-3:
        return "logits", [f"{name!r} lie in [0, 1] but do not sum to one: read as logits"]
    if "logit" in name.lower():
        return "probs", [f"{name!r} are probabilities, whatever their name: read as such"]
    return "probs", []


def _judge_labels(labels: Array, num_classes: int) -> tuple[Array, list[str]]:
    """Return class indices from 0, moved down where they start at 1."""
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "fiub" or not np.array_equal(numbers, np.rint(numbers)):
        raise SemmixError("labels must be class indices", numbers[:3].tolist(), "use 0 to K-1")
    classes = numbers.astype(np.int64)
    low, high = int(classes.min()), int(classes.max())
    if low == 1 and high == num_classes:
        return classes - 1, [f"labels go from 1 to {num_classes}: one was subtracted"]
    if low < 0 or high >= num_classes:
        fix = f"{num_classes} columns of scores need labels from 0 to {num_classes - 1}"
        raise SemmixError("labels are out of range", f"from {low} to {high}", fix)
    return classes, []


def _two_columns(scores: Any, kind: Kind) -> Array:
    """Return both columns of a binary problem given by class 1 alone."""
    ones = np.asarray(scores[:], np.float64)
    return np.stack([1 - ones if kind == "probs" else np.zeros_like(ones), ones], -1)
