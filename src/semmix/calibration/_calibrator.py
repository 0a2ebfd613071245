"""What all post-hoc calibrators share: checking, fitting with a safety net, saving, loading."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from semmix.calibration._inputs import Array, as_labels, as_logits, as_numpy, as_vector
from semmix.calibration.metrics import brier, nll
from semmix.core.errors import SemmixError, require, unknown_name
from semmix.core.files import read_json, read_tensors, write_json, write_tensors

State = dict[str, Array]
Curve = tuple[Array, Array]


@dataclass(repr=False)
class Calibrator:
    """Settings are fields, what was learnt is `state_`; a subclass adds `_learn` and `_apply`.

    Logits and probabilities are `[N, K]`, or `[N]` for two classes: log-odds and probability of
    class 1. What comes back is of the kind that was given, array or tensor.
    """

    kinds: ClassVar[dict[str, type[Calibrator]]] = {}
    by_brier: ClassVar[bool] = False
    """Whether fitting must not make the Brier score worse, rather than the NLL."""

    def __init_subclass__(cls) -> None:
        Calibrator.kinds[cls.__name__] = cls

    def _learn(self, logits: Array, labels: Array, *context: Array) -> State:
        """Return what is learnt from logits `[N, K]` and class indices `[N]`; nothing stands for the identity."""
        raise NotImplementedError

    def _apply(self, state: State, logits: Array, *context: Array) -> Array:
        """Return calibrated probabilities `[N, K]`."""
        raise NotImplementedError

    def _criterion(self) -> Callable[[Array, Array], float]:
        """Return the metric that fitting must not make worse than the identity."""
        return brier if self.by_brier else nll

    def fit(self, logits: Any, labels: Any, *context: Any) -> Self:
        """Learn from held-out samples; what is worse than plain softmax there is not kept.

        `context` is what else a method needs of each sample: the proximity, for ProCal.
        """
        rows, context = self._check(logits, context)
        if rows.min() >= 0 and rows.max() <= 1 and np.allclose(rows.sum(1), 1, atol=1e-3):
            seen = "every row lies in [0, 1] and sums to one"
            raise SemmixError("these logits are probabilities", seen, "pass np.log(probs) instead")
        labels = as_labels(labels, rows.shape)
        require(labels.ndim != 2, "calibrators learn from classes", "soft labels", "pass class indices [N]")
        self.num_classes_ = rows.shape[1]
        self.state_ = self._learn(rows, labels, *context)
        measure = self._criterion()
        if measure(self._probs(rows, context), labels) > measure(softmax(rows), labels):
            self.state_ = {}
        return self

    def transform(self, logits: Any, *context: Any) -> Any:
        """Return calibrated probabilities, shaped like `logits`."""
        rows, context = self._check(logits, context)
        if rows.shape[1] != self._fitted().num_classes_:
            seen = f"{rows.shape[1]} classes, fitted on {self.num_classes_}"
            raise SemmixError("logits do not fit the calibrator", seen, "use the same model's")
        probs = self._probs(rows, context)
        return _like(probs[:, 1] if np.ndim(logits) == 1 else probs, logits)

    def fit_transform(self, logits: Any, labels: Any, *context: Any) -> Any:
        """Fit, then return the calibrated probabilities of the same logits."""
        return self.fit(logits, labels, *context).transform(logits, *context)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as scikit-learn expects."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name, as scikit-learn expects."""
        for name, value in params.items():
            if name not in self.get_params():
                raise unknown_name("setting", name, self.get_params())
            setattr(self, name, value)
        return self

    def save(self, folder: Path) -> None:
        """Write `calibrator.json` and `calibrator.safetensors` into `folder`."""
        state = self._fitted().state_
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in state.items()}
        write_tensors(Path(folder) / "calibrator.safetensors", tensors)
        about = {"kind": type(self).__name__, "settings": asdict(self), "num_classes": self.num_classes_}
        write_json(Path(folder) / "calibrator.json", about)

    def __repr__(self) -> str:
        shown = {n: repr(value) for n, value in asdict(self).items() if value != getattr(type(self), n, ...)}
        for name, values in getattr(self, "state_", {}).items():
            shown[name] = f"{float(values):.4g}" if values.ndim == 0 else f"{list(values.shape)}"
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def _probs(self, logits: Array, context: tuple[Array, ...]) -> Array:
        return self._apply(self.state_, logits, *context) if self.state_ else softmax(logits)

    def _fitted(self) -> Self:
        if not hasattr(self, "state_"):
            name = type(self).__name__
            raise SemmixError(f"{name} is not fitted", "no state", "call fit(logits, labels) first")
        return self

    def _check(self, logits: Any, context: tuple[Any, ...]) -> tuple[Array, tuple[Array, ...]]:
        rows = as_logits(logits)
        vectors = tuple(as_vector(values, "proximity") for values in context)
        for vector in vectors:
            if len(vector) != len(rows):
                seen = f"{len(rows)} rows of logits, {len(vector)} proximities"
                raise SemmixError("proximity does not fit the samples", seen, "pass one per sample")
        return rows, vectors


def load_calibrator(folder: Path) -> Calibrator:
    """Return the fitted calibrator that `save` wrote into `folder`."""
    about, fix = read_json(Path(folder) / "calibrator.json"), "fit and save the calibrator again"
    try:
        if about["kind"] not in Calibrator.kinds:
            raise unknown_name("calibrator", about["kind"], Calibrator.kinds)
        calibrator = Calibrator.kinds[about["kind"]](**about["settings"])
        calibrator.num_classes_ = about["num_classes"]
    except (KeyError, TypeError) as error:
        raise SemmixError(f"{folder} holds no whole calibrator", repr(error), fix) from error
    tensors = read_tensors(Path(folder) / "calibrator.safetensors", fix)
    calibrator.state_ = {name: tensor.numpy() for name, tensor in tensors.items()}
    return calibrator


def pack(curves: Sequence[Curve]) -> State:
    """Return curves, the x and y of their corners, as a state."""
    xs, ys = zip(*curves, strict=True)
    return {"x": np.concatenate(xs), "y": np.concatenate(ys), "ends": np.cumsum([len(x) for x in xs])}


def unpack(state: State) -> list[Curve]:
    """Return the curves in a state."""
    return list(zip(*(np.split(state[name], state["ends"][:-1]) for name in ("x", "y")), strict=True))


def softmax(logits: Array) -> Array:
    """Return softmax over the last axis, safe from overflow."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def log_softmax(logits: Array) -> Array:
    """Return the logarithm of softmax over the last axis, exact even where softmax rounds to 0."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _like(probs: Array, given: Any) -> Any:
    """Return `probs` as the kind, device and floating type of `given`."""
    if isinstance(given, Tensor):
        dtype = given.dtype if given.is_floating_point() else torch.float64
        return torch.from_numpy(probs).to(given.device, dtype)
    dtype = as_numpy(np.asarray(given)).dtype
    return probs.astype(dtype if dtype.kind == "f" else np.float64, copy=False)
