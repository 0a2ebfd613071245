"""One number that softens or sharpens all logits (Guo et al. 2017, arXiv 1706.04599)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from semmix.calibration._calibrator import Calibrator, State, softmax
from semmix.calibration._inputs import Array
from semmix.calibration._toplabel import TopLabel
from semmix.calibration.metrics import ece, nll
from semmix.core.errors import unknown_name

BOUNDS = (1e-4, 1e4)
"""Where the temperature is sought: samples that are all wrong would pull it to infinity. Wide,
since the logits may be cosines."""

GRID = np.arange(1, 101) / 10
"""The temperatures of the published protocol."""


@dataclass
class TemperatureScaler(Calibrator):
    """Divides all logits by one temperature, so that the predicted class never changes.

    Samples that are all answered right (`none_wrong`) say nothing of how sharp to be: the sharper,
    the better they look. They never bring the temperature below 1.
    """

    search: Literal["nll", "ece-grid"] = "nll"
    """`nll`: the minimum of the NLL. `ece-grid`: the published protocol, the least ECE (15 bins)
    among the temperatures 0.1, 0.2, ..., 10.0, the smallest on a tie."""

    @property
    def temperature(self) -> float:
        """The fitted temperature; above 1, the model was overconfident."""
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
    """Return whether every answer is right: no temperature can be fitted to those."""
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
