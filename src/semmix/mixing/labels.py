"""Soft labels: how much of each class an image is said to show."""

from __future__ import annotations

import torch
from torch import Tensor

from semmix.core.errors import SemmixError

DEFAULT_LAMS = 8
"""Members of a mixed set: requested lambda at 0, 1/7, ..., 1, both pure ends included."""


def lambda_grid(num: int = DEFAULT_LAMS) -> tuple[float, ...]:
    """Return `num` equally spaced mixing weights from 0 to 1.

    >>> lambda_grid(3)
    (0.0, 0.5, 1.0)
    """
    if num < 2:
        raise SemmixError("a lambda grid needs both ends", num, "ask for at least 2 members")
    return tuple(k / (num - 1) for k in range(num))


def mix_labels(i, j, lam, num_classes: int) -> Tensor:
    """Return lam * onehot(i) + (1 - lam) * onehot(j), as float32 `[..., num_classes]`.

    `i`, `j` and `lam` broadcast against each other; lists, arrays and tensors are accepted.

    >>> mix_labels(0, 2, 0.25, num_classes=3).tolist()
    [0.25, 0.0, 0.75]
    """
    lam = torch.as_tensor(lam, dtype=torch.float32)
    i, j = (torch.as_tensor(c, dtype=torch.int64, device=lam.device) for c in (i, j))
    _check(i, j, lam, num_classes)
    i, j, lam = torch.broadcast_tensors(i, j, lam)
    labels = lam.new_zeros((*lam.shape, num_classes))
    labels.scatter_add_(-1, i.unsqueeze(-1), lam.unsqueeze(-1))
    return labels.scatter_add_(-1, j.unsqueeze(-1), (1 - lam).unsqueeze(-1))


def _check(i: Tensor, j: Tensor, lam: Tensor, num_classes: int) -> None:
    for name, c in (("i", i), ("j", j)):
        if c.numel() and not (int(c.min()) >= 0 and int(c.max()) < num_classes):
            seen = f"{name} from {int(c.min())} to {int(c.max())}"
            raise SemmixError("class out of range", seen, f"classes go from 0 to {num_classes - 1}")
    if lam.numel() and not bool(((lam >= 0) & (lam <= 1)).all()):
        seen = f"{float(lam.min())} to {float(lam.max())}"
        raise SemmixError("lam must lie in [0, 1]", seen, "pass mixing weights, not scores")
