"""MobileNetV2 (Sandler et al., 2018) with the ImageNet weights torchvision publishes."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from semmix._errors import SemmixError
from semmix._files import digest_tensors
from semmix.encoders.preprocess import Preprocess
from semmix.encoders.pretrained import PretrainedEncoder

STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks and stride of each stage."""
IMAGENET = Preprocess(
    size=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    resample="bilinear",
)  # fmt: skip


def load_mobilenet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of MobileNetV2 from torchvision's weights file `what`."""
    network = MobileNetV2()
    try:
        tensors = torch.load(what, map_location="cpu", weights_only=True)
        network.load_state_dict({k: v for k, v in tensors.items() if k.startswith("features.")})
    except (OSError, RuntimeError, pickle.UnpicklingError, AttributeError) as error:
        fix = f"name torchvision's mobilenet_v2 weights; {Path(what).name} does not hold them"
        raise SemmixError("no MobileNetV2 weights here", what, fix) from error
    weights = digest_tensors(network.state_dict())
    network = network.to(device).eval()
    return PretrainedEncoder(f"mobilenet:{what}", network, IMAGENET, weights, device)


class MobileNetV2(nn.Module):
    """The network without its head; parameters are named as in torchvision's files."""

    def __init__(self):
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [_convolution(3, channels, 3, stride=2)]
        for expansion, out, num_blocks, stride in STAGES:
            for k in range(num_blocks):
                blocks.append(Block(channels, out, stride if k == 0 else 1, expansion))
                channels = out
        self.features = nn.Sequential(*blocks, _convolution(channels, 1280, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return features [N, 1280]."""
        return self.features(images).mean((2, 3))


class Block(nn.Module):
    """An inverted residual: widen, filter each channel, narrow."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int):
        super().__init__()
        hidden = channels * expansion
        widen = [] if expansion == 1 else [_convolution(channels, hidden, 1)]
        self.conv = nn.Sequential(
            *widen,
            _convolution(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, its input added where shapes agree."""
        return x + self.conv(x) if self.adds else self.conv(x)


def _convolution(channels: int, out: int, size: int, stride: int = 1, groups: int = 1):
    convolution = nn.Conv2d(
        channels, out, size, stride, padding=size // 2, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU6())
