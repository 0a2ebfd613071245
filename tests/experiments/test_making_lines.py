"""What `semmix table` says of its lines: ranks, numbers, commands, footnotes; one run is trained, for seconds."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from semmix.calibration import Interval
from semmix.experiments.catalog import plan_table
from semmix.experiments.making import (
    Line,
    TableConfig,
    chosen_cells,
    command_for,
    footnotes,
    lines_table,
    make_table,
    plan_lines,
    ranks,
    render,
)
from semmix.experiments.results import PROXIMITY, SPEED, TTA, RunFolder
from semmix.experiments.running import plain_cell, run_cell
from semmix.runs import Run

CE, *_, CSM = plan_table("main", "digits")


def line(values: dict[str, float], paper: dict[str, float], command: str = "", **changes: Any) -> Line:
    ours = {key: Interval(value, value - 0.002, value + 0.002, 3) for key, value in values.items()}
    runs = [cast(Run, None)] * 3 if values else []
    return Line(replace(CE, paper=paper, **changes), ours, runs, command)


def test_the_best_accuracy_is_the_highest_and_equal_values_share_a_rank():
    lines = [line({"acc": 0.9}, {"acc": 0.8}), line({"acc": 0.95}, {"acc": 0.8}), line({"acc": 0.9}, {})]
    assert ranks(lines, "acc") == [(2, 1), (1, 1), (2, None)]
    assert ranks([line({"ece": value}, {}) for value in (0.03, 0.01, 0.01)], "ece") == [(3, None), (1, None), (1, None)]


def test_lines_of_other_groups_do_not_compete():
    other = replace(CE.train, classifier="resnet18")
    lines = [line({"ece": 0.02}, {"ece": 0.01}), line({"ece": 0.01}, {"ece": 0.02}, train=other)]
    assert ranks(lines, "ece") == [(1, 1), (1, 1)]


def test_a_table_is_ranked_by_ece_where_it_shows_it_and_else_by_its_first_column():
    lines = [line({"acc": 0.9, "ece": 0.02}, {"acc": 0.8})]
    assert lines_table(lines, ("acc", "ece")).headings[-1] == "Rank by ECE"
    assert lines_table(lines, ("acc", "nll")).headings[-1] == "Rank by Accuracy"
    assert lines_table(lines, ("acc",)).headings[:2] == ["Cell", "Seeds"]


def test_every_number_is_in_the_csv():
    lines = [line({"acc": 0.9}, {"acc": 0.8}), line({}, {"acc": 0.85}, "semmix table main")]
    first, second = csv.DictReader(io.StringIO(render(lines, ("acc",), "csv")))
    assert float(first.pop("delta")) == pytest.approx(0.1)
    interval = {"ours": "0.9", "low": "0.898", "high": "0.902"}
    seen = {"cell": CE.name, "seeds": "3", "metric": "acc", **interval, "paper": "0.8", "rank": "1", "paper_rank": "2"}
    assert first == {**seen, "to_fill": ""}
    blank = dict.fromkeys(("ours", "low", "high", "delta", "rank"), "")
    seen = {"cell": CE.name, "seeds": "0", "metric": "acc", "paper": "0.85", "paper_rank": "1", **blank}
    assert second == {**seen, "to_fill": "semmix table main"}


def test_the_command_that_fills_a_cell_has_every_setting_that_is_not_the_default(tmp_path):
    config = TableConfig(name="main", dataset="digits", methods=("csm",))
    (cell,) = chosen_cells(config)
    base = f"semmix table main --dataset digits --cells {cell.name} --seeds 3"
    assert command_for(cell, config) == base
    changes = {"classifier": "resnet32", "budget": "short", "protocol": "code", "generator": "g", "encoder": "dino:x"}
    changes |= {"scale": 4.5, "emphasis": 1.2, "out": Path("o"), "options": {"loss": "ce", "num_mixed": 1}}
    other = replace(config, **changes, from_=tmp_path, seeds=2)
    (cell,) = chosen_cells(other)
    assert command_for(cell, other) == (
        f"semmix table main --dataset digits --cells {cell.name} --seeds 2 --classifier resnet32 --budget short "
        "--protocol code --generator g --encoder dino:x --scale 4.5 --emphasis 1.2 --out o "
        f"--options loss=ce num_mixed=1 --keep {tmp_path}"
    )


def test_methods_are_named_as_on_the_command_line_or_as_in_the_table():
    for methods in (("csm", "ce"), ("CSM", "CE")):
        cells = chosen_cells(TableConfig(name="main", dataset="digits", methods=methods))
        assert [cell.train.method for cell in cells] == ["ce", "csm"]
    (cell,) = chosen_cells(TableConfig(name="main", dataset="digits", cells="*/CSM", seeds=7))
    assert (cell.row, cell.seeds) == ("CSM", 7)


def test_footnotes_say_what_the_numbers_are_not():
    lines = [line({"acc": 0.9}, {}), line({}, {}, "semmix table main")]
    lines[0] = replace(lines[0], runs=[])
    first, *rest = footnotes(lines, TableConfig(name="main"))
    assert first == "ours ± 95 % interval over seeds / the paper's (ours less the paper's)"
    assert rest == ["to fill:", f"  {CE.name}: semmix table main"]
    short = footnotes(lines[:1], TableConfig(name="main", budget="short"))
    assert short == [first, "budget short: not to be compared with the paper"]
    assert footnotes(lines[:1], TableConfig(name="curves")) == [first]  # no runs to draw


def test_a_figure_names_the_report_that_draws_it(tmp_path):
    config = TableConfig(name="curves", dataset="cifar10", classifier="resnet18", from_=Path("results"))
    runs = RunFolder(Path(__file__).parents[2] / "results").finished(plan_table("headline")[0])
    drawn = [replace(line({"acc": 0.9}, {}), runs=runs), replace(line({"acc": 0.9}, {}), runs=runs[:1])]
    (note,) = footnotes(drawn, replace(config, from_=tmp_path))[1:]
    assert note == f"the figure: semmix report {' '.join(str(run.folder) for run in runs)}"
    assert len(runs) == 3
    assert len(footnotes(drawn, TableConfig(name="main"))) == 1  # no figure


def test_a_plan_counts_the_seeds_that_are_there():
    cells = [replace(cell, seeds=4) for cell in plan_table("headline")[:1]]
    first, cost = plan_lines(cells, RunFolder(Path(__file__).parents[2] / "results"), "cpu")
    assert first == "cifar10/resnet18/CE  5,391,360 images each; 3 of 4 seeds done"
    assert cost.startswith("1 runs to do: 5,391,360 images")


def test_a_plan_counts_the_network_that_annotates_once(tmp_path):
    """CSM waits for a run of cross-entropy, which may be a line of its own."""
    one, two = (plan_lines(cells, RunFolder(tmp_path), "cpu")[-1] for cells in ([CSM], [CE, CSM]))
    assert plain_cell(CSM).run_name(0) == CE.run_name(0)
    assert one.startswith("4 runs to do")
    assert two.startswith("6 runs to do")
    given = replace(CSM, mixing=replace(CSM.mixing, encoder="pixels:4"))
    assert plan_lines([given], RunFolder(tmp_path), "cpu")[-1].startswith("3 runs to do")
    needy = plan_lines([replace(CE, needs="images")], RunFolder(tmp_path), "cpu")
    assert needy[0].endswith("images each; needs images")
    assert needy[1].startswith("0 runs to do")


def test_footnotes_are_for_people_and_not_for_programs(tmp_path, capsys):
    config = TableConfig(name="main", dataset="digits", methods=("ce",), from_=tmp_path)
    make_table(config)
    assert "to fill:" in capsys.readouterr().out
    for form in ("markdown", "latex", "csv"):
        make_table(replace(config, format=form))
        assert "to fill:" not in capsys.readouterr().out


def test_what_is_to_do_is_said_and_done_once_and_kept_when_that_is_asked(tmp_path, capsys):
    config = TableConfig(name="main", dataset="digits", methods=("ce",), budget="smoke", out=tmp_path, device="cpu")
    (cell,) = chosen_cells(config)
    make_table(config)
    out = capsys.readouterr().out
    assert "1 runs to do: 200 images through classifiers, about 0:0" in out
    assert "to fill" not in out
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {cell.run_name(0)}
    make_table(replace(config, keep=tmp_path / "kept"))  # it was finished before it was to be kept
    assert "runs to do" not in capsys.readouterr().out
    assert (tmp_path / "kept" / cell.run_name(0) / "metrics.json").exists()
    other = replace(config, seeds=2, keep=tmp_path / "kept")
    make_table(other)
    assert "1 runs to do" in capsys.readouterr().out
    kept = RunFolder(tmp_path / "kept").finished(cell)
    assert [run.seed for run in kept] == [0, 1]
    extra = {"piece": {PROXIMITY}, "tta": {PROXIMITY, TTA}, "hours": {PROXIMITY, TTA, SPEED}}
    for measure, files in extra.items():
        run = run_cell(replace(cell, measure=measure), 0, tmp_path)
        assert {path.name for path in run.iterdir()} & extra["hours"] == files
