"""The results in plain words, no stronger than the numbers allow."""

from collections.abc import Mapping, Sequence

import numpy as np

from semmix.calibration import Interval, ece_of_chance
from semmix.report.rows import ECE, Row, percent

SAME_ACCURACY = 0.005
"""Accuracies are called the same if the whole interval of their difference lies within half a point."""


def headline(rows: Sequence[Row]) -> str:
    """Return one sentence on the row with the lowest mean ECE."""
    best = _best(rows)
    if best.baseline is not None:
        # The best of many looks better than it is: say among how many it was chosen.
        return f"Lowest ECE of {len(rows)} rows: {compare(best)}" if len(rows) > 2 else compare(best)
    numbers = f"ECE {percent(best.before['ece'].value)}, {_seeds(len(best.runs))}"
    if len(rows) == 1:
        return f"{best.name}: {numbers}."
    return f"No method here is better calibrated than {best.name} ({numbers})."


def chance(rows: Sequence[Row]) -> str:
    """Return what ECE the best row would show if it were perfectly calibrated."""
    members = [run.before for run in _best(rows).runs]
    value = percent(float(np.mean([ece_of_chance(m.probs, m.labels) for m in members])))
    images = f"{len(members[0].labels):,} test images"
    return f"With {images}, even a perfectly calibrated {_best(rows).name} would show an ECE near {value}."


def _best(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row.before["ece"].value)


def comparisons(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return a sentence on every row that has a baseline, as trained and after temperature scaling."""
    compared = [row for row in rows if row.baseline is not None]
    stages = {"As trained": "before", "After temperature scaling": "after"}
    return {heading: [compare(row, stage) for row in compared] for heading, stage in stages.items() if compared}


def why_not_compared(rows: Sequence[Row], baseline: str) -> str:
    """Return why there are no `comparisons`."""
    methods = {row.runs[0].method for row in rows}
    if methods == {baseline}:
        return "All of these runs are of the baseline: there is no other method to compare it with."
    if baseline not in methods:
        return f"The baseline ({baseline}) is not among these runs, so nothing is compared with it."
    return f"No method has the test images and the classifier of the baseline ({baseline}): nothing is compared."


def compare(row: Row, stage: str = "before") -> str:
    """Return how `row` compares with its baseline: both as trained (`before`), or both `after` temperature scaling."""
    assert row.baseline is not None
    changes: Mapping[str, Interval] = getattr(row, f"change_{stage}")
    name, other_name = row.name, row.baseline.name
    if not changes:
        return f"{name} and {other_name} share no seed, so they are not compared."
    # The means of the seeds that both have: the difference is theirs, and other seeds may tell another story.
    errors = [[getattr(run, stage).metrics["ece"] for run in pair] for pair in row.pairs]
    mine, theirs = (float(mean) for mean in np.mean(errors, axis=0))
    change, numbers = changes["ece"], f"ECE {percent(mine)} against {percent(theirs)}"
    if not change.has_interval:
        return f"{name} has {numbers} of {other_name}, on one seed: it may be chance."
    if not change.excludes_zero:
        value, low, high = (ECE.show(v, signed=True) for v in (change.value, change.low, change.high))
        numbers += f"; difference {value} points, interval {low} to {high}; {_seeds(change.num)}"
        return f"{name} shows no clear difference in calibration from {other_name} ({numbers})."
    # The paired difference decides the direction; the ratio is that of the means.
    word, high, low = ("better", theirs, mine) if change.value < 0 else ("worse", mine, theirs)
    ratio = high / max(low, 1e-9)
    how_much = f"{ratio:.1f} times {word}" if ratio >= 1.1 else f"slightly {word}"
    at = _accuracy(changes["acc"])
    return f"{name} is {how_much} calibrated than {other_name} {at} ({numbers}, {_seeds(change.num)})."


def _accuracy(change: Interval) -> str:
    if change.excludes_zero:
        joint, word = ("and", "more") if change.value > 0 else ("but", "less")
        return f"{joint} {100 * abs(change.value):.1f} points {word} accurate"
    if max(abs(change.low), abs(change.high)) <= SAME_ACCURACY:
        return "at the same accuracy"
    return "with no clear difference in accuracy"


def _seeds(num: int) -> str:
    return f"{num}\N{NO-BREAK SPACE}seeds" if num > 1 else "one seed"
