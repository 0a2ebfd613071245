"""Classifiers for small images, and any network of timm; they take raw images and normalise inside."""

from collections.abc import Sequence

from semmix.core.errors import require, unknown_name
from semmix.networks.base_classifier import BodyClassifier, Classifier, per_channel
from semmix.networks.bodies import BODIES, TimmBody

__all__ = ["Classifier", "classifier", "list_classifiers"]

MIN_IMAGE_SIZE = 8


def list_classifiers() -> list[str]:
    """Return the names that `classifier` knows, without those of timm.

    Example:
        >>> list_classifiers()[-3:]
        ['resnet50', 'small', 'wrn26_10']
    """
    return sorted(BODIES)


def classifier(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Classifier:
    """Return a new network, with random weights, that turns square images into logits.

    Args:
        name: One of `list_classifiers()`, or `timm:NAME` for any network of the timm package.
        num_classes: Number of logits.
        in_channels: 1 for grey images, 3 for colour.
        image_size: Height and width of the images.
        mean: Of each channel, subtracted from pixels in [0, 1]; 0.5 if not given.
        std: Of each channel, by which the rest is divided; 0.5 if not given.

    Raises:
        SemmixError: If the name is unknown, the images are too small, or the statistics do not fit the channels.

    Example:
        >>> import torch
        >>> network = classifier("small", num_classes=10, in_channels=1, image_size=8)
        >>> network(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    mean, std = per_channel("mean", mean, in_channels), per_channel("std", std, in_channels)
    if name.startswith("timm:"):
        return BodyClassifier(TimmBody(name.removeprefix("timm:"), in_channels, image_size), num_classes, mean, std)
    if name not in BODIES:
        raise unknown_name("classifier", name, [*BODIES, "timm:NAME"])
    fits = image_size >= MIN_IMAGE_SIZE
    require(fits, "images are too small", image_size, f"use at least {MIN_IMAGE_SIZE}")
    return BodyClassifier(BODIES[name](in_channels, image_size), num_classes, mean, std)
