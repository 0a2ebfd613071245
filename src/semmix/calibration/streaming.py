"""Metrics of samples that arrive in batches or on several machines, merged without rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as distributed

from semmix.calibration._bins import BinSums, bin_index, check_bins
from semmix.calibration._inputs import Array, Rows, as_numpy, as_probs, as_rows, check_samples, row_blocks
from semmix.calibration._toplabel import TopLabel, as_class_weights, top_label, weigh
from semmix.calibration.metrics import classwise_columns, log_losses, squared_errors
from semmix.core.errors import SemmixError, require

COARSE, FINE = 20, 52
"""Binary digits after the point of the two whole numbers that hold a sum."""


class ExactSums:
    """Sums held as whole multiples of 2^-52, so that neither order nor grouping can change them.

    Two 64-bit integers per sum, enough for 2^32 samples below 2^10 each.
    """

    def __init__(self, *shape: int):
        self.coarse = np.zeros(shape, np.int64)
        self.fine = np.zeros(shape, np.int64)

    def add(self, row: int, cells: Array, values: Array) -> None:
        """Add float64 `values` to the `cells` of one row; at most 2^20 at a time stay exact."""
        coarse = np.rint(values * 2.0**COARSE)
        fine = np.rint((values - coarse * 2.0**-COARSE) * 2.0**FINE)
        size = self.coarse.shape[1]
        self.coarse[row] += np.bincount(cells, coarse, size).astype(np.int64)
        self.fine[row] += np.bincount(cells, fine, size).astype(np.int64)

    def merge(self, other: ExactSums) -> None:
        """Add the sums of `other`."""
        self.coarse += other.coarse
        self.fine += other.fine

    def values(self) -> Array:
        """Return the sums as float64."""
        return self.coarse * 2.0**-COARSE + self.fine * 2.0**-FINE


class CalibrationStream:
    """The metrics of `summary` from batches: `update`, `compute`, `reset`, `merge`, `sync`.

    However the samples are split between batches, processes and machines, and in whatever order
    they come, the binned metrics are the same to the last bit.
    """

    def __init__(
        self,
        num_classes: int,
        bins: int = 15,
        *,
        keep_samples: bool = True,
        ignore_index: int | None = None,
        class_weights: Any = None,
    ):
        """Start empty.

        Args:
            num_classes: K; 2 when batches are vectors of the probability of class 1.
            bins: equal-width bins of each metric.
            keep_samples: keep each sample's confidence and correctness, 24 bytes, which the
                adaptive ECE needs; without them memory is constant and `aece` is left out.
            ignore_index: label of samples to skip.
            class_weights: weight `[K]` of samples by label.
        """
        self.num_classes, self.bins = num_classes, check_bins(bins)
        self.keep_samples = keep_samples
        self.ignore_index = ignore_index
        self.class_weights = None if class_weights is None else as_class_weights(class_weights, num_classes)
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._top = ExactSums(3, self.bins)
        self._losses = ExactSums(2, 1)
        self._classwise = ExactSums(3, self.num_classes * self.bins)
        self._kept: list[TopLabel] = []

    def update(self, probs: Any, labels: Any) -> None:
        """Add a batch of probabilities `[N, K]` and labels."""
        probs, labels = as_probs(probs), as_rows(labels, "labels")
        if probs.shape[1] != self.num_classes:
            seen = f"{probs.shape[1]} columns, {self.num_classes} classes announced"
            raise SemmixError("the batch has another number of classes", seen, "check num_classes")
        if self.ignore_index is not None and bool((as_numpy(labels) == self.ignore_index).all()):
            return
        probs, labels = check_samples(probs, labels, self.ignore_index)
        # Looks at every row: a batch that is refused leaves nothing behind.
        top = top_label(probs, labels)
        if self.class_weights is not None:
            top = top.reweighted(weigh(labels, self.class_weights))
        for where in row_blocks(*probs.shape):
            self._add(top, where, probs[where], labels[where])
        if self.keep_samples:
            self._kept.append(top)

    def merge(self, other: CalibrationStream) -> None:
        """Add all samples that `other` has seen."""
        own, others = (
            (s.num_classes, s.bins, s.keep_samples, None if s.class_weights is None else s.class_weights.tolist())
            for s in (self, other)
        )
        if own != others:
            names = "classes, bins, keep_samples, class_weights"
            raise SemmixError(f"streams differ in ({names})", f"{own} and {others}", "make them alike")
        for name in ("_top", "_losses", "_classwise"):
            getattr(self, name).merge(getattr(other, name))
        self._kept += other._kept

    def sync(self) -> None:
        """Give every process of the default torch.distributed group the samples of all."""
        if not distributed.is_initialized():
            return
        streams: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(streams, self)
        self.reset()
        for stream in streams:
            self.merge(stream)

    def compute(self) -> dict[str, float]:
        """Return the metrics of all samples so far, by name."""
        top = BinSums(*self._top.values())
        total = float(top.weight.sum())
        require(total != 0, "no samples yet", 0, "call update(probs, labels) first")
        loss, squared_error = self._losses.values()[:, 0] / total
        classwise = BinSums(*self._classwise.values().reshape(3, self.num_classes, self.bins))
        return {
            "acc": float(top.correct.sum()) / total,
            "ece": top.ece(),
            **({"aece": self.top_label().aece(self.bins)} if self.keep_samples else {}),
            "oe": top.oe(),
            "ue": top.ue(),
            "classwise_ece": classwise.ece() / self.num_classes,
            "mce": top.mce(),
            "nll": float(loss),
            "brier": float(squared_error),
            "confidence": float(top.confidence.sum()) / total,
        }

    def compress(self, cells: int) -> None:
        """Replace the kept samples by two for each of `cells` narrow bins, right and wrong.

        For data without end: memory stays constant, and what needs the kept samples is then exact
        to the width of a cell.
        """
        self._kept = [self.top_label().compressed(cells)]

    def top_label(self) -> TopLabel:
        """Return the kept samples, in the order they came."""
        if not self._kept:
            seen = "no update yet" if self.keep_samples else "keep_samples=False"
            raise SemmixError("no samples are kept", seen, "update a stream that keeps samples")
        if len(self._kept) > 1:
            names = ("confidence", "correct", "weights")
            columns = ([getattr(top, name) for top in self._kept] for name in names)
            count = sum(top.count for top in self._kept)
            self._kept = [TopLabel(*map(np.concatenate, columns), count=count)]
        return self._kept[0]

    def _add(self, top: TopLabel, where: slice, probs: Rows, labels: Array) -> None:
        weights, confidence = top.weights[where], top.confidence[where]
        cells = bin_index(confidence, self.bins)
        for row, values in enumerate((1.0, confidence, top.correct[where])):
            self._top.add(row, cells, weights * values)
        for row, losses in enumerate((log_losses(probs, labels), squared_errors(probs, labels))):
            self._losses.add(row, np.zeros(len(losses), np.int64), weights * losses)
        for cells, columns in classwise_columns(probs, labels, self.bins, weights):
            for row, values in enumerate(columns):
                self._classwise.add(row, cells, values)


def summary(probs: Any, labels: Any, bins: int = 15) -> dict[str, float]:
    """Return the metrics of a usual table by name, all from the same samples."""
    stream = CalibrationStream(as_probs(probs).shape[1], bins)
    stream.update(probs, labels)
    return stream.compute()
