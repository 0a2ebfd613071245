"""Calibration error without bins: gaps smoothed by a reflected Gaussian."""

import numpy as np

from semmix.calibration._inputs import Array

GRID = 4096
"""Cells of [0, 1]; the error this adds is below the width of one cell."""


def smooth_calibration_error(confidence: Array, gaps: Array) -> float:
    """Return the fixed point sigma = smECE_sigma; `gaps` are shares of (confidence - correct).

    On a grid with reflecting ends the Gaussian kernel is diagonal in the cosine basis, so each
    bandwidth costs one multiplication and one inverse cosine transform.
    """
    from scipy.fft import dct, idct
    from scipy.optimize import root_scalar

    spectrum = np.asarray(dct(_on_grid(confidence, gaps), norm="ortho"))
    frequencies = np.pi * np.arange(GRID)

    def error(sigma: float) -> float:
        kernel = np.exp(-0.5 * (frequencies * sigma) ** 2)
        return float(np.abs(np.asarray(idct(spectrum * kernel, norm="ortho"))).sum())

    narrowest = 1 / GRID
    if error(narrowest) <= narrowest:
        return error(narrowest)
    # smECE_sigma falls as sigma grows and never exceeds 1, so there is exactly one crossing.
    crossing = root_scalar(lambda sigma: error(sigma) - sigma, bracket=(narrowest, 2.0), xtol=1e-9)
    return min(float(crossing.root), 1.0)


def _on_grid(confidence: Array, gaps: Array) -> Array:
    """Share each gap between the two nearest cell centres."""
    position = np.clip(confidence * GRID - 0.5, 0, GRID - 1)
    left = np.minimum(position.astype(np.int64), GRID - 2)
    share = position - left
    low = np.bincount(left, gaps * (1 - share), GRID)
    return low + np.bincount(left + 1, gaps * share, GRID)
