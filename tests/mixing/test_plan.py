"""The plan is arithmetic: every set in one shard, the same on every machine."""

import pytest

from semmix import SemmixError
from semmix.core.settings import plain
from semmix.mixing.plan import MixPlan, all_pairs, fair_pairs, tournament_pairs


def plan(**changes) -> MixPlan:
    settings = {"num_classes": 4, "num_sets": 23, "pairs": all_pairs(4), "sets_per_shard": 4}
    return MixPlan(**{**settings, **changes})


def test_shards_partition_the_sets():
    p = plan()
    assert [n for k in range(p.num_shards) for n in p.shard(k)] == list(range(23))
    assert len(p.shard(p.num_shards - 1)) == 3


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_partition_the_shards(world_size):
    p = plan()
    shards = [k for rank in range(world_size) for k in p.shards_of(rank, world_size)]
    assert sorted(shards) == list(range(p.num_shards))


def test_any_prefix_covers_all_pairs():
    p = plan()
    assert {p.pair(n) for n in range(len(p.pairs))} == set(all_pairs(4))


@pytest.mark.parametrize("num_classes", [*range(2, 12), 46, 101])
def test_any_prefix_of_a_tournament_covers_all_classes(num_classes):
    pairs = tournament_pairs(num_classes)
    assert sorted(pairs) == list(all_pairs(num_classes))
    counts = [0] * num_classes
    for i, j in pairs:
        counts[i] += 1
        counts[j] += 1
        assert max(counts) - min(counts) <= 1 + num_classes % 2


def test_sets_that_are_fewer_than_pairs_take_them_in_the_fair_order():
    assert fair_pairs(4, 6) == all_pairs(4)
    assert fair_pairs(4, 5) == tournament_pairs(4) != all_pairs(4)


def test_fewer_than_two_classes_have_no_pairs():
    assert tournament_pairs(0) == tournament_pairs(1) == ()


def test_set_seeds_differ_and_depend_on_the_store_seed():
    seeds = {plan(seed=s).set_seed(n) for s in (0, 1) for n in range(23)}
    assert len(seeds) == 46


def test_seed_is_pinned():
    """Changing how seeds are made would silently change every store."""
    assert plan().set_seed(0) == 1936167655743071699
    assert plan(seed=3).set_seed(5) == 1978840015931179720


def test_drawn_lams_are_pinned():
    lams = plan(seed=3, beta=0.4, lams=(0.0, 0.5, 0.5, 1.0)).set_lams(5)
    assert lams == pytest.approx((0.0, 0.4485375122134223, 0.8607056395341154, 1.0), abs=1e-15)


def test_beta_draws_keep_the_ends_and_rise():
    p = plan(beta=0.4)
    for n in range(23):
        lams = p.set_lams(n)
        assert lams[0] == 0
        assert lams[-1] == 1
        assert list(lams) == sorted(lams)
        assert len(lams) == p.set_size
    assert p.set_lams(0) != p.set_lams(1)
    assert p.set_lams(3) == plan(beta=0.4).set_lams(3)


def test_json_round_trip():
    p = plan(beta=2.0, seed=7)
    assert MixPlan.from_json(plain(p)) == p


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_sets": 0}, "needs sets"),
        ({"sets_per_shard": 0}, "needs sets"),
        ({"pairs": ()}, "needs pairs"),
        ({"pairs": ((1, 1),)}, "not a pair"),
        ({"pairs": ((0, 4),)}, "not a pair"),
        ({"pairs": ((4, 0),)}, "not a pair"),
        ({"pairs": ((0, -1),)}, "not a pair"),
        ({"pairs": ((-1, 0),)}, "not a pair"),
        ({"lams": (1.0, 0.0)}, "rise"),
        ({"lams": (0.0, 1.5)}, "rise"),
        ({"lams": ()}, "rise"),
        ({"lams": (0.0, float("nan"), 1.0)}, "rise"),
        ({"lams": (0.5,), "beta": 1.0}, "two ends"),
        ({"beta": -1.0}, "positive"),
        ({"beta": 0.0}, "positive"),
        ({"beta": float("nan")}, "positive"),  # drawing from it would never end
        ({"beta": float("inf")}, "positive"),
    ],
)
def test_impossible_plans_are_refused(changes, words):
    with pytest.raises(SemmixError, match=words):
        plan(**changes)


def test_the_smallest_plans_are_plans():
    assert plan(num_sets=1, sets_per_shard=1).num_shards == 1
    assert plan(lams=(0.5,)).set_lams(0) == (0.5,)
    assert plan(lams=(0.0, 1.0), beta=1.0).set_lams(0) == (0.0, 1.0)
    assert plan(pairs=((3, 0), (0, 3))).pair(2) == (3, 0)


def test_the_defaults_name_the_stores_made_with_them():
    assert plain(MixPlan(num_classes=3, num_sets=1, pairs=((0, 1),))) == {
        "num_classes": 3,
        "num_sets": 1,
        "pairs": [[0, 1]],
        "lams": [k / 7 for k in range(8)],
        "beta": None,
        "seed": 0,
        "sets_per_shard": 1024,
    }
