"""Losses that several methods share, each a mean over the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.methods._base import check_choice

SOFT_LOSSES = ("l2", "ce", "focal")


def squared_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the batch of ||p - q||^2, summed over classes (the Brier score)."""
    return (logits.softmax(-1) - targets).square().sum(-1).mean()


def focal(logits: Tensor, targets: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the mean over the batch of sum_k q_k (1 - p_k)^gamma (-log p_k), for soft labels q."""
    log_p = logits.log_softmax(-1)
    # 1 - p by expm1 stays exact where p is almost one.
    return -(targets * (-torch.expm1(log_p)) ** gamma * log_p).sum(-1).mean()


def soft_loss(name: str, logits: Tensor, targets: Tensor, gamma: float) -> Tensor:
    """Return the loss called `name` on soft labels `[N, K]`; `gamma` belongs to focal."""
    if name == "l2":
        return squared_error(logits, targets)
    return focal(logits, targets, gamma) if name == "focal" else F.cross_entropy(logits, targets)


def check_soft_loss(name: str, gamma: float) -> None:
    """Refuse an unknown soft-label loss, or a gamma without a usable gradient."""
    check_choice("loss", name, SOFT_LOSSES)
    check_gamma(gamma)


def check_gamma(gamma: float) -> None:
    """Refuse a focal exponent below 1, other than 0: its gradient is infinite at p = 1."""
    if gamma != 0 and gamma < 1:
        raise SemmixError("focal gamma has no finite gradient", gamma, "choose 0, or at least 1")


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Return labels `[N]` as rows of zeros and a one, in the shape and type of logits `[N, K]`."""
    return F.one_hot(labels, like.shape[-1]).to(like.dtype)


def confidence(logits: Tensor) -> Tensor:
    """Return the largest softmax probability of each row."""
    return logits.softmax(-1).amax(-1)


def margin_excess(logits: Tensor, margin: float) -> Tensor:
    """Return how much more than `margin` each logit lies below its row's largest."""
    return logits.amax(-1, keepdim=True) - logits - margin
