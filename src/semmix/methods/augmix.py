"""AugMix: one image, three looks, one answer.

References:
    Hendrycks et al., AugMix, https://arxiv.org/abs/1912.02781
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Dirichlet

from semmix.methods._augmix import OPERATIONS, apply_operations
from semmix.methods._base import Batch, Forward, Method, check_positive
from semmix.methods._mixing import blend, draw_beta

NUM_CHAINS = 3
MAX_DEPTH = 3


@dataclass(kw_only=True, eq=False)
class AugMix(Method):
    """Cross-entropy on real images plus the divergence between them and two augmented views."""

    weight: float = 1.0
    """Weight of the Jensen-Shannon divergence: 12 in AugMix's paper, 1 in CSM's comparison."""

    severity: float = 3.0
    """Strongest level of an operation, out of 10."""

    def __post_init__(self):
        check_positive(severity=self.severity)

    def step(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            views = augment(batch.images.repeat(2, 1, 1, 1), self.severity)
        logits = forward(torch.cat([batch.images, views])).chunk(3)
        ce = F.cross_entropy(logits[0], batch.labels)
        divergence = jensen_shannon(logits)
        return {"loss": ce + self.weight * divergence, "ce": ce, "divergence": divergence}


def jensen_shannon(logits: tuple[Tensor, ...]) -> Tensor:
    """Return the mean over views and batch of KL(p_view || mean of all views)."""
    log_p = torch.stack(logits).log_softmax(-1)  # [V, B, K]
    p = log_p.exp()
    log_mean = p.mean(0).clamp(1e-7, 1).log()
    return (p * (log_p - log_mean)).sum(-1).mean()


def augment(images: Tensor, severity: float) -> Tensor:
    """Return each image blended with a random mixture of three chains of operations."""
    num = len(images)
    chains = chain(images.repeat(NUM_CHAINS, 1, 1, 1), severity).view(NUM_CHAINS, *images.shape)
    ones = torch.ones(num, NUM_CHAINS, device=images.device, dtype=images.dtype)
    weights = Dirichlet(ones, validate_args=False).sample().T.view(NUM_CHAINS, num, 1, 1, 1)
    return blend((weights * chains).sum(0), images, draw_beta(1.0, num, images))


def chain(images: Tensor, severity: float) -> Tensor:
    """Return each image after one to three random operations."""
    num, device = len(images), images.device
    depth = torch.randint(1, MAX_DEPTH + 1, (num,), device=device)
    result = (images * 255).round()
    for k in range(MAX_DEPTH):
        operation = torch.randint(len(OPERATIONS), (num,), device=device)
        level = torch.rand_like(result[:, 0, 0, 0]) * (severity - 0.1) + 0.1
        sign = torch.randint(2, (num,), device=device) * 2 - 1
        operation = torch.where(k < depth, operation, len(OPERATIONS))  # past the end: no change
        result = apply_operations(result, operation, level, sign)
    return result / 255
