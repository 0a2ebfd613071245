"""From uint8 images to what a pretrained network expects, in tensors, on any device."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from semmix.core.errors import require

PRECISION = 2**22
"""Pillow's fixed point: weights are multiples of 1 / PRECISION."""


def _bicubic(x: Tensor) -> Tensor:
    """Return Keys' cubic with a = -1/2."""
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


FILTERS: dict[str, Callable[[Tensor], Tensor]] = {"bilinear": lambda x: (1 - x.abs()).clamp(min=0), "bicubic": _bicubic}
"""Weight of a pixel by its distance."""


@lru_cache(maxsize=32)
def resize_weights(num_in: int, num_out: int, resample: str) -> Tensor:
    """Return the weight of every old pixel in every new one, float64 integers [out, in].

    The filter is widened when pixels are merged (antialiasing). Like Pillow's, weights are rounded to fixed point: sums
    of integers are exact in float64, whatever the order and the device.
    """
    step = num_in / num_out
    width = max(step, 1.0)
    centre = (torch.arange(num_out, dtype=torch.float64) + 0.5) * step
    pixel = torch.arange(num_in, dtype=torch.float64)
    weights = FILTERS[resample]((pixel + 0.5 - centre[:, None]) / width)
    weights = weights / weights.sum(1, keepdim=True) * PRECISION
    return (weights.abs() + 0.5).floor() * weights.sign()


def resize(images: Tensor, size: tuple[int, int], resample: str) -> Tensor:
    """Return uint8 images [N, C, H, W] scaled to `size`, float64 whole numbers from 0 to 255.

    Equal to Pillow's `resize` to the last bit while the aspect is kept: along rows, then along columns, rounded to
    bytes after each.
    """
    for axis in (1, 0):
        weights = resize_weights(images.shape[axis + 2], size[axis], resample).to(images.device)
        images = images.double()
        images = images @ weights.T if axis else weights @ images
        images = ((images + PRECISION / 2) / PRECISION).floor().clamp(0, 255)
    return images


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How images are made ready: resized, cropped in the middle, normalised."""

    size: int | tuple[int, int]
    """The shorter edge after resizing, or height and width."""
    crop: tuple[int, int] | None = None
    """Height and width to cut out of the middle."""
    mean: tuple[float, ...]
    """Of each channel, subtracted from pixels scaled to [0, 1]."""
    std: tuple[float, ...]
    """Of each channel; what is left is divided by it."""
    resample: str = "bicubic"
    """`bicubic` or `bilinear`, antialiased as in Pillow."""

    def __post_init__(self) -> None:
        require(self.resample in FILTERS, "unknown resampling", self.resample, f"use {' or '.join(FILTERS)}")
        scaled = _are_three(self.mean) and _are_three(self.std) and min(self.std) > 0
        seen = f"mean {self.mean}, std {self.std}"
        require(scaled, "normalisation needs three channels", seen, "give three numbers each")
        edges = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        fix = "one whole number of pixels, or height and width; at least 1"
        require(_are_edges(edges), "images need a size", self.size, fix)
        if self.crop is not None:
            sized = isinstance(self.crop, tuple) and _are_edges(self.crop)
            require(sized, "a crop needs a size", self.crop, "height and width, whole numbers of pixels; at least 1")
            fits = self.crop[0] <= edges[0] and self.crop[1] <= edges[1]
            seen = f"size {self.size}, crop {self.crop}"
            require(fits, "the crop is larger than the image", seen, "crop no more than size")

    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 [N, 3, h, w]; grey images are repeated to three channels."""
        height, width = images.shape[2:]
        size, shorter = self.size, min(height, width)
        target = size if isinstance(size, tuple) else (size * height // shorter, size * width // shorter)
        pixels = resize(images, target, self.resample)
        if self.crop:
            top, left = ((a - b) // 2 for a, b in zip(pixels.shape[2:], self.crop, strict=True))
            pixels = pixels[:, :, top : top + self.crop[0], left : left + self.crop[1]]
        mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std


def _are_three(values: Any) -> bool:
    """Return whether these are three finite numbers, as settings from a file may not be."""
    known = isinstance(values, tuple) and all(isinstance(value, int | float) for value in values)
    return known and len(values) == 3 and all(map(math.isfinite, values))


def _are_edges(values: tuple[Any, ...]) -> bool:
    return len(values) == 2 and all(type(value) is int and value >= 1 for value in values)
