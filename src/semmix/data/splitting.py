"""Seeded splits and long tails.

Every choice is an order of images that depends on the seed and on the images themselves, not on the order in which they
arrived or on a library's random stream: the same data set, had by whatever route, is always split the same way.
"""

from collections import Counter
from collections.abc import Sequence

import torch

from semmix.core.errors import require
from semmix.core.seeds import fold_seed
from semmix.data.dataset import Split

PROTOCOLS = ("code", "paper")
VAL_FRACTION = 0.1


def seeded_order(split: Split, seed: int, purpose: str = "split") -> torch.Tensor:
    """Return a shuffle of the split's indices."""
    keys = [fold_seed(purpose, seed, digest.hex()) for digest in split.image_digests]
    return torch.tensor(sorted(range(len(keys)), key=keys.__getitem__), dtype=torch.int64)


def stratified_order(split: Split, seed: int, purpose: str = "split") -> torch.Tensor:
    """Return a shuffle of which every prefix holds the classes in their overall proportions."""
    order = seeded_order(split, seed, purpose)
    labels = split.labels[order]
    position = torch.empty(len(order), dtype=torch.float64)  # of each image within its class
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        position[members] = (torch.arange(len(members)) + 0.5).double() / len(members)
    return order[torch.argsort(position, stable=True)]


def split_parts(train: Split, test: Split, protocol: str, seed: int, stratified: bool) -> tuple[Split, Split, Split]:
    """Return train, val and test made of the official training and test parts.

    `code`: a tenth of the training part becomes val, the test part stays whole.
    `paper`: the training part stays whole, the test part is halved into val and test.
    """
    order = stratified_order if stratified else seeded_order
    if protocol == "code":
        shuffled = order(train, seed)
        num_val = round(VAL_FRACTION * len(train))
        return train.select(shuffled[num_val:]), train.select(shuffled[:num_val]), test
    shuffled = order(test, seed)
    half = len(test) // 2
    whole = train.select(seeded_order(train, seed))
    return whole, test.select(shuffled[:half]), test.select(shuffled[half:])


def hold_out(
    split: Split, groups: torch.Tensor, nums: Sequence[int], seed: int, largest_share: float = 0.5
) -> list[torch.Tensor]:
    """Return the rows of parts of `nums` images, the classes in their proportions, then the rest.

    Images of one group, those with the same number in `groups` [N], stay together: where a group does not fit,
    a part may stay a little smaller. Without groups the parts are the beginning of `stratified_order`. At most
    `largest_share` of a class leaves the rest.
    """
    order = stratified_order(split, seed)
    labels, names = split.labels.tolist(), groups.tolist()
    members: dict[int, list[int]] = {}
    for row, name in enumerate(names):
        members.setdefault(name, []).append(labels[row])
    room, part_of = list(nums), {}
    spare = {k: largest_share * n for k, n in Counter(labels).items()}
    for name in dict.fromkeys(names[row] for row in order.tolist()):
        held = Counter(members[name])
        fitting = [k for k, free in enumerate(room) if held.total() <= free]
        if fitting and all(n <= spare[label] for label, n in held.items()):
            part_of[name] = fitting[0]
            room[fitting[0]] -= held.total()
            for label, n in held.items():
                spare[label] -= n
    parts = torch.tensor([part_of.get(names[row], len(nums)) for row in order.tolist()])
    return [order[parts == k] for k in range(len(nums) + 1)]


def take(split: Split, size: int, seed: int) -> Split:
    """Return `size` images of the split, the classes in their proportions."""
    fits = 0 < size <= len(split)
    require(fits, "train_size does not fit the training split", size, f"choose 1 to {len(split)}")
    return split.select(stratified_order(split, seed, "train_size")[:size])


def long_tail_counts(num_max: int, num_classes: int, imbalance: float) -> list[int]:
    """Return n_k = floor(n_max * imbalance^(-k / (K - 1))), the sizes of an exponential tail."""
    require(imbalance >= 1, "imbalance must be at least 1", imbalance, "10 or 100 are usual")
    last = max(num_classes - 1, 1)
    sizes = [num_max * (1 / imbalance) ** (k / last) for k in range(num_classes)]
    return [int(round(size, 9)) for size in sizes]  # 49 / 49 is 0.9999999999999999 here


def long_tail(split: Split, num_classes: int, imbalance: float, seed: int) -> Split:
    """Return the split cut to an exponential tail over the classes.

    The head takes as many images as the smallest class has, so that the sizes follow the formula
    exactly even where a random split left the classes a little uneven.
    """
    num_max = min(split.class_counts(num_classes))
    counts = long_tail_counts(num_max, num_classes, imbalance)
    what = f"imbalance leaves class {num_classes - 1} without an image"
    require(counts[-1], what, f"{imbalance:g} for classes of {num_max} images", f"choose at most {num_max}")
    order = seeded_order(split, seed, "long tail")
    labels = split.labels[order]
    kept = [order[labels == k][:count] for k, count in enumerate(counts)]
    return split.select(torch.cat(kept).sort().values)
