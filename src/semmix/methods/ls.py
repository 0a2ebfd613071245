"""Label smoothing: ask for a little of every class.

Müller et al., When Does Label Smoothing Help?, https://arxiv.org/abs/1906.02629
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from semmix.core.errors import require
from semmix.methods._base import Batch, Forward, Method


@dataclass(kw_only=True, eq=False)
class LabelSmoothing(Method):
    """The mean of -(1 - alpha) log p_y - alpha / K sum_k log p_k."""

    alpha: float = 0.05
    """Share of the label that is spread evenly over all classes."""

    def __post_init__(self):
        require(0 <= self.alpha < 1, "alpha must be a share of the label", self.alpha, "use 0 <= alpha < 1")

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(forward(batch.images), batch.labels, label_smoothing=self.alpha)}
