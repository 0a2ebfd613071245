"""What predictions show: as pictures (SVG text, each with a description in words), by class and by pair of classes."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from semmix.calibration import Interval, aurc, reliability, risk_coverage
from semmix.report.detection import FALSE_ALARMS, Detection
from semmix.report.rows import Row, percent
from semmix.report.svg import PERCENT_TICKS, Frame, join, round_ticks, series_style, tag
from semmix.runs import Predictions, Run

NUM_BINS = 15
FEW_IMAGES = 10  # bins with fewer images are drawn pale
COVERAGES = np.linspace(0.02, 1, 99)  # where risk is read off; the most confident 2 % are too few to tell
Z95 = 1.959964  # two-sided 95 % point of the normal distribution


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram, pooled over seeds."""

    low: float
    high: float
    count: float  # images per seed
    confidence: float
    accuracy: float

    @cached_property
    def accuracy_range(self) -> tuple[float, float]:
        """Wilson interval of the accuracy.

        Seeds share their test images, so pooling them adds no images: the count is one seed's.
        """
        n, p = self.count, self.accuracy
        middle = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
        return max(middle - half, 0.0), min(middle + half, 1.0)

    def describe(self) -> str:
        """Return the bin in words."""
        low, high = self.accuracy_range
        return (
            f"confidence {percent(self.low, 0)} to {percent(self.high, 0)}: {self.count:.0f} images, mean confidence "
            f"{percent(self.confidence)}, right {percent(self.accuracy)} (interval {percent(low)} to {percent(high)})"
        )


@dataclass(frozen=True)
class Series:
    """What one diagram or one line shows: a name, and predictions of each seed."""

    name: str
    members: tuple[Predictions, ...]
    num_bins: int = NUM_BINS

    @cached_property
    def bins(self) -> list[Bin]:
        """The bins that hold images, pooled over seeds."""
        probs = np.concatenate([member.probs for member in self.members])
        labels = np.concatenate([member.labels for member in self.members])
        columns, num = zip(*reliability(probs, labels, self.num_bins), strict=True), len(self.members)
        return [Bin(low, high, count / num, *means) for low, high, count, *means in columns if count]

    @cached_property
    def risk(self) -> np.ndarray:
        """Mean error among the most confident images, at each of `COVERAGES`."""
        curves = [risk_coverage(member.probs, member.labels) for member in self.members]
        return np.mean([np.interp(COVERAGES, *curve) for curve in curves], axis=0)

    def risk_at(self, coverage: float) -> float:
        """Return the mean error at the nearest of `COVERAGES`."""
        return float(self.risk[abs(COVERAGES - coverage).argmin()])

    @property
    def aurc(self) -> float:
        """The area under the risk-coverage curve, mean over seeds."""
        return float(np.mean([aurc(member.probs, member.labels) for member in self.members]))

    def mean(self, name: str) -> float:
        """The mean of `confidence` or `correct` over images and seeds."""
        return float(np.mean([getattr(member, name).mean() for member in self.members]))

    @property
    def verdict(self) -> str:
        """How far confidence is above or below accuracy, in words."""
        return verdict(self.mean("confidence"), self.mean("correct"))


def verdict(confidence: float, accuracy: float) -> str:
    """Return how far mean confidence is above or below accuracy, in words."""
    points = f"{100 * abs(confidence - accuracy):.1f}"
    side = f"{'over' if confidence > accuracy else 'under'}-confident by {points} points"
    gap = side if float(points) else "neither over- nor under-confident on average"
    return f"{gap} (mean confidence {percent(confidence)}, accuracy {percent(accuracy)})"


def reliability_chart(series: Series, k: int) -> Markup:
    """Return accuracy against confidence with intervals; the gap between the two is hatched."""
    frame = Frame((0, 1), (0, 1), height=330)
    worst = max(series.bins, key=lambda b: b.count * abs(b.confidence - b.accuracy))

    def bar(b: Bin) -> Markup:
        middle, (low, high) = (b.low + b.high) / 2, b.accuracy_range
        gap = "gap" if b.confidence > b.accuracy else "gap under"  # which lies on the bar, and must leave it visible
        return tag(
            "g",
            tag("title", b.describe()),
            frame.bar((b.low, b.high), (0, b.accuracy), f"bar {series_style(k)}"),
            frame.bar((b.low, b.high), (b.accuracy, b.confidence), gap),
            frame.segment((middle, low), (middle, high), "whisker"),
            class_="few" if b.count < FEW_IMAGES else "",
        )

    return frame.drawing(
        f"Reliability diagram of {series.name}. The bin that adds most to the error: {worst.describe()}.",
        frame.axes("confidence, %", "accuracy, %", PERCENT_TICKS, PERCENT_TICKS),
        *map(bar, series.bins),
        frame.segment((0, 0), (1, 1), "diagonal"),
    )


def confidence_chart(series: Series, k: int) -> Markup:
    """Return how often each confidence occurs, wrong predictions hatched, both means marked."""
    total = sum(b.count for b in series.bins)
    top = max(b.count for b in series.bins) / total
    frame = Frame((0, 1), (0, top), height=170, top=30)

    def bar(b: Bin) -> Markup:
        wrong, every = b.count * (1 - b.accuracy) / total, b.count / total
        below = frame.bar((b.low, b.high), (0, wrong), "gap")
        above = frame.bar((b.low, b.high), (wrong, every), f"bar {series_style(k)}")
        return tag("g", tag("title", b.describe()), below, above)

    confidence, accuracy = series.mean("confidence"), series.mean("correct")
    on_left = max(confidence, accuracy) > 0.5

    def mark(value: float, name: str, style: str, y: int) -> Markup:
        """Draw a mean as a vertical line; its name stands beside it, at a height of its own."""
        x = frame.x(value)
        place = {"x": x - 4, "class_": "end"} if on_left else {"x": x + 4}
        line = tag("line", x1=x, x2=x, y1=y - 8, y2=frame.height - frame.bottom, class_=style)
        return line + tag("text", f"{name} {percent(value)}", y=y, **place)

    # The name that reaches over the other line stands above it.
    heights = (11, 24) if (confidence > accuracy) == on_left else (24, 11)
    return frame.drawing(
        f"Confidence histogram of {series.name}: {series.verdict}.",
        frame.axes("confidence, %", "images, %", PERCENT_TICKS, round_ticks(0, top, 100, num=3)),
        *map(bar, series.bins),
        mark(confidence, "confidence", "mark", heights[0]),
        mark(accuracy, "accuracy", "mark dashed", heights[1]),
    )


def risk_chart(series: Sequence[Series]) -> Markup:
    """Return the error among the most confident images against their share of all images."""
    top = max(max(float(s.risk.max()) for s in series) * 1.05, 1e-3)
    frame = Frame((0, 1), (0, top), height=300)
    ends = "; ".join(f"{s.name} {percent(s.risk[-1])}" for s in series)
    return frame.drawing(
        f"Risk-coverage curves. Error over all images: {ends}.",
        frame.axes("the most confident images, %", "wrong among them, %", PERCENT_TICKS, round_ticks(0, top, 100)),
        *(frame.line(COVERAGES, s.risk, f"line {series_style(k)}") for k, s in enumerate(series)),
    )


def roc_chart(detections: Sequence[Detection], dataset: str) -> Markup:
    """Return the share of OOD images found against the share of test images called OOD."""
    frame = Frame((0, 1), (0, 1), height=300)
    areas = "; ".join(f"{each.name} {percent(each.auroc.value)}" for each in detections)
    return frame.drawing(
        f"ROC curves for images of {dataset}. Area under the curve: {areas}.",
        frame.axes("test images called OOD, %", "OOD images found, %", PERCENT_TICKS, PERCENT_TICKS),
        frame.segment((0, 0), (1, 1), "diagonal"),
        *(frame.line([0, *FALSE_ALARMS], [0, *each.found], f"line {series_style(each.place)}") for each in detections),
    )


def training_chart(rows: Sequence[Row], key: str, name: str, factor: float = 1) -> Markup | None:
    """Return `key` of stats.jsonl over the epochs: thin lines are runs, thick ones their mean.

    The scale is that of the last three quarters: the first epochs may be ten times worse. What lies
    outside is drawn at the edge.
    """
    curves = [[_curve(run, key) for run in row.runs] for row in rows]
    points = [point for row in curves for curve in row for point in curve.items() if np.isfinite(point[1])]
    if not points:
        return None
    last_epoch = max(epoch for epoch, _ in points)
    late = [value for epoch, value in points if epoch > last_epoch / 4]
    low, high = min(late), max(late)
    pad = 0.05 * (high - low) or 0.5
    frame = Frame((0, last_epoch), (low - pad if low < 0 else max(low - pad, 0), high + pad), height=230, left=50)

    def lines(curves: list[dict[int, float]], k: int) -> Markup:
        shared = sorted(set.intersection(*map(set, curves)))
        mean = {epoch: float(np.mean([curve[epoch] for curve in curves])) for epoch in shared}
        styles = [*[f"line thin {series_style(k)}"] * len(curves), f"line {series_style(k)}"]
        drawn = zip([*curves, mean], styles, strict=True)
        return join(frame.line(c, np.clip([*c.values()], *frame.y_range), style) for c, style in drawn)

    return frame.drawing(
        f"{name} over the epochs: {', '.join(row.name for row in rows)}.",
        frame.axes("epoch", "", round_ticks(0, last_epoch), round_ticks(*frame.y_range, factor)),
        *(lines(row, k) for k, row in enumerate(curves)),
    )


def _curve(run: Run, key: str) -> dict[int, float]:
    return {line["epoch"]: line[key] for line in run.stats if line.get(key) is not None}


def forest_chart(rows: Sequence[Row]) -> Markup:
    """Return ECE and interval of every row: dots as trained, rings after temperature scaling."""
    every = [value for row in rows for value in (row.before["ece"], row.after["ece"])]
    top = max(max(v.high if v.has_interval else v.value for v in every) * 1.05, 1e-3)
    frame = Frame((0, top), (0, len(rows)), height=42 + 46 * len(rows), left=14, top=2)
    text = "; ".join(
        f"{row.name} {percent(row.before['ece'].value)}, after temperature scaling {percent(row.after['ece'].value)}"
        for row in rows
    )

    def dot(value: Interval, y: float, style: str) -> Markup:
        ends = frame.segment((max(value.low, 0), y), (value.high, y), f"range {style}") if value.has_interval else ""
        return join([ends, frame.dot(value.value, y, style)])

    def line(row: Row, k: int, y: int) -> Markup:
        name = tag("text", row.name, x=frame.left + 4, y=frame.y(y + 0.72), class_="row-name")
        before, after = (f"{shape} {series_style(k)}" for shape in ("dot", "ring"))
        return join([name, dot(row.before["ece"], y + 0.45, before), dot(row.after["ece"], y + 0.18, after)])

    return frame.drawing(
        f"Expected calibration error: {text}.",
        frame.axes("ECE, %", "", round_ticks(0, top, 100)),
        *(line(row, k, len(rows) - k - 1) for k, row in enumerate(rows)),
    )


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
