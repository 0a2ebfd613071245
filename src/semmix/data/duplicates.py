"""Images that are the same, or nearly: re-saved, rescaled or slightly touched copies.

Every image becomes a thumbnail, and the thumbnail's shape (mean and contrast taken out) a few
64-bit perceptual hashes: eight random projections, each rounded to one byte. Copies share at least
one hash nearly always, other images hardly ever (locality-sensitive hashing: Datar et al. 2004), so
only images that share one are compared. The thumbnails themselves decide.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from semmix.core.seeds import fold_seed
from semmix.data.dataset import CHUNK, Split

THUMB_SIDE = 12
NUM_HASHES, NUM_PROJECTIONS = 10, 8
CELL = 0.6
"""Width of a hash's cells, where a shape has length 1 and a copy's differs by `SAME_SHAPE` at most:
copies that differ by half of that share a hash with probability 0.999, by all of it with 0.98."""
SAME_SHAPE = 0.1  # largest difference of two copies, as a part of the image's own contrast (correlation 0.995)
NOISE = 1.0  # and so many grey levels on top, for images without contrast
MAX_PAIRS = 2_000_000  # pairs compared for one hash; of a crowd that shares it, those next to each other come first
COMPARED_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Duplicates:
    """For every image the row of the first one like it; an image of its own has its own row."""

    exact: Tensor  # int64 [N]: the same pixels
    near: Tensor  # int64 [N]: the same or nearly the same

    def sets(self, first: Tensor) -> list[list[int]]:
        """Return the rows of `exact` or `near` images that occur more than once, in sets."""
        order = torch.argsort(first, stable=True)
        _, counts = first[order].unique_consecutive(return_counts=True)
        return [rows.tolist() for rows in order.split(counts.tolist()) if len(rows) > 1]

    def across(self, kinds: Sequence[str]) -> list[list[int]]:
        """Return the sets of near copies of several kinds (classes, parts), two such rows first."""
        found = []
        for first, *others in self.sets(self.near):
            if strange := [row for row in others if kinds[row] != kinds[first]]:
                others.remove(strange[0])
                found.append([first, strange[0], *others])
        return found


def find_duplicates(split: Split) -> Duplicates:
    """Return which images of the split are copies of which."""
    first_with: dict[bytes, int] = {}  # by the digest of the pixels
    firsts: list[int] = []
    thumbs = []
    for images in split.images.split(CHUNK):
        for image in images.contiguous().numpy():
            digest = hashlib.blake2b(image.data, digest_size=16).digest()
            firsts.append(first_with.setdefault(digest, len(firsts)))
        small = F.adaptive_avg_pool2d(images.float(), THUMB_SIDE).round()
        thumbs.append(small.to(torch.uint8).flatten(1).numpy())
    num, exact = len(firsts), np.array(firsts)
    rows = np.flatnonzero(exact == np.arange(num))  # one of each
    pairs = [rows[pair] for pair in near_pairs(np.concatenate(thumbs)[rows])]
    pairs = np.concatenate([*pairs, np.stack([exact, np.arange(num)], axis=1)])
    # near copies are those linked by a chain of pairs
    links = coo_array((np.ones(len(pairs)), pairs.T), shape=(num, num))
    _, component = connected_components(links, directed=False)
    _, first = np.unique(component, return_index=True)
    return Duplicates(torch.from_numpy(exact), torch.from_numpy(first[component]))


def near_pairs(thumbs: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows [P, 2] of thumbnails, uint8 [N, D], that are copies; a pair may come twice."""
    for hashes in perceptual_hashes(thumbs).T:
        order = np.argsort(hashes, kind="stable")
        for places in _pairs_of_equals(hashes[order]):
            for rows in np.array_split(order[places], math.ceil(len(places) / COMPARED_AT_ONCE)):
                a, b = (thumbs[rows[:, side]].astype(np.float32) for side in (0, 1))
                difference = np.sqrt(np.square(a - b).mean(1))
                yield rows[difference <= SAME_SHAPE * a.std(1) + NOISE]


def perceptual_hashes(thumbs: np.ndarray) -> np.ndarray:
    """Return hashes uint64 [N, NUM_HASHES] of thumbnails uint8 [N, D]."""
    num_cells = NUM_HASHES * NUM_PROJECTIONS
    random = np.random.default_rng(fold_seed("perceptual hash"))
    directions = random.standard_normal((thumbs.shape[1], num_cells), dtype=np.float32)
    offsets = random.uniform(0, CELL, num_cells).astype(np.float32)
    cells = []
    for some in np.array_split(thumbs, math.ceil(len(thumbs) / COMPARED_AT_ONCE)):
        shapes = some.astype(np.float32)
        shapes -= shapes.mean(1, keepdims=True)
        shapes /= (shapes.std(1, keepdims=True) + NOISE) * math.sqrt(shapes.shape[1])  # of length 1, or near 0
        cells.append(np.floor((shapes @ directions + offsets) / CELL))
    nearby = np.clip(np.concatenate(cells), -128, 127).astype(np.int8)  # 20 cells in all are usual
    return nearby.view(np.uint64)


def _pairs_of_equals(keys: np.ndarray) -> Iterator[np.ndarray]:
    """Yield places [P, 2] of equal keys in sorted `keys`, near ones first, up to `MAX_PAIRS`."""
    starts, num_pairs = np.arange(len(keys)), 0
    for offset in range(1, len(keys)):
        starts = starts[starts + offset < len(keys)]
        starts = starts[keys[starts] == keys[starts + offset]]
        num_pairs += len(starts)
        if not len(starts) or num_pairs > MAX_PAIRS:
            return
        yield np.stack([starts, starts + offset], axis=1)
