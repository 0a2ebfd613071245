"""The top label of each sample, and every metric that needs nothing else.

A metric here depends on the samples only through (confidence, correct, weight), so intervals
resample these few numbers and never look at the probabilities again.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from semmix._errors import SemmixError
from semmix.calibration._inputs import Array, as_vector, check_samples, prob_blocks
from semmix.calibration._smooth import smooth_calibration_error


class Reliability(NamedTuple):
    """What a reliability diagram shows of each bin `(lower, upper]`; empty bins hold NaN."""

    lower: Array
    upper: Array
    count: Array
    confidence: Array
    accuracy: Array


class BinSums(NamedTuple):
    """Weight, weighted confidence and weighted correctness of each bin."""

    weight: Array
    confidence: Array
    correct: Array

    @property
    def gap(self) -> Array:
        """Each bin's share of (confidence - accuracy), positive where overconfident."""
        return (self.confidence - self.correct) / self.weight.sum()


class TopLabel:
    """Confidence of the predicted class, whether it was right, and the sample's weight, `[N]` each.

    With soft labels `correct` is the probability that the label gives to the predicted class.
    """

    def __init__(self, confidence: Array, correct: Array, weights: Array | None = None):
        self.confidence = confidence
        self.correct = correct
        self.weights = np.ones(len(confidence)) if weights is None else weights
        self._index: dict[int, Array] = {}

    def reweighted(self, weights: Array) -> TopLabel:
        """Return the same samples under other weights, sharing their order and their bins."""
        other = copy.copy(self)
        other.weights = weights
        return other

    @cached_property
    def order(self) -> Array:
        """Sample indices by rising confidence."""
        return np.argsort(self.confidence, kind="stable")

    @cached_property
    def tie_ends(self) -> Array:
        """Positions in `order` where a run of equal confidences ends."""
        ranked = self.confidence[self.order]
        return np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)

    def cumulated(self, values: Array) -> Array:
        """Return weighted sums of `values` up to the end of each run of ties, after a leading 0."""
        totals = np.cumsum((self.weights * values)[self.order])[self.tie_ends]
        return np.concatenate([[0.0], totals])

    def bin_sums(self, bins: int) -> BinSums:
        """Return the sums over `bins` equal-width bins `(lower, upper]`."""
        if bins not in self._index:
            self._index[bins] = bin_index(self.confidence, bins)
        index, weights = self._index[bins], self.weights
        return BinSums(
            np.bincount(index, weights, bins),
            np.bincount(index, weights * self.confidence, bins),
            np.bincount(index, weights * self.correct, bins),
        )

    def reliability(self, bins: int) -> Reliability:
        """Return weight, mean confidence and accuracy of each bin."""
        sums = self.bin_sums(bins)
        edges = np.arange(bins + 1) / bins
        filled = np.where(sums.weight > 0, sums.weight, np.nan)
        return Reliability(
            edges[:-1], edges[1:], sums.weight, sums.confidence / filled, sums.correct / filled
        )

    def mean(self, values: Array) -> float:
        """Return the weighted mean of one value per sample."""
        return float(np.dot(self.weights, values) / self.weights.sum())

    def accuracy(self) -> float:
        return self.mean(self.correct)

    def mean_confidence(self) -> float:
        return self.mean(self.confidence)

    def ece(self, bins: int = 15) -> float:
        return float(np.abs(self.bin_sums(bins).gap).sum())

    def oe(self, bins: int = 15) -> float:
        return float(np.maximum(self.bin_sums(bins).gap, 0).sum())

    def ue(self, bins: int = 15) -> float:
        return float(np.maximum(-self.bin_sums(bins).gap, 0).sum())

    def weighted_oe(self, bins: int = 15) -> float:
        return _confidence_weighted(self.bin_sums(bins), sign=1)

    def weighted_ue(self, bins: int = 15) -> float:
        return _confidence_weighted(self.bin_sums(bins), sign=-1)

    def mce(self, bins: int = 15) -> float:
        sums = self.bin_sums(bins)
        filled = sums.weight > 0
        return float(np.abs((sums.confidence - sums.correct)[filled] / sums.weight[filled]).max())

    def aece(self, bins: int = 15) -> float:
        mass = self.cumulated(np.ones(len(self.weights)))
        gap = self.cumulated(self.confidence - self.correct)
        # Between the ends of a run of ties the sums grow in proportion: ties are shared out.
        at_chunk_ends = np.interp(mass[-1] * chunk_ends(len(self.weights), bins), mass, gap)
        return float(np.abs(np.diff(at_chunk_ends)).sum() / mass[-1])

    def debiased_ece(self, bins: int = 15, power: int = 1) -> float:
        if power not in (1, 2):
            raise SemmixError("power must be 1 or 2", power, "1 debiases ECE, 2 its squared form")
        return debiased(self.bin_sums(bins), power)

    def smooth_ece(self) -> float:
        gaps = self.weights * (self.confidence - self.correct) / self.weights.sum()
        return smooth_calibration_error(self.confidence, gaps)


def top_label(
    probs: Any, labels: Any, ignore_index: int | None = None, class_weights: Any = None
) -> TopLabel:
    """Return the top label of each sample; every sample is read and checked once."""
    probs, labels = check_samples(probs, labels, ignore_index)
    confidence, predicted = [], []
    for _, block in prob_blocks(probs):
        values, indices = block.max(1)
        confidence.append(values.cpu().numpy())
        predicted.append(indices.cpu().numpy())
    chosen = np.concatenate(predicted)
    correct = labels == chosen if labels.ndim == 1 else labels[np.arange(len(chosen)), chosen]
    weights = sample_weights(labels, class_weights, probs.shape[1])
    return TopLabel(np.concatenate(confidence), correct.astype(np.float64), weights)


def bin_index(values: Array, bins: int) -> Array:
    """Return which of `bins` bins `(m/bins, (m+1)/bins]` holds each value; 0 joins the first.

    Edges are rounded to the values' own type, so that 0.6 stored in float32 is still the edge 9/15.
    """
    edges = (np.arange(bins + 1) / bins).astype(values.dtype)
    index = np.clip(np.ceil(values * bins).astype(np.int64) - 1, 0, bins - 1)
    # The product may round across an edge: compare with the edges themselves.
    index -= (values <= edges[index]) & (index > 0)
    index += (values > edges[index + 1]) & (index < bins - 1)
    return index


def chunk_ends(num_samples: int, bins: int) -> Array:
    """Return where `bins` chunks of equal count end, as fractions; larger chunks come first."""
    sizes = num_samples // bins + (np.arange(bins) < num_samples % bins)
    return np.concatenate([[0], np.cumsum(sizes)]) / num_samples


def sample_weights(labels: Array, class_weights: Any, num_classes: int) -> Array | None:
    """Return each sample's weight, that of its class; soft labels mix the weights."""
    if class_weights is None:
        return None
    weights = as_vector(class_weights, "class_weights")
    if len(weights) != num_classes or (weights < 0).any():
        fix = f"pass {num_classes} weights, none negative"
        raise SemmixError("class_weights do not fit", weights.tolist()[:5], fix)
    weights = weights[labels] if labels.ndim == 1 else labels @ weights
    if weights.sum() <= 0:
        raise SemmixError("every sample has weight zero", weights[:5].tolist(), "raise a weight")
    return weights


def debiased(sums: BinSums, power: int) -> float:
    """Return the binned error less the part that sampling noise alone would show.

    power 2: Kumar et al. 2019, eq. 4: subtract each bin's variance of the accuracy, then the root.
    power 1: twice the plug-in less its mean under Gaussian noise of that variance (folded normal).
    """
    filled = sums.weight > 0
    weight = sums.weight[filled]
    share = weight / weight.sum()
    accuracy = sums.correct[filled] / weight
    gap = sums.confidence[filled] / weight - accuracy
    spread = accuracy * (1 - accuracy)
    if power == 2:
        # A bin of one sample has no variance of its own; it keeps its plug-in value.
        squared = gap**2 - np.divide(spread, weight - 1, out=np.zeros_like(gap), where=weight > 1)
        return float(np.sqrt(max(np.dot(share, squared), 0.0)))
    expected = _mean_absolute(gap, np.sqrt(spread / weight))
    return float(max(np.dot(share, 2 * np.abs(gap) - expected), 0.0))


def _mean_absolute(mean: Array, deviation: Array) -> Array:
    """Return E|X| for X ~ N(mean, deviation²)."""
    from scipy.special import erf

    ratio = np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 0)
    noise = deviation * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2)
    return np.where(deviation > 0, noise + mean * erf(ratio / np.sqrt(2)), np.abs(mean))


def _confidence_weighted(sums: BinSums, sign: int) -> float:
    mean_confidence = sums.confidence / np.maximum(sums.weight, np.finfo(float).tiny)
    return float(np.dot(mean_confidence, np.maximum(sign * sums.gap, 0)))
