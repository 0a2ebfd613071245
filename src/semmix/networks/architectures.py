"""Networks for small images without their heads: a 3x3 stem of stride 1, and no pooling after it.

References:
    He et al., Deep Residual Learning, https://arxiv.org/abs/1512.03385
    Zagoruyko and Komodakis, Wide Residual Networks, https://arxiv.org/abs/1605.07146
    Huang et al., Densely Connected Convolutional Networks, https://arxiv.org/abs/1608.06993
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semmix.core.errors import require
from semmix.core.extras import import_extra

GROWTH = 32
"""Channels that each layer of a DenseNet adds."""


class Body(nn.Module):
    """Normalised images `[N, C, H, W]` to features `[N, feature_dim]`."""

    feature_dim: int


def conv_bn(in_channels: int, out_channels: int, size: int, stride: int = 1):
    """Return a convolution that keeps the image's size (at stride 1) and its normalisation."""
    conv = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)
    return conv, nn.BatchNorm2d(out_channels)


class Small(Body):
    """Three 3x3 convolutions, the last two halving the image, and a 2x2 average pool: for 8x8 digits on a CPU."""

    feature_dim = 256

    def __init__(self, in_channels: int, image_size: int):
        super().__init__()
        first, second, third = conv_bn(in_channels, 32, 3), conv_bn(32, 64, 3, stride=2), conv_bn(64, 64, 3, stride=2)
        pool = (nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.layers = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *third, nn.ReLU(), *pool)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Block(nn.Module):
    """Convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, main: Iterable[nn.Module], shortcut: nn.Module):
        super().__init__()
        self.main, self.shortcut = nn.Sequential(*main), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.shortcut(x))


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    def __init__(self, in_channels: int, width: int, stride: int):
        main = (*conv_bn(in_channels, width, 3, stride), nn.ReLU(), *conv_bn(width, width, 3))
        super().__init__(main, projection(in_channels, width, stride))


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
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, front, self.extra - front))


class Bottleneck(Block):
    """A 3x3 convolution between two 1x1 ones that narrow and widen."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int):
        narrow, middle = conv_bn(in_channels, width, 1), conv_bn(width, width, 3, stride)
        main = (*narrow, nn.ReLU(), *middle, nn.ReLU(), *conv_bn(width, 4 * width, 1))
        super().__init__(main, projection(in_channels, 4 * width, stride))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the shortcut: nothing where shapes agree, else a 1x1 convolution."""
    same = stride == 1 and in_channels == out_channels
    return nn.Identity() if same else nn.Sequential(*conv_bn(in_channels, out_channels, 1, stride))


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
        return F.adaptive_avg_pool2d(self.blocks(self.stem(images)), self.pooled).flatten(1)


def _resnet(block: type[BasicBlock] | type[Bottleneck], *depths: int) -> Callable[[int, int], ResNet]:
    def build(in_channels: int, image_size: int) -> ResNet:
        # From 64x64 images on (Tiny-ImageNet) the published networks keep a 2x2 grid of features.
        pooled = 2 if image_size >= 64 else 1
        return ResNet(block, depths, (64, 128, 256, 512), in_channels, 64, pooled)

    return build


def _he_resnet(block: type[BasicBlock], depth: int, width: int) -> Callable[[int, int], ResNet]:
    """Return a builder of three stages whose convolutions are drawn as He et al. (2015) draw them."""

    def build(in_channels: int, image_size: int) -> ResNet:
        net = ResNet(block, (depth,) * 3, (width, 2 * width, 4 * width), in_channels, 16)
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return net

    return build


class DenseLayer(nn.Module):
    """Add `GROWTH` channels made from all channels so far, by way of a 1x1 bottleneck."""

    def __init__(self, in_channels: int):
        super().__init__()
        narrow = nn.Conv2d(in_channels, 4 * GROWTH, 1, bias=False)
        grow = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)
        norms = nn.BatchNorm2d(in_channels), nn.BatchNorm2d(4 * GROWTH)
        self.new = nn.Sequential(norms[0], nn.ReLU(), narrow, norms[1], nn.ReLU(), grow)

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


class TimmBody(Body):
    """A network of the timm package without its head, freshly initialised."""

    def __init__(self, name: str, in_channels: int, image_size: int):
        super().__init__()
        timm = import_extra("timm", "timm", "timm:NAME")
        require(timm.is_model(name), "timm does not know this network", name, "see timm.list_models(), and timm:NAME")
        fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
        size = {"img_size": image_size} if fixed else {}
        self.net = timm.create_model(name, num_classes=0, in_chans=in_channels, **size)
        self.feature_dim = getattr(self.net, "head_hidden_size", None) or self.net.num_features

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


BODIES: dict[str, Callable[[int, int], Body]] = {
    "small": Small,
    "resnet18": _resnet(BasicBlock, 2, 2, 2, 2),
    "resnet32": _he_resnet(PaddedBlock, depth=5, width=16),  # the network of the long-tail comparisons
    "resnet50": _resnet(Bottleneck, 3, 4, 6, 3),
    "resnet101": _resnet(Bottleneck, 3, 4, 23, 3),
    "wrn26_10": _he_resnet(BasicBlock, depth=4, width=160),
    "densenet121": DenseNet121,
}
"""Name -> builder from the number of channels and the edge of the images."""
