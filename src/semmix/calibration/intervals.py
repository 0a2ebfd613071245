"""How far a number may be trusted: intervals, tests between models, seeds, few samples."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from semmix.calibration import metrics
from semmix.calibration._inputs import Array, as_numpy, as_probs, as_rows, as_vector, check_samples
from semmix.calibration._toplabel import TopLabel, top_label
from semmix.core.errors import require

Metric = Callable[..., float]
Weighted = Callable[[Array], float]


@dataclass(frozen=True, repr=False)
class Interval:
    """A number with its interval; unpacks as `low, high`.

    >>> Interval(0.0152, 0.0131, 0.0173, num=10_000)
    Interval(0.0152 [0.0131, 0.0173], num=10000)
    """

    value: float
    low: float
    """The lower end; NaN where there is no interval, as from a single seed."""
    high: float
    num: int
    """Samples, seeds or pairs that it comes from."""
    p_value: float | None = None
    """Of a difference: how often chance alone gives as much."""

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.high))

    def __repr__(self) -> str:
        ends = f" [{self.low:.4g}, {self.high:.4g}]" if self.has_interval else ""
        p_value = "" if self.p_value is None else f", p_value={self.p_value:.3g}"
        return f"Interval({self.value:.4g}{ends}, num={self.num}{p_value})"

    @property
    def has_interval(self) -> bool:
        """Whether its ends are known."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def half_width(self) -> float:
        """How far it reaches upwards from the value; the same downwards, unless cut at a limit."""
        return self.high - self.value

    @property
    def excludes_zero(self) -> bool:
        """Whether chance is an unlikely reason for a difference; False without an interval."""
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, float | None]:
        """Return value and ends for JSON, which has no NaN: None in its place."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if math.isnan(number) else float(number) for name, number in ends.items()}


def interval(
    metric: Metric, probs: Any, labels: Any, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Return the bootstrap interval of any `metric(probs, labels)`, resampling samples.

    It reaches as far to both sides of the measured value as resampled values do to the side they
    favour. ECE and its kin grow when samples are resampled, as they did when they were sampled: the
    plain percentile interval of a well calibrated model lies wholly above the truth.

    Args:
        metric: A metric of this package, resampled through the few numbers it needs of each sample, or
            any other callable, by indexing. `functools.partial` passes options such as `bins`.
        probs: Probabilities `[N, K]`, or `[N]` of class 1 of two.
        labels: Classes `[N]`, or distributions `[N, K]`.
        level: Share of intervals that hold the true value.
        resamples: Bootstrap resamples.
        seed: Seed of the bootstrap.

    Returns:
        The measured value with its interval, which unpacks as `low, high`.

    Raises:
        SemmixError: If the input is not what the metric accepts, or a setting is out of range.

    Example:
        >>> interval(metrics.ece, [[0.9, 0.1]] * 100, [0] * 60 + [1] * 40)
        Interval(0.3 [0.21, 0.39], num=100)
    """
    _check(level, resamples)
    measure, num_samples = prepare(metric, probs, labels)
    value = measure(np.ones(num_samples))
    values = np.array([measure(counts) for counts in bootstrap(num_samples, resamples, seed)])
    return interval_from(value, values, level, num_samples, most=1.0 if _method(metric) else np.inf)


def paired_difference(
    metric: Metric, probs_a: Any, probs_b: Any, labels: Any, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Return metric(A) - metric(B) on the same samples, with a paired bootstrap test.

    Both models see the same resamples, so what makes samples hard or easy cancels. The p-value is two-sided: how often
    a resampled difference strays from the measured one by as much as that one from zero.
    """
    _check(level, resamples)
    (measure_a, num_samples), (measure_b, num_b) = (prepare(metric, probs, labels) for probs in (probs_a, probs_b))
    fix = "compare them on the same ones"
    require(num_samples == num_b, "the models saw different samples", f"{num_samples} and {num_b} samples", fix)
    ones = np.ones(num_samples)
    value = measure_a(ones) - measure_b(ones)
    draws = bootstrap(num_samples, resamples, seed)
    values = np.array([measure_a(counts) - measure_b(counts) for counts in draws])
    strays = int((np.abs(values - value) >= abs(value)).sum())
    width = reach(value, values, level)
    return Interval(value, value - width, value + width, num_samples, (strays + 1) / (resamples + 1))


def mean_interval(values: Any, level: float = 0.95) -> Interval:
    """Return the mean over seeds and its Student t interval; NaN ends for a single value.

    >>> round(mean_interval([1.0, 2.0, 3.0]).half_width, 4)
    2.4841
    """
    from scipy.special import stdtrit

    values = as_vector(values, "values")
    _check(level, resamples=1)
    mean, count = float(values.mean()), len(values)
    if count == 1:
        return Interval(mean, math.nan, math.nan, count)
    half = stdtrit(count - 1, (1 + level) / 2) * values.std(ddof=1) / np.sqrt(count)
    return Interval(mean, float(mean - half), float(mean + half), count)


def ece_of_chance(probs: Any, labels: Any, bins: int = 15) -> float:
    """Return the ECE that a perfectly calibrated model with these confidences would show.

    Each bin's accuracy strays from its confidence by chance; an ECE near this value is no evidence
    of miscalibration. It falls with the root of the number of samples.
    """
    return top_label(probs, labels).ece_of_chance(bins)


def sample_size_warning(probs: Any, labels: Any, bins: int = 15) -> str | None:
    """Return a sentence when chance explains much of the ECE, else None."""
    top = top_label(probs, labels)
    return few_samples(top.ece(bins), top.ece_of_chance(bins), len(top.weights))


def few_samples(measured: float, chance: float, num_samples: int) -> str | None:
    """Return a sentence when an ECE is less than twice what chance would show, else None."""
    if measured > 2 * chance:
        return None
    return (
        f"{num_samples:,} samples are few: a perfectly calibrated model would show an ECE near "
        f"{chance:.4f}, this one shows {measured:.4f}; see debiased_ece and the interval"
    )


def prepare(metric: Metric, probs: Any, labels: Any) -> tuple[Weighted, int]:
    """Return the metric as a function of the samples' multiplicities `[N]`, and N."""
    if metric in _PER_SAMPLE:
        values = _PER_SAMPLE[metric](*check_samples(probs, labels))
        return lambda counts: float(np.dot(values, counts) / counts.sum()), len(values)
    options = metric.keywords if isinstance(metric, partial) else {}
    if (method := _method(metric)) and not {"ignore_index", "class_weights"} & set(options):
        top = top_label(probs, labels)
        method(top, **options)  # bins or sorts the samples once; all resamples share that
        return lambda counts: method(top.reweighted(counts), **options), len(top.weights)
    rows, targets = as_numpy(as_probs(probs)), as_numpy(as_rows(labels, "labels"))

    def by_indexing(counts: Array) -> float:
        chosen = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
        return metric(rows[chosen], targets[chosen])

    return by_indexing, len(rows)


def bootstrap(num_samples: int, resamples: int, seed: int) -> Iterator[Array]:
    """Yield how often each sample is drawn in each resample."""
    random = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(random.integers(0, num_samples, num_samples), minlength=num_samples)


def resampled(top: TopLabel, resamples: int, seed: int) -> Iterator[TopLabel]:
    """Yield bootstrap resamples of samples whose weights say how often each was seen."""
    random = np.random.default_rng(seed)
    total = top.weights.sum()
    top.tie_sums(top.weights)  # sorts the samples once; all resamples share that
    for _ in range(resamples):
        yield top.reweighted(random.multinomial(round(total), top.weights / total))


def interval_from(value: float, values: Array, level: float, num: int, most: float = np.inf) -> Interval:
    """Return the interval of a metric of `num` samples from its resampled `values`, cut where it cannot be."""
    width = reach(value, values, level)
    least = 0.0 if values.min() >= 0 else -np.inf
    return Interval(value, max(value - width, least), min(value + width, most), num)


def reach(value: float, values: Array, level: float) -> float:
    """Return how far resampled values stray from the measured one, on the side they stray more."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(max(high - value, value - low))


_PER_SAMPLE = {metrics.nll: metrics.log_losses, metrics.brier: metrics.squared_errors}


def _method(metric: Metric) -> Metric | None:
    """Return the method of `TopLabel` behind a metric of this package, if there is one."""
    inner = metric.func if isinstance(metric, partial) else metric
    ours = getattr(inner, "__module__", "").startswith("semmix.calibration.")
    return getattr(TopLabel, getattr(inner, "__name__", ""), None) if ours else None


def _check(level: float, resamples: int) -> None:
    require(0 < level < 1, "level must lie between 0 and 1", level, "0.95 is the usual choice")
    require(resamples >= 1, "resamples must be positive", resamples, "1000 is the usual choice")
