"""Which command is meant, what it says of stops, and what small commands print; nothing is trained."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix import __version__ as version
from semmix.cli.export import ExportCommand, KeepCommand
from semmix.cli.fit import SHORT_HELP
from semmix.cli.generator import GeneratorSampleCommand, GeneratorScoreCommand
from semmix.cli.main import COMMANDS, RESUMING, command_class, main, overview, split_command
from semmix.cli.mix import MixCommand
from semmix.cli.options import not_default
from semmix.cli.train import TrainCommand
from semmix.data.config import DatasetConfig
from semmix.mixing.plan import MixPlan, all_pairs
from semmix.mixing.store import MixSets
from semmix.networks import classifier
from semmix.networks.saved import save_classifier
from semmix.training.classifier import TrainConfig

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("words", "name", "rest"),
    [
        (["mix", "zoo:cifar10"], "mix", ["zoo:cifar10"]),
        (["data", "list", "--root", "x"], "data list", ["--root", "x"]),
        (["data", "check", "list"], "data check", ["list"]),
        (["train", "data", "list"], "train", ["data", "list"]),
        (["fit", "--help"], "fit", ["--help"]),
        ([], None, []),
        (["-h"], None, []),
        (["--help"], None, []),
        (["data"], None, []),
        (["zoo", "-h"], None, []),
        (["generator", "--help"], None, []),
    ],
)
def test_the_longest_name_is_the_command_and_the_rest_its_arguments(words, name, rest):
    assert split_command(words) == (name, rest)


@pytest.mark.parametrize(
    ("words", "what"), [(["data", "--root"], "'data --root'"), (["zoo", "put", "x"], "'zoo put'"), (["dat"], "'dat'")]
)
def test_an_unknown_command_is_named(words, what):
    with pytest.raises(SemmixError, match=f"unknown command: {what}"):
        split_command(words)


def test_the_overview_is_aligned_and_a_group_has_its_own():
    head, blank, *lines, last_blank, last = overview([]).splitlines()
    assert head == "semmix makes an image classifier say how sure it really is."
    assert (blank, last_blank, last) == ("", "", "semmix COMMAND --help explains a command.")
    assert len(lines) == len(COMMANDS)
    assert all(line == f"  {name:17}  {text}" for line, (name, text) in zip(lines, COMMANDS.items(), strict=True))
    names = [line.split("  ")[1] for line in overview(["zoo"]).splitlines()[2:-2]]
    assert names == ["zoo list", "zoo get"]


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_without_a_command_lists_all(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == f"{overview([])}\n"
    assert main(["data", "--help"]) == 0
    assert capsys.readouterr().out == f"{overview(['data'])}\n"


def test_the_words_after_the_program_are_read(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["semmix", "zoo"])
    assert main() == 0
    assert "zoo list" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["semmix", "--version"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert capsys.readouterr().out == f"semmix {version}\n"


def test_what_goes_on_where_it_was_stopped_keeps_its_work():
    begin_anew = {"data list", "data import", "data check", "generator sample", "generator convert", "generator score"}
    begin_anew |= {"verify", "export", "predict", "serve", "choose", "evaluate", "keep", "report", "balance"}
    assert COMMANDS.keys() - RESUMING == begin_anew | {"zoo list", "doctor"}
    assert COMMANDS.keys() >= RESUMING


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_class_that_runs(name):
    command = command_class(name)
    assert command.__name__ == f"{name.title().replace(' ', '')}Command"
    assert callable(command.run)


def test_an_error_of_the_system_says_what_to_look_at(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["data", "check", str(tmp_path / ("n" * 300))]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "\n  -> " in err


# ---- options


def test_options_that_differ_from_their_defaults_are_named_in_the_order_asked():
    command = ExportCommand(source=Path("s"), out=Path("o"), labels="requested", onnx=False)
    assert not_default(command, ("annotation", "labels", "format")) == "labels=requested"
    assert not_default(command, ("onnx", "labels")) == "onnx=False, labels=requested"
    assert not_default(command, ("annotation", "format")) == ""


def test_defaults_are_those_the_help_promises():
    sample = GeneratorSampleCommand(generator="g")
    assert (sample.out, sample.per_class, sample.seed, sample.device) == (Path("samples.png"), 8, 0, "auto")
    score: Any = GeneratorScoreCommand(generator="g", data=DatasetConfig(dataset="digits"), extractor="pixels:4")
    assert (score.samples, score.reference, score.few, score.seed) == (50_000, "train", False, 0)
    assert (score.classifier, score.out) == (None, None)
    mix = MixCommand(generator="g")
    assert (mix.out, mix.sets, mix.pairs, mix.num_pairs) == (Path("mixsets"), 1000, (), None)
    assert (mix.members, mix.beta, mix.seed, mix.sets_per_shard) == (8, None, 0, MixPlan.sets_per_shard)
    train = TrainCommand(data=DatasetConfig(dataset="digits"))
    assert (train.labels, train.scale, train.exclude, train.out) == ("reannotated", None, None, Path("run"))
    assert train.max_resident_gib == 8
    export = ExportCommand(source=Path("s"), out=Path("o"))
    assert (export.onnx, export.annotation, export.labels, export.format) == (True, None, None, None)
    assert KeepCommand(runs=(Path("r"),)).out == Path("results")


def test_samples_may_have_no_ending_but_no_other():
    for name in ("samples", "samples.png", "samples.PNG"):
        assert GeneratorSampleCommand(generator="g", out=Path(name)).out == Path(name)
    with pytest.raises(SemmixError, match=r"written as PNG: samples\.jpg"):
        GeneratorSampleCommand(generator="g", out=Path("samples.jpg"))


def test_options_of_mixed_sets_are_refused_where_nothing_learns_from_them(tmp_path):
    data, mixsets = DatasetConfig(dataset="digits"), tmp_path / "mixsets"
    for name, options, fix in (
        ("ce", {}, "choose a method that does, such as csm"),
        ("csm", {"num_mixed": 0}, "use num_mixed >= 1"),
    ):
        command = TrainCommand(data=data, train=TrainConfig(method=name, options=options), mixsets=mixsets)
        with pytest.raises(SemmixError, match=f"method {name} learns from no mixed sets") as caught:
            command.run()
        assert fix in caught.value.fix
        replace(command, mixsets=None)._refuse_unused()
    csm = TrainCommand(data=data, train=TrainConfig(method="csm"), mixsets=mixsets, labels="requested")
    csm._refuse_unused()
    replace(csm, labels="reannotated", scale=4.0)._refuse_unused()
    with pytest.raises(SemmixError, match="labels 'requested' have no scale: 4"):
        replace(csm, scale=4.0)._refuse_unused()


def test_keep_says_what_it_kept(tmp_path, capsys):
    first, second = sorted((RESULTS / "demo").iterdir())[:2]
    assert main(["keep", str(first), str(second), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.replace("\n", "") == f"kept {tmp_path / first.name}kept {tmp_path / second.name}"
    kept, own = (json.loads((folder / "metrics.json").read_text()) for folder in (tmp_path / first.name, first))
    assert kept["test"] == pytest.approx(own["test"], abs=1e-6)
    assert (tmp_path / first.name / "stats.jsonl").read_bytes() == (first / "stats.jsonl").read_bytes()


# ---- mixed sets


@pytest.fixture
def store(tmp_path) -> MixSets:
    """Seven sets of three classes in four shards."""
    plan = MixPlan(num_classes=3, num_sets=7, pairs=all_pairs(3), sets_per_shard=2)
    store = MixSets.create(tmp_path / "sets", plan, (3, 2, 2), {"digest": "g", "name": "g", "trained_on": None}, {})
    for k in range(plan.num_shards):
        store.write_shard(k, torch.full((len(plan.shard(k)), plan.set_size, 3, 2, 2), 40 * k, dtype=torch.uint8))
    return store


def test_sound_shards_are_counted_and_a_damaged_one_is_named(store, capsys):
    assert main(["verify", str(store.folder)]) == 0
    assert capsys.readouterr().out == "4 of 4 shards are sound\n"
    shard = store.folder / "shard-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    assert main(["verify", str(store.folder)]) == 1
    out = capsys.readouterr().out
    assert "shard-00002.safetensors" in out
    assert "shard-00001.safetensors" not in out
    assert out.endswith("\n3 of 4 shards are sound\n")


def test_mixed_sets_are_written_with_the_labels_that_were_requested(store, tmp_path, capsys):
    out = tmp_path / "png"
    assert main(["export", str(store.folder), "--out", str(out), "--labels", "requested"]) == 0
    assert f"wrote{out}" in "".join(capsys.readouterr().out.split())
    assert len(list((out / "images").iterdir())) == 7 * 8
    first, *_ = map(json.loads, (out / "labels.jsonl").read_text().splitlines())
    wanted = store.soft_labels(store.lam_requested())[0, 0].tolist()
    assert wanted in [pytest.approx(value) for value in first.values() if isinstance(value, list) and len(value) == 3]
    assert main(["export", str(store.folder), "--out", str(tmp_path / "other")]) == 1
    assert "annotation" in capsys.readouterr().err  # the one read back is not there


def test_images_are_read_back_and_exported_with_those_labels(tmp_path, capsys):
    plan = MixPlan(num_classes=3, num_sets=3, pairs=all_pairs(3))
    draw = torch.Generator().manual_seed(0)
    store = MixSets.create(tmp_path / "sets", plan, (3, 8, 8), {"digest": "g", "name": "g", "trained_on": None}, {})
    store.write_shard(0, torch.randint(0, 256, (3, 8, 3, 8, 8), generator=draw, dtype=torch.uint8))
    for k in range(60):
        path = tmp_path / "photos" / "abc"[k % 3] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 256, (8, 8, 3), generator=draw, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    torch.manual_seed(0)
    save_classifier(classifier("small", 3, 3, 8), "small", (3, 8, 8), tmp_path / "reader")
    out, encoder = tmp_path / "annotation", f"classifier:{tmp_path / 'reader'}"
    words = ["annotate", str(tmp_path / "photos"), "--encoder", encoder, "--mixsets", str(store.folder)]
    assert main([*words, "--out", str(out), "--scale", "4"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"annotation in {out}, scale 4.00; next: semmix train" in told
    assert "diagnosis" not in told
    assert main([*words, "--out", str(out), "--scale", "4", "--report"]) == 0
    assert f"diagnosis in {out}" in capsys.readouterr().out
    assert (out / "diagnosis.json").exists()
    labels = []
    for k, more in enumerate(([], ["--labels", "reannotated"], ["--labels", "one_hot"], ["--labels", "position"])):
        png = tmp_path / f"png-{k}"
        assert main(["export", str(store.folder), "--out", str(png), "--annotation", str(out), *more]) == 0
        labels.append((png / "labels.jsonl").read_text())
    assert labels[0] == labels[1]
    assert len(set(labels)) == 3


# ---- fit


def test_the_help_of_fit_is_short_until_images_are_named(capsys):
    for words in (["--help"], ["-h"], ["--help", "photos"]):
        with pytest.raises(SystemExit) as end:
            main(["fit", *words])
        assert end.value.code == 0
        assert capsys.readouterr().out == f"{SHORT_HELP}\n"


@pytest.mark.parametrize(("words", "defaults"), [(["cifar10"], ["100", "25"]), (["--seeds", "2"], ["5", "small"])])
def test_the_full_help_of_fit_shows_the_defaults_of_the_images(words, defaults, capsys):
    with pytest.raises(SystemExit):
        main(["fit", *words, "--help"])
    shown = capsys.readouterr().out
    assert "usage: semmix fit" in shown
    for default in defaults:
        assert f"default: {default})" in " ".join(shown.replace("│", "").split())
