"""Agreement with people: `semmix evaluate --human FILE`, a distribution of labels for every row."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from semmix.calibration import entropy, human_agreement
from semmix.core.errors import SemmixError
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.columns import Array
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


def check_human(human: Array, test: Samples) -> list[str]:
    """Refuse what is not a distribution of labels for each sample; warn where people choose other classes."""
    if human.shape != (len(test), test.num_classes):
        fix = f"pass one row for each of the {len(test)} predictions, in their order, and one column"
        fix += f" for each of the {test.num_classes} classes"
        raise SemmixError("people's labels do not fit the predictions", list(human.shape), fix)
    if not np.isfinite(human).all() or human.min() < 0:
        row = int(np.argwhere(~(np.isfinite(human) & (human >= 0)))[0][0])
        raise SemmixError("people's labels must be probabilities", f"row {row}", "correct this row")
    off = np.abs(human.sum(1) - 1)
    if off.max() > 1e-3:
        row = int(off.argmax())
        fix = "divide each row by its sum, if these are counts"
        raise SemmixError("rows of people's labels must sum to 1", f"{human[row].sum():g} in row {row}", fix)
    share = float((human.argmax(1) == test.labels).mean())
    if share >= 0.5:
        return []
    return [f"people's first choice is the label in {share:.0%} of the rows only: are both in the same order?"]


def agreement(probs: Array, human: Array) -> dict[str, float | None]:
    """Return the measures of agreement by name, None where infinite or undefined."""
    values: dict[str, float | None] = dict(human_agreement(probs, human))
    if ((probs == 0) & (human > 0)).any():
        values |= {"cross_entropy": None, "kl_divergence": None}
    return {name: None if value is None or math.isnan(value) else value for name, value in values.items()}
