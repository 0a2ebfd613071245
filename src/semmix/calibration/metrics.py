"""How well probabilities tell the truth. Every metric takes arrays or tensors and returns a float.

`probs` is `[N, K]`, or `[N]`: the probability of class 1 of two. `labels` is `[N]` class indices,
or `[N, K]` target distributions; "correct" then means the target's share of the predicted class.
Bins are `(lower, upper]`, of equal width unless said otherwise; a probability of 0 joins the first.
"""

from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

import numpy as np
import torch

from semmix.calibration._bins import BinSums, Reliability, bin_index, check_bins
from semmix.calibration._inputs import Array, Rows, as_probs, check_samples, prob_blocks
from semmix.calibration._toplabel import RiskCoverage, sample_weights, top_label

LEAST_HALF = float(np.finfo(np.float16).smallest_subnormal)
"""What a zero in float16 is taken for, since what is much smaller is written so."""


class Chosen(TypedDict, total=False):
    """Keywords of every metric of probabilities and labels: which samples count, and how much."""

    ignore_index: int | None
    """Samples with this label are skipped."""
    class_weights: Any
    """Weight of each class `[K]`, with which its samples count."""


def accuracy(probs: Any, labels: Any, **chosen: Unpack[Chosen]) -> float:
    """Return the share of samples whose most probable class is right (the first one, on a tie).

    Example:
        >>> accuracy([[0.9, 0.1], [0.2, 0.8]], [0, 0])
        0.5
    """
    return top_label(probs, labels, **chosen).accuracy()


def ece(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return the expected calibration error, sum_m |B_m|/N * |confidence_m - accuracy_m|.

    Args:
        probs: Probabilities `[N, K]`, or `[N]` of class 1 of two.
        labels: Classes `[N]`, or distributions `[N, K]`.
        bins: Bins of equal width.
        chosen: `ignore_index`, a label to skip, and `class_weights` `[K]`; every metric takes them.

    Returns:
        A share between 0 and 1.

    Raises:
        SemmixError: If probabilities or labels are not what they should be.

    Example:
        >>> round(ece([[0.9, 0.1]] * 10, [0] * 6 + [1] * 4), 6)
        0.3
    """
    return top_label(probs, labels, **chosen).ece(bins)


def aece(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return the adaptive ECE: bins of equal count along the sorted confidences.

    Equal confidences are shared between neighbouring bins in proportion, so the order of the
    samples never matters and a constant confidence c at accuracy a gives |c - a|.

    Args:
        probs: Probabilities `[N, K]`, or `[N]` of class 1 of two.
        labels: Classes `[N]`, or distributions `[N, K]`.
        bins: Bins of equal count.
        chosen: As of `ece`.

    Example:
        >>> round(aece([[0.9, 0.1], [0.8, 0.2]] * 5, [0, 0, 0, 1, 0] * 2), 6)
        0.05
    """
    return top_label(probs, labels, **chosen).aece(bins)


def oe(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return the over-confident part of the ECE, sum_m |B_m|/N * max(confidence_m - accuracy_m, 0).

    Arguments are those of `ece`.

    Example:
        >>> round(oe([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10, [0] * 6 + [1] * 4 + [0] * 10), 6)
        0.15
    """
    return top_label(probs, labels, **chosen).oe(bins)


def ue(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return the under-confident part of the ECE, so that OE + UE = ECE.

    Arguments are those of `ece`.

    Example:
        >>> round(ue([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10, [0] * 6 + [1] * 4 + [0] * 10), 6)
        0.2
    """
    return top_label(probs, labels, **chosen).ue(bins)


def weighted_oe(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return OE with every bin weighed by its mean confidence (Thulasidasan et al. 2019)."""
    return top_label(probs, labels, **chosen).weighted_oe(bins)


def weighted_ue(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return UE with every bin weighed by its mean confidence."""
    return top_label(probs, labels, **chosen).weighted_ue(bins)


def mce(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return the largest |confidence_m - accuracy_m| of any bin that holds a sample.

    Arguments are those of `ece`.

    Example:
        >>> round(mce([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10, [0] * 6 + [1] * 4 + [0] * 10), 6)
        0.4
    """
    return top_label(probs, labels, **chosen).mce(bins)


def debiased_ece(probs: Any, labels: Any, bins: int = 15, power: int = 1, **chosen: Unpack[Chosen]) -> float:
    """Return the ECE less what sampling noise alone would show, never below 0.

    Args:
        probs: Probabilities `[N, K]`, or `[N]` of class 1 of two.
        labels: Classes `[N]`, or distributions `[N, K]`.
        bins: Bins of equal width.
        power: 1 for the ECE itself (mean absolute gap); 2 for the root of the mean squared gap with
            the unbiased estimator of Kumar, Liang and Ma 2019 (arXiv 1909.10155).
        chosen: As of `ece`.

    Example:
        >>> debiased_ece([[0.75, 0.25]] * 10, [0] * 7 + [1] * 3)  # the ECE is 0.05
        0.0
    """
    return top_label(probs, labels, **chosen).debiased_ece(bins, power)


def smooth_ece(probs: Any, labels: Any, **chosen: Unpack[Chosen]) -> float:
    """Return the smooth ECE: gaps under a Gaussian whose width equals the error it shows.

    Błasiok and Nakkiran, "Smooth ECE", 2024 (arXiv 2309.12236). Arguments are those of `ece`.

    Example:
        >>> round(smooth_ece([[0.9, 0.1]] * 10, [0] * 6 + [1] * 4), 3)
        0.3
    """
    return top_label(probs, labels, **chosen).smooth_ece()


def classwise_ece(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> float:
    """Return the mean over all K classes of the ECE of p_k against "the label is k".

    Arguments are those of `ece`.

    Example:
        >>> round(classwise_ece([[0.9, 0.1]] * 10, [0] * 6 + [1] * 4), 6)
        0.3
    """
    probs, labels, weights = _weighed(probs, labels, **chosen)
    return classwise_sums(probs, labels, bins, weights).ece() / probs.shape[1]


def nll(probs: Any, labels: Any, **chosen: Unpack[Chosen]) -> float:
    """Return the mean negative log-likelihood in nats; the cross-entropy for soft labels.

    A probability of 0 counts as the smallest normal number of its type, in float16 as the smallest
    of all, 6e-8: the result is finite. Arguments are those of `ece`.

    Example:
        >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
        0.4904
    """
    probs, labels, weights = _weighed(probs, labels, **chosen)
    return float(np.average(log_losses(probs, labels), weights=weights))


def brier(probs: Any, labels: Any, **chosen: Unpack[Chosen]) -> float:
    """Return the mean of sum_k (p_k - q_k)^2, between 0 and 2.

    Arguments are those of `ece`.

    Example:
        >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        0.3125
    """
    probs, labels, weights = _weighed(probs, labels, **chosen)
    return float(np.average(squared_errors(probs, labels), weights=weights))


def brier_decomposition(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> dict[str, float]:
    """Return the parts of brier = reliability - resolution + uncertainty + within_bins.

    Murphy's decomposition of each class's p_k over bins, summed over classes. `within_bins` is what
    the bins hide (Stephenson et al. 2008); it falls to 0 as bins narrow.
    """
    probs, labels, weights = _weighed(probs, labels, **chosen)
    sums = classwise_sums(probs, labels, bins, weights)
    share = sums.weight / sums.weight.sum(-1, keepdims=True)  # [K, bins]
    base_rate = sums.correct.sum(-1, keepdims=True) / sums.weight.sum(-1, keepdims=True)  # [K, 1]
    confidence, frequency = sums.means()
    squares = 1.0 if labels.ndim == 1 else float(np.average((labels**2).sum(1), weights=weights))
    parts = {
        "reliability": float(np.nansum(share * (confidence - frequency) ** 2)),
        "resolution": float(np.nansum(share * (frequency - base_rate) ** 2)),
        "uncertainty": squares - float((base_rate**2).sum()),
    }
    whole = float(np.average(squared_errors(probs, labels), weights=weights))
    binned = parts["reliability"] - parts["resolution"] + parts["uncertainty"]
    return {**parts, "within_bins": whole - binned, "brier": whole}


def entropy(probs: Any) -> float:
    """Return the mean entropy of the predictions in nats."""
    return float(np.mean(entropies(as_probs(probs))))


def reliability(probs: Any, labels: Any, bins: int = 15, **chosen: Unpack[Chosen]) -> Reliability:
    """Return each bin's edges, count, mean confidence and accuracy; NaN where a bin is empty."""
    return top_label(probs, labels, **chosen).bin_sums(bins).reliability()


def risk_coverage(probs: Any, labels: Any, **chosen: Unpack[Chosen]) -> RiskCoverage:
    """Return the error rate among the most confident samples; equal confidences are accepted together."""
    return top_label(probs, labels, **chosen).risk_coverage()


def aurc(probs: Any, labels: Any, **chosen: Unpack[Chosen]) -> float:
    """Return the area under the risk-coverage curve: the mean over k of the error rate among the k
    most confident samples, in expectation over the order of ties."""
    return top_label(probs, labels, **chosen).aurc()


def log_losses(probs: Rows, labels: Array) -> Array:
    """Return each sample's -sum_k q_k log p_k in float64, `[N]`."""
    losses = np.empty(len(labels))
    is_half = probs.dtype in (torch.float16, np.float16)
    for where, block in prob_blocks(probs):
        tiny = LEAST_HALF if is_half else np.finfo(block.dtype).tiny
        targets = labels[where]
        if targets.ndim == 1:
            chosen = block[np.arange(len(block)), targets]
            losses[where] = -np.log(np.maximum(chosen, tiny, dtype=np.float64))
        else:
            losses[where] = -(targets * np.log(np.maximum(block, tiny, dtype=np.float64))).sum(1)
    return losses


def squared_errors(probs: Rows, labels: Array) -> Array:
    """Return each sample's sum_k (p_k - q_k)^2 in float64, `[N]`."""
    errors = np.empty(len(labels))
    for where, block in prob_blocks(probs):
        rest, targets = block.astype(np.float64), labels[where]
        if targets.ndim == 1:
            rest[np.arange(len(rest)), targets] -= 1
        else:
            rest -= targets
        errors[where] = np.einsum("nk,nk->n", rest, rest)
    return errors


def entropies(probs: Rows) -> Array:
    """Return each sample's -sum_k p_k log p_k in float64, `[N]`."""
    values = np.empty(len(probs))
    for where, block in prob_blocks(probs):
        rows = block.astype(np.float64)
        values[where] = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(1)
    return values


def classwise_sums(probs: Rows, labels: Array, bins: int, weights: Array | None = None) -> BinSums:
    """Return the sums of p_k and of "the label is k" over each class's bins, `[K, bins]` each."""
    total = np.zeros((3, probs.shape[1] * check_bins(bins)))
    for cells, columns in classwise_columns(probs, labels, bins, weights):
        for sums, values in zip(total, columns, strict=True):
            sums += np.bincount(cells, values, len(sums))
    return BinSums(*total.reshape(3, probs.shape[1], bins))


def classwise_columns(
    probs: Rows, labels: Array, bins: int, weights: Array | None
) -> Iterator[tuple[Array, tuple[Array, ...]]]:
    """Yield, block by block, the cell (class, bin) of every p_k with its weight, p_k and target."""
    classes = np.arange(probs.shape[1])
    for where, rows in prob_blocks(probs):
        cells = bin_index(rows, bins) + bins * classes
        targets = labels[where] if labels.ndim == 2 else labels[where, None] == classes
        weight = np.ones((len(rows), 1)) if weights is None else weights[where, None]
        columns = (weight * values for values in (np.ones(rows.shape), rows, targets))
        yield cells.ravel(), tuple(column.ravel() for column in columns)


def _weighed(
    probs: Any, labels: Any, ignore_index: int | None = None, class_weights: Any = None
) -> tuple[Rows, Array, Array | None]:
    """Return checked probabilities and labels, and each sample's weight where classes have weights."""
    probs, labels = check_samples(probs, labels, ignore_index)
    return probs, labels, sample_weights(labels, class_weights, probs.shape[1])
