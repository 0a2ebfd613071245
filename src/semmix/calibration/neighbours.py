"""Calibration where data are dense and where they are sparse (Xiong et al. 2023, 2306.04590)."""

from typing import Any, Literal

import numpy as np
import torch

from semmix.calibration._bins import check_bins
from semmix.calibration._inputs import Array, as_finite, as_rows, as_vector, row_blocks
from semmix.calibration._toplabel import TopLabel, top_label
from semmix.core.errors import SemmixError, require, unknown_name


def proximity(
    features: Any, pool: Any = None, num_neighbours: int = 10, protocol: Literal["code", "paper"] = "code"
) -> Array:
    """Return how near each sample's nearest neighbours are, in (0, 1], `[N]`; 1 is a duplicate.

    Args:
        features: `[N, D]`, normalised to length one here.
        pool: Where neighbours are sought, mostly held-out samples `[M, D]`; without it, among the other
            rows of `features`.
        num_neighbours: How many count.
        protocol: `code`, mean of exp(-d^2) as published code computes it; `paper`, exp(-mean d).
    """
    if protocol not in ("code", "paper"):
        raise unknown_name("protocol", protocol, ["code", "paper"])
    require(num_neighbours >= 1, "too few neighbours", num_neighbours, "ask for at least 1, such as 10")
    unit = _unit_rows(features)
    candidates = unit if pool is None else _unit_rows(pool)
    own = pool is None
    if unit.shape[1] != candidates.shape[1]:
        seen = f"{unit.shape[1]} numbers each in features, {candidates.shape[1]} in the pool"
        raise SemmixError("features and pool do not fit", seen, "pass features of one network")
    fix = f"pass at least {num_neighbours + own} rows, or lower num_neighbours"
    require(len(candidates) >= num_neighbours + own, "too few samples to find neighbours", len(candidates), fix)
    distances = _nearest(unit, candidates, num_neighbours, own)  # [N, num_neighbours]
    if protocol == "paper":
        return np.exp(-distances.mean(1))
    return np.exp(-(distances**2)).mean(1)


def piece(probs: Any, labels: Any, proximity: Any, bins: int = 15, proximity_bins: int = 10) -> float:
    """Return the proximity-informed ECE: gaps in cells of (proximity quantile, confidence bin).

    Args:
        probs: Probabilities `[N, K]`, or `[N]` of class 1 of two.
        labels: Classes `[N]`, or distributions `[N, K]`.
        proximity: One number per sample, high where data are dense.
        bins: Confidence bins.
        proximity_bins: Quantile bins of the proximity; 10, with 15 confidence bins, is what the published tables use.

    Returns:
        A share, never below the ECE with the same `bins`.

    Raises:
        SemmixError: If there is not one proximity per sample, or the input is not what it should be.

    Example:
        >>> right, near = [0] * 6 + [1] * 4, [0.9] * 5 + [0.1] * 5
        >>> round(piece([[0.6, 0.4]] * 10, right, near, proximity_bins=2), 6)
        0.4
    """
    top = top_label(probs, labels)
    nearness = as_vector(proximity, "proximity")
    if len(nearness) != len(top.confidence):
        seen = f"{len(top.confidence)} samples, {len(nearness)} proximities"
        raise SemmixError("proximity does not fit the samples", seen, "pass one per sample")
    edges = quantile_edges(nearness, check_bins(proximity_bins))
    return grouped_ece(top, group_index(nearness, edges), bins)


def quantile_edges(values: Array, num_groups: int) -> Array:
    """Return the inner edges of `num_groups` groups of about equal size."""
    return np.quantile(values, np.arange(1, num_groups) / num_groups)


def group_index(values: Array, edges: Array) -> Array:
    """Return which group holds each value; equal values stay together."""
    return np.searchsorted(edges, values, "right")


def grouped_ece(top: TopLabel, groups: Array, bins: int) -> float:
    """Return the sum of |gap| over the cells of (group, confidence bin)."""
    cells = groups * bins + top.bin_index(bins)
    gaps = np.bincount(cells, top.weights * top.gaps)
    return float(np.abs(gaps).sum() / top.weights.sum())


def _unit_rows(features: Any) -> torch.Tensor:
    if (rows := as_rows(features, "features")).ndim != 2:
        raise SemmixError("features have the wrong shape", tuple(rows.shape), "pass [N, D]")
    rows = torch.from_numpy(as_finite(rows, "features").copy())
    length = rows.norm(dim=1, keepdim=True)
    if bool((length == 0).any()):
        row = int((length == 0).nonzero()[0, 0])
        raise SemmixError("a feature vector is zero", f"row {row}", "drop it: it has no direction")
    return rows / length


def _nearest(unit: torch.Tensor, candidates: torch.Tensor, num_neighbours: int, own: bool) -> Array:
    """Return the Euclidean distances to the nearest candidates, nearest first."""
    found = []
    for where in row_blocks(len(unit), len(candidates)):
        cosine = unit[where] @ candidates.T
        if own:
            rows = torch.arange(where.start, where.stop)
            cosine[rows - where.start, rows] = -torch.inf
        squared = 2 - 2 * cosine.topk(num_neighbours, dim=1).values
        found.append(squared.clamp_min(0).sqrt())
    return torch.cat(found).numpy()
