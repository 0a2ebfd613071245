"""Remix: mixup for long tails, where a rare class keeps the label.

Chou et al., Remix: Rebalanced Mixup, https://arxiv.org/abs/2007.03943
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.checks import check_positive
from semmix.methods._base import Batch, Forward, Method, class_counts, draw_beta, mix_batch, soft_labels


@dataclass(kw_only=True, eq=False)
class Remix(Method):
    """Mixup whose label goes to the rarer class where classes differ enough in size."""

    alpha: float = 1.0
    """lam is drawn from Beta(alpha, alpha), one per batch."""
    kappa: float = 3.0
    """A class counts as the larger one from this ratio of sizes on."""
    tau: float = 0.5
    """The rarer class takes the whole label where the larger one's share is below this."""

    def __post_init__(self):
        check_positive(alpha=self.alpha, kappa=self.kappa)

    def setup(self, train_labels: Tensor) -> None:
        self.counts = class_counts(train_labels, self.num_classes)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        lam = draw_beta(self.alpha, 1, batch.images)
        images, partners = mix_batch(batch, lam)
        logits = forward(images)
        targets = soft_labels(batch.labels, partners, self._label_lam(lam, batch.labels, partners), logits)
        return {"loss": F.cross_entropy(logits, targets)}

    def _label_lam(self, lam: Tensor, labels: Tensor, partners: Tensor) -> Tensor:
        ratio = self.counts[labels] / self.counts[partners]
        lam = lam.expand(len(labels))
        to_partner = (ratio >= self.kappa) & (lam < self.tau)
        to_label = (ratio <= 1 / self.kappa) & (1 - lam < self.tau)
        return torch.where(to_partner, 0.0, torch.where(to_label, 1.0, lam))
