"""The page on one set of predictions: as they came, and after each post-hoc calibrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from semmix import calibration
from semmix.report.charts import Series
from semmix.report.page import make_breakdown, make_card, make_risks, write_page
from semmix.report.runs import Predictions
from semmix.report.tables import METRICS, percent

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
) -> Path:
    """Write one self-contained HTML file that compares `predictions` by name; return its path.

    Args:
        predictions: The same images under each name, as they came first: `{"as given": ...,
            "temperature": ...}`.
        class_names: Names of the classes; numbers by default.
        notes: Sentences to show under the heading, such as how the calibrators were fitted.
    """
    series = [Series(name, (member,)) for name, member in predictions.items()]
    first = series[0].members[0]
    class_names = class_names or [str(k) for k in range(first.probs.shape[1])]
    return write_page(
        "evaluation.html",
        out,
        title=title,
        headline=_headline(series[0]),
        num_images=len(first.labels),
        notes=notes,
        metrics=METRICS,
        lines=[(s.name, _measure(s.members[0])) for s in series],
        cards=[make_card(s, k) for k, s in enumerate(series)],
        risk=make_risks(series),
        parts=[make_breakdown(s, class_names) for s in series],
    )


def _headline(series: Series) -> str:
    member = series.members[0]
    low, high = _interval(calibration.ece, member)
    return (
        f"This classifier is {series.verdict} (ECE {percent(member.metrics['ece'])}, "
        f"interval {percent(low)} to {percent(high)})."
    )


def _measure(member: Predictions) -> dict[str, tuple[float, float, float]]:
    """Return each metric with its bootstrap interval: value, low, high."""
    return {
        key: (member.metrics[key], *_interval(measure, member)) for key, measure in MEASURES.items()
    }


def _interval(measure, member: Predictions) -> tuple[float, float]:
    return calibration.interval(measure, member.probs, member.labels)
