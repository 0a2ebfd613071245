"""Convex mixing of images within a batch, drawn without waiting for the device."""

import torch
from torch import Tensor
from torch.distributions import Beta

from semmix.methods._losses import one_hot


def draw_beta(alpha: float, num: int, like: Tensor) -> Tensor:
    """Return `num` draws of Beta(alpha, alpha), on the device and in the type of `like`."""
    shape = torch.full((num,), alpha, dtype=like.dtype, device=like.device)
    return Beta(shape, shape, validate_args=False).sample()


def permutation(num: int, device: torch.device) -> Tensor:
    """Return a random order of 0..num-1; unlike randperm, CUDA graphs can capture it."""
    return torch.rand(num, device=device).argsort()


def blend(a: Tensor, b: Tensor, lam: Tensor) -> Tensor:
    """Return lam * a + (1 - lam) * b, one lam for each row or one for all."""
    lam = lam.view(-1, *[1] * (a.ndim - 1))
    return lam * a + (1 - lam) * b


def soft_labels(labels: Tensor, partners: Tensor, lam: Tensor, like: Tensor) -> Tensor:
    """Return lam * onehot(labels) + (1 - lam) * onehot(partners), shaped like logits `[N, K]`."""
    return blend(one_hot(labels, like), one_hot(partners, like), lam)


def class_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Return how many training images each class has, at least 1 so that ratios stay finite."""
    counts = labels.new_zeros(num_classes)
    return counts.index_add_(0, labels, torch.ones_like(labels)).clamp(min=1)
