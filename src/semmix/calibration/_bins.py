"""Equal-width bins of [0, 1]: which bin holds a value, and the errors that follow from bin sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semmix.calibration._inputs import Array
from semmix.core.errors import SemmixError

CHUNK = 1 << 15
"""Values binned together: temporaries of this size stay in the cache."""


class Reliability(NamedTuple):
    """What a reliability diagram shows of each bin `(lower, upper]`; empty bins hold NaN."""

    lower: Array
    upper: Array
    count: Array
    confidence: Array
    accuracy: Array


class BinSums(NamedTuple):
    """Weight, weighted confidence and weighted correctness of each bin, `[..., bins]`."""

    weight: Array
    confidence: Array
    correct: Array

    @property
    def gap(self) -> Array:
        """Each bin's share of (confidence - accuracy), positive where overconfident."""
        return (self.confidence - self.correct) / self.weight.sum(-1, keepdims=True)

    def filled(self) -> BinSums:
        """Return only the bins that hold a sample."""
        return BinSums(*(sums[self.weight > 0] for sums in self))

    def means(self) -> tuple[Array, Array]:
        """Return mean confidence and accuracy of each bin, NaN where it is empty."""
        weight = np.where(self.weight > 0, self.weight, np.nan)
        return self.confidence / weight, self.correct / weight

    def reliability(self) -> Reliability:
        edges = bin_edges(len(self.weight))
        return Reliability(edges[:-1], edges[1:], self.weight, *self.means())

    def ece(self) -> float:
        return float(np.abs(self.gap).sum())

    def oe(self) -> float:
        return float(np.maximum(self.gap, 0).sum())

    def ue(self) -> float:
        return float(np.maximum(-self.gap, 0).sum())

    def mce(self) -> float:
        confidence, accuracy = self.filled().means()
        return float(np.abs(confidence - accuracy).max())


def check_bins(bins: int) -> int:
    """Return `bins`, refusing anything but a positive whole number."""
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise SemmixError("bins must be a positive whole number", bins, "15 is the usual choice")
    return int(bins)


def bin_edges(bins: int) -> Array:
    """Return the `bins + 1` edges, each the number nearest to m / bins."""
    return np.arange(bins + 1) / bins


def bin_index(values: Array, bins: int) -> Array:
    """Return which bin `(m / bins, (m + 1) / bins]` holds each value; 0 joins the first.

    Edges are rounded to the values' own type, so that 0.6 stored in float32 is still the edge 9/15.
    """
    edges = bin_edges(check_bins(bins)).astype(values.dtype)
    index = np.empty(values.shape, np.int64)
    flat_values, flat_index = values.reshape(-1), index.reshape(-1)
    for first in range(0, values.size, CHUNK):
        chunk = flat_values[first : first + CHUNK]
        scaled = chunk * bins
        found = np.ceil(scaled).astype(np.int64) - 1
        # Near an edge the product may have been rounded across it: ask the edges themselves.
        near = np.abs(scaled - np.rint(scaled)) < 4 * bins * np.finfo(values.dtype).eps
        found[near] = np.searchsorted(edges, chunk[near], "left") - 1
        np.clip(found, 0, bins - 1, out=flat_index[first : first + CHUNK])
    return index


def mean_absolute(mean: Array, deviation: Array) -> Array:
    """Return E|X| of X ~ N(mean, deviation^2), the mean of a folded normal."""
    from scipy.special import erf

    ratio = np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 0)
    noise = deviation * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2)
    return np.where(deviation > 0, noise + mean * erf(ratio / np.sqrt(2)), np.abs(mean))
