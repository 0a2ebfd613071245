"""Margin-based label smoothing: no logit need lie more than a margin below the largest.

Liu et al., The Devil is in the Margin, https://arxiv.org/abs/2111.15430
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, margin_excess


@dataclass(kw_only=True, eq=False)
class MarginSmoothing(Method):
    """Cross-entropy plus alpha * mean_ik max(0, max_j z_ij - z_ik - margin)."""

    margin: float = 6.0
    """Free distance below the largest logit: 6 for CIFAR, 10 for Tiny-ImageNet and ImageNet."""
    alpha: float = 0.1
    """Weight of the penalty."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        excess = margin_excess(logits, self.margin).relu().mean()
        return {"loss": ce + self.alpha * excess, "ce": ce, "excess": excess}
