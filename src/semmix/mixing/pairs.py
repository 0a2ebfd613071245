"""Which pairs of classes to mix where all are too many: those a classifier confuses."""

from __future__ import annotations

import torch
from torch import Tensor

from semmix.core.errors import require
from semmix.mixing.plan import all_pairs


def confusable_pairs(confusion: Tensor, num_pairs: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the `num_pairs` pairs a classifier mixes up most, the worst first.

    Args:
        confusion: Counts [K, K]: row the true class, column the predicted one. Rows are scaled to rates, so that
            frequent classes do not win by their number.
        num_pairs: How many pairs, all by default; a `MixPlan` cycles through them in this order.

    >>> confusable_pairs(torch.tensor([[8, 0, 2], [0, 10, 0], [1, 0, 9]]), 1)
    ((0, 2),)
    """
    num_classes = len(confusion)
    counts = confusion.shape == (num_classes, num_classes) and bool((confusion >= 0).all())
    fix = "pass counts [K, K], rows true classes, columns predicted ones"
    require(counts, "not a confusion matrix", tuple(confusion.shape), fix)
    pairs = all_pairs(num_classes)
    fix = f"{num_classes} classes have {len(pairs)} pairs"
    require(num_pairs is None or 1 <= num_pairs <= len(pairs), "no such number of pairs", num_pairs, fix)
    rates = confusion.double() / confusion.sum(1, keepdim=True).clamp(min=1)
    return tuple(sorted(pairs, key=lambda pair: -float(rates[pair] + rates[pair[::-1]]))[:num_pairs])


def partner_pairs(logits: Tensor, labels: Tensor, partners: int) -> tuple[tuple[int, int], ...]:
    """Return every class paired with the `partners` classes a classifier confuses it with most.

    Confusion is the probability given to the other class, averaged over a class's images and taken both ways. So it
    tells apart pairs that are never mistaken outright, and a rare class without a validation image is still judged by
    the images taken for it.

    Args:
        logits: Of validation images, [N, K].
        labels: Their classes, int64 [N].
        partners: For each class; the pairs are between K * partners / 2 and K * partners.

    >>> partner_pairs(torch.tensor([[3.0, 2, 0], [2, 3, 0], [0, 1, 3]]), torch.arange(3), 1)
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
