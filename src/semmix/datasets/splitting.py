"""Seeded splits and long tails.

Every choice is an order of images that depends on the seed and on the images themselves, not on the
order in which they arrived or on a library's random stream: the same data set, had by whatever
route, is always split the same way.
"""

import torch

from semmix._errors import SemmixError
from semmix._random import fold_seed
from semmix.datasets.dataset import Split

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


def split_parts(
    train: Split, test: Split, protocol: str, seed: int, stratified: bool
) -> tuple[Split, Split, Split]:
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


def take(split: Split, size: int, seed: int) -> Split:
    """Return `size` images of the split, the classes in their proportions."""
    if not 0 < size <= len(split):
        raise SemmixError(
            "train_size does not fit the training split", size, f"choose 1 to {len(split)}"
        )
    return split.select(stratified_order(split, seed, "train_size")[:size])


def long_tail_counts(num_max: int, num_classes: int, imbalance: float) -> list[int]:
    """Return n_k = floor(n_max * imbalance^(-k / (K - 1))), the sizes of an exponential tail."""
    if imbalance < 1:
        raise SemmixError("imbalance must be at least 1", imbalance, "10 or 100 are usual")
    last = max(num_classes - 1, 1)
    return [int(num_max * (1 / imbalance) ** (k / last)) for k in range(num_classes)]


def long_tail(split: Split, num_classes: int, imbalance: float, seed: int) -> Split:
    """Return the split cut to an exponential tail over the classes.

    The head takes as many images as the smallest class has, so that the sizes follow the formula
    exactly even where a random split left the classes a little uneven.
    """
    num_max = min(split.class_counts(num_classes))
    counts = long_tail_counts(num_max, num_classes, imbalance)
    if counts[-1] == 0:
        raise SemmixError(
            f"imbalance leaves class {num_classes - 1} without an image",
            f"{imbalance:g} for classes of {num_max} images",
            f"choose at most {num_max}",
        )
    order = seeded_order(split, seed, "long tail")
    labels = split.labels[order]
    kept = [order[labels == k][:count] for k, count in enumerate(counts)]
    return split.select(torch.cat(kept).sort().values)
