"""What is measured of answers: intervals end where values do."""

from dataclasses import replace

import numpy as np
import pytest

from semmix.deploy.rules import estimate_mean, measure_sets
from semmix.report import Predictions


def test_intervals_end_where_values_do():
    """One failure among forty, near the upper end of what can be."""
    holds = np.arange(40) > 0
    assert estimate_mean(holds).high > 1
    assert estimate_mean(holds, most=1.0) == replace(estimate_mean(holds), high=1.0)


def test_intervals_are_those_of_ninety_five_per_cent():
    values = np.random.default_rng(0).normal(size=2000)
    found, half = estimate_mean(values), 1.96 * values.std() / 2000**0.5
    assert found.value == pytest.approx(values.mean())
    assert found.value - found.low == pytest.approx(half, rel=0.08)
    assert found.high - found.value == pytest.approx(half, rel=0.08)


def test_sets_hold_the_truth_at_most_always_and_all_classes_at_most():
    probs = np.full((40, 2), 0.5)
    probs[0] = 0.9, 0.1  # the only set of one class, and it misses the truth
    sets = measure_sets(Predictions(probs, np.ones(40, int)), 0.5)
    assert sets["coverage"].value == 39 / 40
    assert sets["coverage"].high == 1
    assert sets["num_classes"].high == 2
