"""Classifiers for small images, and any network of timm.

They take raw images: normalisation is a part of the network, so no caller can forget it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from semmix.core.errors import require, unknown_name
from semmix.networks.architectures import BODIES, Body, TimmBody

__all__ = ["Classifier", "classifier", "list_classifiers"]

MIN_IMAGE_SIZE = 8


class Classifier(nn.Module):
    """Raw images to logits: normalisation first, then what each kind of classifier adds."""

    mean: Tensor
    std: Tensor

    def __init__(self, num_classes: int, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.num_classes = num_classes
        self.feature_dim = num_classes
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def normalised(self, images: Tensor) -> Tensor:
        """Return uint8 images, or floats in [0, 1], minus the mean and divided by the std."""
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        return (images - self.mean) / self.std

    def features(self, images: Tensor) -> Tensor:
        """Return penultimate features `[N, feature_dim]` of uint8 images or floats in [0, 1]."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `[N, K]` of uint8 images or floats in [0, 1]."""
        raise NotImplementedError


class BodyClassifier(Classifier):
    """Images to logits, by way of features: normalise, body, linear head."""

    def __init__(self, body: Body, num_classes: int, mean: Sequence[float], std: Sequence[float]):
        super().__init__(num_classes, mean, std)
        self.body = body
        self.feature_dim = body.feature_dim
        self.head = nn.Linear(body.feature_dim, num_classes)

    def features(self, images: Tensor) -> Tensor:
        return self.body(self.normalised(images))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


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
    require(image_size >= MIN_IMAGE_SIZE, "images are too small", image_size, f"use at least {MIN_IMAGE_SIZE}")
    return BodyClassifier(BODIES[name](in_channels, image_size), num_classes, mean, std)


def per_channel(name: str, values: Sequence[float] | None, in_channels: int) -> Sequence[float]:
    """Return one value for each channel: those given, or 0.5."""
    values = [0.5] * in_channels if values is None else list(values)
    seen = f"{len(values)} values for {in_channels} channels"
    require(len(values) == in_channels, f"{name} does not fit the images", seen, "give one value per channel")
    return values
