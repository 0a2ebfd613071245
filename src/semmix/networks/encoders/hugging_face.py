"""CLIP and DINO through transformers, from the hub or a local folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.extras import import_extra
from semmix.core.files import digest_tensors
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder

RESAMPLE = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers for its filters."""
UNUSED = "pooler."
"""Weights that DINO's files may lack: the class token does not pass through them."""


def load_clip(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the projected image features of a CLIP model."""
    network, preprocess, weights = _load("CLIPVisionModelWithProjection", what, device)
    return PretrainedEncoder(
        f"clip:{what}", lambda x: network(pixel_values=x).image_embeds, preprocess, weights, device
    )


def load_dino(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the class token of a DINO model (DINO, DINOv2, DINOv3)."""
    network, preprocess, weights = _load("AutoModel", what, device)

    def class_token(pixels: Tensor) -> Tensor:
        return network(pixel_values=pixels).last_hidden_state[:, 0]

    return PretrainedEncoder(f"dino:{what}", class_token, preprocess, weights, device)


def _load(model_class: str, what: str, device: torch.device) -> tuple[Any, Preprocess, str]:
    """Return the network, how its images are prepared, and the digest of its weights."""
    transformers = import_extra("transformers", "clip", "clip:NAME, like dino:NAME,")
    processors = import_extra("transformers.image_processing_base", "clip", "clip:NAME, like dino:NAME,")
    try:
        settings, _ = processors.ImageProcessingMixin.get_image_processor_dict(what)
        # Files in half precision are computed in float32 too, and rounded on a GPU alone.
        network, info = getattr(transformers, model_class).from_pretrained(
            what, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # its readers raise nearly every type on files of another kind
        fix = "name a model of this kind on the hub, or a folder with its files; without a network: classifier:RUN"
        raise SemmixError("transformers cannot load this encoder", what, fix) from error
    missing = set(info["missing_keys"])
    if needed := {name for name in missing if not name.startswith(UNUSED)}:
        fix = "use clip: for CLIP with its projection, dino: for DINO, or get the whole model"
        seen = f"{what} lacks {len(needed)}, such as {min(needed)}"
        raise SemmixError("weights of this encoder are missing", seen, fix)
    # The library drew what is missing at random; left in, the digest would never repeat.
    weights = {name: value for name, value in network.state_dict().items() if name not in missing}
    return network.to(device).eval(), read_settings(settings), digest_tensors(weights)


def read_settings(settings: dict[str, Any]) -> Preprocess:
    """Return the preprocessing that a preprocessor_config.json describes."""
    crop = settings.get("crop_size") if settings.get("do_center_crop", True) else None
    steps = ("do_resize", "do_rescale", "do_normalize")
    if not all(settings.get(step, True) for step in steps) or settings.get("resample") not in RESAMPLE:
        fix = "use a model whose images are resized (bilinear or bicubic) and normalised"
        raise SemmixError("this preprocessing is not understood", settings, fix)
    try:
        return Preprocess(
            size=_read_size(settings["size"], keep_aspect=crop is not None),
            crop=None if crop is None else _square(_read_size(crop, keep_aspect=True)),
            mean=tuple(settings["image_mean"]),
            std=tuple(settings["image_std"]),
            resample=RESAMPLE[settings["resample"]],
        )
    except (KeyError, TypeError) as error:
        fix = "its preprocessor_config.json must name size, image_mean and image_std"
        raise SemmixError("this preprocessing is not understood", settings, fix) from error


def _read_size(size: Any, keep_aspect: bool) -> int | tuple[int, int]:
    """Return the shorter edge, or height and width; a lone number may mean either."""
    if isinstance(size, int):
        return size if keep_aspect else (size, size)
    return size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])


def _square(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
