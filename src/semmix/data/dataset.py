"""What every data set becomes: three splits of uint8 images with their labels, in memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from semmix.core.errors import require

CHUNK = 1024  # images copied at a time
FLAT = 1e-3  # below this deviation of pixels in [0, 1] a channel shows nothing but rounding


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Images and their labels; `digest` names exactly these, in exactly this order."""

    images: torch.Tensor  # uint8 [N, C, H, W]
    labels: torch.Tensor  # int64 [N]

    def __post_init__(self):
        images, labels = self.images, self.labels
        seen = f"{images.dtype} {list(images.shape)}"
        fits = images.dtype == torch.uint8 and images.ndim == 4
        require(fits, "images must be uint8 [N, C, H, W]", seen, "convert them first")
        seen = f"{labels.dtype} {list(labels.shape)} for {len(images)} images"
        fits = labels.dtype == torch.int64 and labels.shape == images.shape[:1]
        require(fits, "labels must be int64 [N], one per image", seen, "convert them first")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {' x '.join(map(str, self.images.shape[1:]))})"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over shape, pixels in HWC order and labels."""
        num, channels, height, width = self.images.shape
        total = hashlib.sha256(f"{(num, height, width, channels)}|".encode())
        for pixels in self._pixel_chunks():
            total.update(pixels.data)
        total.update(self.labels.contiguous().numpy().astype("<i8").data)
        return total.hexdigest()

    @cached_property
    def image_digests(self) -> list[bytes]:
        """SHA-256 over label byte and HWC pixels, of each image."""
        images = (image for pixels in self._pixel_chunks() for image in pixels)
        return [
            hashlib.sha256(label.to_bytes(max(1, (label.bit_length() + 7) // 8), "big") + image.tobytes()).digest()
            for label, image in zip(self.labels.tolist(), images, strict=True)
        ]

    def _pixel_chunks(self) -> Iterator[np.ndarray]:
        """Yield the images in HWC order, some at a time: uint8 [n, H, W, C]."""
        for chunk in self.images.split(CHUNK):
            yield chunk.permute(0, 2, 3, 1).contiguous().numpy()

    @property
    def order_free_digest(self) -> str:
        """SHA-256 over the sorted digests of the images: the same for every order of them."""
        return hashlib.sha256(b"".join(sorted(self.image_digests))).hexdigest()

    def select(self, index: torch.Tensor) -> "Split":
        """Return the images at `index`, in that order."""
        return Split(self.images[index], self.labels[index])

    def resized(self, size: int) -> "Split":
        """Return the images scaled (bicubic) to `size` x `size`."""
        if self.images.shape[2:] == (size, size):
            return self
        images = self.images.new_empty(*self.images.shape[:2], size, size)
        for old, new in zip(self.images.split(CHUNK), images.split(CHUNK), strict=True):
            scaled = F.interpolate(old.float(), (size, size), mode="bicubic", antialias=True)
            new.copy_(scaled.round().clamp(0, 255))
        return Split(images, self.labels)

    def class_counts(self, num_classes: int) -> list[int]:
        """Return how many images each class has."""
        return torch.bincount(self.labels, minlength=num_classes).tolist()

    def channel_stats(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel, for pixels scaled to [0, 1].

        A network normalises by them. A constant channel gets a deviation of 1: dividing by its own, next to
        zero, would amplify rounding.
        """
        require(len(self) > 0, "an empty split has no statistics", "0 images", "choose a data set to train on")
        sums = torch.zeros(2, self.images.shape[1], dtype=torch.float64)
        for chunk in self.images.split(CHUNK):
            pixels = chunk.double() / 255
            sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
        height, width = self.images.shape[2:]
        mean, square = sums / (len(self) * height * width)
        std = (square - mean.square()).clamp(min=0).sqrt()
        std[std < FLAT] = 1
        return mean.tolist(), std.tolist()


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a data set as published (`train`, `test`), before a protocol splits them."""

    splits: dict[str, Split]
    class_names: tuple[str, ...] = ()  # empty where the source does not tell


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A named data set, split for training, choosing and testing."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    val: Split
    test: Split

    def __repr__(self) -> str:
        nums = ", ".join(f"{len(split)} {name}" for name, split in self.splits.items())
        return f"Dataset({self.name!r}: {nums}, {self.num_classes} classes, {' x '.join(map(str, self.image_shape))})"

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.test.images.shape[1:]
        return channels, height, width

    @property
    def splits(self) -> dict[str, Split]:
        """The three splits by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def resized(self, size: int) -> "Dataset":
        """Return the data set with all images scaled to `size` x `size`."""
        splits = {name: split.resized(size) for name, split in self.splits.items()}
        return replace(self, **splits)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records of this data set, as plain JSON values."""
        return {
            "name": self.name,
            "num_classes": self.num_classes,
            "image_shape": list(self.image_shape),
            "splits": {name: {"num_images": len(split), "digest": split.digest} for name, split in self.splits.items()},
        }
