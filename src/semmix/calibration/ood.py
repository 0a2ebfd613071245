"""Telling samples of other data apart: scores of strangeness and how well they separate.

A score says how strange a sample looks: higher means further from the training data.
"""

from typing import Any

import numpy as np

from semmix.calibration._inputs import as_vector


def ood_auroc(in_scores: Any, out_scores: Any) -> float:
    """Return the chance that an out-of-distribution sample scores higher; ties count one half.

    >>> ood_auroc([0.1, 0.2, 0.3], [0.3, 0.8])
    0.9166666666666666
    """
    inside, outside = as_vector(in_scores, "in_scores"), as_vector(out_scores, "out_scores")
    inside = np.sort(inside)
    below = np.searchsorted(inside, outside, "left")
    not_above = np.searchsorted(inside, outside, "right")
    return float((below + not_above).sum() / (2 * len(inside) * len(outside)))
