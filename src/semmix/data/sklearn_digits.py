"""The digits of scikit-learn: 1,797 handwritten digits of 8 x 8 pixels, no download needed."""

import numpy as np
import torch

from semmix.core.errors import SemmixError
from semmix.data.dataset import Dataset, Split
from semmix.data.splitting import stratified_order

# Few training images, so that over-confidence is real.
NUM_TRAIN = 300
NUM_VAL = 300


def load_digits(seed: int, train_size: int | None) -> Dataset:
    """Return the digits: `train_size` (300) to train, 300 to choose, all others to test."""
    every = _all_digits()
    num_train = NUM_TRAIN if train_size is None else train_size
    if not 0 < num_train < len(every) - NUM_VAL:
        fix = f"choose 1 to {len(every) - NUM_VAL - 1}"
        raise SemmixError("train_size does not fit the digits", train_size, fix)
    val, train, test = stratified_order(every, seed).tensor_split([NUM_VAL, NUM_VAL + num_train])
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", names, every.select(train), every.select(val), every.select(test))


def _all_digits() -> Split:
    from sklearn.datasets import load_digits as load_from_sklearn

    pixels, labels = load_from_sklearn(return_X_y=True)  # grey values 0..16, [1797, 64]
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
