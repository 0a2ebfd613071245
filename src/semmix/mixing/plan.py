"""Which mixed sets exist, which shard holds them, and their soft labels: pure arithmetic, the same on every machine.

Set `n` has pair `pairs[n % len(pairs)]`, so all pairs come equally often except in the last cycle, and a seed of its
own, so no set depends on what was generated before it. If there are fewer sets than pairs, the order of the pairs
decides which classes are seen: that of `tournament_pairs` is fair.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import torch
from torch import Tensor

from semmix.core.errors import require
from semmix.core.seeds import fold_seed

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


@dataclass(frozen=True, kw_only=True)
class MixPlan:
    """The mixed sets of one store.

    Raises:
        SemmixError: If there are no sets or no pairs, or a pair, a lambda or beta is out of range.

    Example:
        >>> plan = MixPlan(num_classes=3, num_sets=4, pairs=all_pairs(3), lams=lambda_grid(5))
        >>> [plan.pair(n) for n in range(4)], plan.set_lams(0)
        ([(0, 1), (0, 2), (1, 2), (0, 1)], (0.0, 0.25, 0.5, 0.75, 1.0))
    """

    num_classes: int
    """Classes of the data set."""
    num_sets: int
    """How many sets in all."""
    pairs: tuple[tuple[int, int], ...]
    """The pairs (i, j) to cycle through; lam = 1 is class i, lam = 0 class j."""
    lams: tuple[float, ...] = field(default_factory=lambda_grid)
    """Requested lambda of each member, in rising order. With `beta`, only their number counts."""
    beta: float | None = None
    """Draw the interior lambdas of every set from Beta(beta, beta) instead of the grid."""
    seed: int = 0
    """Seed of the whole store."""
    sets_per_shard: int = 1024
    """Sets in one file (1024 sets of 8 images of 32 x 32 are 25 MB)."""

    def __post_init__(self) -> None:
        seen = f"num_sets={self.num_sets}, sets_per_shard={self.sets_per_shard}"
        require(min(self.num_sets, self.sets_per_shard) >= 1, "a plan needs sets", seen, "both must be at least 1")
        require(self.pairs, "a plan needs pairs", self.pairs, "use all_pairs(num_classes)")
        for i, j in self.pairs:
            valid = i != j and 0 <= i < self.num_classes and 0 <= j < self.num_classes
            fix = f"two different classes from 0 to {self.num_classes - 1}"
            require(valid, "not a pair of classes", (i, j), fix)
        rise = all(low <= high for low, high in pairwise((0.0, *self.lams, 1.0)))
        require(self.lams and rise, "lams must rise within [0, 1]", self.lams, "sort them")
        if self.beta is not None:
            require(len(self.lams) >= 2, "a drawn set has two ends", self.lams, "ask for 2 members or more")
            fix = "choose one, such as 1, or leave it out for the grid"
            require(0 < self.beta < math.inf, "beta must be positive and finite", self.beta, fix)

    @property
    def num_shards(self) -> int:
        """Files in the store."""
        return math.ceil(self.num_sets / self.sets_per_shard)

    @property
    def set_size(self) -> int:
        """Images in one set."""
        return len(self.lams)

    def shard(self, k: int) -> range:
        """The sets that shard `k` holds."""
        return range(self.num_sets)[k * self.sets_per_shard : (k + 1) * self.sets_per_shard]

    def shards_of(self, rank: int, world_size: int) -> range:
        """The shards that process `rank` of `world_size` makes."""
        return range(rank, self.num_shards, world_size)

    def pair(self, n: int) -> tuple[int, int]:
        """The classes (i, j) of set `n`."""
        return self.pairs[n % len(self.pairs)]

    def set_seed(self, n: int) -> int:
        """The seed of set `n`'s noise."""
        return fold_seed("mixed set", self.seed, n)

    def set_lams(self, n: int) -> tuple[float, ...]:
        """Requested lambda of each member of set `n`, rising; the two ends are always kept."""
        if self.beta is None:
            return self.lams
        draw = random.Random(fold_seed("lams", self.seed, n))
        inner = sorted(draw.betavariate(self.beta, self.beta) for _ in self.lams[1:-1])
        return (0.0, *inner, 1.0)

    @classmethod
    def from_json(cls, value: dict) -> MixPlan:
        """Return the plan that a store's manifest records."""
        return cls(**{**value, "pairs": tuple((i, j) for i, j in value["pairs"]), "lams": tuple(value["lams"])})


def all_pairs(num_classes: int) -> tuple[tuple[int, int], ...]:
    """Return every pair i < j.

    >>> all_pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple(combinations(range(num_classes), 2))


def tournament_pairs(num_classes: int) -> tuple[tuple[int, int], ...]:
    """Return every pair i < j by rounds of a tournament: each shows every class once, but for one of an odd number.

    >>> tournament_pairs(4)
    ((0, 3), (1, 2), (0, 1), (2, 3), (0, 2), (1, 3))
    """
    # The circle method: the first keeps its seat, the others move on by one, opposite seats meet.
    half = (num_classes + 1) // 2
    movers = list(range(1, 2 * half))
    pairs = []
    for turn in range(len(movers)):
        seats = [0, *movers[turn:], *movers[:turn]]
        meetings = zip(seats[:half], reversed(seats[half:]), strict=True)
        pairs += [(min(pair), max(pair)) for pair in meetings if max(pair) < num_classes]
    return tuple(pairs)


def fair_pairs(num_classes: int, num_sets: int) -> tuple[tuple[int, int], ...]:
    """Return every pair i < j, in an order in which even few sets show all classes equally often."""
    pairs = all_pairs(num_classes)
    return pairs if num_sets >= len(pairs) else tournament_pairs(num_classes)


def confusable_pairs(confusion: Tensor, num_pairs: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the `num_pairs` pairs a classifier mixes up most, the worst first.

    Rows of the counts [K, K] are true classes, columns predicted ones; rows are scaled to rates, so that frequent
    classes do not win by their number.

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
    """Return every class paired with the `partners` classes a classifier confuses it with most, by validation logits.

    Confusion is the probability given to the other class, averaged over a class's images and taken both ways. So it
    tells apart pairs that are never mistaken outright, and a rare class without a validation image is still judged by
    the images taken for it.

    >>> partner_pairs(torch.tensor([[3.0, 2, 0], [2, 3, 0], [0, 1, 3]]), torch.arange(3), 1)
    ((0, 1), (1, 2))
    """
    num_classes = logits.shape[1]
    taken_for = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    taken_for.index_add_(0, labels, logits.double().softmax(1))
    taken_for /= torch.bincount(labels, minlength=num_classes).clamp(min=1)[:, None]
    confusion = (taken_for + taken_for.T).fill_diagonal_(-1)
    nearest = confusion.topk(min(partners, num_classes - 1), dim=1).indices
    pairs = {(min(i, j), max(i, j)) for i, row in enumerate(nearest.tolist()) for j in row}
    return tuple(sorted(pairs, key=lambda pair: (-float(confusion[pair]), pair)))


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
