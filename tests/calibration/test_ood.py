"""Out-of-distribution scores and how well they separate."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from semmix import SemmixError, ood_auroc
from semmix import calibration as cal


def slow_auroc(inside, outside):
    wins = sum((o > i) + 0.5 * (o == i) for i in inside for o in outside)
    return wins / (len(inside) * len(outside))


def test_auroc_twin():
    random = np.random.default_rng(0)
    inside, outside = random.integers(0, 9, 40), random.integers(3, 12, 30)
    assert ood_auroc(inside, outside) == pytest.approx(slow_auroc(inside, outside))
    assert ood_auroc([0.1, 0.2], [0.8, 0.9]) == 1
    assert ood_auroc([1.0], [1.0]) == 0.5


scores = st.lists(st.integers(-50, 50), min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(scores, scores)
def test_monotone_transforms_change_nothing(inside, outside):
    inside, outside = np.array(inside), np.array(outside)
    for measure in (cal.ood_auroc, cal.ood_aupr, cal.ood_fpr):
        plain = measure(inside, outside)
        for curve in (np.exp, np.arctan, lambda x: 1e6 + 3.0 * x):
            assert measure(curve(inside / 10), curve(outside / 10)) == pytest.approx(plain)
    assert ood_auroc(inside, outside) + ood_auroc(outside, inside) == pytest.approx(1)


def test_fpr_by_hand():
    """Nineteen of twenty known samples lie at or below 18; two of four strange ones do."""
    assert cal.ood_fpr(np.arange(20), [5.0, 18.0, 18.5, 40.0]) == 0.5
    assert cal.ood_fpr(np.arange(20), [5.0, 18.0, 18.5, 40.0], recall=1.0) == 0.75


def test_aupr_is_scikit_learns_average_precision():
    random = np.random.default_rng(1)
    inside, outside = random.integers(0, 9, 40), random.integers(3, 12, 30)
    scores, is_out = np.concatenate([inside, outside]), np.arange(70) >= 40
    expected = average_precision_score(is_out, scores)
    assert cal.ood_aupr(inside, outside) == pytest.approx(expected)
    expected = average_precision_score(~is_out, -scores)
    assert cal.ood_aupr(inside, outside, positive="in") == pytest.approx(expected)


def test_aupr_of_chance_is_the_base_rate():
    assert cal.ood_aupr(np.zeros(30), np.zeros(10)) == 0.25


def test_scores_by_hand():
    logits = np.array([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]])
    total = math.log(math.e + math.e**2 + math.e**0.5)
    p = np.exp(logits[0] - total)
    assert cal.ood_score(logits, "energy") == pytest.approx([-total, -math.log(3)])
    assert cal.ood_score(logits, "max-logit").tolist() == [-2, 0]
    assert cal.ood_score(logits, "max-prob") == pytest.approx([1 - p[1], 2 / 3])
    assert cal.ood_score(logits, "entropy") == pytest.approx([-(p * np.log(p)).sum(), math.log(3)])


def test_scores_rise_with_strangeness():
    sure, unsure = np.array([[9.0, 0.0, 0.0]]), np.array([[0.3, 0.2, 0.1]])
    for by in ("entropy", "max-prob", "max-logit", "energy"):
        assert cal.ood_score(unsure, by) > cal.ood_score(sure, by)


def test_scores_of_huge_logits():
    logits = np.array([[1e4, -1e4], [700.0, 700.0]])
    for by in ("entropy", "max-prob", "max-logit", "energy"):
        assert np.isfinite(cal.ood_score(logits, by)).all()


def test_very_sure_answers_keep_their_order():
    """Beyond a margin of 35, 1 less a probability is 0 in float64."""
    margins = np.arange(30.0, 300.0, 5.0)
    logits = np.stack([margins, np.zeros_like(margins), np.zeros_like(margins)], 1)
    for by in ("entropy", "max-prob"):
        scores = cal.ood_score(logits, by)
        assert (np.diff(scores) < 0).all()
    expected = 2 * np.exp(-margins)
    assert cal.ood_score(logits, "max-prob") == pytest.approx(expected, rel=1e-9)
    assert cal.ood_score(logits, "entropy") == pytest.approx(expected * (1 + margins), rel=1e-9)


def test_mistakes():
    with pytest.raises(SemmixError, match="entropy"):
        cal.ood_score([[1.0, 2.0]], "entrpy")
    with pytest.raises(SemmixError, match="out"):
        cal.ood_aupr([1.0], [2.0], "inn")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SemmixError, match="recall must lie between 0 and 1"):
        cal.ood_fpr([1.0], [2.0], recall=1.5)
    with pytest.raises(SemmixError, match="NaN"):
        ood_auroc([np.nan], [1.0])
    with pytest.raises(SemmixError, match="vector"):
        ood_auroc([[1.0]], [1.0])
    with pytest.raises(SemmixError, match="empty"):
        ood_auroc([], [1.0])
