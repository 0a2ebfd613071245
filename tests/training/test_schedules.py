"""Learning rates."""

import pytest

from semmix import SemmixError
from semmix.training.schedules import learning_rate


@pytest.mark.parametrize(("epoch", "rate"), [(0, 0.1), (79, 0.1), (80, 0.01), (120, 0.001)])
def test_multistep_is_the_published_one(epoch, rate):
    assert learning_rate("multistep", 0.1, epoch / 200) == pytest.approx(rate)


def test_cosine_falls_to_zero():
    rates = [learning_rate("cosine", 0.2, k / 10) for k in range(11)]
    assert rates[0] == 0.2
    assert rates[5] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(0)
    assert rates == sorted(rates, reverse=True)


def test_unknown_schedule_offers_near_names():
    with pytest.raises(SemmixError, match="did you mean 'cosine'"):
        learning_rate("cosin", 0.1, 0.0)
