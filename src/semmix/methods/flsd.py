"""Focal loss with a sample-dependent gamma: FLSD-53.

Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, section 4, https://arxiv.org/abs/2002.09437
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, focal_loss, one_hot


@dataclass(kw_only=True, eq=False)
class SampleFocal(Method):
    """The focal loss with gamma 5 where p_y < 0.2 and 3 elsewhere."""

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        targets = one_hot(batch.labels, logits)
        p_y = (logits.softmax(-1) * targets).sum(-1, keepdim=True)
        gamma = torch.where(p_y < 0.2, 5.0, 3.0).to(logits.dtype)  # [B, 1], carries no gradient
        return {"loss": focal_loss(logits, targets, gamma)}
