"""The page on one set of predictions: as they came, and after each post-hoc calibrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semmix import calibration
from semmix.report.charts import Series
from semmix.report.page import make_breakdown, make_card, make_risks, write_page
from semmix.report.runs import Predictions
from semmix.report.tables import METRICS, percent

Measured = tuple[float, float, float]
"""A metric's value, and the low and high end of its interval."""

MEASURES = {
    "acc": calibration.accuracy,
    "ece": calibration.ece,
    "aece": calibration.aece,
    "oe": calibration.oe,
    "ue": calibration.ue,
    "nll": calibration.nll,
    "brier": calibration.brier,
}


def write_evaluation(
    predictions: Mapping[str, Predictions],
    out: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    measured: Mapping[str, Mapping[str, Measured]] | None = None,
    human: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML file that compares `predictions` by name; return its path.

    Args:
        predictions: The same images under each name, as they came first: `{"as given": ...,
            "temperature": ...}`.
        class_names: Names of the classes; numbers by default.
        notes: Sentences to show under the heading, such as how the calibrators were fitted.
        measured: What is known already of the predictions by name: value and interval of metrics.
            The rest is measured here.
        human: Agreement with people, as `semmix evaluate --human` writes it.
    """
    series = [Series(name, (member,)) for name, member in predictions.items()]
    first = series[0].members[0]
    class_names = class_names or [str(k) for k in range(first.probs.shape[1])]
    known = measured or {}
    lines = [(s.name, _measure(s.members[0], known.get(s.name, {}))) for s in series]
    return write_page(
        "evaluation.html",
        out,
        title=title,
        headline=_headline(series[0], lines[0][1]["ece"]),
        num_images=len(first.labels),
        notes=notes,
        metrics=METRICS,
        lines=lines,
        cards=[make_card(s, k) for k, s in enumerate(series)],
        risk=make_risks(series),
        parts=[make_breakdown(s, class_names) for s in series],
        human=human,
    )


def _headline(series: Series, ece: Measured) -> str:
    value, low, high = ece
    return (
        f"This classifier is {series.verdict} (ECE {percent(value)}, "
        f"interval {percent(low)} to {percent(high)})."
    )


def _measure(member: Predictions, known: Mapping[str, Measured]) -> dict[str, Measured]:
    """Return each metric of the page; what is not known gets a bootstrap interval here."""
    return {key: known.get(key) or _bootstrap(member, key) for key in MEASURES}


def _bootstrap(member: Predictions, key: str) -> Measured:
    low, high = calibration.interval(MEASURES[key], member.probs, member.labels)
    return member.metrics[key], low, high
