"""Everything a table or a page says about one set of predictions, as plain lists and numbers."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from semmix.calibration import CalibrationStream, TopLabel, interval_from, resampled
from semmix.calibration.metrics import log_losses, squared_errors
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.parts import ROWS_PER_BLOCK, Array
from semmix.evaluation.samples import Samples

MOST_KEPT = 4 * ROWS_PER_BLOCK
"""Samples kept one by one, 262,144; beyond, a narrow cell stands for all samples in it."""

CELLS_OF_MANY = 4096
"""Such cells per bin: the adaptive ECE is then exact to 1e-5."""

FINE_CELLS = 64
"""Cells per bin when resampling."""

BOOTSTRAPPED: dict[str, Callable[[TopLabel, int], float]] = {
    "acc": lambda top, bins: top.accuracy(),
    "ece": TopLabel.ece,
    "aece": TopLabel.aece,
    "oe": TopLabel.oe,
    "ue": TopLabel.ue,
    "mce": TopLabel.mce,
    "confidence": lambda top, bins: top.mean_confidence(),
}
"""Metrics that are resampled: those the top label alone decides."""

MEANS = {"nll": log_losses, "brier": squared_errors}
"""Metrics that are means over samples, of these: their spread tells their interval."""

HISTOGRAM_BINS = 50
CURVE_POINTS = 200


def measure_samples(
    samples: Samples, fitted: Fitted, *, bins: int, level: float, resamples: int, seed: int
) -> dict[str, Any]:
    """Return metrics, intervals and curves of the predictions as `fitted` makes them."""
    stream = CalibrationStream(samples.num_classes, bins)
    class_sums, squares = np.zeros((3, samples.num_classes)), dict.fromkeys(MEANS, 0.0)
    for where, probs, labels in fitted.blocks(samples):
        stream.update(probs, labels)
        class_sums += _class_sums(probs, labels)
        for name, losses in MEANS.items():
            squares[name] += float(np.square(losses(probs, labels)).sum())
        if where.stop % MOST_KEPT == 0:
            stream.compress(bins * CELLS_OF_MANY)
    top = stream.top_label()
    few = top.compressed(bins * FINE_CELLS, tied=True)
    metrics = stream.compute()
    measured = _resample(few, bins, level, list(resampled(few, resamples, seed)))
    for name, total in squares.items():
        measured["intervals"][name] = _mean_interval(metrics[name], total, len(samples), level)
    return {
        "metrics": {
            **metrics,
            "debiased_ece": top.debiased_ece(bins),
            "smooth_ece": top.smooth_ece(),
            "aurc": top.aurc(),
        },
        "ece_of_chance": top.ece_of_chance(bins),
        **measured,
        "histogram": _histogram(top),
        "risk_coverage": _risk_coverage(top),
        "classes": _classes(class_sums),
    }


def plain(values: Array) -> list[float | None]:
    """Return a list that JSON can hold: None in place of NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def _resample(top: TopLabel, bins: int, level: float, draws: list[TopLabel]) -> dict[str, Any]:
    """Return the reliability diagram and intervals of metrics and of each bin's accuracy."""
    values = np.array([[value(draw, bins) for value in BOOTSTRAPPED.values()] for draw in draws])
    accuracies = np.array([draw.bin_sums(bins).means()[1] for draw in draws])
    table = top.bin_sums(bins).reliability()._asdict()
    for side, share in (("low", (1 - level) / 2), ("high", (1 + level) / 2)):
        table[f"accuracy_{side}"] = _quantile(accuracies, share)
    return {
        "reliability": {name: plain(column) for name, column in table.items()},
        "intervals": {
            name: list(interval_from(value(top, bins), values[:, column], level, top.count, most=1.0))
            for column, (name, value) in enumerate(BOOTSTRAPPED.items())
        },
    }


def _mean_interval(mean: float, squares: float, num: int, level: float) -> list[float]:
    """Return the interval of a mean of `num` losses, none below 0, whose squares sum to that."""
    variance = max(squares / num - mean**2, 0.0) / num
    width = NormalDist().inv_cdf((1 + level) / 2) * variance**0.5
    return [max(mean - width, 0.0), mean + width]


def _quantile(values: Array, share: float) -> Array:
    """Return each column's quantile over the rows where it is known; NaN where it never is."""
    known = ~np.isnan(values).all(0)
    result = np.full(values.shape[1], np.nan)
    result[known] = np.nanquantile(values[:, known], share, axis=0)
    return result


def _histogram(top: TopLabel) -> dict[str, list[Any]]:
    """Return how many right and wrong predictions each confidence bin holds."""
    sums = top.bin_sums(HISTOGRAM_BINS)
    edges = np.arange(HISTOGRAM_BINS + 1) / HISTOGRAM_BINS
    right = sums.correct.round().astype(int)
    wrong = (sums.weight - sums.correct).round().astype(int)
    return {"edges": edges.tolist(), "right": right.tolist(), "wrong": wrong.tolist()}


def _risk_coverage(top: TopLabel) -> dict[str, list[float]]:
    """Return the risk-coverage curve at about `CURVE_POINTS` evenly spaced coverages."""
    curve = top.risk_coverage()
    wanted = np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS
    chosen = np.unique(np.searchsorted(curve.coverage, wanted * (1 - 1e-12)))
    return {name: values[chosen].tolist() for name, values in curve._asdict().items()}


def _class_sums(probs: Array, labels: Array) -> Array:
    """Return count, confidence and correctness by predicted class, `[3, K]`."""
    predicted = probs.argmax(1)
    columns = (np.ones(len(probs)), probs.max(1), predicted == labels)
    return np.stack([np.bincount(predicted, column, probs.shape[1]) for column in columns])


def _classes(sums: Array) -> dict[str, list[Any]]:
    """Return by predicted class: count, confidence, accuracy, and gap, above 0 if overconfident."""
    count = np.where(sums[0] > 0, sums[0], np.nan)
    confidence, accuracy = sums[1] / count, sums[2] / count
    return {
        "count": sums[0].astype(int).tolist(),
        "confidence": plain(confidence),
        "accuracy": plain(accuracy),
        "gap": plain(confidence - accuracy),
    }
