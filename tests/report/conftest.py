"""Runs with known miscalibration, and mixed sets to show."""

import json

import numpy as np
import pytest
import torch

from semmix.core.files import write_json, write_tensors
from semmix.report import Gallery


def make_logits(num: int, num_classes: int, sharpness: float, seed: int):
    """Return logits whose honest probabilities are softmax(logits / sharpness), and labels."""
    draw = np.random.default_rng(seed)
    honest = draw.normal(size=(num, num_classes)) * 2.2
    probs = np.exp(honest) / np.exp(honest).sum(1, keepdims=True)
    labels = (draw.random((num, 1)) > probs.cumsum(1)).sum(1).clip(0, num_classes - 1)
    return torch.tensor(honest * sharpness).float(), torch.tensor(labels)


def write_run(folder, method, seed, sharpness=1.0, num=600, num_classes=4, **details):
    """Write a finished run folder: over-confident where sharpness > 1.

    `details` may hold `options`, `mixed` and `origins` (digests of inputs), or replace any other
    setting.
    """
    for offset, split in enumerate(("val", "test")):
        logits, labels = make_logits(num, num_classes, sharpness, seed=10 * seed + offset)
        tensors = {"logits": logits.bfloat16(), "labels": labels}
        write_tensors(folder / f"logits-{split}.safetensors", tensors)
    details = {"dataset": "digits", "mixed": None, "leak": False, "finished": True, **details}
    inputs = {"dataset": details.pop("dataset"), "mixed": details.pop("mixed")}
    inputs |= details.pop("origins", {})
    ends = {key: details.pop(key) for key in ("leak", "finished")}
    config = {"method": method, "options": {}, "classifier": "small", "epochs": 5, "seed": seed}
    inputs["config"] = {**config, **details}
    write_json(folder / "config.json", {"kind": "run", "format": 1, "inputs": inputs, **ends})
    command = f"semmix train digits --method {method} --seed {seed}"
    env = {"semmix": "0.1.0", "gpu": None, "command": command, "started": "2026-01-02T03:04:05"}
    write_json(folder / "env.json", env)
    lines = [
        {
            "epoch": e,
            "nimg": 100 * e,
            "loss": 2 / e,
            "lr": 0.1,
            "val_acc": 0.5 + e / 20,
            "val_nll": sharpness / e,
            "val_ece": sharpness / 20,
            "val_oe": sharpness / 30,
        }
        for e in range(1, 6)
    ]
    (folder / "stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def make_run():
    """The function that writes a run folder."""
    return write_run


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory):
    """Three seeds of an over-confident baseline and of a well calibrated method."""
    root = tmp_path_factory.mktemp("runs")
    return [
        write_run(root / f"{method}-{seed}", method, seed, sharpness)
        for method, sharpness in (("ce", 2.0), ("csm", 1.05))
        for seed in range(3)
    ]


@pytest.fixture(scope="session")
def gallery():
    """Four sets of five 6 x 6 images that fade from one class to the other."""
    lam = np.linspace(0, 1, 5)
    images = (lam[None, :, None, None, None] * 255 * np.ones((4, 5, 3, 6, 6))).astype(np.uint8)
    return Gallery(
        images=images,
        pairs=[(0, 1), (0, 2), (1, 3), (2, 3)],
        lam_requested=np.tile(lam, (4, 1)),
        lam=np.tile(lam**2, (4, 1)),
    )
