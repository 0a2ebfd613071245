"""Everything a table or a page says about one set of predictions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from semmix.calibration import CalibrationStream, Interval, TopLabel, interval_from, resampled
from semmix.calibration.metrics import log_losses, squared_errors
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.columns import Array
from semmix.evaluation.samples import ROWS_PER_BLOCK, Samples

MOST_KEPT = 4 * ROWS_PER_BLOCK
"""Samples kept one by one, 262,144; beyond, a narrow cell stands for all samples in it."""
CELLS_OF_MANY = 4096
"""Such cells per bin: the adaptive ECE is then exact to 1e-5."""
FINE_CELLS = 64
"""Cells per bin when resampling."""
HISTOGRAM_BINS = 50
CURVE_POINTS = 200

BOOTSTRAPPED: dict[str, Callable[[TopLabel, int], float]] = {
    "acc": lambda top, bins: top.accuracy(),
    "ece": TopLabel.ece,
    "aece": TopLabel.aece,
    "oe": TopLabel.oe,
    "ue": TopLabel.ue,
    "mce": TopLabel.mce,
    "confidence": lambda top, bins: top.mean_confidence(),
}
"""What is resampled: measures that the top label alone decides."""

MEANS = {"nll": log_losses, "brier": squared_errors}
"""Means over samples, of these losses: their spread tells their interval."""


@dataclass(frozen=True, repr=False)
class Measured:
    """What one set of predictions shows: measures with their intervals, and the curves of its pictures."""

    measures: dict[str, Interval]
    """By name, as in `semmix.calibration.METRICS`, and the mean `confidence`; ends are NaN where unknown."""
    ece_of_chance: float
    """The ECE that a perfectly calibrated model with these confidences would show."""
    temperature: float | None
    """The fitted temperature, or its mean over folds, where the calibrator has one."""
    curves: dict[str, dict[str, list[Any]]]
    """`reliability`, `histogram`, `risk_coverage` and `classes`, as plain lists."""

    def to_json(self) -> dict[str, Any]:
        """Return what evaluation.json holds of it."""
        return {
            "temperature": self.temperature,
            "metrics": {name: each.value for name, each in self.measures.items()},
            "intervals": {name: list(each) for name, each in self.measures.items() if each.has_interval},
            "ece_of_chance": self.ece_of_chance,
            **self.curves,
        }

    def __repr__(self) -> str:
        shown = {name: round(each.value, 4) for name, each in self.measures.items()}
        return f"Measured({shown}{f', temperature={self.temperature:.4g}' if self.temperature else ''})"


def measure_samples(samples: Samples, fitted: Fitted, bins: int, level: float, resamples: int, seed: int) -> Measured:
    """Return measures and curves of the predictions as `fitted` makes them."""
    stream = CalibrationStream(samples.num_classes, bins)
    class_sums, squares = np.zeros((3, samples.num_classes)), dict.fromkeys(MEANS, 0.0)
    for where, probs, labels in fitted.blocks(samples):
        stream.update(probs, labels)
        predicted = probs.argmax(1)
        columns = (np.ones(len(probs)), probs.max(1), predicted == labels)
        class_sums += np.stack([np.bincount(predicted, column, samples.num_classes) for column in columns])
        for name, losses in MEANS.items():
            squares[name] += float(np.square(losses(probs, labels)).sum())
        if where.stop % MOST_KEPT == 0:
            stream.compress(bins * CELLS_OF_MANY)
    top, num = stream.top_label(), len(samples)
    metrics = stream.compute()
    metrics |= {"debiased_ece": top.debiased_ece(bins), "smooth_ece": top.smooth_ece(), "aurc": top.aurc()}
    ends, reliability = _resample(top.compressed(bins * FINE_CELLS, tied=True), bins, level, resamples, seed)
    for name, total in squares.items():
        # No loss is below 0; the variance of their mean follows from the sum of their squares.
        variance = max(total / num - metrics[name] ** 2, 0.0) / num
        width = NormalDist().inv_cdf((1 + level) / 2) * variance**0.5
        ends[name] = (max(metrics[name] - width, 0.0), metrics[name] + width)
    unknown = (math.nan, math.nan)
    curves = {"histogram": _histogram(top), "risk_coverage": _risk_coverage(top), "classes": _classes(class_sums)}
    return Measured(
        {name: Interval(value, *ends.get(name, unknown), num) for name, value in metrics.items()},
        top.ece_of_chance(bins),
        fitted.temperature,
        {"reliability": reliability, **curves},
    )


def plain(values: Array) -> list[float | None]:
    """Return a list that JSON can hold: None in place of NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def _resample(
    top: TopLabel, bins: int, level: float, resamples: int, seed: int
) -> tuple[dict[str, tuple[float, float]], dict[str, list[Any]]]:
    """Return the ends of the measures' intervals, and the reliability diagram with those of each bin's accuracy."""
    draws = list(resampled(top, resamples, seed))
    ends = {}
    for name, measure in BOOTSTRAPPED.items():
        values = np.array([measure(draw, bins) for draw in draws])
        found = interval_from(measure(top, bins), values, level, top.count, most=1.0)
        ends[name] = (found.low, found.high)
    accuracies = np.array([draw.bin_sums(bins).means()[1] for draw in draws])
    known = ~np.isnan(accuracies).all(0)  # a bin that no resample fills has no interval
    table = top.bin_sums(bins).reliability()._asdict()
    for side, share in (("low", (1 - level) / 2), ("high", (1 + level) / 2)):
        table[f"accuracy_{side}"] = np.full(bins, np.nan)
        table[f"accuracy_{side}"][known] = np.nanquantile(accuracies[:, known], share, axis=0)
    return ends, {name: plain(column) for name, column in table.items()}


def _histogram(top: TopLabel) -> dict[str, list[Any]]:
    """Return how many right and wrong predictions each confidence bin holds."""
    sums = top.bin_sums(HISTOGRAM_BINS)
    edges = np.arange(HISTOGRAM_BINS + 1) / HISTOGRAM_BINS
    right = sums.correct.round().astype(int)
    wrong = (sums.weight - sums.correct).round().astype(int)
    return {"edges": edges.tolist(), "right": right.tolist(), "wrong": wrong.tolist()}


def _risk_coverage(top: TopLabel) -> dict[str, list[Any]]:
    """Return the risk-coverage curve at about `CURVE_POINTS` evenly spaced coverages."""
    curve = top.risk_coverage()
    wanted = np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS
    chosen = np.unique(np.searchsorted(curve.coverage, wanted * (1 - 1e-12)))
    return {name: values[chosen].tolist() for name, values in curve._asdict().items()}


def _classes(sums: Array) -> dict[str, list[Any]]:
    """Return by predicted class: count, confidence, accuracy, and gap, above 0 if over-confident."""
    count = np.where(sums[0] > 0, sums[0], np.nan)
    confidence, accuracy = sums[1] / count, sums[2] / count
    means = {"confidence": confidence, "accuracy": accuracy, "gap": confidence - accuracy}
    return {"count": sums[0].astype(int).tolist(), **{name: plain(column) for name, column in means.items()}}
