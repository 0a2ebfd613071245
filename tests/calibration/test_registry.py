"""The registry of metrics: names, headings, digits, functions."""

import numpy as np
import pytest

from semmix.calibration import METRICS, USUAL, ece, summary

PROBS = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
LABELS = np.array([0, 1, 1, 0])


def test_usual_metrics_are_those_of_the_summary():
    """What a table measures by function is what `summary` names so."""
    found = summary(PROBS, LABELS)
    for metric in USUAL:
        assert metric.with_bins(15)(PROBS, LABELS) == pytest.approx(found[metric.name])


def test_with_bins():
    assert METRICS["ece"].with_bins(1)(PROBS, LABELS) == pytest.approx(ece(PROBS, LABELS, bins=1))
    assert METRICS["nll"].with_bins(1) is METRICS["nll"].function


@pytest.mark.parametrize(
    ("name", "value", "text"), [("ece", 0.01524, "1.52"), ("ece", -0.01524, "−1.52"), ("nll", 0.12345, "0.123")]
)
def test_show(name, value, text):
    assert METRICS[name].show(value) == text


def test_titles_tell_the_unit():
    assert METRICS["ece"].title == "ECE %"
    assert METRICS["nll"].title == "NLL"
    assert METRICS["ece"].show(0.01, signed=True) == "+1.00"
