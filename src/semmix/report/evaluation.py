"""The page on one set of predictions: as they came, and after each post-hoc calibrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semmix.calibration import USUAL, Interval, Metric, interval
from semmix.report.charts import NUM_BINS, Series, verdict
from semmix.report.page import make_breakdown, make_card, make_risks, write_page
from semmix.report.rows import percent
from semmix.runs import Predictions


def write_evaluation(
    predictions: Mapping[str, Predictions],
    out: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    num_images: int | None = None,
    bins: int = NUM_BINS,
    level: float = 0.95,
    measured: Mapping[str, Mapping[str, Interval]] | None = None,
    human: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML file that compares `predictions` by name; return its path.

    Args:
        predictions: The same images under each name, as they came first: `{"as given": ...,
            "temperature": ...}`.
        class_names: Names of the classes; numbers by default.
        notes: Sentences to show under the heading, such as how the calibrators were fitted.
        num_images: Images that `measured` counts, where `predictions` are but some of them.
        bins: Bins of the binned metrics and of the diagrams.
        level: Level of the intervals in the table.
        measured: What is known already of the predictions by name: value and interval of metrics,
            and of the mean `confidence`. The rest is measured here.
        human: Agreement with people, as `semmix evaluate --human` writes it.
    """
    series = [Series(name, (member,), bins) for name, member in predictions.items()]
    first = series[0].members[0]
    class_names = class_names or [str(k) for k in range(first.probs.shape[1])]
    known = measured or {}
    lines = [(s.name, _measure(s, level, known.get(s.name, {}))) for s in series]
    return write_page(
        "evaluation.html",
        out,
        title=title,
        headline=_headline(series[0], known.get(series[0].name, {}), lines[0][1]),
        num_images=num_images or len(first.labels),
        bins=bins,
        level=level,
        notes=notes,
        metrics=USUAL,
        lines=lines,
        cards=[make_card(s, k) for k, s in enumerate(series)],
        risk=make_risks(series),
        parts=[make_breakdown(s, class_names) for s in series],
        human=human,
    )


def _headline(series: Series, known: Mapping[str, Interval], measured: Mapping[str, Interval]) -> str:
    ece = measured["ece"]
    confidence = known["confidence"].value if "confidence" in known else series.mean("confidence")
    words = verdict(confidence, measured["acc"].value)
    return f"This classifier is {words} (ECE {percent(ece.value)}, interval {percent(ece.low)} to {percent(ece.high)})."


def _measure(series: Series, level: float, known: Mapping[str, Interval]) -> dict[str, Interval]:
    """Return each metric of the page; what is not known gets a bootstrap interval here."""
    return {metric.name: known.get(metric.name) or _bootstrap(series, level, metric) for metric in USUAL}


def _bootstrap(series: Series, level: float, metric: Metric) -> Interval:
    member = series.members[0]
    return interval(metric.with_bins(series.num_bins), member.probs, member.labels, level)
