"""Answering only when sure: the error that remains at each share of samples answered."""

from typing import Any, NamedTuple

import numpy as np

from semmix.calibration._inputs import Array
from semmix.calibration._toplabel import top_label


class RiskCoverage(NamedTuple):
    """Error rate among the most confident samples, from the smallest share to all of them."""

    coverage: Array
    risk: Array


def risk_coverage(
    probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None
) -> RiskCoverage:
    """Return the risk-coverage curve; samples of equal confidence are answered together."""
    top = top_label(probs, labels, ignore_index, class_weights)
    answered = np.cumsum(top.tie_sums(np.ones(len(top.weights)))[::-1])
    errors = np.cumsum(top.tie_sums(1 - top.correct)[::-1])
    used = answered > 0
    return RiskCoverage(answered[used] / answered[-1], errors[used] / answered[used])


def aurc(
    probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return the area under the risk-coverage curve: the mean over k of the error rate among the k
    most confident samples, in expectation over the order of ties."""
    return top_label(probs, labels, ignore_index, class_weights).aurc()
