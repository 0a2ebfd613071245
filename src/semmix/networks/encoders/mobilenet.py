"""MobileNetV2 (Sandler et al., 2018) with the ImageNet weights torchvision publishes."""

from __future__ import annotations

import torch

from semmix.networks.encoders.inverted import InvertedResiduals, Layers, Stage
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder, wrap_network
from semmix.networks.encoders.weights import fill, read_state_dict

STAGES = (
    Stage(1, 3, 16, 1, 1),
    Stage(6, 3, 24, 2, 2),
    Stage(6, 3, 32, 3, 2),
    Stage(6, 3, 64, 4, 2),
    Stage(6, 3, 96, 3, 1),
    Stage(6, 3, 160, 3, 2),
    Stage(6, 3, 320, 1, 1),
)
LAYERS = Layers(same=False, eps=1e-5)
IMAGENET = Preprocess(
    size=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resample="bilinear"
)


def load_mobilenet(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the 1280 pooled features of MobileNetV2 from torchvision's weights file `what`."""
    network = InvertedResiduals(STAGES, LAYERS)
    tensors = read_state_dict(what)
    body = {name: t for name, t in tensors.items() if not name.startswith("classifier.")}
    fill(network, body, "name torchvision's mobilenet_v2 weights")
    return wrap_network(f"mobilenet:{what}", network, IMAGENET, device)
