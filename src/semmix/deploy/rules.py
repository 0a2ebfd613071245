"""What turns a network's outputs into cautious predictions, and what these are worth on test images.

Thresholds and temperature come from the validation images alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from semmix.calibration import USUAL, Interval, interval, interval_from, ood_score
from semmix.calibration.intervals import bootstrap
from semmix.runs import Predictions, Run

PERCENTS = range(50, 100)
"""Coverages of prediction sets, in per cent."""
SHOWN_PERCENTS = ("80", "90", "95", "99")
"""Coverages whose prediction sets are measured."""
OOD_PERCENT = 95
"""Share of images like the validation images that raise no warning, in per cent."""
LEVEL, RESAMPLES = 0.95, 1000
"""Of intervals."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Thresholds and names; plain values, as `model.json` holds them."""

    class_names: list[str]
    temperature: float
    set_thresholds: dict[str, float]
    """By coverage in per cent: a class is in the prediction set if its calibrated probability is at least this."""
    ood_threshold: float | None
    """Images whose score is higher raise a warning; None after too few validation images."""

    @staticmethod
    def from_json(values: dict[str, Any]) -> Rules:
        """Return the rules among the values of a manifest; a `KeyError` if one is missing."""
        thresholds = {str(p): values["set_thresholds"][str(p)] for p in PERCENTS}
        rules = {name: values[name] for name in Rules.__dataclass_fields__}
        return Rules(**{**rules, "set_thresholds": thresholds})


def learn_rules(run: Run) -> Rules:
    """Return the rules that follow from a run's validation logits."""
    val = run.val
    of_truth = val.probs(run.temperature)[np.arange(len(val.labels)), val.labels]
    least = lower_bound(-ood_score(val.logits, by="energy"), OOD_PERCENT)
    return Rules(
        class_names=run.class_names,
        temperature=run.temperature,
        set_thresholds={str(p): lower_bound(of_truth, p) or 0.0 for p in PERCENTS},
        ood_threshold=None if least is None else -least,
    )


def lower_bound(values: np.ndarray, percent: int) -> float | None:
    """Return what a new value like these reaches with at least `percent` in a hundred chances.

    The split-conformal rank: of n values and a new one, exchangeable, each rank of the new one is
    as likely, so the bound is the value with floor((n + 1) (1 - percent / 100)) - 1 values below
    it. None where n is too small to promise anything.

    >>> lower_bound(np.arange(1.0, 20.0), 90), lower_bound(np.arange(1.0, 20.0), 96)
    (2.0, None)
    """
    num_below = (len(values) + 1) * (100 - percent) // 100
    return float(np.sort(values)[num_below - 1]) if num_below else None


def measure_predictions(test: Predictions, rules: Rules) -> dict[str, Any]:
    """Return metrics and prediction sets of calibrated predictions, as JSON values."""
    metrics = {metric.name: interval(metric.with_bins(15), test.probs, test.labels).to_json() for metric in USUAL}
    sets = {p: measure_sets(test, rules.set_thresholds[p]).items() for p in SHOWN_PERCENTS}
    shown = {p: {name: each.to_json() for name, each in found} for p, found in sets.items()}
    return {"metrics": metrics, "prediction_sets": shown}


def measure_sets(test: Predictions, threshold: float) -> dict[str, Interval]:
    """Return how often the sets hold the truth, and how many classes they hold."""
    members = in_set(test.probs, threshold)  # [N, K]
    holds = members[np.arange(len(test.labels)), test.labels]
    num_classes = estimate_mean(members.sum(1), most=members.shape[1])
    return {"coverage": estimate_mean(holds, most=1.0), "num_classes": num_classes}


def in_set(probs: np.ndarray, threshold: float) -> np.ndarray:
    """Return which classes are in the prediction set of each row; the likeliest always is."""
    return (probs >= threshold) | (probs == probs.max(1, keepdims=True))


def estimate_mean(values: np.ndarray, most: float = np.inf) -> Interval:
    """Return the mean of one value per image, with its bootstrap interval, cut at `most`."""
    return estimate(lambda counts: float(counts @ values / counts.sum()), len(values), most)


def estimate(measure: Callable[[np.ndarray], float], num_images: int, most: float = np.inf) -> Interval:
    """Return `measure` of how often each image counts, with its bootstrap interval.

    The interval ends at `most`, above which no value can be. Where nothing can be measured (an
    error rate of no predictions) the value is NaN, and so are its ends.
    """
    value = measure(np.ones(num_images))
    draws = np.array([measure(counts) for counts in bootstrap(num_images, RESAMPLES, seed=0)])
    draws = draws[~np.isnan(draws)]
    if np.isnan(value) or not len(draws):
        return Interval(value, np.nan, np.nan, num_images)
    return interval_from(value, draws, LEVEL, num_images, most)
