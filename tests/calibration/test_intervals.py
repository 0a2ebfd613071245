"""Intervals that hold what they promise, and tests that find differences only where they are."""

import math
from functools import partial

import numpy as np
import pytest

from semmix import SemmixError, interval
from semmix import calibration as cal
from semmix.calibration import Interval


def calibrated(random, num_samples, gap=0.0):
    """Binary predictions whose accuracy is their confidence less `gap`."""
    p = random.uniform(0.55, 0.95, num_samples)
    return p, (random.random(num_samples) < p - gap).astype(int)


def test_same_seed_same_interval():
    case = calibrated(np.random.default_rng(0), 500)
    assert interval(cal.ece, *case) == interval(cal.ece, *case)
    assert interval(cal.ece, *case) != interval(cal.ece, *case, seed=1)


@pytest.mark.parametrize(
    "metric",
    [
        cal.ece,
        cal.aece,
        cal.mce,
        cal.nll,
        cal.brier,
        cal.accuracy,
        cal.smooth_ece,
        cal.aurc,
        cal.classwise_ece,
        cal.debiased_ece,
        partial(cal.ece, bins=5),
        partial(cal.ece, class_weights=[1, 5]),
        partial(cal.nll, class_weights=[1, 5]),
    ],
)
def test_fast_path_equals_indexing(metric):
    """Resampling the few numbers a metric needs gives what resampling whole rows gives."""
    probs, labels = calibrated(np.random.default_rng(1), 100, gap=0.1)
    fast = interval(metric, probs, labels, resamples=20)
    slow = interval(lambda p, y: metric(p, y), probs, labels, resamples=20)
    assert tuple(fast) == pytest.approx(tuple(slow), abs=1e-9)
    assert fast.value == pytest.approx(metric(probs, labels), abs=1e-12)


def test_interval_by_hand():
    probs, labels = calibrated(np.random.default_rng(2), 60)
    random = np.random.default_rng(0)
    values = []
    for _ in range(100):
        chosen = np.sort(random.integers(0, 60, 60))
        values.append(cal.brier(probs[chosen], labels[chosen]))
    value = cal.brier(probs, labels)
    low, high = np.quantile(values, [0.05, 0.95])
    got = interval(cal.brier, probs, labels, level=0.9, resamples=100)
    width = max(high - value, value - low)
    assert tuple(got) == pytest.approx((value - width, value + width))
    assert (got.value, got.num) == (pytest.approx(value), 60)


@pytest.mark.parametrize(("gap", "least"), [(0.1, 0.9), (0.04, 0.9)])
def test_coverage(gap, least):
    """The interval of ECE holds the true value about as often as it says."""
    random = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        low, high = interval(cal.ece, *calibrated(random, 1000, gap), resamples=100)
        held += low <= gap <= high
    assert held / 100 >= least


def test_interval_contains_the_value_and_stays_possible():
    random = np.random.default_rng(4)
    for num_samples in (1, 2, 30):
        probs, labels = calibrated(random, num_samples)
        for metric in (cal.ece, cal.mce, cal.accuracy):
            low, high = interval(metric, probs, labels, resamples=50)
            assert 0 <= low <= metric(probs, labels) <= high <= 1


def test_intervals_end_only_where_the_metric_does():
    """29 of 30 right: at most 1. A loss may be more than one, a gain less than nothing."""
    p, labels = np.full(30, 0.9), np.array([0] + [1] * 29)
    assert interval(cal.accuracy, p, labels).high == 1
    wrong = 1 - labels
    assert interval(cal.nll, p, wrong).high > cal.nll(p, wrong) > 1
    low, high = interval(lambda p, y: float(y.mean()) - 1.01, p, labels)
    assert low < 29 / 30 - 1.01 < high


def test_resamples_of_compressed_samples_are_as_large():
    """A cell that stands for many samples is drawn many times: accuracy strays no further."""
    probs, labels = calibrated(np.random.default_rng(11), 2000)
    top = cal.top_label(probs, labels)
    draws = [draw.accuracy() for draw in cal.resampled(top.compressed(15), 300, seed=0)]
    expected = math.sqrt(top.accuracy() * (1 - top.accuracy()) / 2000)
    assert np.std(draws) == pytest.approx(expected, rel=0.2)


def test_wider_level_wider_interval():
    case = calibrated(np.random.default_rng(5), 300, gap=0.2)
    narrow, wide = interval(cal.ece, *case, level=0.5), interval(cal.ece, *case, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    ("low", "high", "clear"), [(0.1, 0.3, True), (-0.3, -0.1, True), (-0.1, 0.3, False), (0.0, 0.3, False)]
)
def test_interval_excludes_zero(low, high, clear):
    assert Interval((low + high) / 2, low, high, num=3).excludes_zero is clear


def test_interval_shows_its_value():
    assert repr(Interval(0.01234567, 0.01, 0.02, num=500)) == "Interval(0.01235 [0.01, 0.02], num=500)"
    assert repr(Interval(2.0, math.nan, math.nan, num=1)) == "Interval(2, num=1)"
    assert repr(Interval(0.1, 0.0, 0.2, num=9, p_value=0.0123)).endswith("num=9, p_value=0.0123)")


def test_interval_in_json():
    assert Interval(0.5, 0.25, 0.75, num=4).to_json() == {"value": 0.5, "low": 0.25, "high": 0.75}
    assert Interval(0.5, math.nan, math.nan, num=1).to_json() == {"value": 0.5, "low": None, "high": None}


def test_paired_difference_of_a_model_with_itself():
    probs, labels = calibrated(np.random.default_rng(6), 200)
    assert cal.paired_difference(cal.ece, probs, probs, labels) == Interval(0, 0, 0, num=200, p_value=1)


def test_paired_difference_finds_a_worse_model():
    random = np.random.default_rng(7)
    probs, labels = calibrated(random, 2000)
    sharper = probs**3 / (probs**3 + (1 - probs) ** 3)
    result = cal.paired_difference(cal.ece, sharper, probs, labels)
    assert result.value == pytest.approx(cal.ece(sharper, labels) - cal.ece(probs, labels))
    assert 0 < result.low < result.value < result.high
    assert result.p_value == 1 / 1001  # chance is never ruled out


def test_paired_difference_of_equal_models_is_seldom_significant():
    random = np.random.default_rng(8)
    found = 0
    for _ in range(60):
        p, labels = calibrated(random, 300)
        a, b = (np.clip(p + random.normal(0, 0.03, 300), 0.5, 1) for _ in range(2))
        found += cal.paired_difference(cal.brier, a, b, labels, resamples=100).p_value < 0.05
    assert found <= 9  # 3 are expected


def test_paired_difference_needs_the_same_samples():
    with pytest.raises(SemmixError, match=r"length|samples"):
        cal.paired_difference(cal.ece, [0.5, 0.6], [0.5], [0, 1])


def test_mean_interval():
    """Three seeds: the 97.5 % quantile of Student's t with two degrees is 4.302653."""
    found = cal.mean_interval([1.0, 2.0, 3.0])
    assert (found.value, found.num) == (2, 3)
    half = 4.302653 / math.sqrt(3)
    assert (found.half_width, found.value - found.low) == pytest.approx([half] * 2, abs=1e-6)
    alone = cal.mean_interval([5.0])
    assert (alone.value, alone.num, alone.has_interval) == (5.0, 1, False)
    assert not alone.excludes_zero
    with pytest.raises(SemmixError, match="NaN"):
        cal.mean_interval([1.0, np.nan])


def test_ece_of_chance():
    """The mean ECE of a calibrated model is what the formula says, and falls with the root of N."""
    random = np.random.default_rng(9)
    cases = [calibrated(random, 400) for _ in range(100)]
    measured = np.mean([cal.ece(*case) for case in cases])
    predicted = np.mean([cal.ece_of_chance(*case) for case in cases])
    assert predicted == pytest.approx(measured, rel=0.05)
    repeated = tuple(np.tile(values, 100) for values in cases[0])
    assert cal.ece_of_chance(*repeated) == pytest.approx(cal.ece_of_chance(*cases[0]) / 10)


def test_sample_size_warning():
    random = np.random.default_rng(10)
    assert "few" in cal.sample_size_warning(*calibrated(random, 100))
    assert cal.sample_size_warning(*calibrated(random, 10_000, gap=0.2)) is None


@pytest.mark.parametrize("options", [{"level": 0.0}, {"level": 1.5}, {"resamples": 0}])
def test_mistakes(options):
    with pytest.raises(SemmixError, match=r"level|resamples"):
        interval(cal.ece, [0.5], [1], **options)


BINNED = (cal.ece, cal.aece, cal.oe, cal.ue, cal.weighted_oe, cal.weighted_ue, cal.mce, cal.debiased_ece)
UNBINNED = (cal.accuracy, cal.smooth_ece, cal.aurc, cal.nll, cal.brier, cal.classwise_ece)


@pytest.mark.parametrize("metric", [*BINNED, *UNBINNED], ids=lambda metric: metric.__name__)
def test_an_interval_is_that_of_the_metric_with_its_defaults(metric):
    random = np.random.default_rng(4)
    probs, labels = cal.softmax(2 * random.normal(size=(200, 3))), random.integers(0, 3, 200)
    found = cal.interval(metric, probs, labels, resamples=5)
    assert found.value == pytest.approx(metric(probs, labels), rel=1e-9)
    assert found.low <= found.value <= found.high
