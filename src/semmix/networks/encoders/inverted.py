"""Networks of inverted residuals: MobileNetV2 (Sandler et al., 2018) and those made from it.

Parameters are named as in torchvision's file of MobileNetV2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

NUM_FEATURES = 1280


class Stage(NamedTuple):
    """Blocks in a row."""

    expansion: int
    """How much a block widens its input."""
    size: int
    """Of the kernels."""
    channels: int
    """Of each block's output."""
    num_blocks: int
    stride: int
    """Of the first block."""


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: an odd pixel goes to the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ceil(pixels / stride) pixels along each axis."""
        step, size = self.stride[0], self.kernel_size[0]
        sides = []
        for num in (x.shape[3], x.shape[2]):
            last = (num - 1) // step * step  # where the last window begins, padding left out
            missing = max(last + size - num, 0)
            sides += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, sides))


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What convolutions and batch norms of one network have in common."""

    same: bool
    """Pad as TensorFlow's SAME, else by half a kernel on each side."""
    eps: float
    """Added to the variance in batch norms."""

    def normed(self, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        """Return a convolution and its norm."""
        kind, padding = (SameConv2d, 0) if self.same else (nn.Conv2d, size // 2)
        convolution = kind(channels, out, size, stride, padding, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(out, self.eps)]

    def activated(self, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
        """Return a convolution, its norm and an activation."""
        return nn.Sequential(*self.normed(channels, out, size, stride, groups), nn.ReLU6())


class InvertedResiduals(nn.Module):
    """The network without its head."""

    def __init__(self, stages: Sequence[Stage], layers: Layers):
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [layers.activated(3, channels, 3, stride=2)]
        for stage in stages:
            for k in range(stage.num_blocks):
                blocks.append(Block(channels, stage, stage.stride if k == 0 else 1, layers))
                channels = stage.channels
        self.features = nn.Sequential(*blocks, layers.activated(channels, NUM_FEATURES, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return pooled features [N, 1280]."""
        return self.features(images).mean((2, 3))


class Block(nn.Module):
    """An inverted residual: widen, filter each channel, narrow."""

    def __init__(self, channels: int, stage: Stage, stride: int, layers: Layers):
        super().__init__()
        hidden = channels * stage.expansion
        widen = [] if stage.expansion == 1 else [layers.activated(channels, hidden, 1)]
        self.conv = nn.Sequential(
            *widen,
            layers.activated(hidden, hidden, stage.size, stride, groups=hidden),
            *layers.normed(hidden, stage.channels, 1),
        )
        self.adds = stride == 1 and channels == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, its input added where shapes agree."""
        return x + self.conv(x) if self.adds else self.conv(x)
