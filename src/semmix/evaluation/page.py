"""The evaluation as a page: drawn by the report room, from as many rows as a picture needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from semmix.calibration import Interval
from semmix.core.seeds import fold_seed
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.parts import Array
from semmix.evaluation.samples import Samples, random_rows
from semmix.report import draw_evaluation
from semmix.runs import Predictions

PAGE_ROWS = 50_000
"""Rows that pictures are drawn from; tables and the headline count all of them."""


def write_page(evaluation: Mapping[str, Any], test: Samples, fitted: Mapping[str, Fitted], folder: Path) -> Path:
    """Write report.html: reliability, confidence, classes, risk, before and after calibration."""
    chosen = random_rows(len(test), PAGE_ROWS, fold_seed("page"))
    predictions = {name: Predictions(_probs(test, each, chosen), test.labels[chosen]) for name, each in fitted.items()}
    notes = [*evaluation["notes"], *(f"Warning: {w}" for w in evaluation["warnings"])]
    if len(test) > PAGE_ROWS:
        notes.append(f"Pictures are drawn from {PAGE_ROWS:,} random rows; the table counts all.")
    return draw_evaluation(
        predictions,
        folder / "report.html",
        title=f"Evaluation of {evaluation['source']}",
        notes=notes,
        num_images=len(test),
        bins=evaluation["bins"],
        level=evaluation["level"],
        measured={result["name"]: _measured(result, len(test)) for result in evaluation["results"]},
        human=evaluation["human"],
    )


def _measured(result: Mapping[str, Any], num: int) -> dict[str, Interval]:
    """Return each metric that has an interval, over all rows."""
    return {
        name: Interval(result["metrics"][name], low, high, num) for name, (low, high) in result["intervals"].items()
    }


def _probs(test: Samples, fitted: Fitted, chosen: Array) -> Array:
    return np.concatenate([probs[chosen[where]] for where, probs, _ in fitted.blocks(test)])
