"""Is a loss confidence-balanced? The optimum behind the propositions of the CSM paper.

Two images the network can hardly tell apart carry labels q1 (sharper) and q2 (softer), mixtures alpha : 1 - alpha of
the same two classes. The network may predict any p1, p2 no further apart than delta allows:

    min L(p1, q1) + L(p2, q2)   subject to   ||p1 - p2||^2 <= delta.

beta = ||p1 - q1||^2 - ||p2 - q2||^2 at the optimum says which label it fits better: the sharper one
where beta < 0, the softer one where beta > 0. A loss is balanced if beta = 0 for every delta.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from semmix.core.errors import SemmixError, require, unknown_name
from semmix.core.extras import import_object
from semmix.core.files import write_bytes

Loss = Callable[[Any, Any], Any]
"""loss(p, q) of two probability vectors, NumPy arrays or torch tensors; smooth where p > 0."""

NUM_GRID = 33  # places where a search for minima starts
EDGE = 1e-12  # the least share of a class named by the labels
TINY = 1e-300  # stands for a share of zero
WORTHWHILE = 1e-9  # the least gain for which predictions use classes that no label names
BALANCED = 1e-8  # a smaller beta counts as zero
INNER = 1e-6  # where all shares are larger, a loss must be a number
DEFINED = "let a class with q_k = 0 contribute 0, as torch.xlogy(q, q) does for q log q"

Predictions = tuple[NDArray[np.float64], NDArray[np.float64]]


class Balance(NamedTuple):
    """The optimum: its balance and the two predictions, each over all classes."""

    beta: float
    p1: NDArray[np.float64]
    p2: NDArray[np.float64]


def cross_entropy(p, q):
    """Return -sum_k q_k log p_k."""
    return -(q * np.log(p)).sum()


def focal(p, q, gamma: float):
    """Return -sum_k q_k (1 - p_k)^gamma log p_k."""
    return -(q * (1 - p) ** gamma * np.log(p)).sum()


def squared_error(p, q):
    """Return ||p - q||^2."""
    return ((p - q) ** 2).sum()


def confidence_balance(loss: Loss, alpha1: float, alpha2: float, delta: float, num_classes: int = 2) -> Balance:
    """Return the balance beta of a loss and its optimal predictions p1, p2.

    Args:
        loss: Called as loss(p, q) on vectors of `num_classes` probabilities, NumPy or torch.
        alpha1: Share of the first class in the sharper label.
        alpha2: Its share in the softer label: 0.5 <= alpha2 < alpha1 < 1.
        delta: Largest squared distance between the two predictions.
        num_classes: Classes in all; labels only name the first two, predictions may use the others.

    Returns:
        `beta`, below 0 where the sharper label is fitted better, `p1` and `p2`.

    Raises:
        SemmixError: If labels or delta are out of range, or the loss is not a finite number.

    Example:
        >>> round(confidence_balance(squared_error, 0.9, 0.6, 0.01).beta, 8) == 0
        True
    """
    fix = "choose 0.5 <= alpha2 < alpha1 < 1"
    require(0.5 <= alpha2 < alpha1 < 1, "labels are out of order", f"alpha1 = {alpha1}, alpha2 = {alpha2}", fix)
    require(delta >= 0, "delta is a squared distance", delta, "choose delta >= 0")
    require(num_classes >= 2, "labels mix two classes", num_classes, "choose num_classes >= 2")
    labels = [_vector(alpha, num_classes) for alpha in (alpha1, alpha2)]
    with np.errstate(all="ignore"):
        problem = _Problem(_on_arrays(loss), labels, delta)
        p1, p2 = problem.solve()
        least = problem.objective((p1, p2))
    require(math.isfinite(least), "the loss has no finite least value", least, DEFINED)
    beta = squared_error(p1, labels[0]) - squared_error(p2, labels[1])
    return Balance(float(beta), p1, p2)


def _vector(x: float, num_classes: int, rest: float = 0.0, total: float = 1.0) -> NDArray:
    """Return x for the first class, `rest` shared by those from the third on, and what is left."""
    others = num_classes - 2
    return np.array([x, total - rest - x] + [rest / max(others, 1)] * others)


def _on_arrays(loss: Loss) -> Callable[[NDArray, NDArray], float]:
    """Return the loss as a function of arrays, whether it is written in NumPy or in torch."""
    probe = np.array([0.6, 0.4])
    errors = []
    for kind in (np.asarray, torch.from_numpy):
        try:
            float(loss(kind(probe), kind(probe)))
            return lambda p, q, kind=kind: float(loss(kind(p), kind(q)))
        except Exception as error:  # whatever a user's function raises
            errors.append(error)
    fix = "loss(p, q) takes two probability vectors, NumPy or torch, and returns one number"
    raise SemmixError("cannot evaluate the loss", errors[0], fix) from errors[-1]


@dataclass(frozen=True)
class _Problem:
    """The optimisation problem of one loss, two labels and one delta."""

    loss: Callable[[NDArray, NDArray], float]
    labels: list[NDArray]
    delta: float

    def value(self, which: int, p: NDArray) -> float:
        # A hair above zero keeps 0 * log 0 at the zero it stands for.
        value = self.loss(np.maximum(p, TINY), self.labels[which])
        if not math.isnan(value):
            return value
        if p.min() > INNER:
            seen = f"nan at p = {p.round(4).tolist()}, q = {self.labels[which].tolist()}"
            raise SemmixError("the loss is not a number", seen, DEFINED)
        return math.inf  # at the edge, where 0 may meet infinity

    def objective(self, predictions: Predictions) -> float:
        return self.value(0, predictions[0]) + self.value(1, predictions[1])

    def solve(self) -> Predictions:
        """Return the best predictions: on the two classes of the labels, unless others do better."""
        best = self.solve_two_classes()
        if len(best[0]) > 2:
            wider = self.solve_all_classes(best)
            if self.objective(wider) < self.objective(best) - WORTHWHILE:
                return wider
        return best

    def solve_two_classes(self) -> Predictions:
        """Return the best predictions without other classes: p = (x, 1 - x, 0, ..., 0).

        Either each x is a minimum of its own term, or they are just as far apart as allowed.
        """
        num_classes, reach = len(self.labels[0]), math.sqrt(self.delta / 2)
        f1, f2 = (lambda x, k=k: self.value(k, _vector(x, num_classes)) for k in range(2))
        pairs = [(a, b) for a in minima(f1, 0, 1) for b in minima(f2, 0, 1) if abs(a - b) <= reach]
        for gap in (reach, -reach) if reach < 1 else ():
            together = minima(lambda x, g=gap: f1(x + g) + f2(x), max(0, -gap), min(1, 1 - gap))
            pairs += [(x + gap, x) for x in together]
        return min(((_vector(a, num_classes), _vector(b, num_classes)) for a, b in pairs), key=self.objective)

    def solve_all_classes(self, start: Predictions) -> Predictions:
        """Return the best predictions over all classes, to about 1e-6.

        Classes that no label names are alike, so that they share their mass evenly. Variables are
        p2 and the direction u in p1 = p2 + reach u, which is well scaled for every delta.
        """
        from scipy.optimize import minimize

        num_classes, reach = len(start[0]), math.sqrt(self.delta)

        def predictions(v: NDArray) -> Predictions:
            p2, u = _vector(v[0], num_classes, v[1]), _vector(v[2], num_classes, v[3], total=0)
            return p2 + reach * u / max(1, np.linalg.norm(u)), p2

        def slack(v: NDArray) -> NDArray:
            u = _vector(v[2], num_classes, v[3], total=0)
            return np.concatenate([[1 - (u**2).sum()], *(p[:3] for p in predictions(v))])

        inner = [0.8 * p + 0.2 / num_classes for p in start]
        gap = (inner[0] - inner[1]) / max(reach, TINY)
        others = num_classes - 2
        found = minimize(
            lambda v: self.objective(predictions(v)),
            [inner[1][0], others * inner[1][2], gap[0], others * gap[2]],
            method="SLSQP",
            jac="3-point",
            constraints={"type": "ineq", "fun": slack},
            options={"ftol": 1e-14},
        )
        return predictions(found.x)


def minima(f: Callable[[float], float], low: float, high: float) -> list[float]:
    """Return the local minima of a function on an interval, by the sign of its slope.

    The slope is a difference of fourth order whose step shrinks towards the ends, where losses may have poles.
    """
    low, high = low + EDGE, max(high - EDGE, low + EDGE)

    def slope(x: float) -> float:
        h = 1e-3 * min(x - low, high - x)
        return 8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))

    grid = np.linspace(low, high, NUM_GRID).tolist()
    values = [math.inf, *map(f, grid), math.inf]
    found = []
    for k in range(NUM_GRID):
        if values[k] >= values[k + 1] < values[k + 2]:
            found.append(bisect(slope, grid[max(k - 1, 0)], grid[min(k + 1, NUM_GRID - 1)]))
    return found or [low]


def bisect(slope: Callable[[float], float], left: float, right: float) -> float:
    """Return where a slope turns from negative to positive, to 1e-13."""
    while right - left > 1e-13:
        middle = (left + right) / 2
        left, right = (middle, right) if slope(middle) < 0 else (left, middle)
    return (left + right) / 2


def closed_form_beta(name: str, alpha1: float, alpha2: float, delta: float) -> float | None:
    """Return beta by formula, for l2 and ce; None for losses without one.

    l2: the predictions are interpolations, equally far from their labels. ce: the middle t of the
    predictions t + e, t - e solves a cubic, the paper's h(x) = 0 without its denominators.
    """
    if name == "l2" or (name == "ce" and delta >= 2 * (alpha1 - alpha2) ** 2):
        return 0.0
    if name != "ce":
        return None
    e = math.sqrt(delta / 2) / 2
    plus, minus = np.poly1d([1, e]), np.poly1d([1, -e])
    cubic = (plus - alpha1) * minus * (1 - minus) + (minus - alpha2) * plus * (1 - plus)
    # Without delta, 0 and 1 are roots too.
    real = [root.real for root in cubic.roots if root.imag == 0]
    t = min(real, key=lambda root: abs(root - (alpha1 + alpha2) / 2))
    return float(2 * (t + e - alpha1) ** 2 - 2 * (t - e - alpha2) ** 2)


CURVES: dict[str, Loss] = {
    "ce": cross_entropy,
    **{f"focal {gamma}": partial(focal, gamma=gamma) for gamma in range(1, 6)},
    "l2": squared_error,
}
"""The losses every figure shows; the number of a focal loss is its gamma."""


def load_loss(name: str, gamma: float = 1.0) -> Loss:
    """Return ce, l2 or focal with its gamma, or a user's own loss by `package.module:function`."""
    require(math.isfinite(gamma), "gamma is the exponent of focal", gamma, "choose a number, such as 2")
    known = {"ce": cross_entropy, "focal": partial(focal, gamma=gamma), "l2": squared_error}
    if name in known:
        return known[name]
    if ":" not in name:
        raise unknown_name("loss", name, [*known, "package.module:function"])
    return import_object(name, "loss", "write package.module:function for a loss(p, q) that Python can import")


class Row(NamedTuple):
    """One line of a balance table; `closed_form` is None where there is no formula."""

    loss: str
    delta: float
    beta: float
    closed_form: float | None
    p1: float
    p2: float


def balance_table(
    losses: Mapping[str, Loss], alpha1: float, alpha2: float, deltas: Iterable[float], num_classes: int = 2
) -> list[Row]:
    """Return beta of every loss at every delta, with the predictions' shares of the first class."""
    rows = []
    for delta in deltas:
        for name, loss in losses.items():
            beta, p1, p2 = confidence_balance(loss, alpha1, alpha2, delta, num_classes)
            formula = closed_form_beta(name, alpha1, alpha2, delta)
            rows.append(Row(name, delta, beta, formula, float(p1[0]), float(p2[0])))
    return rows


def spread_deltas(alpha1: float, alpha2: float, num: int) -> list[float]:
    """Return deltas from 0 to the labels' own squared distance, evenly spaced in their root."""
    distance = math.sqrt(2) * (alpha1 - alpha2)
    return [(distance * k / (num - 1)) ** 2 for k in range(num)]


def draw_balance(rows: Iterable[Row], path: Path) -> None:
    """Draw beta against delta, one curve for each loss."""
    from matplotlib.figure import Figure

    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(row.loss, []).append(row)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="0.6", linewidth=0.8)
    for name, curve in curves.items():
        axes.plot([row.delta for row in curve], [row.beta for row in curve], label=name)
    axes.set_xlabel("delta: squared distance allowed between the two predictions")
    axes.set_ylabel("beta (below 0: fits the sharper label)")
    axes.legend()
    data = BytesIO()
    figure.savefig(data, format=path.suffix.lower().removeprefix("."))
    write_bytes(path, data.getvalue())


def verdict(rows: Iterable[Row]) -> str:
    """Return in words what a loss's betas say."""
    betas = [row.beta for row in rows]
    if max(map(abs, betas)) < BALANCED:
        return "balanced: fits sharper and softer labels alike"
    if max(betas) < BALANCED:
        return "leans to the sharper label (beta <= 0)"
    if min(betas) > -BALANCED:
        return "leans to the softer label (beta >= 0)"
    return "leans to either side, depending on delta"
