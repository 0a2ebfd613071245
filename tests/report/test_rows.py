"""Tables over seeds against plain arithmetic, and what each renderer escapes."""

import csv
import io
import json
import math

import numpy as np
import pytest
from scipy import stats

from semmix import ece, nll
from semmix.calibration import Interval, mean_interval
from semmix.core.errors import SemmixError
from semmix.report.rows import (
    ACCURACY,
    ECE,
    aggregate,
    full_results_table,
    results_table,
    show_change,
    show_estimate,
    unlike,
)
from semmix.runs import Run


def about(value, half_width, num=3):
    """Return an interval of this half width around the value."""
    return Interval(value, value - half_width, value + half_width, num)


def test_interval_over_seeds_is_the_student_interval():
    values = [0.12, 0.15, 0.11, 0.19]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    ours = mean_interval(values)
    assert (ours.low, ours.high, ours.num) == (pytest.approx(low), pytest.approx(high), 4)


def test_one_seed_has_no_interval():
    alone = mean_interval([0.3])
    assert math.isnan(alone.half_width)
    assert not alone.has_interval
    assert not alone.excludes_zero
    assert show_estimate(ECE, alone) == "30.00"


@pytest.mark.parametrize(("change", "clear"), [((-2, 1), True), ((2, 1), True), ((-1, 2), False), ((1, 1), False)])
def test_excludes_zero(change, clear):
    assert about(*change).excludes_zero is clear


def test_values_are_shown_with_their_intervals():
    assert show_estimate(ECE, about(0.0152, 0.0021, 3)) == "1.52 ± 0.21"
    assert show_change(ACCURACY, about(-0.017, 0.004, 3)) == "−1.70 [−2.10, −1.30]"
    assert show_change(ACCURACY, about(0.001, 0.004, 3)) == "+0.10 [−0.30, +0.50]"
    assert show_change(ACCURACY, mean_interval([0.001])) == "+0.10"


def test_rows_equal_plain_means_over_seeds(run_folders):
    ce, csm = aggregate(run_folders)
    assert (ce.name, csm.name) == ("CE", "CSM")
    assert ce.seeds == csm.seeds == [0, 1, 2]
    mine, theirs = ([Run.open(f) for f in run_folders[k : k + 3]] for k in (3, 0))
    errors = [[ece(run.before.probs, run.before.labels) for run in runs] for runs in (mine, theirs)]
    assert csm.before["ece"].value == pytest.approx(np.mean(errors[0]))
    differences = np.subtract(errors[0], errors[1])
    assert csm.change_before["ece"].value == pytest.approx(differences.mean())
    assert csm.change_before["ece"].half_width == pytest.approx(
        stats.t.ppf(0.975, 2) * differences.std(ddof=1) / math.sqrt(3)
    )
    scaled = [nll(run.after.probs, run.after.labels) for run in theirs]
    assert ce.after["nll"].value == pytest.approx(np.mean(scaled))


def test_temperature_undoes_known_overconfidence(run_folders):
    ce, csm = aggregate(run_folders)
    assert ce.temperature.value == pytest.approx(2.0, rel=0.15)  # the fixture's sharpness
    assert csm.temperature.value == pytest.approx(1.05, rel=0.15)
    assert ce.before["ece"].value > 3 * ce.after["ece"].value


def test_differences_use_shared_seeds_only(tmp_path, make_run):
    folders = [make_run(tmp_path / f"ce{s}", "ce", s, 2.0) for s in (0, 1)]
    folders += [make_run(tmp_path / f"ls{s}", "ls", s, 1.2) for s in (1, 2)]
    ce, ls = aggregate(folders)
    shared = [Run.open(tmp_path / name).before for name in ("ls1", "ce1")]
    assert ls.change_before["ece"].num == 1
    assert ls.change_before["ece"].value == pytest.approx(shared[0].metrics["ece"] - shared[1].metrics["ece"])
    assert not ce.change_before
    assert len(aggregate(folders, baseline="nobody")[0].change_before) == 0


def test_names_show_just_what_tells_rows_apart(tmp_path, make_run):
    folders = [
        make_run(tmp_path / "a", "ce", 0, epochs=5),
        make_run(tmp_path / "b", "csm", 0, mixed={"labels": "reannotated", "scale": 4.0}),
        make_run(tmp_path / "c", "csm", 0, mixed={"labels": "requested", "scale": None}),
        make_run(tmp_path / "d", "csm", 0, options={"weight": 0.5}, mixed={"labels": "requested"}),
        make_run(tmp_path / "e", "mine", 0),
    ]
    assert [row.name for row in aggregate(folders)] == [
        "CE",
        "CSM (labels=reannotated, scale=4)",
        "CSM (labels=requested)",
        "CSM (weight=0.5, labels=requested)",
        "mine",
    ]


def test_a_row_is_compared_with_the_baseline_most_like_it(tmp_path, make_run):
    folders = [
        make_run(tmp_path / f"{method}{epochs}{data}", method, 0, epochs=epochs, dataset=data)
        for method in ("csm", "ce")
        for epochs in (5, 9)
        for data in ("digits", "cifar10")
    ]
    rows = aggregate(folders)
    assert [row.baseline for row in rows[:4]] == [None] * 4
    for row in rows[4:]:
        assert row.baseline is not None
        mine, theirs = row.runs[0].settings, row.baseline.runs[0].settings
        assert {**mine, "method": "ce"} == theirs


def origins(train="1a2b3c4d", test="5e6f7a8b", **others):
    """Return digests as a run's manifest holds them."""
    return {"train": train, "val": "9c0d1e2f", "test": test, **others}


def test_a_row_not_trained_like_its_baseline_says_so(tmp_path, make_run):
    folders = [
        make_run(tmp_path / "ce", "ce", 0, lr=0.1, eq_data=False, origins=origins()),
        make_run(
            tmp_path / "csm",
            "csm",
            0,
            lr=0.1,
            eq_data=True,
            origins=origins(),
            mixed={"labels": "reannotated", "scale": 4.0},
        ),
        make_run(tmp_path / "ls", "ls", 0, lr=0.2, eq_data=False, epochs=9, origins=origins()),
        make_run(
            tmp_path / "fl",
            "fl",
            0,
            lr=0.1,
            eq_data=False,
            options={"gamma": 3},
            origins=origins(train="feed", init="beef"),
        ),
    ]
    ce, *others = aggregate(folders)
    assert unlike(ce) == ""
    assert {row.name: unlike(row) for row in others} == {
        "CSM": "",
        "LS": "LS against CE: epochs 9, not 5; lr 0.2, not 0.1",
        "FL": "FL against CE: other training images; other weights to start from",
    }


def test_runs_on_other_images_are_no_seeds_of_a_row(tmp_path, make_run):
    folders = [
        make_run(tmp_path / "a", "ce", 0, origins=origins()),
        make_run(tmp_path / "b", "ce", 1, origins=origins()),
        make_run(tmp_path / "c", "ce", 2, origins=origins(train="ffeedd00")),
        make_run(tmp_path / "d", "ls", 0, origins=origins()),
    ]
    rows = aggregate(folders)
    assert {row.name: row.seeds for row in rows} == {"CE (train 1a2b3c)": [0, 1], "CE (train ffeedd)": [2], "LS": [0]}
    assert rows[2].baseline is rows[0]  # of the same training images


@pytest.mark.parametrize(
    ("mine", "theirs", "names"),
    [
        ({"origins": origins()}, {}, {"CSM (train 1a2b3c, val 9c0d1e, test 5e6f7a)", "CSM"}),
        ({"mixed": {"excluded": "aabbccdd"}}, {"mixed": {}}, {"CSM (excluded aabbcc)", "CSM"}),
        (
            {"origins": origins(init="11111111")},
            {"origins": origins(init="22222222")},
            {"CSM (init 111111)", "CSM (init 222222)"},
        ),
        ({"epochs": 9, "origins": origins()}, {}, {"CSM (epochs=9)", "CSM (epochs=5)"}),
    ],
)
def test_names_show_origins_where_nothing_else_tells_rows_apart(tmp_path, make_run, mine, theirs, names):
    folders = [make_run(tmp_path / "a", "csm", 0, **mine)]
    folders += [make_run(tmp_path / "b", "csm", 1, **theirs)]
    assert {row.name for row in aggregate(folders)} == names


@pytest.mark.parametrize(
    "details",
    [
        lambda seed: {"mixed": {"mixsets": f"m{seed}", "annotation": f"a{seed}"}},
        lambda seed: {"classifier": "mynets:Net", "origins": origins(init=f"weights{seed}")},
    ],
    ids=["sets drawn on two machines", "weights drawn by the user's code"],
)
def test_what_seeds_and_machines_change_parts_no_row(tmp_path, make_run, details):
    folders = [make_run(tmp_path / str(s), "csm", s, **details(s)) for s in (0, 1)]
    (row,) = aggregate(folders)
    assert (row.name, row.seeds) == ("CSM", [0, 1])


def test_rows_with_other_test_images_are_not_compared(tmp_path, make_run):
    folders = [
        make_run(tmp_path / "a", "ce", 0, origins=origins(test="00000000")),
        make_run(tmp_path / "b", "ls", 0, origins=origins()),
    ]
    assert [row.baseline for row in aggregate(folders)] == [None, None]
    folders += [make_run(tmp_path / "c", "ce", 0, epochs=9, origins=origins())]
    *_, ls = aggregate(folders)
    assert ls.baseline is not None
    assert ls.baseline.name == "CE (epochs=9)"


@pytest.mark.parametrize("other", [{"classifier": "resnet18"}, {"dataset": "cifar10"}])
def test_rows_of_another_network_or_data_set_are_not_compared(tmp_path, make_run, other):
    folders = [make_run(tmp_path / "a", "ce", 0), make_run(tmp_path / "b", "ls", 0, **other)]
    ce, ls = aggregate(folders)
    assert (ls.baseline, ls.pairs, ls.change_before) == (None, (), {})
    tasks = ("digits", "cifar10") if "dataset" in other else ("small", "resnet18")
    assert [ce.name, ls.name] == [f"CE ({tasks[0]})", f"LS ({tasks[1]})"]


def test_runs_of_a_row_come_by_seed_however_they_were_named_and_written(tmp_path, make_run):
    folders = [make_run(tmp_path / str(seed), "ce", seed, origins=origins()) for seed in (2, 0, 1)]
    manifest = json.loads((folders[0] / "config.json").read_text())
    config = dict(reversed(manifest["inputs"]["config"].items()))
    inputs = dict(reversed({**manifest["inputs"], "config": config}.items()))
    (folders[0] / "config.json").write_text(json.dumps({**manifest, "inputs": inputs}))
    (row,) = aggregate(folders)
    assert row.seeds == [0, 1, 2]


def test_the_same_run_twice_is_refused(tmp_path, make_run):
    folders = [make_run(tmp_path / name, "ce", 0) for name in ("one", "two")]
    with pytest.raises(SemmixError, match="same settings and seed"):
        aggregate(folders)


def test_unfinished_and_broken_runs_are_refused(tmp_path, make_run):
    with pytest.raises(SemmixError, match="not finished"):
        Run.open(make_run(tmp_path / "a", "ce", 0, finished=False))
    folder = make_run(tmp_path / "b", "ce", 0)
    (folder / "logits-test.safetensors").write_bytes(b"nothing")
    with pytest.raises(SemmixError, match="cannot read"):
        _ = Run.open(folder).before


def test_text_and_markdown_hold_the_numbers(run_folders):
    rows = aggregate(run_folders)
    value = show_estimate(ECE, rows[1].before["ece"])
    change = show_change(ECE, rows[1].change_before["ece"])
    text, markdown = results_table(rows).text(120), results_table(rows).markdown()
    assert value in text
    line = markdown.splitlines()[3].split(" | ")
    assert line[0] == "| CSM"
    assert value in line
    assert line[-1] == f"{change} |"


def test_narrow_terminals_fold_names_and_cut_no_figure(run_folders):
    rows = aggregate(run_folders)
    text = results_table(rows).text(40)
    assert "…" not in text
    for row in rows:
        assert show_estimate(ECE, row.before["ece"]) in text


def test_renderers_escape_names(tmp_path, make_run):
    rows = aggregate([make_run(tmp_path / "a", "a_b|<i>[red]%\\", 0)])
    table = results_table(rows)
    assert "[red]" in table.text()
    assert r"a_b\|&lt;i>[red]%\\" in table.markdown()
    assert r"a\_b|<i>[red]\%\textbackslash{} & 1 &" in table.latex()
    assert r"& $\Delta$ ECE \% \\" in table.latex()
    assert ">a_b|&lt;i&gt;[red]%\\<" in table.html()


def test_csv_holds_full_precision(run_folders):
    rows = aggregate(run_folders)
    lines = list(csv.DictReader(io.StringIO(full_results_table(rows).csv())))
    line = next(line for line in lines if (line["method"], line["metric"], line["temperature"]) == ("CSM", "ece", "no"))
    assert float(line["mean"]) == rows[1].before["ece"].value
    assert float(line["change_high"]) == rows[1].change_before["ece"].high
    assert line["seeds"] == "0 1 2"
    assert line["pairs"] == "3"
