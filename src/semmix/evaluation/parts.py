"""A part of a file, scores with their labels, and the names by which both are found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]

ROWS_PER_BLOCK = 1 << 16
SUM_TOLERANCE = 2e-2
"""How far rows of probabilities may be from summing to one, or to 100, by rounding."""
SCORE_WORDS = (
    "logits",
    "logit",
    "probs",
    "prob",
    "probabilities",
    "proba",
    "softmax",
    "scores",
    "score",
    "outputs",
    "output",
    "predictions",
    "preds",
    "pred",
    "p",
)
LABEL_WORDS = ("labels", "label", "targets", "target", "truth", "true", "gt", "y", "class")
PREDICTED_WORDS = {"pred", "preds", "prediction", "predictions", "predicted"}
IGNORED_WORDS = {"train", "training", "features", "index", "idx", "id", "ids", "unnamed"}


class Part(NamedTuple):
    """Scores as they stand in a file, `[N, K]` or `[N]`, read only where sliced, and labels."""

    scores: Any
    labels: Array
    """Class indices `[N]`, or one-hot rows `[N, K]`."""
    name: str
    """What the scores are called there."""
    origin: str
    """A sentence on where scores and labels were found."""
    columns: tuple[str, ...] = ()
    """The columns of a table, one per class."""
    names_columns: bool = False
    """Whether labels were given as names of columns, whose places they are now."""
    warnings: tuple[str, ...] = ()
    """What was mended while reading."""


class Names(NamedTuple):
    """Names of the arrays or columns to read; None is guessed."""

    scores: str | None = None
    labels: str | None = None


def words(name: str) -> set[str]:
    """Return the words of a name: `val_logits.2` gives `val` and `logits`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return set(re.findall(r"[a-z]+", spaced.lower()))


def is_ignored(name: str) -> bool:
    """Return whether a name tells of something that is neither a score nor a label."""
    return bool(words(name) & IGNORED_WORDS)


def best_scores(names: Iterable[str]) -> str | None:
    """Return the name that most likely is that of scores."""
    return _best(names, SCORE_WORDS)


def best_labels(names: Iterable[str]) -> str | None:
    """Return the name that most likely is that of labels; `pred_label` is not the truth."""
    return _best(not_predicted(names), LABEL_WORDS)


def not_predicted(names: Iterable[str]) -> list[str]:
    """Return the names that do not tell of a model's answers."""
    return [name for name in names if not words(name) & PREDICTED_WORDS]


def only(names: Iterable[str]) -> str | None:
    """Return the name if there is but one."""
    names = list(names)
    return names[0] if len(names) == 1 else None


def _best(names: Iterable[str], likely: tuple[str, ...]) -> str | None:
    """Return the name that holds the earliest of the `likely` words."""
    names = list(names)
    for word in likely:
        for name in names:
            if word in words(name):
                return name
    return None
