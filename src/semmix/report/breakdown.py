"""Where a classifier can be believed and where not: by class, and by pair of classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semmix.report.charts import Series

MAX_CLASSES = 100
MAX_PAIRS = 20


@dataclass(frozen=True)
class ClassLine:
    """One class: how well it is found, and what an answer with its name is worth."""

    name: str
    images: float
    """Images of this class, per seed."""
    found: float
    """Share of them that is recognised."""
    answers: float
    """Images said to be of this class, per seed."""
    confidence: float
    """Mean confidence of these answers."""
    right: float
    """Share of these answers that is right."""

    @property
    def gap(self) -> float:
        """Confidence minus accuracy: positive where answers sound surer than they are."""
        return self.confidence - self.right


@dataclass(frozen=True)
class PairLine:
    """Images of one class that were taken for another."""

    truth: str
    answer: str
    images: float
    """Per seed."""
    share: float
    """Of the images of the true class."""
    confidence: float


def class_lines(series: Series, class_names: Sequence[str]) -> list[ClassLine]:
    """Return the classes, those that add most to the calibration error first.

    Of very many classes only the first `MAX_CLASSES` are kept.
    """
    labels, answers, confidence = _pooled(series)
    lines = [
        _class_line(name, labels == k, answers == k, confidence, len(series.members))
        for k, name in enumerate(class_names)
    ]
    lines.sort(key=lambda line: -line.answers * abs(np.nan_to_num(line.gap)))
    return lines[:MAX_CLASSES]


def _class_line(name: str, is_class: np.ndarray, said: np.ndarray, confidence: np.ndarray, num_seeds: int) -> ClassLine:
    return ClassLine(
        name=name,
        images=is_class.sum() / num_seeds,
        found=_mean(said[is_class]),
        answers=said.sum() / num_seeds,
        confidence=_mean(confidence[said]),
        right=_mean(is_class[said]),
    )


def pair_lines(series: Series, class_names: Sequence[str]) -> list[PairLine]:
    """Return the most frequent confusions, at most `MAX_PAIRS`."""
    labels, answers, confidence = _pooled(series)
    wrong = labels != answers
    confusions: Counter[tuple[int, int]] = Counter(zip(labels[wrong].tolist(), answers[wrong].tolist(), strict=True))
    return [
        PairLine(
            truth=class_names[i],
            answer=class_names[j],
            images=count / len(series.members),
            share=float(count / (labels == i).sum()),
            confidence=_mean(confidence[(labels == i) & (answers == j)]),
        )
        for (i, j), count in confusions.most_common(MAX_PAIRS)
    ]


def _pooled(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, answers and confidences of all seeds, one after another."""
    members = series.members
    return (
        np.concatenate([m.labels for m in members]),
        np.concatenate([m.predicted for m in members]),
        np.concatenate([m.confidence for m in members]),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
