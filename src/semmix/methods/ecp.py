"""Entropy confidence penalty: reward predictions of high entropy.

Pereyra et al., Penalizing Confident Output Distributions, https://arxiv.org/abs/1701.06548
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method


@dataclass(kw_only=True, eq=False)
class EntropyPenalty(Method):
    """Cross-entropy minus weight times the mean entropy of the predictions."""

    weight: float = 0.1
    """Weight of the entropy."""
    protocol: Literal["paper", "code"] = "paper"
    """`code` also averages the entropy over classes, so that its real weight is weight / K."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        if self.protocol == "code":
            entropy = entropy / self.num_classes
        return {"loss": ce - self.weight * entropy, "ce": ce, "entropy": entropy}
