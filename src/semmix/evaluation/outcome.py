"""`Evaluation`: what was measured of predictions, as objects, tables, files and a page."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from semmix.calibration import METRICS, Interval
from semmix.core.files import write_bytes, write_json
from semmix.core.seeds import fold_seed
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.measure import Measured
from semmix.evaluation.samples import Samples, random_rows
from semmix.report import draw_evaluation
from semmix.report.table import Table
from semmix.runs import Predictions

AS_GIVEN = "as given"
COLUMNS = ("acc", "ece", "aece", "oe", "ue", "classwise_ece", "mce", "nll", "brier")
PAGE_ROWS = 50_000
"""Rows that pictures are drawn from; tables and the headline count all of them."""


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """What was measured of predictions, as given and after each calibrator.

    Prints as a line, shows as a table in a notebook, and writes the files of `semmix evaluate`.

    Example:
        >>> import numpy as np
        >>> from semmix.evaluation import evaluate
        >>> labels = np.arange(400) % 4
        >>> logits = 3 * np.eye(4)[np.where(np.arange(400) % 5, labels, 0)]
        >>> evaluation = evaluate(logits, labels, calibrators=("temperature",), resamples=100)
        >>> evaluation
        Evaluation(400 samples, 4 classes: accuracy 85.00 %, ECE 2.00 %; calibrators: temperature)
        >>> evaluation.measures["acc"].value
        0.85
        >>> evaluation.calibrated["temperature"].measures["ece"].value < 0.02
        True
    """

    source: str
    """What the predictions are called."""
    results: dict[str, Measured]
    """What was measured of the predictions as given and after each calibrator, by name."""
    human: dict[str, Any] | None
    """Agreement with people's distributions of labels, where there are any."""
    notes: list[str]
    """What was read, and how calibrators are judged."""
    warnings: list[str]
    """Likely mistakes, and what was corrected."""
    bins: int
    level: float
    samples: Samples
    fitted: Mapping[str, Fitted]
    """The fitted calibrators by name, one object for each fold."""

    @property
    def measures(self) -> dict[str, Interval]:
        """The measures of the predictions as given, by name."""
        return self.results[AS_GIVEN].measures

    @property
    def calibrated(self) -> dict[str, Measured]:
        """What was measured after each calibrator, by its name."""
        return {name: result for name, result in self.results.items() if name != AS_GIVEN}

    def table(self) -> Table:
        """Return the table of the command; the interval is that of the ECE."""
        headings = ["", *(METRICS[name].title for name in COLUMNS)]
        rows = []
        for name, result in self.results.items():
            ends = " to ".join(METRICS["ece"].show(end) for end in result.measures["ece"])
            cells = [METRICS[column].show(result.measures[column].value) for column in COLUMNS]
            rows.append([name, *cells[:2], ends, *cells[2:]])
        title = f"{len(self.samples):,} samples, {self.samples.num_classes} classes"
        return Table([*headings[:3], f"{100 * self.level:g} % interval", *headings[3:]], rows, title=title)

    def tables(self) -> list[Table]:
        """Return the table, and that of agreement with people where their labels are known."""
        if self.human is None:
            return [self.table()]
        names = list(self.human["agreement"][AS_GIVEN])
        rows = [
            [name, *("–" if values[key] is None else METRICS[key].show(values[key]) for key in names)]
            for name, values in self.human["agreement"].items()
        ]
        best = f"cross-entropy is {self.human['entropy']:.4f} at best"
        title = f"agreement with people; {best}; – is infinite or undefined"
        return [self.table(), Table(["", *(METRICS[key].title for key in names)], rows, title=title)]

    def to_json(self) -> dict[str, Any]:
        """Return what evaluation.json holds: all of it but the predictions."""
        return {
            "source": self.source,
            "notes": self.notes,
            "warnings": self.warnings,
            "num_samples": len(self.samples),
            "num_classes": self.samples.num_classes,
            "bins": self.bins,
            "level": self.level,
            "results": [{"name": name, **result.to_json()} for name, result in self.results.items()],
            "human": self.human,
        }

    def write(self, out: str | Path) -> Path:
        """Write evaluation.json, evaluation.md, evaluation.tex and report.html into a folder.

        Args:
            out: The folder, which is made where there is none.

        Returns:
            Path of the page.
        """
        folder = Path(out)
        lines = [f"# Evaluation of {self.source}", "", *(f"- {note}" for note in self.notes)]
        lines += [f"- **warning**: {warning}" for warning in self.warnings]
        for table in self.tables():
            lines += ["", f"{table.title}.", "", table.markdown().rstrip()]
        write_json(folder / "evaluation.json", self.to_json())
        write_bytes(folder / "evaluation.md", ("\n".join(lines) + "\n").encode())
        write_bytes(folder / "evaluation.tex", self.table().latex().encode())
        return self._write_page(folder / "report.html")

    def _write_page(self, path: Path) -> Path:
        """Write reliability, confidence, classes and risk, from as many rows as a picture needs."""
        num = len(self.samples)
        chosen = random_rows(num, PAGE_ROWS, fold_seed("page"))
        notes = [*self.notes, *(f"Warning: {warning}" for warning in self.warnings)]
        if num > PAGE_ROWS:
            notes.append(f"Pictures are drawn from {PAGE_ROWS:,} random rows; the table counts all.")
        predictions = {}
        for name, fitted in self.fitted.items():
            probs = np.concatenate([probs[chosen[where]] for where, probs, _ in fitted.blocks(self.samples)])
            predictions[name] = Predictions(probs, self.samples.labels[chosen])
        measured = {
            name: {key: value for key, value in result.measures.items() if value.has_interval}
            for name, result in self.results.items()
        }
        title = f"Evaluation of {self.source}"
        settings: dict[str, Any] = {"bins": self.bins, "level": self.level, "human": self.human}
        return draw_evaluation(
            predictions, path, title=title, notes=notes, num_images=num, measured=measured, **settings
        )

    def __repr__(self) -> str:
        accuracy, ece = (METRICS[name].show(self.measures[name].value) for name in ("acc", "ece"))
        about = f"{len(self.samples):,} samples, {self.samples.num_classes} classes: accuracy {accuracy} %, ECE {ece} %"
        names = ", ".join(self.calibrated)
        return f"Evaluation({about}{f'; calibrators: {names}' if names else ''})"

    def _repr_html_(self) -> str:
        warnings = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        return self.table().html() + (f"<ul>{warnings}</ul>" if warnings else "")
