"""Pairs by confusion."""

import pytest
import torch

from semmix._errors import SemmixError
from semmix.plan import all_pairs
from semmix.sampling.pairs import confusable_pairs


def test_most_confused_pairs_come_first():
    confusion = torch.tensor([[70, 10, 20, 0], [2, 95, 3, 0], [0, 0, 9, 1], [0, 30, 0, 70]])
    # rates: (0,1) .12, (0,2) .20, (1,2) .03, (0,3) 0, (1,3) .30, (2,3) .10
    assert confusable_pairs(confusion, 4) == ((1, 3), (0, 2), (0, 1), (2, 3))
    assert set(confusable_pairs(confusion, 6)) == set(all_pairs(4))


def test_frequent_classes_do_not_win_by_number():
    confusion = torch.tensor([[9000, 100, 0], [0, 5, 5], [0, 0, 10]])
    assert confusable_pairs(confusion, 1) == ((1, 2),)


def test_class_without_images_is_allowed():
    assert confusable_pairs(torch.zeros(3, 3), 3) == all_pairs(3)


def test_user_mistakes_are_explained():
    with pytest.raises(SemmixError, match="confusion matrix"):
        confusable_pairs(torch.zeros(2, 3), 1)
    with pytest.raises(SemmixError, match="confusion matrix"):
        confusable_pairs(-torch.ones(3, 3), 1)
    with pytest.raises(SemmixError, match="3 pairs"):
        confusable_pairs(torch.eye(3), 4)
