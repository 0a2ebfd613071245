"""Soft labels: how much of each class an image is said to show."""

import torch
from torch import Tensor

from semmix.core.errors import require

DEFAULT_LAMS = 8
"""Members of a mixed set: requested lambda at 0, 1/7, ..., 1, both pure ends included."""


def lambda_grid(num: int = DEFAULT_LAMS) -> tuple[float, ...]:
    """Return `num` equally spaced mixing weights from 0 to 1.

    Args:
        num: How many; at least 2, both ends included.

    Example:
        >>> lambda_grid(3)
        (0.0, 0.5, 1.0)
    """
    require(num >= 2, "a lambda grid needs both ends", num, "ask for at least 2 members")
    return tuple(k / (num - 1) for k in range(num))


def mix_labels(i, j, lam, num_classes: int) -> Tensor:
    """Return soft labels: lam * onehot(i) + (1 - lam) * onehot(j), as float32 `[..., num_classes]`.

    Args:
        i: Classes where lam = 1. Lists, arrays and tensors are accepted, and broadcast against each other.
        j: Classes where lam = 0.
        lam: Mixing weights in [0, 1].
        num_classes: Length of a label.

    Raises:
        SemmixError: If a class or a weight is out of range.

    Example:
        >>> mix_labels(0, 2, 0.25, num_classes=3).tolist()
        [0.25, 0.0, 0.75]
    """
    lam = torch.as_tensor(lam, dtype=torch.float32)
    i, j = (torch.as_tensor(c, dtype=torch.int64, device=lam.device) for c in (i, j))
    for name, c in (("i", i), ("j", j)):
        if c.numel():
            low, high = int(c.min()), int(c.max())
            fix = f"classes go from 0 to {num_classes - 1}"
            require(low >= 0 and high < num_classes, "class out of range", f"{name} from {low} to {high}", fix)
    if lam.numel():
        inside = bool(((lam >= 0) & (lam <= 1)).all())
        seen = f"{float(lam.min())} to {float(lam.max())}"
        require(inside, "lam must lie in [0, 1]", seen, "pass mixing weights, not scores")
    i, j, lam = torch.broadcast_tensors(i, j, lam)
    labels = lam.new_zeros((*lam.shape, num_classes))
    labels.scatter_add_(-1, i.unsqueeze(-1), lam.unsqueeze(-1))
    return labels.scatter_add_(-1, j.unsqueeze(-1), (1 - lam).unsqueeze(-1))
