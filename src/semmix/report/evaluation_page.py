"""The page on one set of predictions: as they came, and after each post-hoc calibrator."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semmix.calibration import USUAL, Interval, interval
from semmix.report.charts import NUM_BINS, Series, verdict
from semmix.report.rendering import render_page
from semmix.report.rows import percent
from semmix.runs import Predictions


def draw_evaluation(
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
        predictions: The same images under each name, as they came first: `{"as given": ..., "temperature": ...}`.
        out: The file to write.
        title: Heading of the page.
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
    first, known, lines = series[0].members[0], measured or {}, []
    for each in series:
        there, (member,) = known.get(each.name, {}), each.members
        measure = partial(interval, probs=member.probs, labels=member.labels, level=level)
        lines.append({m.name: there.get(m.name) or measure(m.with_bins(bins)) for m in USUAL})
    mean = known.get(series[0].name, {}).get("confidence")
    confidence, ece = mean.value if mean else series[0].mean("confidence"), lines[0]["ece"]
    headline = (
        f"This classifier is {verdict(confidence, lines[0]['acc'].value)}. Its ECE is {percent(ece.value)}, "
        f"interval {percent(ece.low)} to {percent(ece.high)}."
    )
    return render_page(
        "evaluation.html",
        out,
        title=title,
        headline=headline,
        num_images=num_images or len(first.labels),
        bins=bins,
        level=level,
        notes=notes,
        metrics=USUAL,
        lines=lines,
        series=series,
        class_names=class_names or [str(k) for k in range(first.probs.shape[1])],
        human=human,
    )
