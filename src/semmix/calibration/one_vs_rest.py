"""Calibrators that map each class's probability on its own, then normalise the row.

Maps learnt by counting never give 0: a class that no fitting sample had at some probability would make the
NLL infinite. They count one more sample, of every class alike (`smoothed`).
"""

from dataclasses import dataclass

import numpy as np

from semmix.calibration._bins import bin_index, check_bins
from semmix.calibration._calibrator import Calibrator, Curve, State, log_softmax, pack, softmax, unpack
from semmix.calibration._inputs import Array
from semmix.calibration.metrics import classwise_sums


@dataclass(repr=False)
class HistogramBinning(Calibrator):
    """Replaces p_k by how often class k was right in its bin (Zadrozny and Elkan 2001)."""

    by_brier = True
    bins: int = 15
    """Equal-width bins of each class's probability; an empty bin keeps its centre."""

    def _learn(self, logits: Array, labels: Array) -> State:
        bins = check_bins(self.bins)
        _, frequency = classwise_sums(softmax(logits), labels, bins).means()  # [K, bins]
        centres = (np.arange(bins) + 0.5) / bins
        filled = np.where(np.isnan(frequency), centres, frequency)
        return {"frequency": smoothed(filled, *logits.shape)}

    def _apply(self, state: State, logits: Array) -> Array:
        probs = softmax(logits)
        index = bin_index(probs, state["frequency"].shape[1])
        return normalise(state["frequency"][np.arange(probs.shape[1]), index], probs)


@dataclass(repr=False)
class IsotonicCalibrator(Calibrator):
    """Maps p_k by the best non-decreasing function (Zadrozny and Elkan 2002)."""

    by_brier = True

    def _learn(self, logits: Array, labels: Array) -> State:
        probs = softmax(logits)
        state = pack([isotonic(probs[:, k], labels == k) for k in range(probs.shape[1])])
        return {**state, "y": smoothed(state["y"], *logits.shape)}

    def _apply(self, state: State, logits: Array) -> Array:
        probs = softmax(logits)
        columns = [np.interp(p, *curve) for p, curve in zip(probs.T, unpack(state), strict=True)]
        return normalise(np.stack(columns, 1), probs)


@dataclass(repr=False)
class BetaCalibrator(Calibrator):
    """Maps p_k by a beta-shaped curve with two slopes and a shift (Kull et al. 2017)."""

    def _learn(self, logits: Array, labels: Array) -> State:
        inputs = _beta_inputs(logits)  # [N, K, 2]
        maps = [_fit_beta(inputs[:, k], labels == k) for k in range(logits.shape[1])]
        return {"parameters": np.stack(maps)}  # [K, 3]: slopes of log p and -log(1 - p), shift

    def _apply(self, state: State, logits: Array) -> Array:
        slopes, shift = state["parameters"][:, :2], state["parameters"][:, 2]
        log_odds = np.einsum("nkj,kj->nk", _beta_inputs(logits), slopes) + shift
        return normalise(np.exp(-np.logaddexp(0, -log_odds)), softmax(logits))


def isotonic(values: Array, correct: Array) -> Curve:
    """Return the corners of the least-squares non-decreasing map of `values` to `correct`."""
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit(values, correct)
    return fitted.X_thresholds_, fitted.y_thresholds_


def smoothed(frequency: Array, num_samples: int, num_classes: int) -> Array:
    """Return the frequencies after one more sample that belongs to every class alike."""
    return (num_samples * frequency + 1 / num_classes) / (num_samples + 1)


def normalise(scores: Array, fallback: Array) -> Array:
    """Return rows that sum to one; rows without any score keep `fallback`."""
    total = scores.sum(1, keepdims=True)
    return np.where(total > 0, scores / np.where(total > 0, total, 1.0), fallback)


def _beta_inputs(logits: Array) -> Array:
    """Return log p_k and -log(1 - p_k), computed without rounding p_k to 1, `[N, K, 2]`."""
    log_p = log_softmax(logits)
    best = log_p.argmax(1)[:, None]
    others = log_p.copy()
    np.put_along_axis(others, best, -np.inf, 1)
    log_rest = np.log1p(-np.exp(others))  # exact up to p = 1/2; only the best has more
    np.put_along_axis(log_rest, best, np.logaddexp.reduce(others, 1, keepdims=True), 1)
    return np.stack([log_p, -log_rest], -1)


def _fit_beta(inputs: Array, correct: Array) -> Array:
    """Return slopes (not negative) and shift of the logistic regression with the least NLL."""
    from scipy.optimize import minimize

    columns = np.column_stack([inputs, np.ones(len(inputs))])  # [N, 3]
    signs = np.where(correct, 1.0, -1.0)

    def loss(parameters: Array) -> tuple[float, Array]:
        margin = signs * (columns @ parameters)
        slope = -signs * np.exp(-np.logaddexp(0, margin)) / len(signs)
        return float(np.logaddexp(0, -margin).mean()), columns.T @ slope

    bounds = [(0, None), (0, None), (None, None)]
    return minimize(loss, [1.0, 1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds).x
