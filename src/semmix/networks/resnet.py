"""Residual networks for small images: a 3x3 stem of stride 1 and no pooling after it.

References:
    He et al., Deep Residual Learning, https://arxiv.org/abs/1512.03385
    Zagoruyko and Komodakis, Wide Residual Networks, https://arxiv.org/abs/1605.07146
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from semmix.networks.base_classifier import Body, conv_bn

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int):
        super().__init__()
        self.main = nn.Sequential(*conv_bn(in_channels, width, 3, stride), nn.ReLU(), *conv_bn(width, width, 3))
        self.shortcut = projection(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


class PaddedBlock(BasicBlock):
    """A basic block whose shortcut has no weights: it skips pixels and adds empty channels."""

    def __init__(self, in_channels: int, width: int, stride: int):
        super().__init__(in_channels, width, stride)
        self.shortcut = PaddedShortcut(stride, width - in_channels)


class PaddedShortcut(nn.Module):
    """Every `stride`-th pixel, with `extra` zero channels shared between front and back."""

    def __init__(self, stride: int, extra: int):
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        front = self.extra // 2
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, front, self.extra - front))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones that narrow and widen, beside a shortcut."""

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


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the shortcut: nothing where shapes agree, else a 1x1 convolution."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(*conv_bn(in_channels, out_channels, 1, stride))


class ResNet(Body):
    """Stem, stages of residual blocks that halve the image from the second on, average pool."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        in_channels: int,
        stem_width: int,
        pooled: int = 1,
    ):
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(in_channels, stem_width, 3), nn.ReLU())
        blocks, channels = [], stem_width
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for k in range(depth):
                blocks.append(block(channels, width, stride=2 if stage > 0 and k == 0 else 1))
                channels = width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.pooled = pooled
        self.feature_dim = channels * pooled**2

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.stem(images))
        return F.adaptive_avg_pool2d(x, self.pooled).flatten(1)


def resnet18(in_channels: int, image_size: int) -> ResNet:
    """Return ResNet-18: two basic blocks per stage."""
    return ResNet(BasicBlock, (2, 2, 2, 2), WIDTHS, in_channels, 64, _pooled(image_size))


def resnet50(in_channels: int, image_size: int) -> ResNet:
    """Return ResNet-50: 3, 4, 6 and 3 bottleneck blocks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), WIDTHS, in_channels, 64, _pooled(image_size))


def resnet101(in_channels: int, image_size: int) -> ResNet:
    """Return ResNet-101: 3, 4, 23 and 3 bottleneck blocks."""
    return ResNet(Bottleneck, (3, 4, 23, 3), WIDTHS, in_channels, 64, _pooled(image_size))


def resnet32(in_channels: int, image_size: int) -> ResNet:
    """Return ResNet-32, the network of the long-tail comparisons."""
    return he_initialised(ResNet(PaddedBlock, (5, 5, 5), (16, 32, 64), in_channels, 16))


def wrn26_10(in_channels: int, image_size: int) -> ResNet:
    """Return WRN-26-10: three stages of four basic blocks, ten times as wide."""
    return he_initialised(ResNet(BasicBlock, (4, 4, 4), (160, 320, 640), in_channels, 16))


def _pooled(image_size: int) -> int:
    # From 64x64 images on (Tiny-ImageNet) the published networks keep a 2x2 grid of features.
    return 2 if image_size >= 64 else 1


def he_initialised(net: ResNet) -> ResNet:
    """Draw the convolutions' weights as He et al. (2015), where the published network did."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net
