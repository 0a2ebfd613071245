"""The results in plain words, no stronger than the numbers allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from semmix.calibration import Interval, ece_of_chance
from semmix.report.rows import ECE, Row, percent

SAME_ACCURACY = 0.005
"""Accuracies whose difference surely stays within half a point are called the same."""


def headline(rows: Sequence[Row]) -> str:
    """Return one sentence on the row with the lowest mean ECE."""
    best = _best(rows)
    if best.baseline is not None:
        # The best of many looks better than it is: say among how many it was chosen.
        return f"Lowest ECE of {len(rows)} rows: {sentence(best)}" if len(rows) > 2 else sentence(best)
    numbers = f"ECE {percent(best.before['ece'].value)}, {_seeds(len(best.runs))}"
    if len(rows) == 1:
        return f"{best.name}: {numbers}."
    return f"No method here is better calibrated than {best.name} ({numbers})."


def chance(rows: Sequence[Row]) -> str:
    """Return what ECE the best row would show if it were perfectly calibrated."""
    members = [run.before for run in _best(rows).runs]
    value = float(np.mean([ece_of_chance(m.probs, m.labels) for m in members]))
    return (
        f"With {len(members[0].labels):,} test images, even a perfectly calibrated "
        f"{_best(rows).name} would show an ECE near {percent(value)}."
    )


def _best(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row.before["ece"].value)


def sentence(row: Row) -> str:
    """Return how `row` compares with its baseline, both as trained."""
    return _compare(row, "before", row.change_before)


def sentence_after_scaling(row: Row) -> str:
    """Return how `row` compares with its baseline, both after temperature scaling."""
    return _compare(row, "after", row.change_after)


def _compare(row: Row, stage: Literal["before", "after"], changes: Mapping[str, Interval]) -> str:
    assert row.baseline is not None
    name, other_name = row.name, row.baseline.name
    if not changes:
        return f"{name} and {other_name} share no seed, so they are not compared."
    change = changes["ece"]
    mine, theirs = _paired_means(row, stage)
    numbers = f"ECE {percent(mine)} against {percent(theirs)}"
    if not change.has_interval:
        return f"{name} has {numbers} of {other_name}, on one seed: it may be chance."
    if not change.excludes_zero:
        return (
            f"{name} shows no clear difference in calibration from {other_name} "
            f"({numbers}; difference {_points(change)}; {_seeds(change.num)})."
        )
    return (
        f"{name} is {_how_much(mine, theirs, change)} calibrated than {other_name} "
        f"{_accuracy(changes['acc'])} ({numbers}, {_seeds(change.num)})."
    )


def _paired_means(row: Row, stage: Literal["before", "after"]) -> tuple[float, float]:
    """Return the mean ECE of a row and of its baseline over the seeds both have.

    The difference is that of these seeds, and others may tell another story.
    """
    errors = [[getattr(run, stage).metrics["ece"] for run in pair] for pair in row.pairs]
    mine, theirs = np.mean(errors, axis=0)
    return float(mine), float(theirs)


def _how_much(mine: float, theirs: float, change: Interval) -> str:
    """Return the ratio of the means in words; the paired difference decides the direction."""
    word, high, low = ("better", theirs, mine) if change.value < 0 else ("worse", mine, theirs)
    ratio = high / max(low, 1e-9)
    return f"{ratio:.1f} times {word}" if ratio >= 1.1 else f"slightly {word}"


def _accuracy(change: Interval) -> str:
    if change.excludes_zero:
        joint, word = ("and", "more") if change.value > 0 else ("but", "less")
        return f"{joint} {100 * abs(change.value):.1f} points {word} accurate"
    if max(abs(change.low), abs(change.high)) <= SAME_ACCURACY:
        return "at the same accuracy"
    return "with no clear difference in accuracy"


def _points(change: Interval) -> str:
    value, low, high = (ECE.show(v, signed=True) for v in (change.value, change.low, change.high))
    return f"{value} points, interval {low} to {high}"


def _seeds(num: int) -> str:
    return f"{num}\N{NO-BREAK SPACE}seeds" if num > 1 else "one seed"
