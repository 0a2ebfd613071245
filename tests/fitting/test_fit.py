"""The whole path as a user walks it: killed at every stage, it ends as if nothing had happened."""

import json
import multiprocessing
import os
import random
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.cli.main import main
from semmix.data import load_dataset
from semmix.diffusion.sampling import MixConfig
from semmix.fitting import fit
from semmix.fitting.fit import learn_to_draw, mix_pairs, train_run
from semmix.fitting.own_images import refuse_inside
from semmix.fitting.recipes import smoke_demo
from semmix.training.generator import GeneratorConfig

SMALL = {
    "seeds": 2,
    "sets_per_pair": 2,
    "sets_per_shard": 20,
    "generator": {"num_images": 1280},
    "runtime": {"checkpoint_seconds": 0},
    "sampler": {"num_steps": 4},
    "train": {"epochs": 4},
}
SMALL_WORDS = shlex.split(
    "digits --seeds 2 --sets-per-pair 2 --sets-per-shard 20 --generator.num-images 1280 "
    "--checkpoint-seconds 0 --sampler.num-steps 4 --train.epochs 4"
)
"""The same on the command line."""

# What exists when a stage has begun, or is half done.
STAGES = [
    "generator/generator.json",
    "generator/checkpoint.safetensors",
    "generator/weights.safetensors",
    "mixsets/shard-00000.safetensors",
    "mixsets/shard-00003.safetensors",
    "runs/ce-0/checkpoint.safetensors",
    "annotation/part-00001.safetensors",
    "runs/ce-1/stats.jsonl",
    "runs/csm-0/config.json",
    "runs/csm-1/checkpoint.safetensors",
]


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["semmix.cli.fit", "semmix.cli.main"])
"""Each command runs in a process of its own, which need not import everything anew."""


def run_main(words: list[str], log: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    raise SystemExit(main(words))


def start(out: Path, words: list[str] = SMALL_WORDS) -> multiprocessing.process.BaseProcess:
    process = PROCESSES.Process(target=run_main, args=(["fit", *words, "--out", str(out)], log_of(out)))
    process.start()
    return process


def log_of(out: Path) -> Path:
    return out.with_suffix(".log")


def finish(out: Path, words: list[str] = SMALL_WORDS, status: int = 0) -> str:
    process = start(out, words)
    process.join(300)
    text = log_of(out).read_text()
    assert process.exitcode == status, text
    return text


def stop_when(out: Path, marker: str, delay: float, signum: int, words: list[str] = SMALL_WORDS) -> int | None:
    """Send a signal a little after `marker` appears; return the exit status."""
    process = start(out, words)
    while not (out / marker).exists() and process.is_alive():
        time.sleep(0.005)
    time.sleep(delay)
    if process.is_alive() and process.pid:
        os.kill(process.pid, signum)
    process.join(120)
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "whole"
    text = finish(out)
    assert "digits: 10 classes, 100 train, 300 val, 1397 test images" in text
    assert "CSM" in text
    assert "report.html" in text
    return out


def outcome(out: Path) -> dict[str, bytes]:
    """The bytes of everything that must not depend on interruptions."""
    kept = [
        "mixsets/*",
        "annotation/*",
        "generator/weights*",
        "runs/*/metrics.json",
        "runs/*/logits*",
        "runs/*/weights*",
        "runs/*/stats.jsonl",
    ]
    return {str(p.relative_to(out)): p.read_bytes() for k in kept for p in sorted(out.glob(k))}


def test_killed_ten_times_it_ends_the_same(whole, tmp_path):
    out, delays = tmp_path / "killed", random.Random(0)
    for marker in STAGES:
        stop_when(out, marker, delays.uniform(0, 0.2), signal.SIGKILL)
    finish(out)
    assert outcome(out) == outcome(whole)


def test_finished_path_is_not_walked_again(whole):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "report.html"}
    finish(whole)
    after = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "report.html"}
    assert {p for p in after if p.is_file() and after[p] != before.get(p)} == set()


def test_the_same_call_from_python_returns_what_the_command_left(whole):
    before = outcome(whole)
    fitted = fit("digits", whole, **SMALL)
    assert outcome(whole) == before
    assert fitted.report == whole / "report.html"
    assert [(run.method, run.seed) for run in fitted.runs] == [("ce", 0), ("ce", 1), ("csm", 0), ("csm", 1)]
    assert fitted.best in fitted.runs
    assert f"seed {fitted.best.seed}" in fitted.summary[0]
    assert (fitted.findings, fitted.warnings) == ((), ())
    images = load_dataset("digits").test.images[:300]
    by_model = [answer.class_name for answer in fitted.model.predict(images)]
    assert [answer.class_name for answer in fitted.predict(images.numpy())] == by_model
    assert repr(fitted).startswith(f"Fitted('{whole}': 4 runs, model from Run(")
    shown = fitted._repr_html_()
    assert "<td" in shown
    assert "CSM" in shown
    assert fitted.summary[0] in shown


def test_the_report_shows_the_runs_and_the_sets(whole):
    page = (whole / "report.html").read_text()
    assert "CSM" in page
    assert "data:image/png" in page


def test_generator_and_encoder_learned_the_training_split_alone(whole):
    generator = json.loads((whole / "generator" / "generator.json").read_text())
    annotation = json.loads((whole / "annotation" / "annotation.json").read_text())
    run = json.loads((whole / "runs" / "csm-0" / "config.json").read_text())
    assert generator["trained_on"] == run["inputs"]["train"]
    assert annotation["encoder_trained_on"] == run["inputs"]["train"]
    assert run["leak"] is False


def test_damaged_shard_stops_training_and_can_be_made_again(whole, tmp_path):
    """A flipped byte is noticed by whoever reads it; deleting the shard mends the store."""
    import shutil

    out = tmp_path / "damaged"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "runs" / "csm-1")
    shard = out / "mixsets" / "shard-00001.safetensors"
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    assert "shard-00001.safetensors cannot be used" in finish(out, status=1)
    shard.unlink()
    finish(out)
    assert shard.read_bytes() == sound
    assert outcome(out) == outcome(whole)


# ---- images of one's own


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three classes of 130 smooth pictures; the third is the first with more contrast."""
    folder = tmp_path_factory.mktemp("own") / "photos"
    draw = torch.Generator().manual_seed(0)
    for c, name in enumerate(("plain", "striped", "bold")):
        (folder / name).mkdir(parents=True)
        coarse = torch.rand(130, 3, 5, 5, generator=draw) * (1.0 if c == 2 else 0.5)
        images = torch.nn.functional.interpolate(coarse, (40, 30), mode="bicubic").clamp(0, 1)
        if c == 1:
            images[:, :, ::4] = 0
        for k, image in enumerate(images):
            pixels = (image * 255).to(torch.uint8).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder


QUICK = shlex.split(
    "--seeds 1 --sets-per-pair 2 --sampler.num-steps 2 --generator.num-images 512 "
    "--generator.batch-size 32 --checkpoint-seconds 0 --train.classifier small --train.epochs 3"
)


def test_own_images_stopped_by_ctrl_c_go_on_and_end_with_a_model(photos, tmp_path, capsys):
    out = tmp_path / "out"
    # Hours, so that even the slowest machine plans a generator; QUICK makes it short.
    words = [str(photos), *QUICK, "--minutes", "600"]
    assert stop_when(out, "generator/checkpoint.safetensors", 0, signal.SIGINT, words) == 130
    text = log_of(out).read_text()
    assert "the same command goes on from here" in text
    text = " ".join(text.split())
    assert "390 images in 3 classes: bold 130, plain 130, striped 130" in text
    assert "plan (good, on this CPU): about" in text
    plan = (out / "plan.json").read_bytes()

    text = finish(out, words)
    assert (out / "plan.json").read_bytes() == plan
    assert "CSM" in text
    assert f"use it: semmix predict {out / 'model'} IMAGES" in text
    run = json.loads((out / "runs" / "csm-0" / "config.json").read_text())
    assert run["leak"] is False

    assert main(["predict", str(out / "model"), str(photos / "striped" / "0.png")]) == 0
    assert "striped" in capsys.readouterr().out


def test_a_table_of_few_images_is_fitted_without_a_generator(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{photos}/{name}/{k}.png;{name}" for name in ("plain", "striped") for k in range(20)]
    (tmp_path / "few.csv").write_text("\n".join(["file;class", *rows, "gone.png;plain"]))
    words = ["--quality", "draft", "few.csv", "--minutes", "0.2", "--train.epochs", "3"]
    status = main(["fit", *words])
    printed = " ".join(capsys.readouterr().out.split())
    assert status == 0
    assert "1 files cannot be used and are left out: gone.png (unreadable)" in printed
    assert "too few to teach a generator" in printed
    assert "only 6 images to calibrate on" in printed
    out = tmp_path / "runs" / "few"
    assert not (out / "generator").exists()
    assert (out / "model" / "model.json").exists()
    assert (out / "report.html").exists()
    fitted = fit("few.csv", quality="draft", minutes=0.2, train={"epochs": 3})
    assert fitted.folder == out.relative_to(tmp_path)
    assert [run.method for run in fitted.runs] == ["ce"]
    assert fitted.findings[0] == "40 images in 2 classes: plain 20, striped 20"
    assert fitted.findings[-len(fitted.warnings) :] == fitted.warnings
    assert fitted.warnings[0].startswith("1 files cannot be used")
    assert fitted.warnings[0] in fitted._repr_html_()
    (answer,) = fitted.predict(photos / "striped" / "0.png")
    assert answer.class_name in ("plain", "striped")
    assert len(fitted.predict([photos / "plain", photos / "striped" / "0.png"])) == 131
    with pytest.raises(SemmixError, match=r"not every file can be read as an image: few.csv"):
        fitted.predict(["few.csv"])
    # The images it leaves are a data set for other commands, as the tutorial says.
    again = ["--method", "ce", "--classifier", "small", "--epochs", "1", "--batch-size", "16"]
    assert main(["train", str(out / "images"), *again, "--out", str(tmp_path / "run")]) == 0


def test_rare_classes_and_confused_pairs(photos, tmp_path):
    """Two partners of many, rare classes repeated: the generator still knows its own split only."""
    data = load_dataset(photos, size=32)
    kept = torch.cat([(data.train.labels == c).nonzero().squeeze(1)[: [40, 4, 40][c]] for c in range(3)])
    train = data.train.select(kept)
    data = replace(data, train=train)
    config = replace(
        smoke_demo(),
        data=replace(smoke_demo().data, dataset="photos", train_size=None),
        out=tmp_path / "out",
        seeds=1,
        partners=1,
        even_out=True,
        generator=GeneratorConfig(network="cpu32", num_images=64, batch_size=16, num_grids=1),
        sampler=MixConfig(num_steps=2, batch_size=16),
    )
    generator = learn_to_draw(config, data)
    manifest = json.loads((config.out / "generator" / "generator.json").read_text())
    assert manifest["trained_on"] == train.digest
    plain = train_run(config, data, "ce", 0)
    store = mix_pairs(config, data, generator, plain)
    assert {c for pair in store.plan.pairs for c in pair} == {0, 1, 2}
    assert len(store.plan.pairs) == 2


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--minutes", "3", "digits"], "--minutes plans for images of your own"),
        (["cifar10", "--quality=draft"], "--quality plans for images of your own"),
        (["no/such/folder"], "no such folder"),
        (["missing.csv"], "cannot read missing.csv"),
        (["fotos"], "unknown data set"),
    ],
)
def test_mistakes_are_answered(words, answer, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *words]) == 1
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "out", "good"),
    [
        (".", [], "--out ../runs/photos"),
        ("../photos", ["--out", "results"], "--out ../runs/photos"),
        (".", ["--out", "plain/results"], "--out ../runs/photos"),
        (".", ["--out", "."], "--out ../runs/photos"),
    ],
)
def test_results_are_not_put_among_the_images(photos, source, out, good, capsys, monkeypatch):
    monkeypatch.chdir(photos)
    before = sorted(photos.rglob("*"))
    assert main(["fit", source, "--quality", "draft", *out]) == 1
    told = capsys.readouterr().err
    assert "results would lie among the images" in told
    assert good in told
    assert sorted(photos.rglob("*")) == before


def test_results_may_lie_in_a_hidden_folder_or_beside_the_images(photos):
    for out in (photos / ".semmix" / "a", photos.parent / "runs"):
        refuse_inside(photos, out)
    with pytest.raises(SemmixError, match="among the images"):
        refuse_inside(photos, photos / "runs")
    with pytest.raises(SemmixError, match="among the images"):  # they would be kept in images/
        refuse_inside(photos.rename(photos.with_name("images")), photos.parent)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--train-size", "30"], "made for all of your images: --train-size 30"),
        (["--imbalance", "5"], "made for all of your images: --imbalance 5"),
        (["--minutes", "nan"], "a plan needs time: nan minutes"),
        (["--minutes", "inf"], "a plan needs time: inf minutes"),
    ],
)
def test_what_no_plan_can_heed_is_refused_before_any_work(photos, words, answer, capsys, tmp_path):
    assert main(["fit", str(photos), *words, "--out", str(tmp_path / "out")]) == 1
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_short_help_names_options_that_exist(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help"])
    short = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "photos/", "--help"])
    full = capsys.readouterr().out
    named = set(re.findall(r"--[a-z-]+", short)) - {"--help"}
    assert len(named) > 6
    assert all(f"{option} " in full or f"{option}," in full for option in named)
