import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semmix import SemmixError
from semmix.data import Split, long_tail_counts
from semmix.data.splitting import hold_out, long_tail, seeded_order, split_parts, stratified_order, take


def shuffled(split, seed=5):
    return split.select(torch.randperm(len(split), generator=torch.Generator().manual_seed(seed)))


def test_an_order_depends_on_seed_and_images_not_on_arrival(make_split):
    split = make_split()
    order = seeded_order(split, 0)
    assert sorted(order.tolist()) == list(range(len(split)))
    assert not torch.equal(order, seeded_order(split, 1))
    other = shuffled(split)
    assert other.select(seeded_order(other, 0)).digest == split.select(order).digest


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=5), share=st.floats(0, 1), seed=...)
def test_every_prefix_of_a_stratified_order_is_in_proportion(counts: list[int], share: float, seed: int):
    labels = torch.cat([torch.full((count,), k) for k, count in enumerate(counts)])
    images = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    split = Split(images, labels)
    order = stratified_order(split, seed)
    assert sorted(order.tolist()) == list(range(len(split)))
    prefix = split.select(order[: round(share * len(split))])
    for count, have in zip(counts, prefix.class_counts(len(counts)), strict=True):
        wanted = count * len(prefix) / len(split)
        # Each class is rounded by half an image at most; the others' rounding shifts the cut.
        assert abs(have - wanted) <= 0.5 + count / len(split) * len(counts) / 2 + 1e-9


def test_code_protocol_holds_out_a_tenth_of_train(make_split):
    whole, official_test = make_split(per_class=50), make_split(per_class=10, seed=1)
    train, val, test = split_parts(whole, official_test, "code", seed=0, stratified=False)
    assert (len(train), len(val)) == (180, 20)
    assert test is official_test
    both = Split(torch.cat([train.images, val.images]), torch.cat([train.labels, val.labels]))
    assert both.order_free_digest == whole.order_free_digest


def test_a_tenth_is_rounded(make_split):
    whole, official_test = make_split(per_class=24), make_split(per_class=10, seed=1)
    train, val, _ = split_parts(whole, official_test, "code", seed=0, stratified=False)
    assert (len(train), len(val)) == (86, 10)  # of 96


def test_stratified_code_protocol_takes_the_same_share_of_every_class(make_split):
    whole, official_test = make_split(per_class=50), make_split(per_class=10, seed=1)
    train, val, _ = split_parts(whole, official_test, "code", seed=0, stratified=True)
    assert train.class_counts(4) == [45] * 4
    assert val.class_counts(4) == [5] * 4


def test_paper_protocol_halves_the_test_part(make_split):
    whole, official_test = make_split(per_class=50), make_split(per_class=10, seed=1)
    train, val, test = split_parts(whole, official_test, "paper", seed=0, stratified=False)
    assert train.order_free_digest == whole.order_free_digest
    assert (len(val), len(test)) == (20, 20)
    both = Split(torch.cat([val.images, test.images]), torch.cat([val.labels, test.labels]))
    assert both.order_free_digest == official_test.order_free_digest


@pytest.mark.parametrize("protocol", ["code", "paper"])
def test_training_split_is_the_same_whatever_the_order_of_arrival(make_split, protocol):
    whole, official_test = make_split(), make_split(seed=1)
    one = split_parts(whole, official_test, protocol, seed=0, stratified=False)
    two = split_parts(shuffled(whole), official_test, protocol, seed=0, stratified=False)
    assert [a.digest for a in one] == [b.digest for b in two]


def test_choices_never_change():
    """Recorded: a change here changes everyone's results."""
    images = torch.arange(100, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    whole, official_test = (Split(images, torch.arange(100) % 4), Split(images, torch.arange(100) % 2))
    chosen = [
        *split_parts(whole, official_test, "code", seed=1, stratified=False)[:2],
        *split_parts(whole, official_test, "paper", seed=1, stratified=False),
        take(whole, 30, seed=1),
        long_tail(whole, 4, imbalance=5, seed=1),
    ]
    recorded = "1adf6a90 1cbda9ca 4406ec36 b54e6a55 7a91e19d 04ca72c1 627cbd34"
    assert " ".join(split.digest[:8] for split in chosen) == recorded


def test_take_keeps_the_proportions_and_refuses_too_many(make_split):
    split = make_split()
    assert take(split, 40, seed=0).class_counts(4) == [10] * 4
    rows = torch.arange(len(split))
    uneven = split.select(rows[(split.labels > 0) | (rows < 20)])
    assert uneven.class_counts(4) == [5, 25, 25, 25]
    assert take(uneven, 16, seed=0).class_counts(4) == [1, 5, 5, 5]
    assert take(split, 100, seed=0).order_free_digest == split.order_free_digest
    assert len(take(split, 1, seed=0)) == 1
    for size in (0, 101):
        with pytest.raises(SemmixError, match="train_size"):
            take(split, size, seed=0)


@pytest.mark.parametrize(
    ("num_classes", "num_max", "imbalance", "total"),
    [(10, 5000, 10, 20431), (10, 5000, 100, 12406), (100, 500, 10, 19573), (100, 500, 100, 10847)],
)
def test_long_tail_counts_are_the_published_ones(num_classes, num_max, imbalance, total):
    counts = long_tail_counts(num_max, num_classes, imbalance)
    assert sum(counts) == total
    assert counts[0] == num_max
    assert counts[-1] == num_max // imbalance


def test_long_tail_counts_of_cifar10_lt():
    expected = [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
    assert long_tail_counts(5000, 10, 10) == expected
    assert long_tail_counts(5000, 10, 1) == [5000] * 10


def test_the_largest_imbalance_leaves_one_image():
    assert all(long_tail_counts(num, 2, num) == [num, 1] for num in range(1, 200))


def test_long_tail_is_seeded_and_measured_by_the_smallest_class(make_split):
    split = make_split(per_class=40)
    uneven = split.select(torch.arange(1, len(split)))  # class 0 has one image less
    tail = long_tail(uneven, 4, imbalance=10, seed=0)
    assert tail.class_counts(4) == long_tail_counts(39, 4, 10)
    assert tail.digest == long_tail(uneven, 4, imbalance=10, seed=0).digest
    assert tail.digest != long_tail(uneven, 4, imbalance=10, seed=1).digest
    assert set(tail.image_digests) < set(uneven.image_digests)


def test_impossible_tails_are_refused(make_split):
    with pytest.raises(SemmixError, match="without an image"):
        long_tail(make_split(per_class=5), 4, imbalance=10, seed=0)
    for imbalance in (0.1, float("nan")):
        with pytest.raises(SemmixError, match="at least 1"):
            long_tail_counts(10, 4, imbalance)
    with pytest.raises(SemmixError, match="without an image"):
        long_tail(make_split(per_class=5), 4, imbalance=float("inf"), seed=0)


@given(sizes=st.lists(st.integers(1, 12), min_size=8, max_size=40), seed=st.integers(0, 9))
def test_held_out_parts_never_divide_a_group_nor_empty_a_class(sizes: list[int], seed: int):
    groups = torch.cat([torch.full((size,), k) for k, size in enumerate(sizes)])
    labels = groups % 3
    images = torch.arange(len(labels), dtype=torch.int64).to(torch.uint8).reshape(-1, 1, 1, 1)
    split = Split(images, labels)
    num = round(0.15 * len(split))
    val, test, train = hold_out(split, groups, [num, num], seed)
    assert sorted(torch.cat([val, test, train]).tolist()) == list(range(len(split)))
    assert len(val) <= num
    assert len(test) <= num
    parts = [set(groups[rows].tolist()) for rows in (val, test, train)]
    assert not parts[0] & parts[1]
    assert not parts[2] & (parts[0] | parts[1])
    for label in range(3):
        assert 2 * int((labels[train] == label).sum()) >= int((labels == label).sum())


def test_without_groups_parts_are_the_beginning_of_the_stratified_order(make_split):
    split = make_split()
    val, test, train = hold_out(split, torch.arange(100), [15, 15], seed=3)
    assert torch.equal(torch.cat([val, test, train]), stratified_order(split, 3))


def test_of_two_images_of_a_class_one_may_be_held_out(make_split):
    split = make_split(num_classes=8, per_class=2)
    val, train = hold_out(split, torch.arange(16), [8], seed=0)
    assert sorted(split.labels[val].tolist()) == sorted(split.labels[train].tolist()) == [*range(8)]


def test_copies_in_two_classes_are_held_out_only_if_both_can_spare_them(make_split):
    """The only image of class 2 is a copy of one of class 0, which has many."""
    split = make_split(num_classes=2, per_class=10)
    labels, groups = split.labels.clone(), torch.arange(20)
    labels[1], groups[1] = 2, 0
    for seed in range(20):
        *_, train = hold_out(Split(split.images, labels), groups, [5, 5], seed)
        assert {0, 1} <= set(train.tolist())


def test_a_class_of_one_image_is_learned(make_split):
    split = make_split(num_classes=2, per_class=10)
    labels = split.labels.clone()
    labels[0] = 2
    *held, train = hold_out(Split(split.images, labels), torch.arange(20), [3, 3], seed=0)
    assert 2 in labels[train].tolist()
    assert 2 not in labels[torch.cat(held)].tolist()
