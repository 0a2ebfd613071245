"""What both training loops refuse before they begin."""

import math

from torch import Tensor

from semmix.core.errors import require


def check_positive(**settings: float) -> None:
    """Refuse settings that are not above zero, infinite, or not a number."""
    for name, value in settings.items():
        require(0 < value < math.inf, f"{name} must be positive", value, f"choose {name} > 0")


def check_not_negative(**settings: float) -> None:
    """Refuse settings that are below zero, infinite, or not a number."""
    for name, value in settings.items():
        require(0 <= value < math.inf, f"{name} must not be negative", value, f"choose {name} >= 0")


def check_share(**settings: float) -> None:
    """Refuse settings outside [0, 1)."""
    for name, value in settings.items():
        require(0 <= value < 1, f"{name} must be a share between 0 and 1", value, f"choose 0 <= {name} < 1")


def check_two_classes(labels: Tensor, learner: str) -> None:
    """Refuse training images of a single class."""
    num_classes = len(labels.unique())
    seen = f"{num_classes} in {len(labels)} training images"
    fix = "give two class folders at least, each with images of one kind"
    require(num_classes >= 2, f"a {learner} needs two classes", seen, fix)


def check_held_out(**num_images: int) -> None:
    """Refuse an empty validation or test split: without it a run cannot be measured."""
    for split, num in num_images.items():
        require(num, f"a classifier is measured on its {split} split", "no images", "hold some images out")


def check_square(image_shape: tuple[int, int, int]) -> None:
    """Refuse images that are not square: a trained network takes squares of one size."""
    _, height, width = image_shape
    fix = f"scale and crop them, as by --size {min(height, width)}"
    require(height == width, "a classifier wants square images", f"{height} x {width}", fix)
