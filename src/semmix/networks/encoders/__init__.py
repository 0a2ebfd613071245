"""Image encoders, named `kind:what`: all turn uint8 images into features.

`classifier:RUN` needs nothing from outside: it is a classifier of our own, without its head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from semmix.core.errors import SemmixError, unknown_name
from semmix.networks.encoders.efficientnet import load_efficientnet
from semmix.networks.encoders.hugging_face import load_clip, load_dino
from semmix.networks.encoders.inception import load_inception
from semmix.networks.encoders.mobilenet import load_mobilenet
from semmix.networks.encoders.onnx_file import load_onnx
from semmix.networks.encoders.pretrained import PretrainedEncoder
from semmix.networks.encoders.resnet50 import load_resnet50
from semmix.networks.encoders.timm_network import load_timm
from semmix.networks.encoders.trained_classifier import ClassifierEncoder

__all__ = ["ClassifierEncoder", "Encoder", "PretrainedEncoder", "list_encoders", "load_encoder"]


class Encoder(Protocol):
    """What annotation asks of an encoder.

    One whose features cost much may have a `cache_key` as well, a string that names all they depend
    on besides the images: features of whole splits are then kept between runs. One that learned
    from a split of ours has its digest as `trained_on`, so that training can refuse a leak.
    """

    name: str
    """`kind:what`, as the user gave it."""
    dim: int
    """Length of a feature."""
    digest: str
    """Names the weights."""

    def embed(self, images: Tensor) -> Tensor:
        """Return float features [N, dim] of uint8 images [N, C, H, W]."""
        ...


_KINDS: dict[str, Callable[[str, torch.device], Encoder]] = {
    "classifier": ClassifierEncoder,
    "clip": load_clip,
    "dino": load_dino,
    "efficientnet": load_efficientnet,
    "inception": load_inception,
    "mobilenet": load_mobilenet,
    "onnx": load_onnx,
    "resnet50": load_resnet50,
    "timm": load_timm,
}


def list_encoders() -> list[str]:
    """Return the kinds of encoder `load_encoder` knows."""
    return sorted(_KINDS)


def load_encoder(name: str, device: torch.device | str = "cpu") -> Encoder:
    """Return the encoder called `kind:what`, such as `classifier:runs/ce-0`."""
    kind, colon, what = name.partition(":")
    if kind not in _KINDS:
        raise unknown_name("encoder kind", kind, _KINDS)
    if not colon or not what:
        raise SemmixError("an encoder is named kind:what", repr(name), "as in classifier:runs/ce-0")
    return _KINDS[kind](what, torch.device(device))
