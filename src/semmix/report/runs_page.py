"""The page on runs: from run folders to one HTML file that opens anywhere, offline."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from semmix.calibration import METRICS, USUAL, ece, interval
from semmix.core.errors import require, unknown_name
from semmix.core.progress import say
from semmix.report import words
from semmix.report.charts import Series, forest_chart, roc_chart, training_chart
from semmix.report.detection import OOD_METRICS, detections, predict_ood
from semmix.report.gallery import Gallery, lambda_chart, open_gallery, pair_chart, sprites
from semmix.report.rendering import render_page
from semmix.report.rows import TASK, TEMPERATURE, Row, aggregate, results_table, unlike
from semmix.report.table import terminal_width
from semmix.runs import Run

MAX_PAIR_CHARTS = 60  # pairs of classes whose lambda curves are drawn
VALIDATED = ("acc", "nll", "ece", "oe", "ue")
CURVES = {"loss": "Training loss", **{f"val_{name}": f"Validation {METRICS[name].title}" for name in VALIDATED}}
"""What is drawn of stats.jsonl, and how it is headed."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Which runs to report on, and where to."""

    runs: Positional[tuple[Path, ...]]
    """Folders of finished runs."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("report.html")
    """The file to write."""
    title: str = "How sure is it really?"
    """Heading of the page."""
    baseline: str = "ce"
    """Method that the others are compared with."""
    mixsets: Path | None = None
    """Folder of mixed sets to show."""
    annotation: Path | None = None
    """Folder of their annotation."""
    num_sets: int = 45
    """How many mixed sets to show."""
    ood: tuple[str, ...] = ()
    """Data sets of other classes, whose test images are out-of-distribution. Runs without logits on them
    predict them first, which needs their weights. Logits that a run has are always shown."""
    device: str = "auto"
    """Where to predict: auto, cpu or cuda."""

    def __post_init__(self) -> None:
        require(self.runs, "nothing to report on", "no runs", "name at least one run folder")
        fix = "end its name in .html, so that a browser opens it"
        require(self.out.suffix.lower() in (".html", ".htm"), "a report is one page", self.out, fix)
        seen = f"annotation={self.annotation}"
        require(self.mixsets or not self.annotation, "a gallery needs the mixed sets", seen, "add --mixsets")
        require(self.num_sets > 0, "a gallery shows sets", self.num_sets, "ask for 1 at least")
        usual, fix = self.num_sets == ReportConfig.num_sets, "name them with --mixsets, or leave it out"
        require(self.mixsets or usual, "num_sets counts mixed sets to show", self.num_sets, fix)


def run_report(config: ReportConfig) -> Path:
    """Print the results' table and write the report that `config` describes; return its path."""
    runs = [Run.open(folder) for folder in config.runs]
    if config.baseline != ReportConfig.baseline:  # without the usual one nothing is compared
        methods = {run.method for run in runs}
        if config.baseline not in methods:
            raise unknown_name("baseline", config.baseline, methods)
    gallery = open_gallery(config.mixsets, config.annotation, config.num_sets) if config.mixsets else None
    for run, dataset in product(runs, config.ood):
        predict_ood(run, dataset, config.device)
    rows = aggregate(runs, config.baseline)
    path = write_report(rows, config.out, title=config.title, gallery=gallery, baseline=config.baseline)
    say(results_table(rows).text(terminal_width()))
    for difference in filter(None, map(unlike, rows)):
        say(f"not trained alike: {difference}")
    say(f"wrote {path}")
    return path


def write_report(
    runs: Sequence[Row | Run | str | Path],
    out: str | Path = ReportConfig.out,
    *,
    title: str = ReportConfig.title,
    class_names: Sequence[str] | None = None,
    gallery: Gallery | None = None,
    baseline: str = ReportConfig.baseline,
) -> Path:
    """Write one self-contained HTML file about runs; return its path.

    Args:
        runs: Finished runs or their folders, over any methods and seeds; or rows from `aggregate`.
        out: The file to write.
        title: Heading of the page.
        class_names: Names of the classes; by default the runs' own, or numbers.
        gallery: Mixed sets to show, from `open_gallery`.
        baseline: The method that the others are compared with.

    Returns:
        The path of the page.

    Raises:
        SemmixError: If a run is not finished, two runs have the same settings and seed, or there is not one
            name for each class.

    Example:
        >>> import tempfile
        >>> runs = ["results/demo/ce-0", "results/demo/csm-0"]
        >>> write_report(runs, Path(tempfile.mkdtemp()) / "report.html", title="CE against CSM").name
        'report.html'
    """
    rows = aggregate(runs, baseline)
    names = [_class_names(row, class_names) for row in rows]
    before = [Series(row.name, tuple(run.before for run in row.runs)) for row in rows]
    charts = [(name, training_chart(rows, key, name, 100 if name.endswith("%") else 1)) for key, name in CURVES.items()]
    shown = {"pictures": sprites(gallery), "lambda_chart": lambda_chart, "pair_chart": pair_chart} if gallery else {}
    return render_page(
        "report.html",
        Path(out),
        title=title,
        rows=rows,
        sentences=words.comparisons(rows),
        why_not_compared=words.why_not_compared(rows, baseline),
        metrics=USUAL,
        temperature=TEMPERATURE,
        forest=forest_chart(rows),
        before=before,
        after=[Series(row.name, tuple(run.after for run in row.runs)) for row in rows],
        training=[(name, chart) for name, chart in charts if chart],
        ood={name: (found, roc_chart(found, name)) for name, found in detections(rows).items()},
        ood_metrics=OOD_METRICS,
        gallery=gallery,
        max_pair_charts=MAX_PAIR_CHARTS,
        class_names=names,
        ece_range=lambda run: interval(ece, run.before.probs, run.before.labels),
        **_facts(rows),
        **shown,
    )


def _facts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the page says of all rows: the headline, what was run, and what makes a comparison unfair."""
    runs = [run for row in rows for run in row.runs]
    tasks = [f"{key} {', '.join(dict.fromkeys(str(run.settings[key]) for run in runs))}" for key in TASK]
    counts = " or ".join(f"{num:,}" for num in sorted({len(run.before.labels) for run in runs}))
    first, *others = [row.runs[0].settings for row in rows]
    return {
        "headline": words.headline(rows),
        "chance": words.chance(rows),
        "facts": [*tasks, f"{counts} test images"],
        "unlike": [*filter(None, map(unlike, rows))],
        "leaks": [row.name for row in rows if any(run.leak for run in row.runs)],
        "common": [(k, v) for k, v in first.items() if all(other.get(k) == v for other in others)],
    }


def _class_names(row: Row, given: Sequence[str] | None) -> Sequence[str]:
    """Return the names that were given, else those the run recorded, else numbers."""
    num_classes = row.runs[0].test.logits.shape[1]
    names = given or row.runs[0].class_names
    seen = f"{len(names)} names for {num_classes} classes of {row.name}"
    require(len(names) == num_classes, "class names do not fit", seen, "pass one name per class")
    return names
