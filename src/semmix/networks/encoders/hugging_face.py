"""CLIP and DINO through transformers, from the hub or a local folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from semmix.core.errors import SemmixError
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

    def embed(pixels: Tensor) -> Tensor:
        return network(pixel_values=pixels).image_embeds

    return PretrainedEncoder(f"clip:{what}", embed, preprocess, weights, device)


def load_dino(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the class token of a DINO model (DINO, DINOv2, DINOv3)."""
    network, preprocess, weights = _load("AutoModel", what, device)

    def embed(pixels: Tensor) -> Tensor:
        return network(pixel_values=pixels).last_hidden_state[:, 0]

    return PretrainedEncoder(f"dino:{what}", embed, preprocess, weights, device)


def _load(model_class: str, what: str, device: torch.device) -> tuple[Any, Preprocess, str]:
    """Return the network, how its images are prepared, and the digest of its weights."""
    try:
        import transformers
        from transformers.image_processing_base import ImageProcessingMixin
    except ImportError as error:
        fix = "pip install 'semmix[clip]'"
        raise SemmixError("clip: and dino: need transformers", error, fix) from error
    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(what)
        # Files in half precision are computed in float32 too, and rounded on a GPU alone.
        network, info = getattr(transformers, model_class).from_pretrained(
            what, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # its readers raise nearly every type on files of another kind
        fix = (
            "name a model of this kind on the hub, or a folder with its files; a download needs "
            "the network, a classifier of your own does not: --encoder classifier:RUN"
        )
        raise SemmixError("transformers cannot load this encoder", what, fix) from error
    missing = set(info["missing_keys"])
    _refuse_missing({name for name in missing if not name.startswith(UNUSED)}, what)
    # What is missing was drawn at random: it must not count, the digest would never repeat.
    weights = {name: value for name, value in network.state_dict().items() if name not in missing}
    return network.to(device).eval(), read_settings(settings), digest_tensors(weights)


def _refuse_missing(missing: set[str], what: str) -> None:
    """Raise where the library filled a network up with random numbers."""
    if missing:
        seen = f"{what} lacks {len(missing)}, such as {min(missing)}"
        fix = "use clip: for CLIP with its projection, dino: for DINO, or get the whole model"
        raise SemmixError("weights of this encoder are missing", seen, fix)


def read_settings(settings: dict[str, Any]) -> Preprocess:
    """Return the preprocessing that a preprocessor_config.json describes."""
    crop = settings.get("crop_size") if settings.get("do_center_crop", True) else None
    steps = [settings.get(step, True) for step in ("do_resize", "do_rescale", "do_normalize")]
    if not all(steps) or settings.get("resample") not in RESAMPLE:
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
