"""How well probabilities tell the truth. Every metric takes arrays or tensors and returns a float.

`probs` is `[N, K]`, or `[N]`: the probability of class 1 of two. `labels` is `[N]` class indices,
or `[N, K]` target distributions; "correct" then means the target's share of the predicted class.
Samples labelled `ignore_index` are skipped; `class_weights` `[K]` weigh each sample by its label.
Bins are `(lower, upper]`, of equal width unless said otherwise; a probability of 0 joins the first.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from semmix.calibration._bins import BinSums, Reliability, bin_index, check_bins
from semmix.calibration._inputs import Array, Rows, as_probs, check_samples, prob_blocks
from semmix.calibration._toplabel import sample_weights, top_label

LEAST_HALF = float(np.finfo(np.float16).smallest_subnormal)
"""What a zero in float16 is taken for, since what is much smaller is written so."""


def accuracy(probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the share of samples whose most probable class is right (the first one, on a tie)."""
    return top_label(probs, labels, ignore_index, class_weights).accuracy()


def ece(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return the expected calibration error, sum_m |B_m|/N * |confidence_m - accuracy_m|.

    >>> round(ece([[0.9, 0.1]] * 10, [0] * 6 + [1] * 4), 6)
    0.3
    """
    return top_label(probs, labels, ignore_index, class_weights).ece(bins)


def aece(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return the adaptive ECE: bins of equal count along the sorted confidences.

    Equal confidences are shared between neighbouring bins in proportion, so the order of the
    samples never matters and a constant confidence c at accuracy a gives |c - a|.
    """
    return top_label(probs, labels, ignore_index, class_weights).aece(bins)


def oe(probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the overconfident part of ECE, sum_m |B_m|/N * max(confidence_m - accuracy_m, 0)."""
    return top_label(probs, labels, ignore_index, class_weights).oe(bins)


def ue(probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the underconfident part of ECE, so that OE + UE = ECE."""
    return top_label(probs, labels, ignore_index, class_weights).ue(bins)


def weighted_oe(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return OE with every bin weighed by its mean confidence (Thulasidasan et al. 2019)."""
    return top_label(probs, labels, ignore_index, class_weights).weighted_oe(bins)


def weighted_ue(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return UE with every bin weighed by its mean confidence."""
    return top_label(probs, labels, ignore_index, class_weights).weighted_ue(bins)


def mce(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return the largest |confidence_m - accuracy_m| of any bin that holds a sample."""
    return top_label(probs, labels, ignore_index, class_weights).mce(bins)


def debiased_ece(
    probs: Any,
    labels: Any,
    bins: int = 15,
    power: int = 1,
    *,
    ignore_index: int | None = None,
    class_weights: Any = None,
) -> float:
    """Return ECE less what sampling noise alone would show, never below 0.

    Args:
        power: 1 for the ECE itself (mean absolute gap); 2 for the root of the mean squared gap with
            the unbiased estimator of Kumar, Liang and Ma 2019 (arXiv 1909.10155).
    """
    return top_label(probs, labels, ignore_index, class_weights).debiased_ece(bins, power)


def smooth_ece(probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the smooth ECE: gaps under a Gaussian whose width equals the error it shows.

    References:
        Błasiok and Nakkiran, "Smooth ECE", 2024 (arXiv 2309.12236).
    """
    return top_label(probs, labels, ignore_index, class_weights).smooth_ece()


def classwise_ece(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return the mean over all K classes of the ECE of p_k against "the label is k"."""
    probs, labels = check_samples(probs, labels, ignore_index)
    weights = sample_weights(labels, class_weights, probs.shape[1])
    return classwise_sums(probs, labels, bins, weights).ece() / probs.shape[1]


def nll(probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the mean negative log-likelihood in nats; the cross-entropy for soft labels.

    A probability of 0 counts as the smallest normal number of its type, in float16 as the smallest
    of all, 6e-8: the result is finite.
    """
    probs, labels = check_samples(probs, labels, ignore_index)
    weights = sample_weights(labels, class_weights, probs.shape[1])
    return float(np.average(log_losses(probs, labels), weights=weights))


def brier(probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the mean of sum_k (p_k - q_k)^2, between 0 and 2."""
    probs, labels = check_samples(probs, labels, ignore_index)
    weights = sample_weights(labels, class_weights, probs.shape[1])
    return float(np.average(squared_errors(probs, labels), weights=weights))


def brier_decomposition(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> dict[str, float]:
    """Return the parts of brier = reliability - resolution + uncertainty + within_bins.

    Murphy's decomposition of each class's p_k over bins, summed over classes. `within_bins` is what
    the bins hide (Stephenson et al. 2008); it falls to 0 as bins narrow.
    """
    probs, labels = check_samples(probs, labels, ignore_index)
    weights = sample_weights(labels, class_weights, probs.shape[1])
    sums = classwise_sums(probs, labels, bins, weights)
    share = sums.weight / sums.weight.sum(-1, keepdims=True)  # [K, bins]
    base_rate = sums.correct.sum(-1, keepdims=True) / sums.weight.sum(-1, keepdims=True)  # [K, 1]
    confidence, frequency = sums.means()
    parts = {
        "reliability": float(np.nansum(share * (confidence - frequency) ** 2)),
        "resolution": float(np.nansum(share * (frequency - base_rate) ** 2)),
        "uncertainty": _expected_square(labels, weights) - float((base_rate**2).sum()),
    }
    whole = float(np.average(squared_errors(probs, labels), weights=weights))
    binned = parts["reliability"] - parts["resolution"] + parts["uncertainty"]
    return {**parts, "within_bins": whole - binned, "brier": whole}


def entropy(probs: Any) -> float:
    """Return the mean entropy of the predictions in nats."""
    return float(np.mean(entropies(as_probs(probs))))


def reliability(
    probs: Any, labels: Any, bins: int = 15, *, ignore_index: int | None = None, class_weights: Any = None
) -> Reliability:
    """Return each bin's edges, count, mean confidence and accuracy; NaN where a bin is empty."""
    return top_label(probs, labels, ignore_index, class_weights).bin_sums(bins).reliability()


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


def _expected_square(labels: Array, weights: Array | None) -> float:
    """Return the mean of sum_k q_k^2, which is 1 for hard labels."""
    if labels.ndim == 1:
        return 1.0
    return float(np.average((labels**2).sum(1), weights=weights))
