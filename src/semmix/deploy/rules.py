"""What turns a network's outputs into cautious answers, learned on validation images alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from semmix.calibration import ood_score
from semmix.runs import Run

PERCENTS = range(50, 100)
"""Coverages of prediction sets, in per cent."""

OOD_PERCENT = 95
"""Share of images like the validation images that raise no warning, in per cent."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Thresholds and names; plain values, as `model.json` holds them."""

    class_names: list[str]
    temperature: float
    set_thresholds: dict[str, float]
    """By coverage in per cent: a class is in the prediction set if its calibrated probability is
    at least this."""
    ood_threshold: float | None
    """Images whose score is higher raise a warning; None after too few validation images."""

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Rules:
        """Return the rules among the values of a manifest; a `KeyError` if one is missing."""
        thresholds = {str(p): values["set_thresholds"][str(p)] for p in PERCENTS}
        rules = {name: values[name] for name in Rules.__dataclass_fields__}
        return Rules(**{**rules, "set_thresholds": thresholds})


def learn_rules(run: Run) -> Rules:
    """Return the rules that follow from a run's validation logits."""
    val = run.val
    of_truth = val.probs(run.temperature)[np.arange(len(val.labels)), val.labels]
    familiarity = -ood_score(val.logits, by="energy")
    least = lower_bound(familiarity, OOD_PERCENT)
    return Rules(
        class_names=run.class_names,
        temperature=run.temperature,
        set_thresholds={str(p): lower_bound(of_truth, p) or 0.0 for p in PERCENTS},
        ood_threshold=None if least is None else -least,
    )


def lower_bound(values: np.ndarray, percent: int) -> float | None:
    """Return what a new value like these reaches with at least `percent` in a hundred chances.

    The split-conformal rank: of n values and a new one, exchangeable, each rank of the new one is
    as likely, so the bound is the value with floor((n + 1) (1 - percent / 100)) - 1 values below
    it. None where n is too small to promise anything.

    >>> lower_bound(np.arange(1.0, 20.0), 90), lower_bound(np.arange(1.0, 20.0), 96)
    (2.0, None)
    """
    num_below = (len(values) + 1) * (100 - percent) // 100
    return float(np.sort(values)[num_below - 1]) if num_below else None
