"""Networks of inverted residuals: MobileNetV2 (Sandler et al., 2018) and those made from it.

Parameters are named as in torchvision's file of MobileNetV2.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class InvertedResiduals(nn.Module):
    """The network without its head, with the padding and the eps of TensorFlow or of torch."""

    def __init__(self, stages: Sequence[Stage], tensorflow: bool):
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [_activated(tensorflow, 3, channels, 3, stride=2)]
        for stage in stages:
            for k in range(stage.num_blocks):
                blocks.append(InvertedResidual(channels, stage, stage.stride if k == 0 else 1, tensorflow))
                channels = stage.channels
        self.features = nn.Sequential(*blocks, _activated(tensorflow, channels, NUM_FEATURES, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return pooled features [N, 1280]."""
        return self.features(images).mean((2, 3))


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; the input is added where shapes agree."""

    def __init__(self, channels: int, stage: Stage, stride: int, tensorflow: bool):
        super().__init__()
        hidden = channels * stage.expansion
        self.conv = nn.Sequential(
            *([] if stage.expansion == 1 else [_activated(tensorflow, channels, hidden, 1)]),
            _activated(tensorflow, hidden, hidden, stage.size, stride, groups=hidden),
            *_normed(tensorflow, hidden, stage.channels, 1),
        )
        self.adds = stride == 1 and channels == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def _activated(tensorflow: bool, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(*_normed(tensorflow, channels, out, size, stride, groups), nn.ReLU6())


def _normed(tensorflow: bool, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution and its norm."""
    kind, padding, eps = (SameConv2d, 0, 1e-3) if tensorflow else (nn.Conv2d, size // 2, 1e-5)
    return [kind(channels, out, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(out, eps)]
