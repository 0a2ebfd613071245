"""Networks for small images; they take raw images and normalise inside."""

from collections.abc import Callable, Sequence

from semmix._errors import SemmixError, unknown_name
from semmix.classifiers._base import Body, Classifier, per_channel
from semmix.classifiers.resnet import resnet18
from semmix.classifiers.small import Small

__all__ = ["Body", "Classifier", "classifier", "list_classifiers"]

# name -> builder of its body from (in_channels, image_size)
_BODIES: dict[str, Callable[[int, int], Body]] = {
    "small": Small,
    "resnet18": resnet18,
}

MIN_IMAGE_SIZE = 8


def list_classifiers() -> list[str]:
    """Return the names `classifier` knows."""
    return sorted(_BODIES)


def classifier(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """Return a new network for square images of `image_size`; mean and std default to 0.5.

    >>> classifier("small", num_classes=10, in_channels=1, image_size=8).feature_dim
    256
    """
    if name not in _BODIES:
        raise unknown_name("classifier", name, _BODIES)
    if image_size < MIN_IMAGE_SIZE:
        raise SemmixError("images are too small", image_size, f"use at least {MIN_IMAGE_SIZE}")
    mean = per_channel("mean", mean, in_channels)
    std = per_channel("std", std, in_channels)
    return Classifier(_BODIES[name](in_channels, image_size), num_classes, mean, std)
