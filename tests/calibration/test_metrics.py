"""Metrics against golden values, slow twins written as plain loops, and known faults of others."""

import numpy as np
import pytest
import torch

import semmix
from semmix import calibration as cal
from semmix._errors import SemmixError


def golden():
    """The fixture whose values were derived twice: N=1000, K=10, a quarter of the labels wrong."""
    i, k = np.arange(1000), np.arange(10)
    logits = 4 * np.sin(0.37 * i[:, None] + 1.3 * k + 0.01 * i[:, None] * k)
    labels = np.where(i % 4 == 0, (7 * i + i % 13) % 10, logits.argmax(1))
    return logits, labels


def softmax(logits):
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


GOLDEN = {
    cal.accuracy: 0.789,
    cal.ece: 0.370857,
    cal.aece: 0.370857,
    cal.oe: 0.0,
    cal.ue: 0.370857,
    cal.weighted_oe: 0.0,
    cal.weighted_ue: 0.145089,
    cal.classwise_ece: 0.056396,
}


@pytest.mark.parametrize(
    ("metric", "value"), GOLDEN.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_golden_values(metric, value):
    logits, labels = golden()
    assert metric(softmax(logits), labels) == pytest.approx(value, abs=1e-6)


def test_constant_confidence():
    for order in ([0] * 6 + [1] * 4, [1, 0] * 4 + [0, 0]):
        assert semmix.aece([[0.9, 0.1]] * 10, order) == pytest.approx(0.3)


def test_logits_are_refused():
    logits, labels = golden()
    with pytest.raises(SemmixError, match="softmax"):
        semmix.ece(torch.from_numpy(logits), labels)
