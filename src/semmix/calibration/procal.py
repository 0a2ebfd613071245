"""Calibration that knows how dense the data are (ProCal, Xiong et al. 2023, arXiv 2306.04590).

Both calibrators give the predicted class a new confidence, keep it the predicted class, and share
the rest between the others as before. `fit` and `transform` take each sample's proximity last:
`fit(logits, labels, proximity)`, `transform(logits, proximity)`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from semmix.calibration._bins import bin_edges, bin_index, check_bins
from semmix.calibration._calibrator import Calibrator, Curve, State, pack, softmax, unpack
from semmix.calibration._inputs import Array, row_blocks
from semmix.calibration.neighbours import group_index, quantile_edges
from semmix.calibration.one_vs_rest import isotonic
from semmix.core.errors import unknown_name


@dataclass(repr=False)
class DensityRatioCalibrator(Calibrator):
    """Confidence from how dense right and wrong samples are around (confidence, proximity)."""

    by_brier = True

    def _learn(self, logits: Array, labels: Array, proximity: Array) -> State:
        probs = softmax(logits)
        points = np.column_stack([probs.max(1), proximity])
        correct = probs.argmax(1) == labels
        state = {"right": points[correct], "wrong": points[~correct]}
        # Without spread on either side there is no density to compare.
        spread = [len(group) > 1 and (group.std(0) > 0).all() for group in state.values()]
        return state if all(spread) else {}

    def _apply(self, state: State, logits: Array, proximity: Array) -> Array:
        probs = softmax(logits)
        points = np.column_stack([probs.max(1), proximity])
        right, wrong = (_log_density(points, state[name]) for name in ("right", "wrong"))
        odds = right - wrong + np.log(len(state["right"]) / len(state["wrong"]))
        return with_confidence(probs, np.exp(-np.logaddexp(0, -odds)))


@dataclass(repr=False)
class BinMeanShiftCalibrator(Calibrator):
    """Maps the confidence by its own curve in each quantile bin of the proximity."""

    by_brier = True
    curve: Literal["isotonic", "histogram"] = "isotonic"
    """What is fitted in each proximity bin."""

    proximity_bins: int = 5
    """Quantile bins of the proximity."""

    bins: int = 10
    """Equal-width confidence bins of the `histogram` curve."""

    def _learn(self, logits: Array, labels: Array, proximity: Array) -> State:
        if self.curve not in ("isotonic", "histogram"):
            raise unknown_name("curve", self.curve, ("isotonic", "histogram"))
        probs = softmax(logits)
        confidence, correct = probs.max(1), probs.argmax(1) == labels
        edges = quantile_edges(proximity, check_bins(self.proximity_bins))
        groups = group_index(proximity, edges)
        curves = []
        for group in range(self.proximity_bins):
            chosen = groups == group
            chosen |= not chosen.any()  # all of them where ties left the group empty
            curves.append(self._fit_curve(confidence[chosen], correct[chosen]))
        return {"edges": edges, **pack(curves)}

    def _apply(self, state: State, logits: Array, proximity: Array) -> Array:
        probs = softmax(logits)
        confidence, mapped = probs.max(1), np.empty(len(probs))
        groups = group_index(proximity, state["edges"])
        for group, (x, y) in enumerate(unpack(state)):
            values = confidence[groups == group]
            steps = np.minimum(np.searchsorted(x, values, "left"), len(x) - 1)  # those of (x[m-1], x[m]]
            mapped[groups == group] = np.interp(values, x, y) if self.curve == "isotonic" else y[steps]
        return with_confidence(probs, mapped)

    def _fit_curve(self, confidence: Array, correct: Array) -> Curve:
        if self.curve == "isotonic":
            return isotonic(confidence, correct)
        bins = check_bins(self.bins)
        index = bin_index(confidence, bins)
        count, right = np.bincount(index, minlength=bins), np.bincount(index, correct, bins)
        centres = (np.arange(bins) + 0.5) / bins
        return bin_edges(bins)[1:], np.where(count > 0, right / np.maximum(count, 1), centres)


def with_confidence(probs: Array, confidence: Array) -> Array:
    """Return rows whose largest entry is `confidence`, the others scaled to share the rest.

    Where that would let another class overtake, the confidence is raised just enough.
    """
    rows, top = np.arange(len(probs)), probs.argmax(1)
    others = probs.copy()
    others[rows, top] = 0
    rest = others.sum(1, keepdims=True)
    even = np.full_like(others, 1 / max(probs.shape[1] - 1, 1))
    even[rows, top] = 0
    shares = np.where(rest > 0, others / np.where(rest > 0, rest, 1.0), even)
    rival = shares.max(1)
    confidence = np.clip(confidence, rival / (1 + rival) * (1 + 1e-12), 1.0)
    result = shares * (1 - confidence)[:, None]
    result[rows, top] = confidence
    return result


def _log_density(points: Array, sample: Array) -> Array:
    """Return the log of a Gaussian kernel density with the normal reference bandwidth, `[N]`."""
    bandwidth = 1.06 * sample.std(0) * len(sample) ** (-1 / 6)
    scaled, centres = points / bandwidth, sample / bandwidth
    result = np.empty(len(points))
    for where in row_blocks(len(points), len(sample)):
        squared = sum((scaled[where, j, None] - centres[:, j]) ** 2 for j in range(2))
        result[where] = np.logaddexp.reduce(-0.5 * squared, axis=1)
    return result - np.log(len(sample) * 2 * np.pi * bandwidth.prod())
