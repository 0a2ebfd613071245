"""What all post-hoc calibrators share: checking, fitting with a safety net, saving, loading."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from semmix._errors import SemmixError, unknown_name
from semmix._files import read_json, write_json, write_tensors
from semmix.calibration._inputs import Array, as_labels, as_logits, as_numpy
from semmix.calibration.metrics import nll

State = dict[str, Array]
Self = TypeVar("Self", bound="Calibrator")


@dataclass
class Calibrator:
    """Settings are fields, what was learnt is `state_`; a subclass adds `_learn` and `_apply`.

    Logits and probabilities are `[N, K]`, or `[N]` for two classes: log-odds and probability of
    class 1. What comes back is of the kind that was given, array or tensor.
    """

    kinds: ClassVar[dict[str, type[Calibrator]]] = {}

    def __init_subclass__(cls) -> None:
        Calibrator.kinds[cls.__name__] = cls

    def _learn(self, logits: Array, labels: Array) -> State:
        """Return what logits `[N, K]` and class indices `[N]` teach."""
        raise NotImplementedError

    def _apply(self, state: State, logits: Array) -> Array:
        """Return calibrated probabilities `[N, K]`."""
        raise NotImplementedError

    def _criterion(self) -> Callable[[Array, Array], float]:
        """Return the metric that fitting must not make worse than the identity."""
        return nll

    def fit(self: Self, logits: Any, labels: Any) -> Self:
        """Learn from held-out samples; what is no better than plain softmax is not kept."""
        logits = as_logits(logits)
        _refuse_probs(logits)
        labels = _hard_labels(labels, logits)
        state = self._learn(logits, labels)
        measure = self._criterion()
        better = measure(self._apply(state, logits), labels) <= measure(softmax(logits), labels)
        self.state_ = state if better else {}
        return self

    def transform(self, logits: Any) -> Any:
        """Return calibrated probabilities, shaped like `logits`."""
        state, rows = self._fitted(), as_logits(logits)
        probs = self._apply(state, rows) if state else softmax(rows)
        return _like(probs[:, 1] if np.ndim(logits) == 1 else probs, logits)

    def fit_transform(self, logits: Any, labels: Any) -> Any:
        """Fit, then return the calibrated probabilities of the same logits."""
        return self.fit(logits, labels).transform(logits)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as scikit-learn expects."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self: Self, **params: Any) -> Self:
        """Change settings by name, as scikit-learn expects."""
        for name, value in params.items():
            if name not in self.get_params():
                raise unknown_name("setting", name, self.get_params())
            setattr(self, name, value)
        return self

    def save(self, folder: Path) -> None:
        """Write `calibrator.json` and `calibrator.safetensors` into `folder`."""
        tensors = {name: torch.from_numpy(np.array(v)) for name, v in self._fitted().items()}
        write_tensors(Path(folder) / "calibrator.safetensors", tensors)
        about = {"kind": type(self).__name__, "settings": asdict(self)}
        write_json(Path(folder) / "calibrator.json", about)

    def _fitted(self) -> State:
        if not hasattr(self, "state_"):
            name = type(self).__name__
            raise SemmixError(f"{name} is not fitted", name, "call fit(logits, labels) first")
        return self.state_


def load_calibrator(folder: Path) -> Calibrator:
    """Return the fitted calibrator that `save` wrote into `folder`."""
    about = read_json(Path(folder) / "calibrator.json")
    if about["kind"] not in Calibrator.kinds:
        raise unknown_name("calibrator", about["kind"], Calibrator.kinds)
    calibrator = Calibrator.kinds[about["kind"]](**about["settings"])
    tensors = load_file(Path(folder) / "calibrator.safetensors")
    calibrator.state_ = {name: tensor.numpy() for name, tensor in tensors.items()}
    return calibrator


def softmax(logits: Array) -> Array:
    """Return softmax over the last axis, safe from overflow."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _hard_labels(labels: Any, logits: Array) -> Array:
    labels = as_labels(labels, logits.shape)
    if labels.ndim == 2:
        raise SemmixError("calibrators learn from classes", "soft labels", "pass class indices [N]")
    return labels


def _refuse_probs(logits: Array) -> None:
    inside = logits.min() >= 0 and logits.max() <= 1
    if inside and np.allclose(logits.sum(1), 1, atol=1e-3):
        seen = "every row lies in [0, 1] and sums to one"
        raise SemmixError("these logits are probabilities", seen, "pass np.log(probs) instead")


def _like(probs: Array, given: Any) -> Any:
    """Return `probs` as the kind, device and floating type of `given`."""
    if isinstance(given, Tensor):
        dtype = given.dtype if given.is_floating_point() else torch.float64
        return torch.from_numpy(probs).to(given.device, dtype)
    dtype = as_numpy(np.asarray(given)).dtype
    return probs.astype(dtype if dtype.kind == "f" else np.float64, copy=False)
