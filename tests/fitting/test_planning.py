"""Plans: they fit their time by the cost model, and say what is not possible."""

import json
import math
import re
from dataclasses import asdict, replace

import pytest
import torch

from semmix import SemmixError
from semmix.diffusion.edm import EDMDenoiser, network_preset
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.planning import MEMBERS, MINUTES, FitPlan, PlanInputs, _time, candidates, choose_size, make_plan
from semmix.mixing.plan import all_pairs
from semmix.training.speed import Speed, measure_speed

SLOW = Speed(classifiers={"resnet32": 1 / 160, "small": 1 / 600}, generator=1 / 90, drawing=1 / 250)
FAST = Speed(classifiers={"resnet18": 1e-5}, generator=1e-5, drawing=1e-6)


def inputs(num_train=1120, counts=None, num_val=240, size=32, on_gpu=False):
    counts = counts or [num_train // 4] * 4
    return PlanInputs(
        num_train=sum(counts), num_val=num_val, class_counts=counts, size=size, may_mirror=True, on_gpu=on_gpu
    )


def seconds_of(plan: FitPlan, num_train: int, num_classes: int) -> float:
    """What the plan's settings cost, counted anew."""
    epochs = plan.train.epochs * SLOW.classifiers[plan.train.classifier]
    passes = sum({"ce": 1, "csm": 3}[name] for name in plan.methods)
    training = plan.seeds * passes * epochs * num_train
    if "csm" not in plan.methods:
        return training
    pairs = len(all_pairs(num_classes)) if plan.partners is None else num_classes * plan.partners
    drawn = plan.sets_per_pair * pairs * MEMBERS * plan.sampler.num_steps * SLOW.drawing
    return training + drawn + plan.generator.num_images * SLOW.generator


@pytest.mark.parametrize("minutes", [3, 10, 30, 120])
@pytest.mark.parametrize("quality", list(MINUTES))
@pytest.mark.parametrize("counts", [[280] * 4, [100, 110], [20] * 60, [2000, 400, 40]])
def test_a_plan_fits_its_time(minutes, quality, counts):
    plan = make_plan(inputs(counts=counts), SLOW, quality, minutes)
    assert seconds_of(plan, sum(counts), len(counts)) <= 60 * minutes
    assert sum(plan.minutes.values()) <= minutes
    assert "longer than" not in " ".join(plan.words)


def test_more_time_is_used():
    short, long = (make_plan(inputs(), SLOW, "good", minutes) for minutes in (10, 120))
    assert long.generator.num_images > 2 * short.generator.num_images
    assert long.sets_per_pair >= short.sets_per_pair
    assert (short.train.classifier, long.train.classifier) == ("small", "resnet32")


@pytest.mark.parametrize(("size", "num_sets"), [(32, 25_000), (128, 5_461)])
def test_a_fast_device_draws_as_many_sets_as_help_and_fit(size, num_sets):
    plan = make_plan(inputs(counts=[22_500] * 2, size=size, on_gpu=True), FAST, "good", None)
    assert plan.sets_per_pair == num_sets
    few = make_plan(inputs(counts=[500] * 2, size=size, on_gpu=True), FAST, "good", None)
    assert few.sets_per_pair == 1000


def test_the_time_is_divided_as_the_cost_model_says():
    """Counted by hand: 1,530 s, of which 612 may go to classifiers that pass 4 x 1,120 images."""
    plan = make_plan(inputs(), SLOW, "good", 30)
    assert (plan.train.classifier, plan.seeds, plan.train.epochs) == ("small", 1, 81)
    classifiers = 81 * 4 * 1120 / 600
    sets = int(0.25 * (1530 - classifiers) / (8 * 10 / 250))
    generator = 1530 - classifiers - sets * 8 * 10 / 250
    assert plan.sets_per_pair == sets // 6
    assert plan.generator.num_images == round(90 * generator)
    expected = {"generator": generator, "sets": sets * 8 * 10 / 250, "classifiers": classifiers}
    assert {k: 60 * v for k, v in plan.minutes.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("quality", "minutes", "classifier", "seeds", "epochs"),
    [
        ("draft", 2, "small", 1, 54),
        ("draft", 5, "small", 1, 60),
        ("good", 120, "resnet32", 1, 87),
        ("good", 180, "resnet32", 2, 65),
        ("good", 240, "resnet32", 3, 58),
    ],
)
def test_the_largest_network_that_sees_the_images_often_enough(quality, minutes, classifier, seeds, epochs):
    """Enough is 1,000 steps, here 57 epochs; then as many seeds as fit."""
    plan = make_plan(inputs(), SLOW, quality, minutes)
    assert (plan.train.classifier, plan.seeds, plan.train.epochs) == (classifier, seeds, epochs)
    passes = 1 if plan.methods == ("ce",) else 4
    spent = passes * seeds * epochs * 1120 * SLOW.classifiers[classifier]
    assert 60 * plan.minutes["classifiers"] == pytest.approx(spent)


@pytest.mark.parametrize(
    ("num_classes", "drawing", "partners", "num_sets"), [(4, 1.0, None, 8), (8, 0.1, None, 28), (10, 0.1, 2, 28)]
)
def test_slow_drawing_leaves_few_sets(num_classes, drawing, partners, num_sets):
    """Two for each class at least; all pairs only where each gets one."""
    counts = [1120 // num_classes] * num_classes
    plan = make_plan(inputs(counts=counts), replace(SLOW, drawing=drawing), "good", 30)
    assert (plan.partners, plan.sets_per_pair) == (partners, 1)
    assert 60 * plan.minutes["sets"] == pytest.approx(num_sets * 80 * drawing)


def test_a_gpu_gets_a_time_and_larger_settings():
    plan = make_plan(inputs(size=64, on_gpu=True), FAST, "good", None)
    assert plan.generator.minutes == plan.minutes["generator"]
    assert (plan.generator.network, plan.sampler.num_steps) == ("compact64", 18)
    assert "on this GPU" in plan.words[0]
    plan = make_plan(inputs(), SLOW, "good", None)
    assert (plan.generator.network, plan.sampler) == ("cpu32", MixConfig(num_steps=10))
    assert "on this CPU" in plan.words[0]


def test_candidates():
    assert candidates(32, False, "best") == (["resnet32", "small"], "cpu32")
    assert candidates(64, True, "good") == (["resnet18"], "compact64")
    assert candidates(128, True, "best") == (["resnet50", "resnet18"], "compact128")


@pytest.mark.parametrize(
    ("counts", "partners", "sets_per_pair"),
    [
        ([100] * 2, None, 300),
        ([200] * 3, None, 200),
        ([50] * 20, None, 5),
        ([50] * 21, 8, 6),
        ([20] * 4, None, 50),
        ([1] * 200, 2, 1),
    ],
)
def test_sets_are_shared_out_among_pairs(counts, partners, sets_per_pair):
    plan = make_plan(inputs(counts=counts, on_gpu=True), FAST, "good", None)
    assert (plan.partners, plan.sets_per_pair) == (partners, sets_per_pair)


@pytest.mark.parametrize(
    ("counts", "enough"), [([125, 125], True), ([125, 124], False), ([10] * 30, True), ([10] * 29 + [9], False)]
)
def test_a_generator_needs_so_many_images(counts, enough):
    plan = make_plan(inputs(counts=counts, on_gpu=True), FAST, "good", None)
    assert ("csm" in plan.methods) is enough


@pytest.mark.parametrize(
    ("num_train", "batch_size", "lr"), [(999, 32, 0.05), (1000, 64, 0.071), (3999, 64, 0.071), (4000, 128, 0.1)]
)
def test_few_images_make_small_steps(num_train, batch_size, lr):
    train = make_plan(inputs(counts=[num_train - 400, 400], size=64), SLOW, "good", None).train
    assert (train.batch_size, train.lr, train.pad) == (batch_size, lr, 8)


def test_a_short_training_of_a_generator_takes_small_batches():
    slow = replace(SLOW, generator=1 / 20)
    plans = [make_plan(inputs(), slow, "best", minutes) for minutes in (60, 120, 360)]
    for plan in plans:
        steps = plan.generator.num_images / plan.generator.batch_size
        assert steps >= 2000 or plan.generator.batch_size == 16
    assert [plan.generator.batch_size for plan in plans] == [16, 32, 64]
    plan = make_plan(inputs(on_gpu=True), FAST, "good", None)
    assert plan.generator.batch_size == 512


def test_the_quality_names_a_time():
    assert "about 30 min" in make_plan(inputs(), SLOW, "good", None).words[0]
    assert "about 3.0 hours" in make_plan(inputs(), SLOW, "best", None).words[0]


@pytest.mark.parametrize("counts", [[20, 20], [9] * 40, [105, 105]])
def test_few_images_are_calibrated_afterwards(counts):
    plan = make_plan(inputs(counts=counts, num_val=9), SLOW, "good", None)
    assert plan.methods == ("ce",)
    least = max(20_000, 2_000 * len(counts))
    assert plan.generator.num_images == least  # for those who ask for csm all the same
    words = " ".join(plan.words)
    assert "too few to teach a generator" in words
    assert "only 9 images to calibrate on" in words


def test_without_time_no_generator():
    plan = make_plan(inputs(), SLOW, "draft", None)
    assert plan.methods == ("ce",)
    assert "in 5 minutes a generator would learn nothing" in " ".join(plan.words)
    (enough,) = re.findall(r"--minutes (\d+) would do", " ".join(plan.words))
    assert make_plan(inputs(), SLOW, "draft", float(enough)).methods == ("ce", "csm")
    never = make_plan(inputs(), replace(SLOW, generator=10), "draft", None)
    assert "would do" not in " ".join(never.words)


def test_too_many_images_for_the_time_are_admitted():
    plan = make_plan(inputs(counts=[100_000] * 4), SLOW, "draft", 5)
    assert plan.train.epochs == 5
    assert plan.seeds == 1
    assert "longer than 5 minutes" in plan.words[-1]
    plan = make_plan(inputs(counts=[11_475] * 4), SLOW, "draft", 5)  # half as long again
    assert "longer than 5 minutes" in plan.words[-1]


def test_a_plan_says_what_it_does():
    words = " ".join(make_plan(inputs(num_val=50), SLOW, "good", 30).words)
    assert "all pairs of classes" in words
    assert "learns without and with them, once" in words
    assert "rare classes" not in words
    assert "to calibrate on" not in words
    words = " ".join(make_plan(inputs(num_val=49), SLOW, "good", 180).words)
    assert "2 times, to tell skill from luck" in words
    assert "only 49 images to calibrate on" in words


def test_a_time_is_told_in_minutes_below_a_hundred_and_in_hours_from_there():
    assert [_time(minutes) for minutes in (0.0, 0.4, 1.4, 1.6, 99.4, 100, 180, 600)] == [
        *("1 min", "1 min", "1 min", "2 min", "99 min"),
        *("1.7 hours", "3.0 hours", "10.0 hours"),
    ]


def test_a_plan_names_its_stages_one_by_one():
    plan = make_plan(inputs(), SLOW, "good", 180)
    first, learns, draws, trains, last = plan.words
    assert first == "plan (good, on this CPU): about 3.0 hours in all"
    assert learns == f"a generator learns to draw your classes: {_time(plan.minutes['generator'])}"
    assert draws == f"it draws images between classes, all pairs of classes: {_time(plan.minutes['sets'])}"
    assert trains == (
        "a classifier (resnet32, 65 passes over 1,120 images of 32 x 32) learns without and with them, "
        f"2 times, to tell skill from luck: {_time(plan.minutes['classifiers'])}"
    )
    assert last == "then a temperature is fitted, and a report and a model are written"


def test_a_plan_without_a_generator_says_why_and_what_would_help():
    plain = "a plain classifier is trained, and its confidence corrected by a temperature"
    same = "--methods ce csm teaches one all the same, and takes longer"
    few = make_plan(inputs(counts=[20, 20]), SLOW, "good", None)
    assert few.words[1] == (
        "40 images to learn from in 2 classes are too few to teach a generator "
        f"(250, and 10 a class, are wanted): {plain} ({same})"
    )
    short = make_plan(inputs(), replace(SLOW, generator=10), "draft", 2.5)
    assert short.words[1] == f"in 2.5 minutes a generator would learn nothing useful here: {plain} ({same})"


def test_uneven_classes_are_evened_out():
    assert make_plan(inputs(counts=[300, 300]), SLOW, "good", None).even_out is False
    assert make_plan(inputs(counts=[299, 100]), SLOW, "good", None).even_out is False
    assert make_plan(inputs(counts=[300, 100]), SLOW, "good", None).even_out is True
    plan = make_plan(inputs(counts=[1000, 20]), SLOW, "good", None)
    assert plan.even_out is True
    assert "rare classes more often" in " ".join(plan.words)


def test_many_classes_are_mixed_with_a_few_partners():
    plan = make_plan(inputs(counts=[20] * 100), SLOW, "best", None)
    assert plan.partners is not None
    assert 1 <= plan.partners <= 8
    assert "confused with most" in " ".join(plan.words)


def test_a_generator_of_many_classes_needs_more_time():
    """Of 100 classes it must see 200,000 images: at 90 a second, 37 minutes of those there are."""
    counts = [42] * 100
    plan = make_plan(inputs(counts=counts), SLOW, "good", 60)
    assert plan.methods == ("ce",)
    assert "(--minutes 120 would do)" in " ".join(plan.words)
    long = make_plan(inputs(counts=counts), SLOW, "good", 120)
    assert long.methods == ("ce", "csm")
    assert long.generator.num_images >= 200_000
    assert make_plan(inputs(counts=[420] * 10), SLOW, "good", 30).methods == ("ce", "csm")


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_plan_is_read_back_as_it_was_written(on_gpu):
    plan = make_plan(inputs(on_gpu=on_gpu), FAST if on_gpu else SLOW, "good", None)
    assert FitPlan.from_json(json.loads(json.dumps(asdict(plan)))) == plan


def test_a_plan_of_semmix_0_1_is_read():
    """Of a stage it held only the settings it decided."""
    plan = make_plan(inputs(), SLOW, "good", 180)
    decided = {
        "generator": ("network", "num_grids", "batch_size", "flip", "num_images"),
        "sampler": ("num_steps",),
        "train": ("classifier", "epochs", "batch_size", "lr", "schedule", "pad", "flip"),
    }
    written = asdict(plan)
    old = {stage: {name: written[stage][name] for name in names} for stage, names in decided.items()}
    assert FitPlan.from_json({**written, **old}) == plan


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf])
def test_a_plan_needs_time_and_an_end(minutes):
    with pytest.raises(SemmixError, match="a plan needs time"):
        make_plan(inputs(), SLOW, "good", minutes)


def test_sizes():
    assert choose_size(None, 480, False, "best") == 32
    assert choose_size(None, 28, True, "best") == choose_size(None, 48, True, "best") == 32
    assert choose_size(None, 49, True, "good") == choose_size(None, 96, True, "best") == 64
    assert choose_size(None, 97, True, "best") == 128
    assert choose_size(None, 480, True, "good") == 64
    assert choose_size(None, 480, True, "best") == 128
    assert choose_size(64, 28, False, "draft") == 64
    with pytest.raises(SemmixError, match="other sizes: 50"):
        choose_size(50, 480, False, "good")


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_every_plans_generator_fits_its_images(size, on_gpu):
    _, network = candidates(size, on_gpu, "good")
    with torch.device("meta"):
        config = network_preset(network, (1, size, size), 3)
        denoiser = EDMDenoiser(config)
        clean = denoiser(torch.ones(2, 1, size, size), torch.ones(2), torch.ones(2, 3))
    assert clean.shape == (2, 1, size, size)


def test_speed_is_measured(monkeypatch):
    monkeypatch.setattr("semmix.training.speed.ENOUGH_SECONDS", 0.05)
    speed = measure_speed((1, 32, 32), 3, ["resnet32", "small"], "cpu32", torch.device("cpu"))
    assert 0 < speed.classifiers["small"] < speed.classifiers["resnet32"] < 1
    assert 0 < speed.drawing < speed.generator < 1
