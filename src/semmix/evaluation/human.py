"""Agreement with people: `semmix evaluate --human FILE`, a distribution of labels for every row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from semmix.calibration import entropy, human_agreement
from semmix.core.errors import SemmixError
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.parts import Array
from semmix.evaluation.read import read_matrix
from semmix.evaluation.samples import Samples

ONE_HOT = "one-hot labels"
"""The baseline: all weight on the label, as training without soft labels has it."""


def compare_with_people(human: Array, test: Samples, fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """Return how all predictions, and one-hot labels, agree with people.

    None stands for what is infinite (a class that people chose has probability 0) or undefined
    (the correlation with entropies that are all the same).
    """
    candidates = {ONE_HOT: np.eye(test.num_classes)[test.labels]}
    for name, each in fitted.items():
        candidates[name] = np.concatenate([probs for _, probs, _ in each.blocks(test)])
    return {
        "entropy": entropy(human),
        "agreement": {name: agreement(probs, human) for name, probs in candidates.items()},
    }


def read_human(path: Path, num_rows: int, num_classes: int) -> tuple[Array, list[str]]:
    """Return people's label distributions [N, K], checked to be just that, and what was mended."""
    human, warnings = read_matrix(path)
    if human.shape != (num_rows, num_classes):
        fix = f"pass one row for each of the {num_rows} predictions, in their order, and one column"
        fix += f" for each of the {num_classes} classes"
        raise SemmixError("people's labels do not fit the predictions", list(human.shape), fix)
    if not np.isfinite(human).all() or human.min() < 0:
        row = int(np.argwhere(~(np.isfinite(human) & (human >= 0)))[0][0])
        raise SemmixError("people's labels must be probabilities", f"row {row}", "mend this row")
    off = np.abs(human.sum(1) - 1)
    if off.max() > 1e-3:
        row = int(off.argmax())
        fix = "divide each row by its sum, if these are counts"
        raise SemmixError("rows of people's labels must sum to 1", f"{human[row].sum():g} in row {row}", fix)
    return human, [f"people: {warning}" for warning in warnings]


def agreement(probs: Array, human: Array) -> dict[str, float | None]:
    """Return the measures of agreement by name, None where infinite or undefined."""
    values: dict[str, float | None] = dict(human_agreement(probs, human))
    if ((probs == 0) & (human > 0)).any():
        values |= {"cross_entropy": None, "kl_divergence": None}
    if values["entropy_correlation"] != values["entropy_correlation"]:
        values["entropy_correlation"] = None
    return values


def doubt_people(human: Array, labels: Array) -> list[str]:
    """Return a warning where people mostly choose another class than the label."""
    share = float((human.argmax(1) == labels).mean())
    if share >= 0.5:
        return []
    return [f"people's first choice is the label in {share:.0%} of the rows only: are both in the same order?"]
