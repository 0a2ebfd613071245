"""The whole path as a user walks it: killed at every stage, it ends as if nothing had happened."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = [
    "digits", "--seeds", "2", "--sets-per-pair", "2", "--sets-per-shard", "20",
    "--generator.num-images", "1280", "--generator.checkpoint-seconds", "0",
    "--sampler.num-steps", "4", "--train.epochs", "4", "--train.checkpoint-seconds", "0",
]  # fmt: skip

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


def start(out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "semmix.cli", "fit", *SMALL, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(out: Path) -> str:
    process = start(out)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text


def kill_when(out: Path, marker: str, delay: float) -> None:
    """kill -9 a little after `marker` appears."""
    process = start(out)
    while not (out / marker).exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "whole"
    text = finish(out)
    assert "CSM" in text
    assert "report.html" in text
    return out


def outcome(out: Path) -> dict[str, bytes]:
    """The bytes of everything that must not depend on interruptions."""
    kept = ["mixsets/*", "annotation/*", "generator/weights*", "runs/*/metrics.json",
            "runs/*/logits*", "runs/*/weights*", "runs/*/stats.jsonl"]  # fmt: skip
    return {str(p.relative_to(out)): p.read_bytes() for k in kept for p in sorted(out.glob(k))}


def test_killed_ten_times_it_ends_the_same(whole, tmp_path):
    out, delays = tmp_path / "killed", random.Random(0)
    for marker in STAGES:
        kill_when(out, marker, delays.uniform(0, 0.2))
    finish(out)
    assert outcome(out) == outcome(whole)


def test_finished_path_is_not_walked_again(whole):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "report.html"}
    finish(whole)
    after = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != "report.html"}
    assert {p for p in after if p.is_file() and after[p] != before.get(p)} == set()


def test_the_report_shows_the_runs_and_the_sets(whole):
    page = (whole / "report.html").read_text()
    assert "CSM" in page
    assert "data:image/png" in page


def test_generator_learned_the_training_split_alone(whole):
    generator = json.loads((whole / "generator" / "generator.json").read_text())
    run = json.loads((whole / "runs" / "csm-0" / "config.json").read_text())
    assert generator["trained_on"] == run["inputs"]["train"]
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
    process = start(out)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "shard-00001.safetensors cannot be used" in text
    shard.unlink()
    finish(out)
    assert shard.read_bytes() == sound
    assert outcome(out) == outcome(whole)
