"""Images that do not fit in memory: decoded from their files each time they are used."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from semmix.core.errors import SemmixError
from semmix.data.decoding import BadImageError, read_pixels

BATCHES_AHEAD = 3  # decoded while the present one is in use
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class StreamedImages:
    """Stands for a uint8 tensor [N, C, H, W] wherever that is only indexed or gone through."""

    paths: list[Path] = field(repr=False)
    image_shape: tuple[int, int, int]
    size: int | None = None
    """Height and width to which the files' images are scaled and cropped."""

    dtype = torch.uint8
    ndim = 4

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor these images would be."""
        return torch.Size((len(self.paths), *self.image_shape))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: torch.Tensor) -> "StreamedImages":
        """Return the images at `index` (or where a mask is true), still in their files."""
        rows = torch.arange(len(self))[index].tolist()
        return StreamedImages([self.paths[row] for row in rows], self.image_shape, self.size)

    def split(self, num: int) -> Iterator[torch.Tensor]:
        """Yield all images in order, `num` at a time."""
        return self.batches(torch.arange(len(self)).split(num))

    def batches(self, indices: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield the images at each index, uint8 [n, C, H, W], decoded by threads ahead of need."""
        for images in read_ahead(self._read, (index.tolist() for index in indices)):
            yield torch.stack(images)

    def _read(self, row: int) -> torch.Tensor:
        path = self.paths[row]
        try:
            pixels = torch.from_numpy(read_pixels(path, self.size).copy()).permute(2, 0, 1)
        except BadImageError as bad:
            fix = "mend or remove it; semmix data check names all such files"
            raise SemmixError(f"cannot read {path}", bad, fix) from bad
        if pixels.shape[1:] != self.image_shape[1:]:
            raise sizes_differ(f"{path.name} is {pixels.shape[2]} x {pixels.shape[1]}")
        return pixels.expand(self.image_shape)  # one channel fills three


def sizes_differ(seen: str) -> SemmixError:
    """Return the error for images that cannot be one tensor."""
    fix = "give one size, such as --size 64: all images are then scaled and cropped to it"
    return SemmixError("the images differ in size", seen, fix)


def read_ahead(read: Callable[[T], R], batches: Iterable[Iterable[T]], ahead: int = BATCHES_AHEAD) -> Iterator[list[R]]:
    """Yield what `read` returns for the items of each batch, read by threads `ahead` batches before they are needed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoders let other threads run
        waiting = deque()
        for batch in batches:
            waiting.append(pool.map(read, batch))  # begins at once
            if len(waiting) > ahead:
                yield list(waiting.popleft())
        while waiting:
            yield list(waiting.popleft())
