"""RegMixup: mixup as a regulariser beside cross-entropy.

Pinto et al., RegMixup: Mixup as a Regularizer, https://arxiv.org/abs/2206.14502
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.checks import check_positive
from semmix.methods._base import Batch, Forward, Method, draw_beta, mix_batch, soft_labels


@dataclass(kw_only=True, eq=False)
class RegMixup(Method):
    """Cross-entropy on real images and on mixed ones, sent through the network together."""

    alpha: float = 10.0
    """lam is drawn from Beta(alpha, alpha), one per batch."""
    protocol: Literal["code", "paper"] = "code"
    """`code` averages the two terms, as the published results did; `paper` adds them."""

    def __post_init__(self):
        check_positive(alpha=self.alpha)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        lam = draw_beta(self.alpha, 1, batch.images)
        mixed_images, partners = mix_batch(batch, lam)
        logits, mixed_logits = forward(torch.cat([batch.images, mixed_images])).chunk(2)
        real = F.cross_entropy(logits, batch.labels)
        mixed = F.cross_entropy(mixed_logits, soft_labels(batch.labels, partners, lam, logits))
        scale = 0.5 if self.protocol == "code" else 1.0
        return {"loss": scale * (real + mixed), "real": real, "mixed": mixed}
