"""The report on runs: from run folders to one HTML file that opens anywhere, offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from markupsafe import Markup
from tyro.conf import Positional, arg

from semmix.calibration import USUAL, ece, interval
from semmix.core.errors import SemmixError, unknown_name
from semmix.core.progress import say
from semmix.report import words
from semmix.report.charts import Series, forest_chart, roc_chart, training_chart
from semmix.report.gallery import Gallery, lambda_chart, open_gallery, pair_chart, sprites
from semmix.report.ood import OOD_METRICS, detections, predict_ood
from semmix.report.page import make_breakdown, make_card, make_risks, write_page
from semmix.report.rows import TASK, TEMPERATURE, Row, aggregate, results_table, unlike
from semmix.report.table import terminal_width
from semmix.runs import Run

MAX_PAIR_CHARTS = 60
"""Pairs of classes whose lambda curves are drawn."""
CURVES = (
    ("loss", "Training loss", 1),
    ("val_acc", "Validation accuracy, %", 100),
    ("val_nll", "Validation NLL", 1),
    ("val_ece", "Validation ECE, %", 100),
    ("val_oe", "Validation OE, %", 100),
    ("val_ue", "Validation UE, %", 100),
)


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
    """Folder of mixed sets to show; needs the annotation too."""
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
        if not self.runs:
            raise SemmixError("nothing to report on", "no runs", "name at least one run folder")
        if self.out.suffix.lower() not in (".html", ".htm"):
            fix = "end its name in .html, so that a browser opens it"
            raise SemmixError("a report is one page", self.out, fix)
        if (self.mixsets is None) != (self.annotation is None):
            seen = f"mixsets={self.mixsets}, annotation={self.annotation}"
            raise SemmixError("a gallery needs both folders", seen, "give both or neither")
        if self.num_sets < 1:
            raise SemmixError("a gallery shows sets", self.num_sets, "ask for 1 at least")
        if self.mixsets is None and self.num_sets != ReportConfig.num_sets:
            fix = "name them with --mixsets and --annotation, or leave it out"
            raise SemmixError("num_sets counts mixed sets to show", self.num_sets, fix)


def run_report(config: ReportConfig) -> Path:
    """Print the results' table and write the report that `config` describes; return its path."""
    runs = [Run.open(folder) for folder in config.runs]
    if config.baseline != ReportConfig.baseline:  # without the usual one nothing is compared
        methods = {run.method for run in runs}
        if config.baseline not in methods:
            raise unknown_name("baseline", config.baseline, methods)
    gallery = None
    if config.mixsets and config.annotation:
        gallery = open_gallery(config.mixsets, config.annotation, config.num_sets)
    for run, dataset in product(runs, config.ood):
        predict_ood(run, dataset, config.device)
    rows = aggregate(runs, config.baseline)
    path = write_rows(rows, config.out, title=config.title, gallery=gallery, baseline=config.baseline)
    say(results_table(rows).text(terminal_width()))
    for difference in filter(None, map(unlike, rows)):
        say(f"not trained alike: {difference}")
    say(f"wrote {path}")
    return path


def write_report(
    runs: Sequence[Run | str | Path],
    out: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
    gallery: Gallery | None = None,
    baseline: str = "ce",
) -> Path:
    """Write one self-contained HTML file about `runs`; return its path.

    Args:
        runs: Finished runs or their folders, over any methods and seeds.
        out: The file to write.
        title: Heading of the page.
        class_names: Names of the classes; by default the runs' own, or numbers.
        gallery: Mixed sets to show.
        baseline: The method that the others are compared with.
    """
    rows = aggregate(runs, baseline)
    return write_rows(rows, out, title=title, class_names=class_names, gallery=gallery, baseline=baseline)


def write_rows(
    rows: Sequence[Row],
    out: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
    gallery: Gallery | None = None,
    baseline: str = "ce",
) -> Path:
    """Write the page of `write_report` about rows that are there already; return its path."""
    before = [Series(row.name, tuple(run.before for run in row.runs)) for row in rows]
    after = [Series(row.name, tuple(run.after for run in row.runs)) for row in rows]
    training, outside = _training(rows), detections(rows)
    return write_page(
        "report.html",
        out,
        title=title,
        baseline=baseline,
        rows=rows,
        names=[row.name for row in rows],
        num_runs=sum(len(row.runs) for row in rows),
        facts=_facts(rows),
        sections=_sections(bool(training), bool(outside), gallery is not None),
        metrics=USUAL,
        temperature=TEMPERATURE,
        compared=[row for row in rows if row.change_before],
        forest=forest_chart(rows),
        cards=_cards(before, after),
        training=training,
        risk=make_risks(before),
        ood={name: (each, roc_chart(each, name)) for name, each in outside.items()},
        ood_metrics=OOD_METRICS,
        parts=[
            make_breakdown(series, _class_names(row, class_names)) for row, series in zip(rows, before, strict=True)
        ],
        lines=[_run_line(row, run) for row in rows for run in row.runs],
        common=_common_settings(rows),
        leaks=[row.name for row in rows if any(run.leak for run in row.runs)],
        unlike=[*filter(None, map(unlike, rows))],
        **_words(rows),
        **_sets(gallery, _class_names(rows[0], class_names)),
    )


def _class_names(row: Row, given: Sequence[str] | None) -> Sequence[str]:
    """Return the names that were given, else those the run recorded, else numbers."""
    num_classes = row.runs[0].test.logits.shape[1]
    names = given or row.runs[0].class_names
    if len(names) != num_classes:
        seen = f"{len(names)} names for {num_classes} classes of {row.name}"
        raise SemmixError("class names do not fit", seen, "pass one name per class")
    return names


def _words(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the headline, and two sentences on every row that has a baseline."""
    compared = [row for row in rows if row.baseline is not None]
    return {
        "headline": words.headline(rows),
        "chance": words.chance(rows),
        "sentences": {
            "As trained": [words.sentence(row) for row in compared],
            "After temperature scaling": [words.sentence_after_scaling(row) for row in compared],
        },
    }


def _facts(rows: Sequence[Row]) -> list[str]:
    """Return what the page's first lines say about the runs: data, network, test images."""
    runs = [run for row in rows for run in row.runs]
    names = [", ".join(dict.fromkeys(str(run.settings[key]) for run in runs)) for key in TASK]
    counts = sorted({len(run.before.labels) for run in runs})
    return [
        f"data {names[0]}",
        f"classifier {names[1]}",
        f"{' or '.join(f'{count:,}' for count in counts)} test images",
    ]


def _sections(has_training: bool, has_ood: bool, has_sets: bool) -> list[tuple[str, str]]:
    sections = [("results", "Results"), ("reliability", "Reliability")]
    sections += [("training", "Training")] if has_training else []
    sections += [("risk", "Risk")]
    sections += [("ood", "Out-of-distribution images")] if has_ood else []
    sections += [("sets", "Mixed sets")] if has_sets else []
    return [*sections, ("classes", "Classes"), ("runs", "Runs")]


def _cards(before: Sequence[Series], after: Sequence[Series]) -> list:
    cards = [make_card(series, k, "before", "as trained") for k, series in enumerate(before)]
    scaled = [make_card(s, k, "after", "after temperature scaling") for k, s in enumerate(after)]
    return cards + scaled


def _training(rows: Sequence[Row]) -> list[tuple[str, Markup]]:
    charts = [(name, training_chart(rows, key, name, factor)) for key, name, factor in CURVES]
    return [(name, chart) for name, chart in charts if chart]


def _run_line(row: Row, run: Run) -> dict[str, Any]:
    return {
        "name": row.name,
        "seed": run.seed,
        "accuracy": run.before.metrics["acc"],
        "ece": run.before.metrics["ece"],
        "ece_range": interval(ece, run.before.probs, run.before.labels),
        "temperature": run.temperature,
        "started": run.env.get("started", "–"),
        "device": run.env.get("gpu") or "CPU",
        "folder": run.folder,
    }


def _common_settings(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    """Return the settings that all rows share."""
    first, *others = [row.runs[0].settings for row in rows]
    return [(k, v) for k, v in first.items() if all(o.get(k) == v for o in others)]


def _sets(gallery: Gallery | None, class_names: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of mixed sets; nothing without a gallery."""
    if gallery is None:
        return {"sets": []}
    shown = [_set(gallery, n, uri, class_names) for n, uri in enumerate(sprites(gallery))]
    classes = sorted({k for s in shown for k in s["pair"]})
    pairs = gallery.distinct_pairs
    charts = [_pair(gallery, pair, class_names) for pair in pairs[:MAX_PAIR_CHARTS]]
    return {
        "sets": shown,
        "set_size": gallery.lam.shape[1],
        "num_sets": len(gallery.lam),
        "set_classes": [(k, class_names[k]) for k in classes],
        "lambda_chart": lambda_chart(gallery),
        "pair_charts": charts,
        "pairs_left_out": len(pairs) - len(charts),
    }


def _pair(gallery: Gallery, pair: tuple[int, int], class_names: Sequence[str]) -> tuple[str, Markup]:
    name = f"{class_names[pair[1]]} → {class_names[pair[0]]}"
    return name, pair_chart(gallery, pair, name)


def _set(gallery: Gallery, n: int, uri: str, class_names: Sequence[str]) -> dict[str, Any]:
    """Return one set; members rise from class j (lam = 0) to class i (lam = 1)."""
    i, j = (int(k) for k in gallery.pairs[n])
    height, width = gallery.images.shape[-2:]
    return {
        "sprite": uri,
        "width": width * gallery.images.shape[1],
        "height": height,
        "pair": (i, j),
        "start": class_names[j],
        "end": class_names[i],
        "requested": _two_digits(gallery.lam_requested[n]),
        "annotated": _two_digits(gallery.lam[n]),
    }


def _two_digits(values: np.ndarray) -> list[str]:
    return [f"{value:.2f}" for value in values]
