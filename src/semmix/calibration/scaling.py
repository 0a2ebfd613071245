"""Scaling logits: by one temperature, by a vector, by a matrix, Dirichlet calibration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from semmix.calibration._calibrator import Calibrator, State, log_softmax, softmax
from semmix.calibration._inputs import Array
from semmix.calibration._toplabel import TopLabel
from semmix.calibration.metrics import ece, nll
from semmix.core.errors import unknown_name

BOUNDS = (1e-4, 1e4)
"""Where the temperature is sought: samples that are all wrong would pull it to infinity. Wide,
since the logits may be cosines."""

GRID = np.arange(1, 101) / 10
"""The temperatures of the published protocol."""


@dataclass(repr=False)
class TemperatureScaler(Calibrator):
    """Divides all logits by one temperature, so that the predicted class never changes (Guo et al. 2017).

    Where every prediction is right (`none_wrong`) any sharper one looks better still: the temperature then
    stays at 1 or above.

    Args:
        search: `nll`, the temperature with the least NLL, or `ece-grid`, the published protocol.

    Example:
        >>> logits, labels = [[2.0, 0.0]] * 4 + [[0.0, 2.0]] * 4, [0, 0, 0, 1, 1, 1, 1, 0]
        >>> scaler = TemperatureScaler().fit(logits, labels)
        >>> scaler
        TemperatureScaler(temperature=1.82)
        >>> scaler.transform([[2.0, 0.0]]).round(2)
        array([[0.75, 0.25]])
    """

    search: Literal["nll", "ece-grid"] = "nll"
    """`nll`: the minimum of the NLL. `ece-grid`: the published protocol, the least ECE (15 bins)
    among the temperatures 0.1, 0.2, ..., 10.0, the smallest on a tie."""

    @property
    def temperature(self) -> float:
        """The fitted temperature; above 1, the model was over-confident."""
        return float(self._fitted().state_.get("temperature", 1.0))

    def _learn(self, logits: Array, labels: Array) -> State:
        searches = {"nll": least_nll, "ece-grid": best_on_grid}
        if self.search not in searches:
            raise unknown_name("search", self.search, searches)
        least = 1.0 if none_wrong(logits, labels) else 0.0
        return {"temperature": np.array(max(searches[self.search](logits, labels), least))}

    def _apply(self, state: State, logits: Array) -> Array:
        return softmax(logits / state["temperature"])

    def _criterion(self) -> Callable[[Array, Array], float]:
        return ece if self.search == "ece-grid" else nll


def none_wrong(logits: Array, labels: Array) -> bool:
    """Return whether every prediction is right: no temperature can be fitted to those."""
    return bool((logits.argmax(1) == labels).all())


def least_nll(logits: Array, labels: Array) -> float:
    """Return the temperature in `BOUNDS` with the least NLL.

    The NLL is convex in beta = 1/T: Newton steps, kept inside a shrinking bracket, until the next
    would gain less than rounding does.
    """
    logits = logits - logits.max(1, keepdims=True)
    of_label = logits[np.arange(len(labels)), labels]
    low, high = 1 / BOUNDS[1], 1 / BOUNDS[0]
    beta, gain = 1.0, np.inf
    while gain > 1e-16 and high - low > 1e-12 * beta:
        slope, curvature = _slope_and_curvature(logits, of_label, beta)
        newton = beta - slope / curvature
        if newton == beta:  # as an end of the bracket it would be taken for a step too far
            break
        low, high = (low, beta) if slope > 0 else (beta, high)
        beta = newton if low < newton < high else np.sqrt(low * high)
        gain = slope * (slope / curvature)
    return 1 / beta


def best_on_grid(logits: Array, labels: Array) -> float:
    """Return the temperature of `GRID` with the least ECE."""
    correct = (logits.argmax(1) == labels).astype(np.float64)
    logits = logits - logits.max(1, keepdims=True)
    # The largest logit is now 0, so the confidence is one over the sum of exponentials.
    errors = [TopLabel(1 / np.exp(logits / t).sum(1), correct).ece() for t in GRID]
    return float(GRID[int(np.argmin(errors))])


def _slope_and_curvature(logits: Array, of_label: Array, beta: float) -> tuple[float, float]:
    """Return the first two derivatives of the NLL of softmax(beta * logits) by beta."""
    probs = np.exp(beta * logits)
    probs /= probs.sum(1, keepdims=True)
    mean = np.einsum("nk,nk->n", probs, logits)
    square = np.einsum("nk,nk,nk->n", probs, logits, logits)
    curvature = float((square - mean**2).mean())
    return float((mean - of_label).mean()), max(curvature, float(np.finfo(np.float64).tiny))


@dataclass(repr=False)
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


@dataclass(repr=False)
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

        def unpack(parameters: Array) -> tuple[Array, Array]:
            return parameters[:-num_classes].reshape(num_classes, num_classes), parameters[-num_classes:]

        def loss(parameters: Array) -> tuple[float, Array]:
            change, bias = unpack(parameters)
            value, slope = _nll_and_slope(inputs + centred @ change.T + bias, labels)
            value += ((precision * change**2).sum() + bias_precision * (bias**2).sum()) / 2
            to_change = slope.T @ centred + precision * change
            to_bias = slope.sum(0) + bias_precision * bias
            return value, np.concatenate([to_change.ravel(), to_bias])

        change, bias = unpack(_minimise(loss, np.zeros(num_classes**2 + num_classes)))
        return {"matrix": np.eye(num_classes) + change, "bias": bias - change @ mean}

    def _apply(self, state: State, logits: Array) -> Array:
        return softmax(self._inputs(logits) @ state["matrix"].T + state["bias"])


@dataclass(repr=False)
class DirichletCalibrator(MatrixScaler):
    """Matrix scaling of log-probabilities: the Dirichlet calibration of Kull et al. 2019."""

    def _inputs(self, logits: Array) -> Array:
        return log_softmax(logits)


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
