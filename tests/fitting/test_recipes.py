"""Which settings `fit` starts from, and what a user's own change in them."""

from pathlib import Path

import pytest

from semmix import SemmixError
from semmix.core.files import read_json
from semmix.core.runtime import Runtime
from semmix.core.settings import plain
from semmix.data.config import DatasetConfig
from semmix.diffusion.sampling import MixConfig
from semmix.fitting import FitConfig, fit
from semmix.fitting.recipes import demo, is_own, recipe_of, smoke_demo, with_given
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig

DEMO = Path(__file__).parents[2] / "results" / "demo"


def test_the_demo_learns_from_about_ten_images_of_each_digit():
    data = demo().data.load()
    assert len(data.train) == 100
    assert {9, 10, 11} >= set(data.train.class_counts(10))
    assert (len(data.val), len(data.test)) == (300, 1397)


def test_a_known_data_set_gets_time_for_its_generator_and_own_images_wait_for_a_plan(tmp_path):
    known, own = recipe_of("cifar10"), recipe_of(str(tmp_path / "photos"))
    assert (known.generator.minutes, known.generator.flip, known.sets_per_pair) == (25, True, 100)
    assert (known.even_out, known.partners) == (False, None)
    assert (own.generator.minutes, own.out) == (None, Path("runs/photos"))
    assert [is_own(name) for name in ("digits", "cifar10", "photos.csv", str(tmp_path), "fotos")] == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_given_settings_replace_those_they_name_and_no_others():
    base = demo()
    changed = with_given(base, {"seeds": 2, "train": {"epochs": 3}, "partners": None})
    assert (changed.seeds, changed.train.epochs) == (2, 3)
    assert with_given(changed, {"seeds": base.seeds, "train": {"epochs": base.train.epochs}}) == base
    whole = TrainConfig(epochs=7)
    assert with_given(base, {"train": whole}).train is whole
    assert with_given(base, {"train": {"options": {"weight": 2}}}).train.options == {"weight": 2}
    with pytest.raises(SemmixError, match="nothing to fit"):
        with_given(base, {"methods": ()})


def test_the_smoke_demo_is_the_demo_but_for_its_length():
    base, short = demo(), smoke_demo()
    assert (short.data, short.methods, short.train.classifier) == (base.data, base.methods, base.train.classifier)
    assert (short.seeds, short.train.epochs, short.sampler.num_steps) == (2, 2, 4)


def test_the_demo_trains_as_its_kept_runs_were_trained():
    """Settings that differ would make every number of docs/demo.md another."""
    base = demo()
    configs = {run.name: read_json(run / "config.json")["inputs"]["config"] for run in DEMO.iterdir()}
    assert configs.keys() == {f"{method}-{seed}" for method in base.methods for seed in range(base.seeds)}
    for name, config in configs.items():
        method, _, seed = name.partition("-")
        assert config == {**plain(base.train), "method": method, "seed": int(seed)}


def test_the_demo_draws_its_sets_in_minutes():
    base, short = demo(), smoke_demo()
    assert (base.out, base.sets_per_pair, base.sets_per_shard) == (Path("demo"), 20, 100)
    assert base.generator == GeneratorConfig(network="digits", num_images=20_000, batch_size=64)
    assert base.sampler == MixConfig(num_steps=10, batch_size=400)
    assert base.runtime == Runtime(checkpoint_seconds=5)
    assert short.generator == GeneratorConfig(network="digits", num_images=640, batch_size=64, num_grids=1)
    assert (short.sets_per_pair, short.sampler.batch_size) == (1, 400)


def test_what_is_not_set_is_as_the_help_says():
    config = FitConfig(data=DatasetConfig(dataset="digits"))
    assert (config.out, config.minutes, config.quality) == (Path("runs/fit"), None, "good")
    assert (config.methods, config.seeds, config.sets_per_pair) == (("ce", "csm"), 3, 20)
    assert (config.partners, config.even_out, config.sets_per_shard, config.scale) == (None, False, 1024, None)


@pytest.mark.parametrize(("name", "value"), [("methods", ()), ("seeds", 0), ("sets_per_pair", 0)])
def test_one_method_seed_and_set_are_something_to_fit(name, value):
    least = with_given(demo(), {"methods": ("ce",), "seeds": 1, "sets_per_pair": 1})
    with pytest.raises(SemmixError, match=f"nothing to fit: .*{name}="):
        with_given(least, {name: value})


def test_only_methods_that_learn_from_mixed_sets_need_them():
    base = demo()
    assert base.mixes
    assert with_given(base, {"methods": ("csm",)}).mixes
    assert not with_given(base, {"methods": ("ce", "mixup")}).mixes
    with pytest.raises(SemmixError, match="did you mean 'csm'"):
        assert with_given(base, {"methods": ("ce", "cms")}).mixes


def test_a_setting_nobody_knows_is_named(tmp_path):
    with pytest.raises(SemmixError, match=r"unknown setting of FitConfig: 'seed'\n.*did you mean 'seeds'"):
        fit("digits", tmp_path, seed=1)
    with pytest.raises(SemmixError, match="unknown setting of TrainConfig: 'epoch'"):
        fit("digits", tmp_path, train={"epoch": 1})


def test_a_known_data_set_is_not_taken_for_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "digits" / "cat").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert recipe_of("digits") == demo()
