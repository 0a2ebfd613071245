"""Every mistake in the input gets an error that says what is wrong, what was seen, what to do."""

import numpy as np
import pytest
import torch

from semmix import SemmixError
from semmix import calibration as cal

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
LABELS = np.array([0, 1, 2])

METRICS = (
    cal.ece,
    cal.aece,
    cal.oe,
    cal.ue,
    cal.mce,
    cal.classwise_ece,
    cal.smooth_ece,
    cal.debiased_ece,
    cal.nll,
    cal.brier,
    cal.accuracy,
    cal.aurc,
    cal.summary,
    cal.reliability,
)


def spoilt(value, row=1):
    probs = PROBS.copy()
    probs[row, 0] = value
    return probs


MISTAKES = [
    (spoilt(np.nan), LABELS, "NaN"),
    (spoilt(np.inf), LABELS, "NaN or infinity"),
    (torch.tensor(spoilt(np.nan)), LABELS, "first in row 1"),
    (np.log(PROBS), LABELS, "logits"),
    (10 * PROBS, LABELS, r"softmax\(logits\)"),
    (0.9 * PROBS, LABELS, "sum to one"),
    (spoilt(-0.1), LABELS, r"\[0, 1\]"),
    (PROBS[:0], LABELS[:0], "empty"),
    (PROBS, LABELS[:2], "3 rows of predictions, 2 labels"),
    (PROBS[None], LABELS, "wrong shape"),
    (PROBS[:, :0], LABELS, "wrong shape"),
    (PROBS[:, :1], [0, 0, 0], "sigmoid"),
    (0.5, LABELS, "must be an array"),
    (PROBS, LABELS + 1, "start at 1"),
    (PROBS, LABELS + 7, "out of range"),
    (PROBS, LABELS - 100, "ignore_index"),
    (PROBS, LABELS[:, None], "wrong shape"),
    (PROBS, [0.5, 1, 2], "class indices"),
    (PROBS, [0, 1, np.nan], "NaN"),
    (PROBS, ["cat", "dog", "eel"], "numbers"),
    (PROBS.astype(str), LABELS, "numbers"),
    (PROBS.astype(object), LABELS, "numbers"),
    ([[0.5, 0.5], [1.0]], [0, 1], "rectangular"),
    (PROBS + 0j, LABELS, "real"),
    (torch.tensor(PROBS + 0j), LABELS, "real"),
    (PROBS, 2 * PROBS, "soft labels"),
    (PROBS, np.full((3, 3), np.nan), "NaN"),
]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_mistakes(metric):
    for probs, labels, message in MISTAKES:
        with pytest.raises(SemmixError, match=message):
            metric(probs, labels)


def test_the_row_is_named_beyond_the_first_block():
    probs = np.full((1 << 19, 3), 1 / 3)
    probs[400_000, 1] = 0.9
    with pytest.raises(SemmixError, match="row 400000 sums to"):
        cal.ece(probs, np.zeros(len(probs), int))


@pytest.mark.parametrize("bins", [0, -3, 2.5, "15", None])
def test_bins(bins):
    for metric in (cal.ece, cal.aece, cal.classwise_ece, cal.reliability):
        with pytest.raises(SemmixError, match="bins"):
            metric(PROBS, LABELS, bins)


@pytest.mark.parametrize("weights", [[1, 1], [1, -1, 1], [0, 0, 0], [1, np.nan, 1], [[1, 1, 1]], 2.0])
def test_class_weights(weights):
    with pytest.raises(SemmixError, match="weight"):
        cal.ece(PROBS, LABELS, class_weights=weights)


def test_everything_ignored():
    with pytest.raises(SemmixError, match="ignored"):
        cal.ece(PROBS, [9, 9, 9], ignore_index=9)


def test_power():
    with pytest.raises(SemmixError, match="power"):
        cal.debiased_ece(PROBS, LABELS, power=3)


def test_mixed_types_are_welcome():
    half = torch.tensor(PROBS, dtype=torch.bfloat16)
    assert cal.accuracy(half, LABELS.astype(np.uint8)) == 1
    assert cal.accuracy(PROBS.astype(np.float16), torch.tensor(LABELS, dtype=torch.int16)) == 1
    assert cal.accuracy(PROBS.astype(np.float32), LABELS.astype(np.float32)) == 1
    assert cal.accuracy([1, 0, 1], [True, False, False]) == pytest.approx(2 / 3)


def test_booleans_are_probabilities_of_zero_and_one():
    certain = torch.tensor([True, False, True])
    assert cal.accuracy(certain, [1, 0, 0]) == pytest.approx(2 / 3)
