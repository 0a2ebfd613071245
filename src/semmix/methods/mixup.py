"""Mixup: learn from overlaid pairs of images.

Zhang et al., mixup: Beyond Empirical Risk Minimization, https://arxiv.org/abs/1710.09412
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from semmix.core.checks import check_positive
from semmix.methods._base import Batch, Forward, Method, check_gamma, draw_beta, mix_batch, soft_labels, soft_loss


@dataclass(kw_only=True, eq=False)
class Mixup(Method):
    """The loss of lam x_i + (1 - lam) x_j under lam y_i + (1 - lam) y_j, one lam per batch."""

    alpha: float = 0.2
    """lam is drawn from Beta(alpha, alpha)."""
    loss: Literal["ce", "l2", "focal"] = "ce"
    """What fits the soft labels."""
    gamma: float = 3.0
    """Exponent of the focal loss."""

    def __post_init__(self):
        check_positive(alpha=self.alpha)
        check_gamma(self.gamma)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        lam = draw_beta(self.alpha, 1, batch.images)
        images, partners = mix_batch(batch, lam)
        logits = forward(images)
        targets = soft_labels(batch.labels, partners, lam, logits)
        return {"loss": soft_loss(self.loss, logits, targets, self.gamma)}
