"""Calibration where data are dense and where they are sparse (Xiong et al. 2023, 2306.04590)."""

from typing import Any

import numpy as np

from semmix._errors import SemmixError
from semmix.calibration._inputs import Array, as_vector
from semmix.calibration._toplabel import TopLabel, bin_index, top_label
from semmix.calibration.metrics import check_bins


def piece(
    probs: Any, labels: Any, proximity: Any, bins: int = 15, proximity_bins: int = 10
) -> float:
    """Return the proximity-informed ECE: gaps in cells of (proximity quantile, confidence bin).

    Never below the ECE of the same bins. Args:
        proximity: one number per sample, high where the data are dense (see `proximity_of`).
        proximity_bins: quantile bins of the proximity; 10 with 15 confidence bins is the published
            table's choice.
    """
    top = top_label(probs, labels)
    groups = quantile_groups(as_vector(proximity, "proximity"), check_bins(proximity_bins))
    if len(groups) != len(top.confidence):
        seen = f"{len(top.confidence)} samples, {len(groups)} proximities"
        raise SemmixError("proximity does not fit the samples", seen, "pass one per sample")
    return grouped_ece(top, groups, check_bins(bins))


def quantile_groups(values: Array, num_groups: int) -> Array:
    """Return which quantile group holds each value; equal values stay together."""
    edges = np.quantile(values, np.arange(1, num_groups) / num_groups)
    return np.searchsorted(edges, values, "right")


def grouped_ece(top: TopLabel, groups: Array, bins: int) -> float:
    """Return sum |gap| over the cells of (group, confidence bin)."""
    cells = groups * bins + bin_index(top.confidence, bins)
    gaps = np.bincount(cells, top.weights * (top.confidence - top.correct))
    return float(np.abs(gaps).sum() / top.weights.sum())
