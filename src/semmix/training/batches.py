"""Batches: which images a step sees, random crops and flips, and mixed images drawn by class.

Crops, flips and draws are a fixed number of tensor operations on the device that never wait for the host, so a
whole training step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from semmix.core.errors import require, some_of
from semmix.core.seeds import fold_seed
from semmix.networks.predicting import Images
from semmix.training.distributed import gather_rows


def place_images(images: Images, device: torch.device) -> Images:
    """Return the images on `device`; those that do not fit stay in their files."""
    return images.to(device) if isinstance(images, Tensor) else images


def shuffled_batches(
    images: Images, seed: int, step: int, batch_size: int, device: torch.device, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the places and the images of each step's batch, from number `step` on.

    The order depends on nothing but the seed and the pass; passes leave out the incomplete last batch.
    """
    steps_per_pass = len(images) // batch_size
    while True:
        number, slot = divmod(step, steps_per_pass)
        torch.manual_seed(fold_seed("order", seed, number))
        order = torch.rand(len(images), device=device).argsort()[: steps_per_pass * batch_size]
        rest = order[slot * batch_size :]
        yield from zip(rest.split(batch_size), read_batches(images, rest, batch_size, rank, world_size), strict=True)
        step += steps_per_pass - slot


def read_batches(
    images: Images, order: Tensor, batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[Tensor]:
    """Yield the images of each batch of `order`, on its device; of streamed ones each process decodes its share."""
    if isinstance(images, Tensor):
        for index in order.split(batch_size):
            yield images[index]
        return
    batches = order.cpu().view(-1, world_size, batch_size // world_size)
    for share in images.batches(batches[:, rank]):
        yield gather_rows(share.to(order.device), rank, world_size)


def crop_and_flip(images: Tensor, pad: int, flip: bool) -> Tensor:
    """Return uint8 images [B, C, H, W] shifted by up to `pad` pixels (black border) and mirrored, floats in [0, 1]."""
    (batch, _, height, width), device = images.shape, images.device
    rows = torch.arange(height, device=device).expand(batch, height)
    cols = torch.arange(width, device=device).expand(batch, width)
    if flip:
        mirrored = torch.rand(batch, 1, device=device) < 0.5
        cols = torch.where(mirrored, width - 1 - cols, cols)
    if pad:
        images = torch.nn.functional.pad(images, (pad, pad, pad, pad))
        rows = rows + torch.randint(0, 2 * pad + 1, (batch, 1), device=device)
        cols = cols + torch.randint(0, 2 * pad + 1, (batch, 1), device=device)
    which = torch.arange(batch, device=device)[:, None, None]
    # One gather does both. Advanced indices around the channel axis put it last: [B, H, W, C].
    return images[which, :, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2).float().div(255)


@dataclass(frozen=True)
class MixedImages:
    """Mixed sets on the device with their soft labels, ready to be drawn by class."""

    images: Tensor
    """uint8 [S, L, C, H, W], members in rising order of requested lambda."""
    soft_labels: Tensor
    """float32 [S, L, K]."""
    pairs: Tensor
    """int64 [S, 2]; the last member shows class `pairs[:, 0]`, the first `pairs[:, 1]`."""
    sets_by_class: Tensor
    """int64 [2 S]: the sets that contain class 0, then those that contain class 1, ..."""
    first_of_class: Tensor
    """int64 [K + 1]: where each class begins in `sets_by_class`."""

    @classmethod
    def build(cls, images: Tensor, soft_labels: Tensor, pairs: Tensor) -> MixedImages:
        """Index the sets by the classes they contain."""
        by_class = [(pairs == c).any(1).nonzero().flatten() for c in range(soft_labels.shape[-1])]
        first = torch.tensor([0, *map(len, by_class)]).cumsum(0).to(pairs.device)
        return cls(images, soft_labels, pairs, torch.cat(by_class), first)

    def to(self, device: torch.device) -> MixedImages:
        """Return the same sets on `device`."""
        return MixedImages(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def check_classes(self, labels: Tensor, class_names: tuple[str, ...], num_excluded: int = 0) -> None:
        """Refuse to train on classes that no set contains, of those that were not excluded."""
        counts = self.first_of_class.diff().cpu()
        bare = [class_names[c] for c in labels.unique().tolist() if counts[c] == 0]
        fix = "make sets for all pairs (semmix mix), or leave these classes out"
        if num_excluded:
            fix = f"--exclude left out {num_excluded} sets: make more, or train without it"
        require(not bare, "no mixed set contains these classes", some_of(bare), fix)

    def draw(self, labels: Tensor, num_mixed: int) -> tuple[Tensor, Tensor]:
        """Return `num_mixed` members of a random set that contains each image's class.

        The first is the pure end of the image's class, the others are interior members (paper, N_aug = 2: one of
        each). With `num_mixed=1` it is an interior member alone. They are uint8 images [B * num_mixed, C, H, W] and
        soft labels [B * num_mixed, K].
        """
        first, count = self.first_of_class[labels], self.first_of_class.diff()[labels]
        place = first + (torch.rand_like(count, dtype=torch.float64) * count).long()
        sets = self.sets_by_class[place]  # [B]
        members = self._members(self.pairs[sets, 0] == labels, num_mixed)  # [B, num_mixed]
        images = self.images[sets[:, None], members].flatten(0, 1)
        return images, self.soft_labels[sets[:, None], members].flatten(0, 1)

    def _members(self, is_class_i: Tensor, num_mixed: int) -> Tensor:
        size, shape = self.images.shape[1], (len(is_class_i), num_mixed)
        inner = (1, size - 1) if size > 2 else (0, size)  # a set of two has ends alone
        members = torch.randint(*inner, shape, device=is_class_i.device)
        if num_mixed > 1:
            members[:, 0] = torch.where(is_class_i, size - 1, 0)
        return members
