"""What a shipped model's answers are worth on test images, each number with its interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from semmix.calibration import USUAL, Interval, interval, interval_from
from semmix.calibration.intervals import bootstrap
from semmix.deploy.rules import Rules
from semmix.runs import Predictions

SHOWN_PERCENTS = ("80", "90", "95", "99")
"""Coverages whose prediction sets are measured."""

LEVEL = 0.95
RESAMPLES = 1000


def measure_answers(test: Predictions, rules: Rules) -> dict[str, Any]:
    """Return metrics and prediction sets of calibrated predictions, as JSON values."""
    metrics = {metric.name: interval(metric.with_bins(15), test.probs, test.labels).to_json() for metric in USUAL}
    sets = {p: measure_sets(test, rules.set_thresholds[p]) for p in SHOWN_PERCENTS}
    return {
        "metrics": metrics,
        "prediction_sets": {p: {name: each.to_json() for name, each in found.items()} for p, found in sets.items()},
    }


def measure_sets(test: Predictions, threshold: float) -> dict[str, Interval]:
    """Return how often the sets hold the truth, and how many classes they hold."""
    members = in_set(test.probs, threshold)  # [N, K]
    holds = members[np.arange(len(test.labels)), test.labels]
    return {
        "coverage": estimate_mean(holds, most=1.0),
        "num_classes": estimate_mean(members.sum(1), most=members.shape[1]),
    }


def in_set(probs: np.ndarray, threshold: float) -> np.ndarray:
    """Return which classes are in the prediction set of each row; the likeliest always is."""
    return (probs >= threshold) | (probs == probs.max(1, keepdims=True))


def estimate_mean(values: np.ndarray, most: float = np.inf) -> Interval:
    """Return the mean of one value per image, with its bootstrap interval, cut at `most`."""
    return estimate(lambda counts: float(counts @ values / counts.sum()), len(values), most)


def estimate(measure: Callable[[np.ndarray], float], num_images: int, most: float = np.inf) -> Interval:
    """Return `measure` of how often each image counts, with its bootstrap interval.

    The interval ends at `most`, above which no value can be. Where nothing can be measured (no
    answer, no error rate) the value is NaN, and so are its ends.
    """
    value = measure(np.ones(num_images))
    draws = np.array([measure(counts) for counts in bootstrap(num_images, RESAMPLES, seed=0)])
    draws = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(draws):
        return Interval(value, np.nan, np.nan, num_images)
    return interval_from(value, draws, LEVEL, num_images, most)
