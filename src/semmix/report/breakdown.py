"""Where a classifier can be relied on and where not: by class, and by pair of classes."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semmix.report.charts import Series

MAX_CLASSES = 100
MAX_PAIRS = 20


class ClassLine(NamedTuple):
    """One class: how often it is recognised, and how far predictions of it can be trusted. Counts are per seed."""

    name: str
    images: float  # of this class
    found: float  # share of them that is recognised
    predictions: float  # images predicted as this class
    confidence: float  # mean confidence of these predictions
    right: float  # share of these predictions that is right

    @property
    def gap(self) -> float:
        """Confidence minus accuracy: positive where the predictions are over-confident."""
        return self.confidence - self.right


class PairLine(NamedTuple):
    """Images of one class that were taken for another."""

    truth: str
    prediction: str
    images: float  # per seed
    share: float  # of the images of the true class
    confidence: float


def class_lines(series: Series, class_names: Sequence[str]) -> list[ClassLine]:
    """Return the classes, those that add most to the calibration error first.

    Of very many classes only the first `MAX_CLASSES` are kept.
    """
    (labels, predicted, confidence), num_seeds = _pooled(series), len(series.members)
    lines = []
    for k, name in enumerate(class_names):
        is_class, said = labels == k, predicted == k
        shares = _mean(said[is_class]), said.sum() / num_seeds, _mean(confidence[said]), _mean(is_class[said])
        lines.append(ClassLine(name, is_class.sum() / num_seeds, *shares))
    lines.sort(key=lambda line: -line.predictions * abs(np.nan_to_num(line.gap)))
    return lines[:MAX_CLASSES]


def pair_lines(series: Series, class_names: Sequence[str]) -> list[PairLine]:
    """Return the most frequent confusions, at most `MAX_PAIRS`."""
    labels, predicted, confidence = _pooled(series)
    wrong = labels != predicted
    confusions: Counter[tuple[int, int]] = Counter(zip(labels[wrong].tolist(), predicted[wrong].tolist(), strict=True))
    lines = []
    for (i, j), count in confusions.most_common(MAX_PAIRS):
        share, mean = float(count / (labels == i).sum()), _mean(confidence[(labels == i) & (predicted == j)])
        lines.append(PairLine(class_names[i], class_names[j], count / len(series.members), share, mean))
    return lines


def _pooled(series: Series) -> list[np.ndarray]:
    """Return labels, predicted classes and confidences of all seeds, one after another."""
    names = ("labels", "predicted", "confidence")
    return [np.concatenate([getattr(member, name) for member in series.members]) for name in names]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
