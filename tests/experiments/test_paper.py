"""The plan of every table: how many cells, and what tells them apart."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semmix import SemmixError, list_classifiers
from semmix.annotation.annotation import LABEL_SCHEMES
from semmix.core.artifact import begin_artifact
from semmix.core.files import digest
from semmix.diffusion.edm import EDMDenoiser, network_preset
from semmix.diffusion.stored import save_generator
from semmix.experiments.catalog import TABLES, Budget, plan_table, within
from semmix.experiments.cells import TableSettings, recipe_for
from semmix.experiments.cost import (
    CPU_BATCH,
    Cost,
    _annotating_seconds,
    _generator_seconds,
    _timed,
    cost_of,
    denoising_seconds,
    images_seen,
    num_train,
    passes_per_image,
    seconds_per_image,
)
from semmix.experiments.paper import COLUMNS, LEAKING
from semmix.methods import method

NUM_CELLS = {
    "main": 90,
    "eq_data": 6,
    "imagenet_resnet50": 7,
    "imagenet_swinv2": 7,
    "ood_auroc": 36,
    "ablation": 10,
    "reliability": 4,
    "curves": 3,
    "scale": 5,
    "test_time": 3,
    "wide_resnet": 14,
    "densenet121": 7,
    "long_tailed": 28,
    "num_aug": 6,
    "num_sets": 5,
    "training_time": 7,
    "headline": 9,
    "foreign": 18,
    "controls": 19,
    "variants": 30,
}

# Of each table as published, and on digits: digest of what its lines measure and which folders their runs have.
LINES = {
    "main": ("974c24bf667b", "b94c1f5c0f07"),
    "eq_data": ("95e6f3f2dddc", "5a38143bcd03"),
    "imagenet_resnet50": ("8a7499fe5fdb", "7ff4d0e915e0"),
    "imagenet_swinv2": ("ade5b0c9b53a", "d72613e39877"),
    "ood_auroc": ("2d10164d9908", None),
    "ablation": ("87ee81c4f8b7", "420261ed4714"),
    "reliability": ("e7e36ae42b1d", "4f581cbceafe"),
    "curves": ("52375531dea2", "da7770186915"),
    "scale": ("c8148a0dd401", "ed293f08c20f"),
    "test_time": ("30756c5e6617", "79eb54150c23"),
    "wide_resnet": ("d5c7f0c7083a", "820d46d1c8b6"),
    "densenet121": ("33e50eeb9943", "c7b6e396d0b2"),
    "long_tailed": ("2614fd70459a", None),
    "num_aug": ("c399ad0010ef", "5927fac5b161"),
    "num_sets": ("09fa03222b83", "a0e163ad2281"),
    "training_time": ("ceaa7c8a2cef", "98cda5d8f291"),
    "headline": ("6ad87a378c7d", "304d18728bb8"),
    "foreign": ("7737a9c2fd4d", "71f87c9e9e63"),
    "controls": ("c7f2c5462640", "f0dfba55bf57"),
    "variants": ("336198723204", "e02e26957550"),
}


def cell_of(table, name, **setting):
    (cell,) = [c for c in plan_table(table, settings=TableSettings(**setting)) if c.name == name]
    return cell


def test_every_table_has_its_cells():
    assert {name: len(plan_table(name)) for name in TABLES} == NUM_CELLS


@pytest.mark.parametrize("table", TABLES)
def test_every_line_finds_the_runs_that_were_trained_for_it(table):
    """A run's folder is named by all that decides its outcome: a changed name loses hours of training."""

    def seen(dataset):
        budgets: tuple[Budget, ...] = ("full", "short", "smoke")
        cells = [within(cell, budget) for budget in budgets for cell in plan_table(table, dataset)]
        facts = [[c.name, c.measure, c.scaled, c.seeds, c.needs, c.paper, c.run_name(0)] for c in cells]
        return digest(facts)[:12]

    published, digits = LINES[table]
    assert seen(None) == published
    assert digits is None or seen("digits") == digits


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"protocol": "code"}, "3c866e45fd22"),
        ({"protocol": "paper"}, "51fedff3c408"),
        ({"encoder": "clip:openai/clip-vit-base-patch32"}, "b0c656ebf14a"),
    ],
)
def test_runs_of_other_protocols_and_encoders_are_found_too(settings, names):
    cells = plan_table("main", settings=TableSettings(**settings))
    assert digest([cell.run_name(0) for cell in cells])[:12] == names


def test_what_the_paper_draws_is_known_as_a_figure():
    assert {name for name, table in TABLES.items() if table.figure} == {"reliability", "curves", "scale", "num_sets"}


def test_the_documentation_counts_the_cells():
    """Its lines read: names, what they compare, as many numbers as names."""
    lines = (Path(__file__).parents[2] / "docs" / "tables.md").read_text().splitlines()
    shown = {}
    for names, _, counts in (line.split(" | ") for line in lines if line.startswith("| `")):
        numbers = map(int, re.findall(r"\d+", counts))
        shown |= dict(zip(re.findall(r"`(\w+)`", names), numbers, strict=True))
    assert shown == NUM_CELLS


@pytest.mark.parametrize("table", TABLES)
def test_cells_can_be_made(table):
    """Names are one of a kind; methods, options, networks, labels and columns exist."""
    cells = plan_table(table)
    assert len({cell.name for cell in cells}) == len(cells)
    assert set(TABLES[table].columns) <= set(COLUMNS)
    for cell in cells:
        method(cell.train.method, recipe_for(cell.data.dataset).num_classes, **cell.train.options)
        known = cell.train.classifier in list_classifiers()
        assert known or cell.train.classifier.startswith("timm:")
        assert (cell.mixing is not None) == (cell.train.method == "csm")
        assert cell.mixing is None or cell.mixing.labels in LABEL_SCHEMES
        assert set(cell.paper) <= set(TABLES[table].columns)


def test_published_settings():
    tiny = cell_of("main", "tiny-imagenet/resnet50/CSM")
    assert (tiny.train.epochs, tiny.train.batch_size) == (100, 64)
    assert tiny.train.options == {"num_mixed": 1, "protocol": "code"}
    assert tiny.mixing.num_sets * 8 == 318_400
    assert cell_of("main", "cifar10/resnet50/CSM").mixing.num_sets * 8 == 159_840
    assert cell_of("main", "cifar100/resnet50/CSM").mixing.num_sets * 8 == 158_400
    mbls = [cell_of("main", f"{d}/resnet50/MbLS") for d in ("cifar10", "tiny-imagenet")]
    assert [cell.train.options["margin"] for cell in mbls] == [6.0, 10.0]
    assert [cell.train.eq_data for cell in plan_table("eq_data")] == [False] * 5 + [True]


def test_paper_and_code_are_one_switch():
    name = "cifar10/resnet50/CSM"
    paper, code = (cell_of("main", name, protocol=p) for p in ("paper", "code"))
    assert (paper.data.protocol, code.data.protocol) == ("paper", "code")
    assert paper.train.options["protocol"] == "paper"
    assert paper.digest != code.digest
    assert (num_train(paper), num_train(code)) == (50_000, 45_000)


@pytest.mark.parametrize(("protocol", "alphas"), [("semmix", [2, 2, 1]), ("code", [2, 2, 1]), ("paper", [1, 1, 2])])
def test_paper_and_code_swap_the_alpha_of_rankmixup(protocol, alphas):
    names = [f"{data}/resnet50/RankMixup" for data in ("cifar10", "cifar100", "tiny-imagenet")]
    cells = [cell_of("main", name, protocol=protocol) for name in names]
    assert [cell.train.options["alpha"] for cell in cells] == alphas


def test_the_published_scale_belongs_to_clip():
    name = "cifar100/resnet50/CSM"
    assert cell_of("main", name).mixing.scale == 2.0  # chosen for an encoder of our own
    assert cell_of("main", "tiny-imagenet/resnet50/CSM").mixing.scale is None
    assert cell_of("main", name, encoder="clip:openai/clip-vit-base-patch32").mixing.scale == 2.3


def test_only_the_leaking_line_has_a_generator_of_the_whole_set():
    for cell in plan_table("long_tailed"):
        if cell.mixing:
            leaks = cell.row == LEAKING
            assert cell.train.allow_leak == leaks
            assert (cell.mixing.learned_from.imbalance is None) == leaks
    tails = {num_train(cell) for cell in plan_table("long_tailed", "cifar10", TableSettings(protocol="paper"))}
    assert tails == {20_431, 12_406}


def test_tables_share_trainings():
    ablation = cell_of("ablation", "cifar100/resnet50/CSM (L2, ours)")
    assert ablation.run_name(1) == cell_of("main", "cifar100/resnet50/CSM").run_name(1)
    assert ablation.run_name(1) == cell_of("test_time", "cifar100/resnet50/CSM + TTA").run_name(1)


def test_where_and_how_often_it_runs_does_not_change_a_training():
    cell = cell_of("main", "cifar10/resnet50/CSM")
    here = replace(cell, seeds=9, data=replace(cell.data, root=Path("elsewhere")))
    assert here.digest == cell.digest
    assert within(cell, "short").digest != cell.digest


def test_images_seen_count_what_passes_through_the_network():
    main = {cell.row: cell for cell in plan_table("main")[:15]}
    passes = {row: passes_per_image(cell) for row, cell in main.items()}
    more = {"RegMixup": 2.0, "AugMix": 3.0, "RankMixup": 4.0, "CSM": 3.0}
    assert passes == {row: more.get(row, 1.0) for row in main}
    assert images_seen(main["CE"]) == 200 * (45_000 // 128) * 128
    eq_data = plan_table("eq_data")[-1]
    assert images_seen(eq_data) == 200 * 118 * 128 * 3  # ceil(45,000 / (3 * 128)) = 118 steps


def test_cost_counts_what_cells_share_once():
    """The ablation's six CSM cells learn from the same sets; s = 2 to 6 need no other labels."""
    setting = TableSettings()
    ce, csm = (plan_table("main", "digits", setting)[k] for k in (0, -1))
    plain = cost_of([(ce, 3)], "cpu")
    assert (plain.num_runs, plain.mixed_images, plain.mixing_hours) == (3, 0, 0)
    assert "mixed" not in str(plain)
    one, two = cost_of([(csm, 1)], "cpu"), cost_of([(csm, 2)], "cpu")
    assert one.mixed_images == two.mixed_images == 900 * 8
    assert one.mixing_hours == two.mixing_hours > 0
    assert two.hours == pytest.approx(2 * one.hours)
    for table in ("ablation", "scale"):
        cells = [(cell, 1) for cell in plan_table(table, "digits", setting)]
        assert cost_of(cells, "cpu").mixing_hours == pytest.approx(one.mixing_hours)
    assert cost_of([(csm, 0)], "cpu").mixed_images == 0


def test_mixing_costs_training_drawing_and_annotating():
    """Times are measured once and kept, so that sums of them can be checked."""
    csm = plan_table("main", "digits", TableSettings())[-1]
    mixing, train = csm.mixing, csm.train
    learning = denoising_seconds(csm, mixing, mixing.training.batch_size, "cpu", learns=True)
    drawing = denoising_seconds(csm, mixing, mixing.sampler.batch_size, "cpu", learns=False)
    task = (train.classifier, "digits", train.batch_size, "cpu")
    looking = seconds_per_image(*task, learns=False)
    for solver, evaluations in (("heun", 9), ("dpmpp_2m", 5)):
        sampler = replace(mixing.sampler, solver=solver, num_steps=5)
        cost = cost_of([(replace(csm, mixing=replace(mixing, sampler=sampler)), 2)], "cpu")
        seconds = mixing.training.num_images * learning + 7200 * evaluations * drawing
        seconds += (7200 + num_train(csm)) * looking
        assert cost.mixing_hours == pytest.approx(seconds / 3600)
        assert cost.num_images == 2 * images_seen(csm)
        assert cost.hours == pytest.approx(cost.num_images * seconds_per_image(*task) / 3600)


@pytest.mark.parametrize("enough", [1.0, 0.0])
def test_a_time_is_that_of_one_image_whether_the_whole_batch_is_timed_or_two_of_it(monkeypatch, enough):
    monkeypatch.setattr("semmix.experiments.cost.ENOUGH_SECONDS", enough)
    sizes = []

    def forward(num):
        sizes.append(num)
        time.sleep(0.01 * num)
        return torch.zeros(num)

    seconds = _timed(forward, 6, torch.device("cpu"), learns=False)
    assert 0.01 <= seconds < 0.05
    assert set(sizes) == ({CPU_BATCH, 6} if enough else {CPU_BATCH})


def test_cost_says_what_it_cannot_know():
    setting = TableSettings(encoder="clip:somewhere")
    csm = plan_table("main", "digits", setting)[-1]
    cost = cost_of([(csm, 1)], "cpu")
    assert cost.left_out == ("clip:somewhere",)
    assert "annotating by clip:somewhere not counted" in str(cost)


def test_a_generator_from_elsewhere_costs_no_training(tmp_path):
    csm = plan_table("main", "digits", TableSettings(generator=str(tmp_path)))[-1]
    assert _generator_seconds(csm, csm.mixing, "cpu") == 0
    other = replace(csm.mixing, encoder="pixels:4")
    assert _annotating_seconds(csm, other, "cpu") == 0


def test_a_generator_from_elsewhere_is_timed_as_it_draws(tmp_path):
    config = network_preset("digits", (1, 8, 8), 10)
    artifact = begin_artifact(tmp_path / "tiny", "generator.json", "generator", {})
    save_generator(artifact, config, EDMDenoiser(config).state_dict(), "train")
    csm = plan_table("main", "digits", TableSettings(generator=str(tmp_path / "tiny"), encoder="pixels:4"))[-1]
    cost = cost_of([(csm, 1)], "cpu")
    drawing = denoising_seconds(csm, csm.mixing, csm.mixing.sampler.batch_size, "cpu", learns=False)
    assert 0 < drawing < 1
    evaluations = csm.mixing.sampler.num_steps * (2 if csm.mixing.sampler.solver == "heun" else 1)
    assert cost.mixing_hours == pytest.approx(7200 * evaluations * drawing / 3600, rel=0.1)


def test_cost_is_told_in_minutes_below_an_hour_and_in_hours_from_there():
    cost = Cost(num_runs=2, num_images=1_234_567, hours=0.5, mixed_images=0, mixing_hours=0.0)
    assert str(cost) == "2 runs to do: 1,234,567 images through classifiers, about 30:00 minutes on this device"
    assert "about 1.0 hours on" in str(replace(cost, hours=1.0))
    assert "about 1,234.5 hours on" in str(replace(cost, hours=1234.5))
    mixed = replace(cost, hours=2.0, mixed_images=7200, mixing_hours=0.25, left_out=("clip:a", "dino:b"))
    assert str(mixed).endswith(
        "about 2.0 hours on this device; generators and 7,200 mixed images, unless they are there: "
        "about 15:00 minutes; annotating by clip:a not counted; annotating by dino:b not counted"
    )


def test_cost_takes_a_generator_s_minutes_as_they_are_given():
    csm = plan_table("main", "digits", TableSettings())[-1]
    trainings = (replace(csm.mixing.training, minutes=minutes) for minutes in (30.0, 60.0))
    cells = [replace(csm, mixing=replace(csm.mixing, training=t)) for t in trainings]
    half, whole = (cost_of([(cell, 1)], "cpu").mixing_hours for cell in cells)
    assert half > 0.5
    assert whole - half == pytest.approx(0.5)


def test_budgets_only_make_cheaper():
    for cell in plan_table("long_tailed") + plan_table("main", "digits"):
        full, short, smoke = (images_seen(within(cell, b)) for b in ("full", "short", "smoke"))
        assert full > short >= smoke
        assert num_train(within(cell, "smoke")) > 0


def test_tables_move_to_other_networks():
    cells = plan_table("main", "cifar100", classifier="resnet18")
    assert {cell.name.rpartition("/")[0] for cell in cells} == {"cifar100/resnet18"}
    assert [cell.paper for cell in cells] == [{}] * 15
    assert len(plan_table("main", classifier="resnet18")) == 3 * 15  # each data set once


def test_tables_move_to_other_data_sets():
    assert [cell.paper for cell in plan_table("ablation", "digits")] == [{}] * 10
    with pytest.raises(SemmixError, match="no cells on digits"):
        plan_table("ood_auroc", "digits")
    with pytest.raises(
        SemmixError, match="no cells on digits"
    ):  # a tail of 10 would leave its last class one of 100 images
        plan_table("long_tailed", "digits")
    with pytest.raises(SemmixError, match="did you mean 'cifar10'"):
        plan_table("main", "cifar-10")
    with pytest.raises(SemmixError, match="did you mean 'ablation'"):
        plan_table("ablations")
