"""What the loops refuse: numbers that cannot be meant, a single class, oblong images."""

import math

import pytest
import torch

from semmix import SemmixError
from semmix.core.checks import check_not_negative, check_positive, check_share, check_square, check_two_classes


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_positive, (1e-9, 1, 1e9), (0, -1, math.nan, math.inf)),
        (check_not_negative, (0, 0.5, 4), (-1, math.nan, math.inf)),
        (check_share, (0, 0.1, 0.999), (-0.1, 1, 2, math.nan)),
    ],
)
def test_numbers_are_checked_and_named(check, good, bad):
    for value in good:
        check(lr=value)
    for value in bad:
        with pytest.raises(SemmixError, match="lr must"):
            check(lr=value)


def test_one_class_is_not_enough():
    check_two_classes(torch.tensor([0, 1, 1]), "classifier")
    for labels in ([1, 1, 1], []):
        with pytest.raises(SemmixError, match="a classifier needs two classes"):
            check_two_classes(torch.tensor(labels), "classifier")


def test_oblong_images_are_refused():
    check_square((3, 16, 16))
    for shape in ((3, 16, 32), (1, 32, 16)):
        with pytest.raises(SemmixError, match="square images") as caught:
            check_square(shape)
        assert "--size 16" in caught.value.fix
