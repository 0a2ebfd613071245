"""Linear maps of the logits, more flexible than one temperature: vector, matrix, Dirichlet."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semmix.calibration._calibrator import Calibrator, State, log_softmax, softmax
from semmix.calibration._inputs import Array


@dataclass
class VectorScaler(Calibrator):
    """Scales and shifts each class's logit by its own numbers (Guo et al. 2017)."""

    def _learn(self, logits: Array, labels: Array) -> State:
        num_classes = logits.shape[1]

        def loss(parameters: Array) -> tuple[float, Array]:
            scale, bias = parameters.reshape(2, num_classes)
            value, slope = _nll_and_slope(logits * scale + bias, labels)
            return value, np.concatenate([(slope * logits).sum(0), slope.sum(0)])

        start = np.concatenate([np.ones(num_classes), np.zeros(num_classes)])
        scale, bias = _minimise(loss, start).reshape(2, num_classes)
        return {"scale": scale, "bias": bias}

    def _apply(self, state: State, logits: Array) -> Array:
        return softmax(logits * state["scale"] + state["bias"])


@dataclass
class MatrixScaler(Calibrator):
    """Maps the logits by a full matrix and a bias, the most probable ones under a normal prior.

    K^2 numbers fitted on few samples would memorise them; the prior holds off-diagonal entries near
    zero unless the samples insist (the off-diagonal regularisation of Kull et al. 2019).
    """

    off_diagonal_deviation: float = 0.02
    """Prior standard deviation of the off-diagonal entries."""

    bias_deviation: float = 1.0
    """Prior standard deviation of the bias at the mean logit."""

    def _inputs(self, logits: Array) -> Array:
        return logits

    def _learn(self, logits: Array, labels: Array) -> State:
        inputs = self._inputs(logits)
        num_rows, num_classes = inputs.shape
        mean = inputs.mean(0)
        # Centred inputs keep matrix and bias from pulling on each other: many fewer steps.
        centred = inputs - mean
        # A normal prior adds half the sum of precision * parameter^2 to the total NLL.
        precision = (1 - np.eye(num_classes)) / self.off_diagonal_deviation**2 / num_rows
        bias_precision = 1 / self.bias_deviation**2 / num_rows

        def loss(parameters: Array) -> tuple[float, Array]:
            change, bias = _unpack(parameters, num_classes)
            value, slope = _nll_and_slope(inputs + centred @ change.T + bias, labels)
            value += ((precision * change**2).sum() + bias_precision * (bias**2).sum()) / 2
            to_change = slope.T @ centred + precision * change
            to_bias = slope.sum(0) + bias_precision * bias
            return value, np.concatenate([to_change.ravel(), to_bias])

        change, bias = _unpack(_minimise(loss, np.zeros(num_classes**2 + num_classes)), num_classes)
        return {"matrix": np.eye(num_classes) + change, "bias": bias - change @ mean}

    def _apply(self, state: State, logits: Array) -> Array:
        return softmax(self._inputs(logits) @ state["matrix"].T + state["bias"])


@dataclass
class DirichletCalibrator(MatrixScaler):
    """Matrix scaling of log-probabilities: the Dirichlet calibration of Kull et al. 2019."""

    def _inputs(self, logits: Array) -> Array:
        return log_softmax(logits)


def _unpack(parameters: Array, num_classes: int) -> tuple[Array, Array]:
    return parameters[:-num_classes].reshape(num_classes, num_classes), parameters[-num_classes:]


def _nll_and_slope(logits: Array, labels: Array) -> tuple[float, Array]:
    """Return the mean NLL and its derivative by every logit, `[N, K]`."""
    log_probs, rows = log_softmax(logits), np.arange(len(labels))
    slope = np.exp(log_probs)
    slope[rows, labels] -= 1
    return float(-log_probs[rows, labels].mean()), slope / len(labels)


def _minimise(loss: Callable[[Array], tuple[float, Array]], start: Array) -> Array:
    """Return the minimum of a smooth convex loss; the search never ends above its start."""
    from scipy.optimize import minimize

    return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
