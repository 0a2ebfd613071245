"""Residual networks for small images: a 3x3 stem of stride 1 and no pooling after it.

References:
    He et al., Deep Residual Learning, https://arxiv.org/abs/1512.03385
"""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from semmix.classifiers._base import Body

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int):
        super().__init__()
        self.main = nn.Sequential(
            *conv_bn(in_channels, width, 3, stride), nn.ReLU(), *conv_bn(width, width, 3)
        )
        self.shortcut = projection(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones that narrow and widen."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int):
        super().__init__()
        self.main = nn.Sequential(
            *conv_bn(in_channels, width, 1),
            nn.ReLU(),
            *conv_bn(width, width, 3, stride),
            nn.ReLU(),
            *conv_bn(width, 4 * width, 1),
        )
        self.shortcut = projection(in_channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


class ResNet(Body):
    """Stem, four stages of residual blocks, average pool to 1x1 (2x2 from 64x64 images on)."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        in_channels: int,
        image_size: int,
    ):
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(in_channels, WIDTHS[0], 3), nn.ReLU())
        stages, channels = [], WIDTHS[0]
        for width, depth, stride in zip(WIDTHS, depths, (1, 2, 2, 2), strict=True):
            for step in (stride, *[1] * (depth - 1)):
                stages.append(block(channels, width, step))
                channels = width * block.expansion
        self.stages = nn.Sequential(*stages)
        self.pooled = 2 if image_size >= 64 else 1
        self.feature_dim = channels * self.pooled**2

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(self.stem(images))
        return F.adaptive_avg_pool2d(x, self.pooled).flatten(1)


def conv_bn(in_channels: int, out_channels: int, size: int, stride: int = 1):
    """Return a convolution that keeps the image's size (at stride 1) and its normalisation."""
    conv = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)
    return conv, nn.BatchNorm2d(out_channels)


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the shortcut: nothing where shapes agree, else a 1x1 convolution."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(*conv_bn(in_channels, out_channels, 1, stride))


resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
