"""Pairwise constraints: each class against the true one, and the others among themselves.

Cheng and Vasconcelos, Calibrating Deep Neural Networks by Pairwise Constraints, CVPR 2022
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.errors import require
from semmix.methods._base import Batch, Forward, Method, one_hot

CHUNK = 32
"""Classes compared with all others at a time: memory stays at B x K x CHUNK."""


@dataclass(kw_only=True, eq=False)
class PairwiseConstraints(Method):
    """Cross-entropy plus binary losses on logit differences.

    Discrimination: the mean over j != y of -log sigma(z_y - z_j). Exclusion: half the mean, over
    ordered pairs of wrong classes, of -log sigma(z_j - z_l), least where wrong classes are equal.
    """

    discrimination: float = 0.1
    """Weight of the binary discrimination constraint."""
    exclusion: float = 1.0
    """Weight of the binary exclusion constraint."""

    def __post_init__(self):
        fix = "cpc compares two wrong classes: use it with 3 classes or more"
        require(self.num_classes >= 3, "too few classes for cpc", self.num_classes, fix)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        wrong = 1 - one_hot(batch.labels, logits)
        others = self.num_classes - 1
        bdc = discrimination(logits, wrong) / others
        bec = Exclusion.apply(logits, wrong).mean() / (2 * others * (others - 1))  # pyright: ignore
        loss = ce + self.discrimination * bdc + self.exclusion * bec
        return {"loss": loss, "ce": ce, "discrimination": bdc, "exclusion": bec}


def discrimination(logits: Tensor, wrong: Tensor) -> Tensor:
    """Return the mean over the batch of sum_{j != y} -log sigma(z_y - z_j)."""
    z_y = (logits * (1 - wrong)).sum(-1, keepdim=True)
    return (wrong * F.softplus(logits - z_y)).sum(-1).mean()


class Exclusion(torch.autograd.Function):
    """sum_jl w_j w_l softplus(z_l - z_j) for each row, without a K x K tensor.

    Value and gradient are summed together, chunk by chunk: the gradient by z_j is
    w_j sum_l w_l tanh((z_j - z_l) / 2), since each pair occurs in both orders.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, wrong: Tensor) -> Tensor:
        value, slope = torch.zeros_like(logits), torch.zeros_like(logits)
        for z, w in zip(logits.split(CHUNK, -1), wrong.split(CHUNK, -1), strict=True):
            gap = logits[:, :, None] - z[:, None, :]  # [B, K, CHUNK]
            value += (w[:, None] * F.softplus(-gap)).sum(-1)
            slope += (w[:, None] * torch.tanh(gap / 2)).sum(-1)
        ctx.save_for_backward(wrong * slope)
        return (wrong * value).sum(-1)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (slope,) = ctx.saved_tensors
        return grads[0][:, None] * slope, None
