"""Agreement of predictions with distributions of human labels."""

import math

import numpy as np
import pytest
from scipy import stats

from semmix import SemmixError
from semmix import calibration as cal


def people(seed, num_samples=60):
    random = np.random.default_rng(seed)
    votes = random.multinomial(10, [0.6, 0.3, 0.1], num_samples)
    return random.dirichlet([2, 1, 1], num_samples), votes / 10


def test_by_hand():
    probs, human = [[0.8, 0.2]], [[0.5, 0.5]]
    table = cal.human_agreement(probs, human)
    assert table["cross_entropy"] == pytest.approx(-(math.log(0.8) + math.log(0.2)) / 2)
    assert table["kl_divergence"] == pytest.approx(table["cross_entropy"] - math.log(2))
    assert table["total_variation"] == pytest.approx(0.3)


def test_against_scipy():
    probs, human = people(0)
    table = cal.human_agreement(probs, human)
    divergences = [stats.entropy(q, p) for p, q in zip(probs, human, strict=True)]
    assert table["kl_divergence"] == pytest.approx(np.mean(divergences))
    model, crowd = (stats.entropy(rows, axis=1) for rows in (probs, human))
    expected = stats.spearmanr(np.round(model, 9), np.round(crowd, 9)).statistic
    assert table["entropy_correlation"] == pytest.approx(expected, abs=1e-9)


def test_perfect_agreement():
    _, human = people(1)
    table = cal.human_agreement(human, human)
    assert table["kl_divergence"] == pytest.approx(0, abs=1e-15)
    assert table["total_variation"] == 0
    assert table["entropy_correlation"] == pytest.approx(1)
    assert table["cross_entropy"] == pytest.approx(cal.nll(human, human))


def test_constant_entropy_has_no_correlation():
    assert math.isnan(cal.entropy_correlation([[0.5, 0.5]] * 3, [[0.9, 0.1], [0.5, 0.5], [1, 0]]))


def test_classes_are_not_distributions():
    with pytest.raises(SemmixError, match="distributions"):
        cal.human_agreement([[0.5, 0.5]], [0])
