from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from semmix import SemmixError
from semmix.data import list_datasets, load_dataset
from semmix.data.dataset import Parts
from semmix.data.library import save_parts


def test_digits_are_scikit_learns():
    dataset = load_dataset("digits")
    assert [len(split) for split in dataset.splits.values()] == [300, 300, 1197]
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.class_names == tuple("0123456789")
    pixels, labels = load_digits(return_X_y=True)
    expected = {
        (int(label), tuple(np.rint(image * 255 / 16).astype(int))) for image, label in zip(pixels, labels, strict=True)
    }
    found = {
        (label, tuple(image))
        for split in dataset.splits.values()
        for image, label in zip(split.images.flatten(1).tolist(), split.labels.tolist(), strict=True)
    }
    assert found == expected


def test_digits_splits_never_change():
    """Recorded: a change here changes everyone's results."""
    found = [split.digest[:16] for split in load_dataset("digits").splits.values()]
    assert found == ["f8e8cb70c7ca5a07", "4e0ecf0004f6040e", "d30e5210567df8da"]


def test_digits_are_stratified_disjoint_and_seeded():
    dataset = load_dataset("digits", seed=1)
    assert dataset.train.digest != load_dataset("digits", seed=2).train.digest
    assert min(dataset.train.class_counts(10)) >= 28
    assert max(dataset.train.class_counts(10)) <= 32
    train, val, test = (set(split.image_digests) for split in dataset.splits.values())
    assert not train & val
    assert not (train | val) & test


def test_more_or_fewer_training_digits():
    small, large = load_dataset("digits", train_size=100), load_dataset("digits", train_size=500)
    assert (len(small.train), len(large.train)) == (100, 500)
    assert small.val.digest == large.val.digest
    assert set(small.train.image_digests) < set(large.train.image_digests)
    assert len(large.test) == 1797 - 300 - 500
    for size in (0, 1497):
        with pytest.raises(SemmixError, match="choose 1 to 1496"):
            load_dataset("digits", train_size=size)


def test_long_tailed_and_scaled_digits():
    dataset = load_dataset("digits", imbalance=10, size=16)
    counts = dataset.train.class_counts(10)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] // counts[-1] >= 10
    assert dataset.image_shape == (1, 16, 16)
    assert len(dataset.test) == 1197


@pytest.mark.parametrize(("name", "near"), [("digit", "digits"), ("cifra10", "cifar10"), ("cifar-100", "cifar100")])
def test_misspelt_names_are_answered_with_near_ones(name, near):
    with pytest.raises(SemmixError, match=f"did you mean .*'{near}'"):
        load_dataset(name)


def test_misspelt_protocol():
    with pytest.raises(SemmixError, match="did you mean 'paper'"):
        load_dataset("digits", protocol="papers")


def test_impossible_size():
    with pytest.raises(SemmixError, match="size must be at least 1"):
        load_dataset("digits", size=0)


def test_known_data_set_that_is_not_here(tmp_path):
    with pytest.raises(SemmixError, match="semmix data get fashion-mnist"):
        load_dataset("fashion-mnist", root=tmp_path)


def test_list_datasets():
    assert list_datasets() == ["cifar10", "cifar100", "digits", "fashion-mnist", "tiny-imagenet", "tiny-imagenet-val"]


@pytest.fixture
def stored(make_split, tmp_path):
    parts = Parts({"train": make_split(per_class=100), "test": make_split(seed=1)}, tuple("abcd"))
    for name in ("cifar10", "tiny-imagenet"):
        save_parts(name, parts, "here", tmp_path)
    only_test = replace(parts, splits={"test": parts.splits["test"]})
    save_parts("tiny-imagenet-val", only_test, "here", tmp_path)
    return tmp_path


def test_stored_data_set_under_both_protocols(stored):
    code = load_dataset("cifar10", root=stored)
    assert [len(split) for split in code.splits.values()] == [360, 40, 100]
    paper = load_dataset("cifar10", root=stored, protocol="paper")
    assert [len(split) for split in paper.splits.values()] == [400, 50, 50]
    tiny = load_dataset("tiny-imagenet", root=stored)
    assert tiny.val.class_counts(4) == [10] * 4


def test_root_comes_from_the_environment(stored, monkeypatch):
    monkeypatch.setenv("SEMMIX_DATA", str(stored))
    assert len(load_dataset("cifar10").test) == 100


def test_train_size_and_imbalance_of_a_stored_data_set(stored):
    assert load_dataset("tiny-imagenet", root=stored, train_size=40).train.class_counts(4) == [10] * 4
    tail = load_dataset("tiny-imagenet", root=stored, imbalance=9)
    assert tail.train.class_counts(4) == [90, 43, 20, 10]
    assert len(tail.val) == 40


def test_a_data_set_to_test_on_only(stored):
    dataset = load_dataset("tiny-imagenet-val", root=stored, size=3)
    assert [len(split) for split in dataset.splits.values()] == [0, 0, 100]
    assert dataset.image_shape == (3, 3, 3)
    assert dataset.train.images.shape == (0, 3, 3, 3)
    assert dataset.train.images.dtype == torch.uint8
