"""The examples run as they stand, on mixed sets drawn and annotated here."""

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from semmix.annotation import annotate
from semmix.core.runtime import Runtime
from semmix.data import load_dataset
from semmix.diffusion.sampling import MixConfig
from semmix.mixing.draw import mix
from semmix.mixing.export import export_folder, export_parquet
from semmix.mixing.plan import MixPlan, all_pairs
from semmix.networks.encoders import load_encoder
from semmix.training.classifier import TrainConfig, train

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """Mixed sets of digits, their annotation, and both exports."""
    out, data = tmp_path_factory.mktemp("demo"), load_dataset("digits", train_size=100)
    generator = runpy.run_path(str(EXAMPLES / "own_generator.py"))["MeanDigits"](data.train)
    plan = MixPlan(num_classes=10, num_sets=90, pairs=all_pairs(10))
    store = mix(generator, plan, MixConfig(num_steps=4), out / "mixsets")
    config = TrainConfig(method="ce", classifier="small", epochs=10, batch_size=50, lr=0.05, pad=0, flip=False)
    run = train(data, config, out / "run", runtime=Runtime(device="cpu")).folder
    encoder = load_encoder(f"classifier:{run}", torch.device("cpu"))
    notes = annotate(store, encoder, data, out / "annotation")
    soft_labels = notes.soft_labels("reannotated")
    export_folder(store, soft_labels, out / "sets")
    export_parquet(store, soft_labels, out / "sets.parquet")
    return out


@pytest.mark.parametrize(
    ("needs", "name", "arguments"),
    [
        ("torch", "train_pytorch", ["sets"]),
        ("lightning", "train_lightning", ["sets.parquet"]),
        ("timm", "train_timm", ["mixsets", "annotation"]),
        ("keras", "train_keras", ["mixsets", "annotation"]),
    ],
)
def test_an_example_learns_the_digits(demo, needs, name, arguments):
    if not find_spec(needs):
        pytest.skip(f"needs {needs}")
    words = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(words, cwd=demo, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%, ECE [\d.]+%", done.stdout)
    assert float(accuracy) > 75


def test_the_paper_on_one_page_ends_with_a_table(tmp_path):
    script = EXAMPLES / "csm.py"
    assert len(script.read_text().splitlines()) < 80
    words = [sys.executable, str(script), "--quick"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "45 sets of 8 images" in done.stdout
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith(("CE ", "CSM "))}
    assert [lines[name][1] for name in ("CE", "CSM")] == ["2", "2"]
    assert float(lines["CSM"][2]) > 20  # better than chance
