"""A network that takes raw images: normalisation is a part of it, so no caller can forget it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from semmix.core.errors import require
from semmix.networks.bodies import Body


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


def per_channel(name: str, values: Sequence[float] | None, in_channels: int) -> Sequence[float]:
    """Return one value for each channel: those given, or 0.5."""
    values = [0.5] * in_channels if values is None else list(values)
    seen = f"{len(values)} values for {in_channels} channels"
    require(len(values) == in_channels, f"{name} does not fit the images", seen, "give one value per channel")
    return values
