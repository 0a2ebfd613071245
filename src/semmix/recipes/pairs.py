"""Which classes to mix when there are many: each with those it is confused with most."""

from __future__ import annotations

import torch
from torch import Tensor


def confused_pairs(logits: Tensor, labels: Tensor, partners: int) -> tuple[tuple[int, int], ...]:
    """Return every class paired with the `partners` classes a classifier confuses it with most.

    Confusion is the probability given to the other class, averaged over a class's images and taken
    both ways; so it tells apart pairs that are never mistaken outright, and a rare class without a
    validation image is still judged by the images taken for it.

    Args:
        logits: Of validation images, [N, K].
        labels: Their classes, int64 [N].
        partners: For each class; the pairs are between K * partners / 2 and K * partners.

    >>> confused_pairs(torch.tensor([[3.0, 2, 0], [2, 3, 0], [0, 1, 3]]), torch.arange(3), 1)
    ((0, 1), (1, 2))
    """
    num_classes = logits.shape[1]
    counts = torch.bincount(labels, minlength=num_classes).clamp(min=1)
    taken_for = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    taken_for.index_add_(0, labels, logits.double().softmax(1))
    taken_for /= counts[:, None]
    confusion = (taken_for + taken_for.T).fill_diagonal_(-1)
    nearest = confusion.topk(min(partners, num_classes - 1), dim=1).indices
    pairs = {(min(i, j), max(i, j)) for i, row in enumerate(nearest.tolist()) for j in row}
    return tuple(sorted(pairs, key=lambda pair: (-float(confusion[pair]), pair)))
