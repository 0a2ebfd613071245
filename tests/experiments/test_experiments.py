"""Our own experiments: one schedule for all lines, and controls that differ in one thing."""

from dataclasses import replace

import pytest

from semmix.experiments.catalog import plan_table, within
from semmix.experiments.cells import TableSettings
from semmix.experiments.cost import images_seen, num_train
from semmix.experiments.running import plain_cell
from semmix.methods import method


def cells(table, dataset=None):
    return {cell.row: cell for cell in plan_table(table, dataset)}


def test_no_line_of_the_headline_sees_fewer_images_than_csm():
    lines = cells("headline")
    assert len(lines) == 9
    seen = {row: images_seen(cell) for row, cell in lines.items()}
    # These two pass blends of the same images through the network besides: an advantage of theirs.
    assert seen["RegMixup"] == 2 * seen["CE"] < seen["RankMixup"]
    del seen["RegMixup"], seen["RankMixup"]
    assert max(seen.values()) - min(seen.values()) < 0.01 * seen["CE"]
    assert len({(c.train.epochs, c.train.schedule, c.train.select) for c in lines.values()}) == 1


def test_csm_passes_over_the_real_images_forty_times():
    cell = cells("headline")["CSM"]
    images_per_real = 1 + method("csm", 10, **cell.train.options).num_mixed
    assert cell.train.eq_data
    assert cell.train.epochs / images_per_real >= 40


def test_controls_share_runs_with_the_headline():
    headline, controls, variants = map(cells, ("headline", "controls", "variants"))
    assert {t["CSM"].run_name(0) for t in (headline, controls, variants)} == {headline["CSM"].run_name(0)}
    assert controls["CE"].run_name(1) == headline["CE"].run_name(1)
    assert controls["Mixup, alpha = 0.2"].run_name(2) == headline["Mixup"].run_name(2)


def test_foreign_images_are_shown_to_the_runs_of_the_headline():
    runs = {cell.run_name(0) for cell in plan_table("headline")}
    lines = plan_table("foreign")
    assert {cell.run_name(0) for cell in lines} == runs
    assert len({cell.name for cell in lines}) == len(lines) == 2 * len(runs)
    assert {cell.measure for cell in lines} == {"ood:cifar100", "ood:tiny-imagenet-val"}
    assert {c.measure for c in plan_table("foreign", "cifar100")} == {"ood:tiny-imagenet-val"}


def test_controls_change_what_they_name():
    lines = cells("controls")
    longer = lines["CE, as many images as CSM in full"]
    full = lines["CSM in full"]
    assert images_seen(longer) == images_seen(full) == 3 * 120 * (num_train(full) // 128) * 128
    shorter = lines["CE, as many real images as CSM"]
    assert shorter.train == replace(lines["CE"].train, epochs=40)
    mixed_for_real = lines["CSM"].train.options["num_mixed"]
    real = images_seen(lines["CSM"]) / (1 + mixed_for_real)
    assert images_seen(shorter) == pytest.approx(real, rel=0.01)
    twice = lines["CSM, as many passes as RegMixup"]
    regmixup = cells("headline")["RegMixup"]
    assert images_seen(twice) == pytest.approx(images_seen(regmixup), rel=0.01)
    short = [within(cell, "short") for cell in (twice, lines["CSM"])]
    for pair in ((twice, lines["CSM"]), short):  # the same network reads their images
        assert len({plain_cell(cell).run_name(0) for cell in pair}) == 1
    ends = lines["CE + generated ends, hard labels"]
    assert (ends.mixing.members, ends.mixing.labels) == (2, "one_hot")
    assert ends.train.options["loss"] == "ce"
    for row in ("CSM, smoothed labels as sharp", "CSM, requested labels as sharp"):
        assert lines[row].mixing.num_sets == lines["CSM"].mixing.num_sets
        assert lines[row].train == lines["CSM"].train
    assert len({cell.digest for cell in lines.values()}) == len(lines)


@pytest.mark.parametrize(("dataset", "options"), [("cifar10", {"num_mixed": 3}), ("tiny-imagenet", {})])
def test_plain_runs_are_as_long_as_csm_in_full_however_many_images_it_mixes(dataset, options):
    lines = {c.row: c for c in plan_table("controls", dataset, TableSettings(options=options))}
    longer, full = lines["CE, as many images as CSM in full"], lines["CSM in full"]
    assert images_seen(longer) == images_seen(full)


def test_controls_are_also_made_with_joint_statistics():
    lines, variants = cells("controls"), cells("variants")
    joint = [row for row in lines if row.endswith(", joint batch statistics")]
    assert len(joint) == 5
    for row in joint:
        usual, changed = lines[row.removesuffix(", joint batch statistics")], lines[row]
        assert changed.train.options["batch_statistics"] == "joint"
        assert replace(changed.train, options=usual.train.options) == usual.train
        assert changed.mixing == replace(usual.mixing, scale=3.0)
    name = "joint batch statistics"
    assert lines[f"CSM, {name}"].run_name(0) == variants[f"s = 3, {name}"].run_name(0)
    # Where nobody has tried several, s is what the rule chooses.
    demo = cells("controls", "digits")[f"CSM, {name}"]
    assert demo.run_name(0) == cells("variants", "digits")[name].run_name(0)
    foreign = plan_table("controls", "cifar10", TableSettings(encoder="inception:file.pt"))
    assert {cell.mixing.scale for cell in foreign if cell.mixing} == {None}


@pytest.mark.parametrize(
    ("dataset", "encoder", "scale"),
    [
        ("cifar10", "own", 5.0),
        ("cifar10", "clip:ViT-B/32", 4.0),
        ("cifar10", "inception:file.pt", None),
        ("cifar100", "own", 2.0),
        ("cifar100", "clip:ViT-B/32", 2.3),
        ("tiny-imagenet", "own", None),
    ],
)
def test_s_belongs_to_the_data_set_and_the_encoder(dataset, encoder, scale):
    for table in ("main", "headline"):
        cells = plan_table(table, dataset, TableSettings(encoder=encoder))
        assert {cell.mixing.scale for cell in cells if cell.mixing} == {scale}


def test_a_scale_can_be_given_for_every_line_that_has_none_of_its_own():
    setting = TableSettings(encoder="classifier:zoo/cifar10/classifier", scale=4.5)
    for table in ("main", "controls"):
        assert {c.mixing.scale for c in plan_table(table, "cifar10", setting) if c.mixing} == {4.5}
    own = plan_table("controls", "cifar10", TableSettings(scale=4.5))  # joint lines too
    assert {c.mixing.scale for c in own if c.mixing} == {4.5}
    lines = {c.row: c.mixing.scale for c in plan_table("variants", "cifar10", setting)}
    assert (lines["CSM"], lines["s = 3"], lines["s by the rule"]) == (4.5, 3.0, None)


def test_the_rule_has_no_line_where_every_line_goes_by_it():
    for dataset, encoder in (("digits", "own"), ("cifar10", "inception:file.pt")):
        rows = [c.row for c in plan_table("variants", dataset, TableSettings(encoder=encoder))]
        assert "CSM" in rows
        assert "s by the rule" not in rows


def test_the_early_generator_trains_a_tenth_of_the_images_and_nothing_else_changes():
    lines = cells("variants")
    early, usual = lines["an early generator"].mixing, lines["CSM"].mixing
    assert early.training.minutes is None
    assert early.training.num_images == usual.training.num_images // 10
    assert replace(early, training=usual.training) == usual
    assert lines["an early generator"].train == lines["CSM"].train
    given = plan_table("variants", "cifar10", TableSettings(generator="zoo:cifar10"))
    assert {c.mixing.generator for c in given if c.row != "an early generator"} == {"zoo:cifar10"}
    assert {c.mixing.generator for c in given if c.row == "an early generator"} == {"own"}


def test_the_demo_keeps_its_own_schedule():
    lines = cells("headline", "digits")
    assert lines["CE"].train.schedule == plan_table("main", "digits")[0].train.schedule
