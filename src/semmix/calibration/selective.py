"""Answering only when sure: the error that remains at each share of samples answered."""

from typing import Any

from semmix.calibration._toplabel import RiskCoverage, top_label


def risk_coverage(
    probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None
) -> RiskCoverage:
    """Return the risk-coverage curve; samples of equal confidence are answered together."""
    return top_label(probs, labels, ignore_index, class_weights).risk_coverage()


def aurc(probs: Any, labels: Any, *, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return the area under the risk-coverage curve: the mean over k of the error rate among the k
    most confident samples, in expectation over the order of ties."""
    return top_label(probs, labels, ignore_index, class_weights).aurc()
