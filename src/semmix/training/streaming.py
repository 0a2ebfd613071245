"""Where a batch's images come from: the device's memory, or files decoded ahead of need."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from semmix.networks.predicting import Images
from semmix.training.distributed import gather_rows


def place_images(images: Images, device: torch.device) -> Images:
    """Return the images on `device`; those that do not fit stay in their files."""
    return images.to(device) if isinstance(images, Tensor) else images


def read_batches(
    images: Images, order: Tensor, batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[Tensor]:
    """Yield the images of each batch of `order`, on its device.

    Of streamed images each process decodes its share and gets the rest from the others.
    """
    if isinstance(images, Tensor):
        for index in order.split(batch_size):
            yield images[index]
        return
    batches = order.cpu().view(-1, world_size, batch_size // world_size)
    for share in images.batches(batches[:, rank]):
        yield gather_rows(share.to(order.device), rank, world_size)
