"""Focal calibration loss: focal loss plus the Brier score.

Liang et al., Calibrating Deep Neural Network using Euclidean Distance, https://arxiv.org/abs/2410.18321
"""

from dataclasses import dataclass

from torch import Tensor

from semmix.methods._base import Batch, Forward, Method, check_gamma, focal_loss, l2_loss, one_hot


@dataclass(kw_only=True, eq=False)
class FocalCalibration(Method):
    """The focal loss plus weight * mean ||p - onehot(y)||^2, summed over classes."""

    gamma: float = 3.0
    """Exponent of the focal loss."""
    weight: float = 0.5
    """Weight of the squared distance."""

    def __post_init__(self):
        check_gamma(self.gamma)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        logits = forward(batch.images)
        targets = one_hot(batch.labels, logits)
        hard, distance = focal_loss(logits, targets, self.gamma), l2_loss(logits, targets)
        return {"loss": hard + self.weight * distance, "focal": hard, "distance": distance}
