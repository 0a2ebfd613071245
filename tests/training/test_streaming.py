"""Images in memory and images in files train the same network."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from semmix.core.runtime import Runtime
from semmix.data import load_dataset
from semmix.data.decoding import StreamedImages
from semmix.training import engine
from semmix.training.batches import read_batches
from semmix.training.classifier import TrainConfig, train


def train_classifier(*args):
    return train(*args, runtime=Runtime(device="cpu", checkpoint_seconds=0)).folder


CONFIG = TrainConfig(method="csm", classifier="small", epochs=3, batch_size=16, lr=0.05, pad=1, allow_leak=True)


@pytest.fixture
def streamed(toy_folder):
    data = load_dataset(toy_folder, max_resident_gib=0)
    assert all(isinstance(split.images, StreamedImages) for split in data.splits.values())
    return data


@pytest.mark.parametrize("name", ["csm", "crl"])
def test_same_run_from_memory_and_from_files(tmp_path, toy_folder, toy_source, streamed, name):
    config = replace(CONFIG, method=name)
    a = train_classifier(load_dataset(toy_folder), config, tmp_path / "resident", toy_source)
    b = train_classifier(streamed, config, tmp_path / "streamed", toy_source)
    for file in ("weights.safetensors", "logits-test.safetensors", "stats.jsonl", "config.json"):
        assert (a / file).read_bytes() == (b / file).read_bytes(), file


@pytest.mark.parametrize("stop_at", [1, 3, 8])  # three steps to a pass of 60 images
def test_stopped_run_goes_on_from_files(tmp_path, toy_source, streamed, monkeypatch, stop_at):
    whole = train_classifier(streamed, CONFIG, tmp_path / "whole", toy_source)
    save = engine.save_checkpoint

    def save_and_stop(path, groups, header):
        save(path, groups, header)
        if header["step"] == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(streamed, CONFIG, tmp_path / "stopped", toy_source)
    monkeypatch.undo()
    stopped = train_classifier(streamed, CONFIG, tmp_path / "stopped", toy_source)
    first, second = (load_file(folder / "weights.safetensors") for folder in (whole, stopped))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_batches_follow_the_order(toy_folder, streamed):
    resident = load_dataset(toy_folder).train.images
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    for images in (resident, streamed.train.images):
        batches = list(read_batches(images, order, batch_size=12))
        assert [len(batch) for batch in batches] == [12] * 5
        assert torch.equal(torch.cat(batches), resident[order])
