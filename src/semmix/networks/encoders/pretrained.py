"""What encoders share: preprocessing, batches, precision, digests, features of many images; classifiers as encoders."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from semmix.core.errors import SemmixError, require
from semmix.core.files import cache_folder, digest, digest_tensors, read_json, write_tensors
from semmix.core.progress import Progress, progress, say
from semmix.data import Split
from semmix.networks.predicting import full_precision
from semmix.networks.saved import load_classifier, run_folder

BATCH_SIZE = 256
"""Images the network sees at once."""
CPU_BATCH_SIZE = 32
"""The same on a CPU, where larger batches are slower and take gigabytes."""
PRECISION = 2**22
"""Pillow's fixed point: weights are multiples of 1 / PRECISION."""


class Encoder(Protocol):
    """What annotation needs of an encoder.

    An encoder that is slow may also have a `cache_key`, a string that names everything its features depend on besides
    the images: features of whole splits are then kept between runs. An encoder that learned from a split has
    its digest as `trained_on`, so that training can refuse a leak.
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

    Equal to Pillow's `resize` to the last bit while the aspect is kept: along rows, then columns, rounded after each.
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


class PretrainedEncoder:
    """A network trained elsewhere. Images go to its device as bytes and come back as features."""

    def __init__(
        self, name: str, network: Callable, preprocess: Any, weights: str, device: torch.device, exact: bool = False
    ):
        """Wrap `network`, which turns preprocessed images into features [N, D], and the digest of its weights.

        `preprocess` is a dataclass that can be called: its settings are part of the digest. Networks that are not
        `exact` compute in bfloat16 on a GPU.
        """
        self.name, self.device = name, device
        self._exact = exact or device.type == "cpu"
        self._network, self._preprocess = network, preprocess
        self.digest = digest({"weights": weights, "preprocess": repr(preprocess)})
        self.cache_key = f"{self.digest} on {device.type} in {'float32' if self._exact else 'bfloat16'}"
        try:
            shape = tuple(self.embed(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape)
        except SemmixError:
            raise
        except Exception as error:  # a network of another kind may raise anything
            fix = "name a network that takes images alone, of the size its preprocessing gives"
            raise SemmixError(f"{name} cannot read an image", f"{type(error).__name__}: {error}", fix) from error
        fix = "an encoder must give one row of numbers per image; choose another output"
        require(len(shape) == 2 and shape[0] == 1, f"{name} gives no features", f"shape {shape}", fix)
        self.dim = shape[1]

    def __repr__(self) -> str:
        return f"Encoder({self.name}: {self.dim} features)"

    @torch.inference_mode()
    def embed(self, images: Tensor) -> Tensor:
        """Return float32 features [N, dim] of uint8 images [N, C, H, W]."""
        size = CPU_BATCH_SIZE if self.device.type == "cpu" else BATCH_SIZE
        return torch.cat([self._embed(batch) for batch in images.split(size)])

    def _embed(self, images: Tensor) -> Tensor:
        pixels, rounds = self._preprocess(images.to(self.device)), not self._exact
        flags = torch.backends.cudnn.flags(enabled=True, allow_tf32=rounds)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=rounds), flags:
            return self._network(pixels).float()


def wrap_network(
    name: str, network: nn.Module, preprocess: Callable[[Tensor], Tensor], device: torch.device
) -> PretrainedEncoder:
    """Return the encoder of a network that is a module, its weights named by their digest."""
    weights = digest_tensors(network.state_dict())
    network = network.to(device).eval()
    # Convolutions are faster with channels last, by a third on a CPU.
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return PretrainedEncoder(name, network, preprocess, weights, device)


class ClassifierEncoder:
    """The penultimate features of a finished training run, or of an exported model."""

    def __init__(self, run: str, device: torch.device):
        network, self.digest = load_classifier(run)
        self.name = f"classifier:{run}"
        config = run_folder(run) / "config.json"
        manifest = read_json(config) if config.exists() else {}
        # The digest of the split it learned from; an exported model does not record it.
        self.trained_on = manifest["inputs"].get("train") if manifest.get("kind") == "run" else None
        self.dim = network.feature_dim
        self.network, self.device = network.to(device), device

    def __repr__(self) -> str:
        return f"Encoder({self.name}: {self.dim} features)"

    def embed(self, images: Tensor) -> Tensor:
        """Return features [N, dim] of uint8 images; grey ones are repeated if it takes colour."""
        channels, num = self.network.mean.shape[1], images.shape[1]
        seen, fix = f"{num} channels, it takes {channels}", "name a run trained on such images"
        require(num in (1, channels), f"{self.name} cannot read these images", seen, fix)
        with full_precision():
            return self.network.features(images.to(self.device))


def embed_all(encoder: Encoder, images: Tensor, title: str, batch_size: int = 1024) -> Tensor:
    """Return the features of all images, float32 [N, D], with a progress bar of their own."""
    with progress(title, len(images)) as bar:
        return embed_with(bar, encoder, images, batch_size)


def embed_with(bar: Progress, encoder: Encoder, images: Tensor, batch_size: int = 1024) -> Tensor:
    """Return the features of all images, float32 [N, D], and advance a bar that is there."""
    parts = []
    for batch in images.split(batch_size):
        parts.append(encoder.embed(batch).float().cpu())
        bar.advance(len(batch))
    return torch.cat(parts)


def embed_split(encoder: Encoder, split: Split, title: str) -> Tensor:
    """Return the features of a split; those of encoders with a `cache_key` are read only once."""
    key = getattr(encoder, "cache_key", None)
    if key is None:
        return embed_all(encoder, split.images, title)
    path = cache_folder("features") / f"{digest([key, split.digest])}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        return load_file(path)["features"]
    features = embed_all(encoder, split.images, title)
    try:
        write_tensors(path, {"features": features})
    except SemmixError as error:  # only the cache is missing
        say(f"features are not kept for next time ({error.what}); SEMMIX_CACHE names the folder")
    return features
