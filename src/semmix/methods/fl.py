"""Focal loss: the more confident the network already is, the less it learns.

Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss, https://arxiv.org/abs/2002.09437
"""

from dataclasses import dataclass

from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, check_gamma, focal_loss, one_hot


@dataclass(kw_only=True, eq=False)
class Focal(Method):
    """The mean of -(1 - p_y)^gamma log p_y."""

    gamma: float = 3.0
    """How fast learning fades as p_y grows."""

    def __post_init__(self):
        check_gamma(self.gamma)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        return {"loss": focal_loss(logits, one_hot(batch.labels, logits), self.gamma)}
