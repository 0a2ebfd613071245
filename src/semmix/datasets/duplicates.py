"""Images that are the same, or nearly: re-saved, rescaled or slightly touched copies.

A 64-bit perceptual hash proposes pairs, small thumbnails confirm them. Hashes within
`MAX_DISTANCE` bits agree in at least one of `MAX_DISTANCE + 1` bands of bits, so only images that
share a band are compared (multi-index hashing: Norouzi et al. 2012, https://arxiv.org/abs/1307.2982).
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from semmix.datasets.dataset import CHUNK, Split

HASH_SIDE = 8  # 8 x 8 frequencies make 64 bits
DCT_SIDE = 32
MAX_DISTANCE = 5
THUMB_SIDE = 12
SAME_SHAPE = 0.12
"""Largest difference of two copies, as a part of the image's own contrast (correlation 0.993)."""
NOISE = 1.0
"""And so many grey levels on top, for images without contrast."""
MAX_PAIRS = 20_000_000
"""Pairs looked at in one band; what is left out then lies farthest apart in hash order."""
VERIFIED_AT_ONCE = 1 << 16
BITS_OF_SHORT = np.array([value.bit_count() for value in range(1 << 16)], dtype=np.uint8)


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


def find_duplicates(split: Split) -> Duplicates:
    """Return which images of the split are copies of which."""
    digests, hashes, thumbs = _describe(split)
    first_with: dict[bytes, int] = {}
    exact = np.array([first_with.setdefault(d, row) for row, d in enumerate(digests)])
    rows = np.flatnonzero(exact == np.arange(len(exact)))  # one of each
    pairs = [rows[pair] for pair in near_pairs(hashes[rows], thumbs[rows])]
    pairs.append(np.stack([exact, np.arange(len(exact))], axis=1))
    near = _first_of_component(np.concatenate(pairs), len(exact))
    return Duplicates(torch.from_numpy(exact), torch.from_numpy(near))


def perceptual_hash(images: Tensor) -> np.ndarray:
    """Return 64 bits for every image, uint8 [N, C, H, W] -> uint64 [N].

    The bits say which of the 64 lowest frequencies of the grey image (its cosine transform) lie
    above their median.
    """
    grey = F.adaptive_avg_pool2d(images.float().mean(1, keepdim=True), DCT_SIDE).squeeze(1)
    basis = _cosines()  # [8, 32]
    waves = (basis @ grey @ basis.T).flatten(1)  # [N, 64]
    waves[:, 0] = 0  # the mean is no shape
    bits = (waves > waves.median(1, keepdim=True).values).numpy()
    return np.packbits(bits, axis=1).view(">u8").astype(np.uint64).squeeze(1)


def near_pairs(hashes: np.ndarray, thumbs: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows [P, 2] of hashes few bits apart whose thumbnails confirm that they are copies."""
    for band in np.array_split(np.arange(64, dtype=np.uint64), MAX_DISTANCE + 1):
        keys = (hashes >> band[0]) & np.uint64((1 << len(band)) - 1)
        order = np.lexsort((hashes, keys))
        for pairs in _pairs_of_equals(keys[order]):
            rows = order[pairs]
            close = _num_bits(hashes[rows[:, 0]] ^ hashes[rows[:, 1]]) <= MAX_DISTANCE
            yield from _confirmed(rows[close], thumbs)


def _describe(split: Split) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Return digests of the pixels, hashes uint64 [N] and thumbnails uint8 [N, D]."""
    digests: list[bytes] = []
    hashes, thumbs = [], []
    for images in split.images.split(CHUNK):
        digests += [hashlib.blake2b(image.data, digest_size=16).digest()
                    for image in images.contiguous().numpy()]  # fmt: skip
        hashes.append(perceptual_hash(images))
        small = F.adaptive_avg_pool2d(images.float(), THUMB_SIDE).round()
        thumbs.append(small.to(torch.uint8).flatten(1).numpy())
    return digests, np.concatenate(hashes), np.concatenate(thumbs)


def _cosines() -> Tensor:
    """Return the lowest frequencies of the cosine transform, [HASH_SIDE, DCT_SIDE]."""
    places = torch.arange(DCT_SIDE) + 0.5
    return torch.cos(math.pi / DCT_SIDE * torch.arange(HASH_SIDE)[:, None] * places)


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


def _num_bits(values: np.ndarray) -> np.ndarray:
    """Return how many bits are set in each uint64."""
    return BITS_OF_SHORT[values.view(np.uint16).reshape(-1, 4)].sum(1)


def _confirmed(rows: np.ndarray, thumbs: np.ndarray) -> Iterator[np.ndarray]:
    for some in np.array_split(rows, max(1, math.ceil(len(rows) / VERIFIED_AT_ONCE))):
        a, b = (thumbs[some[:, side]].astype(np.float32) for side in (0, 1))
        difference = np.sqrt(np.square(a - b).mean(1))
        yield some[difference <= SAME_SHAPE * a.std(1) + NOISE]


def _first_of_component(pairs: np.ndarray, num: int) -> np.ndarray:
    """Return for each of `num` rows the first row it is linked to by a chain of pairs."""
    links = coo_array((np.ones(len(pairs)), pairs.T), shape=(num, num))
    _, component = connected_components(links, directed=False)
    _, first = np.unique(component, return_index=True)
    return first[component]
