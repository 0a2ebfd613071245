"""UniMix with Bayias: mixup that flattens a long tail, and a loss that knows the class sizes.

Xu et al., Towards Calibrated Model for Long-Tailed Visual Recognition from Prior Perspective, NeurIPS 2021,
https://arxiv.org/abs/2111.03874
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.checks import check_positive
from semmix.methods._base import Batch, Forward, Method, blend, class_counts, draw_beta, soft_labels


@dataclass(kw_only=True, eq=False)
class UniMix(Method):
    """Mixup with partners from rare classes, trained on z + log pi (pi: class frequencies)."""

    alpha: float = 0.8
    """The common part of lam is drawn from Beta(alpha, alpha), one per image."""
    tau: float = -0.5
    """Partners are drawn with weight count^tau: -0.5 for CIFAR-10, -0.1 for CIFAR-100."""

    def __post_init__(self):
        check_positive(alpha=self.alpha)

    def setup(self, train_labels: Tensor) -> None:
        self.counts = class_counts(train_labels, self.num_classes)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        counts = self.counts.to(batch.images.dtype)
        partner = draw_partners(counts[batch.labels] ** self.tau)
        # The rarer class gets the larger share on average; values above 1 wrap around.
        own, other = counts[batch.labels], counts[batch.labels[partner]]
        lam = (draw_beta(self.alpha, len(own), batch.images) + other / (own + other)) % 1
        logits = forward(blend(batch.images, batch.images[partner], lam))
        targets = soft_labels(batch.labels, batch.labels[partner], lam, logits)
        return {"loss": F.cross_entropy(logits + (counts / counts.sum()).log(), targets)}


def draw_partners(weights: Tensor) -> Tensor:
    """Return an index for each row, drawn with replacement in proportion to `weights`."""
    # The first of exponential clocks rings in proportion to its rate; multinomial would wait.
    clocks = torch.empty(len(weights), len(weights), device=weights.device).exponential_()
    return (clocks / weights).argmin(-1)
