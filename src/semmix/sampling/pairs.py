"""Which pairs of classes to mix: all of them, a list of one's own, or the confusable ones first."""

from __future__ import annotations

from torch import Tensor

from semmix._errors import SemmixError
from semmix.plan import all_pairs


def confusable_pairs(confusion: Tensor, num_pairs: int) -> tuple[tuple[int, int], ...]:
    """Return the `num_pairs` pairs a classifier mixes up most, the worst first.

    Args:
        confusion: Counts [K, K]: row the true class, column the answer. Rows are scaled to rates,
            so that frequent classes do not win by their number.
        num_pairs: How many pairs; a `MixPlan` cycles through them in this order.

    >>> import torch
    >>> confusable_pairs(torch.tensor([[8, 0, 2], [0, 10, 0], [1, 0, 9]]), 1)
    ((0, 2),)
    """
    num_classes = len(confusion)
    if confusion.shape != (num_classes, num_classes) or bool((confusion < 0).any()):
        fix = "pass counts [K, K], rows true classes, columns answers"
        raise SemmixError("not a confusion matrix", tuple(confusion.shape), fix)
    pairs = all_pairs(num_classes)
    if not 1 <= num_pairs <= len(pairs):
        fix = f"{num_classes} classes have {len(pairs)} pairs"
        raise SemmixError("no such number of pairs", num_pairs, fix)
    rates = confusion.double() / confusion.sum(1, keepdim=True).clamp(min=1)
    return tuple(
        sorted(pairs, key=lambda pair: -float(rates[pair] + rates[pair[::-1]]))[:num_pairs]
    )
