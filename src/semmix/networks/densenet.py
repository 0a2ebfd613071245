"""DenseNet for small images: every layer sees all earlier ones of its block.

References:
    Huang et al., Densely Connected Convolutional Networks, https://arxiv.org/abs/1608.06993
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semmix.networks.base_classifier import Body

GROWTH = 32


class DenseLayer(nn.Module):
    """Add `GROWTH` channels made from all channels so far, by way of a 1x1 bottleneck."""

    def __init__(self, in_channels: int):
        super().__init__()
        self.new = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(),
            nn.Conv2d(in_channels, 4 * GROWTH, 1, bias=False),
            nn.BatchNorm2d(4 * GROWTH),
            nn.ReLU(),
            nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new(x)], dim=1)


class DenseNet121(Body):
    """Dense blocks of 6, 12, 24 and 16 layers; between them channels and image size halve."""

    feature_dim = 1024

    def __init__(self, in_channels: int, image_size: int):
        super().__init__()
        channels = 2 * GROWTH
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)]
        for depth, following in pairwise((6, 12, 24, 16, 0)):
            layers += [DenseLayer(channels + k * GROWTH) for k in range(depth)]
            channels += depth * GROWTH
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            if following:
                layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.layers(images), 1).flatten(1)
