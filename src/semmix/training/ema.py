"""Averages of a network's weights over the last part of training.

The weight of step t is proportional to t^gamma (EDM2's power-function profile): an average's length
is a fraction of the run so far, so it needs no warm-up and fits runs of any length.

References: Karras et al. 2024, https://arxiv.org/abs/2312.02696 (EDM2), section 3.1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def gamma_of_length(length: float) -> float:
    """Return gamma such that the profile's standard deviation is `length` of the run.

    Solves length^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3)).

    >>> round(gamma_of_length(0.1), 2)
    6.94
    """
    t = length**-2
    return float(np.roots([1, 7, 16 - t, 12 - t]).real.max())


class PowerEMA:
    """One running average of some parameters."""

    def __init__(self, weights: dict[str, Tensor], length: float):
        self.length, self.gamma = length, gamma_of_length(length)
        self.weights = {name: weight.detach().clone() for name, weight in weights.items()}

    @torch.no_grad()
    def update(self, weights: dict[str, Tensor], step: int) -> None:
        """Take in the weights after step number `step` (from 1); the first replaces the start."""
        share = 1 - (1 - 1 / step) ** (self.gamma + 1)
        averages, news = list(self.weights.values()), list(weights.values())
        torch._foreach_lerp_(averages, news, share)  # pyright: ignore[reportPrivateImportUsage]
