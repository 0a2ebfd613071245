"""Correctness ranking: images that were predicted right more often should get higher confidence.

Moon et al., Confidence-Aware Learning for Deep Neural Networks, https://arxiv.org/abs/2007.01458
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, confidence


@dataclass(kw_only=True, eq=False)
class CorrectnessRanking(Method):
    """Cross-entropy plus a ranking loss between neighbours in the batch.

    Memory: how often each training image was predicted right, and how many epochs have passed.
    """

    weight: float = 1.0
    """Weight of the ranking loss."""

    def setup(self, train_labels: Tensor) -> None:
        self.correct = torch.zeros_like(train_labels)  # [N]
        self.epochs = train_labels.new_zeros(())

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        ce = F.cross_entropy(logits, batch.labels)
        # Counts scaled to [0, 1] over the epochs so far; the clamp guards "always right" (0 / 0).
        least = self.correct.min()
        history = (self.correct[batch.index] - least) / (self.epochs.clamp(min=1) - least).clamp(min=1)
        ranking = ranking_loss(confidence(logits), history)
        right = logits.argmax(-1) == batch.labels
        self.correct.index_add_(0, batch.index, right.to(self.correct.dtype))
        return {"loss": ce + self.weight * ranking, "ce": ce, "ranking": ranking}

    def end_epoch(self, val_logits: Tensor | None, val_labels: Tensor | None) -> None:
        self.epochs += 1

    def state_dict(self) -> dict[str, Tensor]:
        return {"correct": self.correct, "epochs": self.epochs}


def ranking_loss(conf: Tensor, history: Tensor) -> Tensor:
    """Return mean max(0, |h_i - h_j| - sign(h_i - h_j) (c_i - c_j)), j the next in the batch."""
    order = (history - history.roll(-1)).to(conf.dtype)
    return (order.abs() - order.sign() * (conf - conf.roll(-1))).relu().mean()
