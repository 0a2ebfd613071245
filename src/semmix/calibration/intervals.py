"""How far a number may be trusted: bootstrap intervals over samples."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from semmix._errors import SemmixError
from semmix.calibration import metrics
from semmix.calibration._inputs import Array, as_numpy, as_probs, check_samples
from semmix.calibration._toplabel import TopLabel, top_label

Metric = Callable[..., float]
Weighted = Callable[[Array], float]


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


def interval(
    metric: Metric,
    probs: Any,
    labels: Any,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the bootstrap interval of any `metric(probs, labels)` over resampled samples.

    Metrics of this package are resampled through the few numbers they need of each sample, any
    other callable by indexing; `functools.partial` passes options such as `bins`.
    """
    _check_level(level, resamples)
    measure, num_samples = prepare(metric, probs, labels)
    values = resample(measure, num_samples, resamples, seed)
    tail = (1 - level) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    value = measure(np.ones(num_samples))
    return Interval(float(min(low, value)), float(max(high, value)))


def prepare(metric: Metric, probs: Any, labels: Any) -> tuple[Weighted, int]:
    """Return a function of the samples' multiplicities `[N]`, and N."""
    inner, options = (metric.func, metric.keywords) if isinstance(metric, partial) else (metric, {})
    name = getattr(inner, "__name__", "")
    if getattr(metrics, name, None) is inner and hasattr(TopLabel, name):
        top = top_label(probs, labels)
        return lambda counts: getattr(top.reweighted(counts), name)(**options), len(top.weights)
    if inner in (metrics.nll, metrics.brier):
        per_sample = metrics.log_losses if inner is metrics.nll else metrics.squared_errors
        losses = per_sample(*check_samples(probs, labels))
        return lambda counts: float(np.average(losses, weights=counts)), len(losses)
    rows, targets = as_numpy(as_probs(probs)), np.asarray(as_numpy(labels))
    return lambda counts: _by_indexing(metric, rows, targets, counts), len(rows)


def resample(measure: Weighted, num_samples: int, resamples: int, seed: int) -> Array:
    """Return the metric of each of `resamples` bootstrap samples."""
    random = np.random.default_rng(seed)
    draws = (random.integers(0, num_samples, num_samples) for _ in range(resamples))
    return np.array([measure(np.bincount(draw, minlength=num_samples)) for draw in draws])


def _by_indexing(metric: Metric, probs: Array, labels: Array, counts: Array) -> float:
    chosen = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    return metric(probs[chosen], labels[chosen])


def _check_level(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise SemmixError("level must lie between 0 and 1", level, "0.95 is the usual choice")
    if resamples < 1:
        raise SemmixError("resamples must be positive", resamples, "1000 is the usual choice")
