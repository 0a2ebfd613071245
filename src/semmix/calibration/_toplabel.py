"""The top label of each sample, and every metric that needs nothing else.

A metric here depends on a sample only through (confidence, correct, weight), so intervals resample
these few numbers and never look at the probabilities again.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from semmix.calibration._bins import BinSums, bin_edges, bin_index, check_bins, mean_absolute
from semmix.calibration._inputs import Array, as_vector, check_samples, map_blocks
from semmix.core.errors import SemmixError, require

FEW_CLASSES = 32
"""Up to here, searching column after column beats searching row by row."""
GRID = 4096
"""Cells of [0, 1]; the error this adds is below the width of one cell."""


class RiskCoverage(NamedTuple):
    """Error rate among the most confident samples, from the smallest share to all of them."""

    coverage: Array
    risk: Array


class TopLabel:
    """Confidence of the predicted class, whether it was right, and the sample's weight, `[N]` each.

    With soft labels `correct` is the probability that the label gives to the predicted class.
    `count` is how many samples they stand for; each for itself by default.
    """

    def __init__(self, confidence: Array, correct: Array, weights: Array | None = None, count: int | None = None):
        self.confidence = confidence
        self.correct = correct
        # Without weights all are 1, in no memory of their own.
        self.weights = np.broadcast_to(1.0, len(confidence)) if weights is None else weights
        self.unweighted = weights is None
        self.count = len(confidence) if count is None else count
        self._index: dict[int, Array] = {}

    def reweighted(self, weights: Array) -> TopLabel:
        """Return the same samples under other weights, sharing their order and their bins."""
        other = copy.copy(self)
        other.weights, other.unweighted = weights, False
        return other

    def compressed(self, cells: int, tied: bool = False) -> TopLabel:
        """Return few weighted samples in place of many: one per narrow bin, right or wrong.

        The sums of every bin whose edges are among the `cells` are kept. Hard labels only. `tied`
        gives both the mean confidence of their cell, so that neither is ranked before the other.
        """
        cell = bin_index(self.confidence, cells)
        index = 2 * cell + (self.correct > 0)
        weights = np.bincount(index, self.weights)
        used = np.flatnonzero(weights > 0)
        group, chosen = (cell, used // 2) if tied else (index, used)
        mass = np.bincount(group, self.weights)[chosen]
        confidence = np.bincount(group, self.weights * self.confidence)[chosen] / mass
        # Rounded, so that what was equal still is, whatever the order of a sum; but not past the
        # upper edge of its cell, which may be that of a bin.
        confidence = np.minimum(confidence.round(9), bin_edges(cells)[used // 2 + 1])
        return TopLabel(confidence, used % 2 * 1.0, weights[used], self.count)

    def risk_coverage(self) -> RiskCoverage:
        """Return the error rate among the most confident samples, ties accepted together."""
        accepted = np.cumsum(self.tie_sums(np.ones(len(self.weights)))[::-1])
        errors = np.cumsum(self.tie_sums(1 - self.correct)[::-1])
        used = accepted > 0
        return RiskCoverage(accepted[used] / accepted[-1], errors[used] / accepted[used])

    @cached_property
    def order(self) -> Array:
        """Sample indices by rising confidence."""
        return np.argsort(self.confidence, kind="stable")

    @cached_property
    def tie_ends(self) -> Array:
        """Positions in `order` where a run of equal confidences ends."""
        ranked = self.confidence[self.order]
        return np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)

    def tie_sums(self, values: Array) -> Array:
        """Return weighted sums of `values` over each run of ties, by rising confidence."""
        totals = np.cumsum((self.weights * values)[self.order])[self.tie_ends]
        return np.diff(totals, prepend=0.0)

    @cached_property
    def gaps(self) -> Array:
        """Confidence less correctness of each sample."""
        return np.subtract(self.confidence, self.correct, dtype=np.float64)

    def bin_index(self, bins: int) -> Array:
        """Return which of `bins` bins `(lower, upper]` of equal width holds each sample."""
        if bins not in self._index:
            self._index[bins] = bin_index(self.confidence, check_bins(bins))
        return self._index[bins]

    def bin_gaps(self, bins: int) -> Array:
        """Return each bin's share of the mean gap."""
        gaps = self.gaps if self.unweighted else self.weights * self.gaps
        return np.bincount(self.bin_index(bins), gaps, bins) / self.weights.sum()

    def bin_sums(self, bins: int = 15) -> BinSums:
        """Return the sums over each bin."""
        columns = (self.weights, self.weights * self.confidence, self.weights * self.correct)
        return BinSums(*(np.bincount(self.bin_index(bins), column, bins) for column in columns))

    def mean(self, values: Array) -> float:
        """Return the weighted mean of one value per sample."""
        return float(np.dot(self.weights, values) / self.weights.sum())

    def accuracy(self) -> float:
        return self.mean(self.correct)

    def mean_confidence(self) -> float:
        return self.mean(self.confidence)

    def ece(self, bins: int = 15) -> float:
        return float(np.abs(self.bin_gaps(bins)).sum())

    def oe(self, bins: int = 15) -> float:
        return float(np.maximum(self.bin_gaps(bins), 0).sum())

    def ue(self, bins: int = 15) -> float:
        return float(np.maximum(-self.bin_gaps(bins), 0).sum())

    def weighted_oe(self, bins: int = 15) -> float:
        sums = self.bin_sums(bins)
        return float(np.nansum(sums.means()[0] * np.maximum(sums.gap, 0)))

    def weighted_ue(self, bins: int = 15) -> float:
        sums = self.bin_sums(bins)
        return float(np.nansum(sums.means()[0] * np.maximum(-sums.gap, 0)))

    def mce(self, bins: int = 15) -> float:
        return self.bin_sums(bins).mce()

    def debiased_ece(self, bins: int = 15, power: int = 1) -> float:
        """Return the error less the part that sampling noise alone would show.

        power 1: twice the plug-in less its mean under Gaussian noise of each bin's accuracy.
        power 2: the unbiased squared error of Kumar et al. 2019, then its root.
        """
        require(power in (1, 2), "power must be 1 or 2", power, "1 debiases ECE, 2 its squared form")
        filled = self.bin_sums(bins).filled()
        weight, (confidence, accuracy) = filled.weight, filled.means()
        gap, variance = confidence - accuracy, accuracy * (1 - accuracy)
        if power == 2:
            # A bin of one sample says nothing of its variance; its plug-in value stays.
            noise = np.divide(variance, weight - 1, out=np.zeros_like(gap), where=weight > 1)
            return float(np.sqrt(max(np.average(gap**2 - noise, weights=weight), 0.0)))
        under_noise = mean_absolute(gap, np.sqrt(variance / weight))
        return float(max(np.average(2 * np.abs(gap) - under_noise, weights=weight), 0.0))

    def aece(self, bins: int = 15) -> float:
        mass = np.cumsum(self.tie_sums(np.ones(len(self.weights))))
        gap = np.cumsum(self.tie_sums(self.gaps))
        ends = mass[-1] * chunk_ends(self.count, check_bins(bins))
        # Within a run of ties both sums grow in proportion: chunks that meet there share it.
        at_ends = np.interp(ends, np.append(0.0, mass), np.append(0.0, gap))
        return float(np.abs(np.diff(at_ends)).sum() / mass[-1])

    def ece_of_chance(self, bins: int = 15) -> float:
        variances = self.weights * self.confidence * (1 - self.confidence)
        deviations = np.sqrt(np.bincount(self.bin_index(bins), variances, bins))
        return float(np.sqrt(2 / np.pi) * deviations.sum() / self.weights.sum())

    def smooth_ece(self) -> float:
        return smooth_calibration_error(self.confidence, self.weights * self.gaps / self.weights.sum())

    def aurc(self) -> float:
        """The mean over k of the error rate among the k most confident samples.

        Within a run of W ties after a total of C with E errors, the expected error rate at C + k is
        r + (E - C r) / (C + k), with r the run's own rate; summed over k by harmonic numbers.
        """
        from scipy.special import digamma

        # Scaled to a mean of one, weights count samples as the harmonic numbers need.
        scale = self.count / self.weights.sum()
        mass = scale * self.tie_sums(np.ones(len(self.weights)))[::-1]
        errors = scale * self.tie_sums(1 - self.correct)[::-1]
        mass, errors = mass[mass > 0], errors[mass > 0]
        before, errors_before = np.cumsum(mass) - mass, np.cumsum(errors) - errors
        rate = errors / mass
        harmonic = digamma(before + mass + 1) - digamma(before + 1)
        return float((errors + (errors_before - before * rate) * harmonic).sum() / mass.sum())


def top_label(probs: Any, labels: Any, ignore_index: int | None = None, class_weights: Any = None) -> TopLabel:
    """Return the top label of each sample; every sample is read and checked once."""
    probs, labels = check_samples(probs, labels, ignore_index)
    weights = sample_weights(labels, class_weights, probs.shape[1])
    if weights is not None:  # what is debiased takes them for counts
        weights = weights * (len(weights) / weights.sum())
    blocks = map_blocks(lambda where, rows: _top_of(rows, labels[where]), probs)
    confidence, correct = map(np.concatenate, zip(*blocks, strict=True))
    return TopLabel(confidence, correct, weights)


def _top_of(rows: Array, labels: Array) -> tuple[Array, Array]:
    """Return the confidence of each row's prediction, and whether it is right."""
    each = np.arange(len(rows))
    if rows.shape[1] <= FEW_CLASSES and labels.ndim == 1:
        columns = np.ascontiguousarray(rows.T)
        confidence = columns.max(0)
        if np.count_nonzero(columns == confidence) == len(rows):  # no ties
            return confidence, rows[each, labels] == confidence
    best = rows.argmax(1)
    return rows[each, best], labels == best if labels.ndim == 1 else labels[each, best]


def sample_weights(labels: Array, class_weights: Any, num_classes: int) -> Array | None:
    """Return each sample's weight, that of its class; soft labels mix the weights."""
    if class_weights is None:
        return None
    weights = weigh(labels, as_class_weights(class_weights, num_classes))
    if weights.sum() <= 0:
        raise SemmixError("every sample has weight zero", weights[:5].tolist(), "raise a weight")
    return weights


def as_class_weights(class_weights: Any, num_classes: int) -> Array:
    """Return one weight for each class, scaled to a mean of one."""
    weights = as_vector(class_weights, "class_weights")
    if len(weights) != num_classes or (weights < 0).any() or not weights.any():
        fix = f"pass {num_classes} weights, none negative and not all zero"
        raise SemmixError("class_weights do not fit", weights.tolist()[:5], fix)
    return weights / weights.mean()


def weigh(labels: Array, class_weights: Array) -> Array:
    """Return the weight of each sample `[N]`."""
    return class_weights[labels] if labels.ndim == 1 else labels @ class_weights


def chunk_ends(num_samples: int, bins: int) -> Array:
    """Return where `bins` chunks of equal count end, as fractions; larger chunks come first."""
    sizes = num_samples // bins + (np.arange(bins) < num_samples % bins)
    return np.append(0, np.cumsum(sizes)) / num_samples


def smooth_calibration_error(confidence: Array, gaps: Array) -> float:
    """Return the fixed point sigma = smECE_sigma; `gaps` are shares of (confidence - correct).

    On a grid with reflecting ends the Gaussian kernel is diagonal in the cosine basis, so each
    bandwidth costs one multiplication and one inverse cosine transform.
    """
    from scipy.fft import dct, idct
    from scipy.optimize import root_scalar

    # Each gap is shared between the two nearest cell centres.
    position = np.clip(confidence * GRID - 0.5, 0, GRID - 1)
    left = np.minimum(position.astype(np.int64), GRID - 2)
    share = position - left
    on_grid = np.bincount(left, gaps * (1 - share), GRID) + np.bincount(left + 1, gaps * share, GRID)
    spectrum = np.asarray(dct(on_grid, norm="ortho"))
    frequencies = np.pi * np.arange(GRID)

    def error(sigma: float) -> float:
        kernel = np.exp(-0.5 * (frequencies * sigma) ** 2)
        return float(np.abs(np.asarray(idct(spectrum * kernel, norm="ortho"))).sum())

    narrowest = 1 / GRID
    if error(narrowest) <= narrowest:
        return error(narrowest)
    # smECE_sigma falls as sigma grows and never exceeds 1, so there is exactly one crossing.
    crossing = root_scalar(lambda sigma: error(sigma) - sigma, bracket=(narrowest, 2.0), xtol=1e-9)
    return min(float(crossing.root), 1.0)
