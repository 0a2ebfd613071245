"""Fine-tuning a network of the user's own, from code, an exported program or a run."""

import json
import shutil
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from semmix import SemmixError
from semmix.cli.main import main
from semmix.core.runtime import Runtime
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier
from semmix.training import engine
from semmix.training.classifier import TrainConfig, first_network, train

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8 * 16, num_classes)

    def forward(self, images):
        x = nn.functional.max_pool2d(self.norm(self.conv(images)).relu(), 2)
        return self.fc(self.drop(x.flatten(1)))

def pretrained():
    net = Net()
    net.load_state_dict(torch.load("pretrained.pt", weights_only=True))
    return net

class Normalised(Net):
    mean, std = (0.25,), torch.tensor([0.125])

def thousand():
    return Net(1000)

def tied():
    net = Net()
    net.again = net.conv
    return net

def words():
    return "no network"

def ours():
    import semmix
    return semmix.classifier("small", 3, 1, 8, mean=(0.75,), std=(0.5,))

def lost():
    return torch.load("gone.pt")

class Tuple(Net):
    def forward(self, images):
        return (super().forward(images),)

ready = Net()
"""
CPU = Runtime(device="cpu")


def train_classifier(*args, runtime=CPU):
    return train(*args, runtime=runtime).folder


train_and_save = partial(train_classifier, runtime=replace(CPU, checkpoint_seconds=0))
CONFIG = TrainConfig(method="ce", epochs=2, batch_size=20, lr=0.01, pad=0, flip=False, init="mynets:pretrained")


@pytest.fixture
def mynets(tmp_path, monkeypatch):
    """A module of the user's in the current folder, with trained weights beside it."""
    (tmp_path / "mynets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mynets", raising=False)
    import mynets

    torch.manual_seed(3)
    torch.save(mynets.Net().state_dict(), "pretrained.pt")
    yield mynets
    del sys.modules["mynets"]


@pytest.fixture
def program(mynets, tmp_path):
    """The same network as an exported program."""
    path = tmp_path / "net.pt2"
    images, batch = torch.zeros(4, 1, 8, 8), torch.export.Dim("batch")
    shapes = ({0: batch},)
    torch.export.save(torch.export.export(mynets.pretrained().eval(), (images,), dynamic_shapes=shapes), path)
    return path


def test_training_starts_from_the_users_weights(mynets, tmp_path, toy_data):
    out = train_classifier(toy_data, replace(CONFIG, epochs=1, lr=1e-12), tmp_path / "run")
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in toy_data.train.channel_stats())
    net = mynets.pretrained().eval()
    # One epoch at no rate moves the batch statistics alone.
    weights = load_file(out / "weights.safetensors")
    net.load_state_dict({k.removeprefix("net."): v for k, v in weights.items() if "net." in k})
    torch.testing.assert_close(net.fc.weight, mynets.pretrained().fc.weight)
    logits = net((toy_data.test.images / 255 - mean) / std)
    torch.testing.assert_close(logits, load_file(out / "logits-test.safetensors")["logits"])


def test_the_run_is_a_run_like_any_other(mynets, tmp_path, toy_data):
    out = train_classifier(toy_data, CONFIG, tmp_path / "run")
    network, _ = load_classifier(out)
    logits = load_file(out / "logits-test.safetensors")["logits"]
    torch.testing.assert_close(predict_logits(network, toy_data.test.images), logits)
    assert network.eval().features(toy_data.test.images).shape == (45, network.feature_dim)
    assert network.feature_dim == 8 * 16
    config = json.loads((out / "config.json").read_text())
    assert config["inputs"]["config"]["classifier"] == "mynets:pretrained"
    exported = torch.export.export(network.eval(), (toy_data.test.images[:4],)).module()
    torch.testing.assert_close(exported(toy_data.test.images[:4]), logits[:4])


def test_a_network_edited_after_training_is_named(mynets, tmp_path, toy_data, monkeypatch):
    out = train_classifier(toy_data, CONFIG, tmp_path / "run")

    def wider():
        net = mynets.Net()
        net.extra = torch.nn.Linear(2, 2)
        return net

    monkeypatch.setattr(mynets, "pretrained", wider)
    with pytest.raises(SemmixError, match=r"not of mynets:pretrained(.|\n)*net.extra.weight"):
        load_classifier(out)


def test_a_program_trains_as_the_network_it_was_exported_from(program, tmp_path, toy_data):
    config = replace(CONFIG, init=str(program))
    program_run = train_classifier(toy_data, config, tmp_path / "program")
    code_run = train_classifier(toy_data, CONFIG, tmp_path / "code")
    assert (program_run / "stats.jsonl").read_text() == (code_run / "stats.jsonl").read_text()
    logits = [load_file(run / "logits-test.safetensors")["logits"] for run in (program_run, code_run)]
    torch.testing.assert_close(*logits)


def test_a_programs_run_needs_nothing_else(program, tmp_path, toy_data):
    out = train_classifier(toy_data, replace(CONFIG, init=str(program)), tmp_path / "run")
    program.unlink()
    moved = shutil.move(out, tmp_path / "moved")
    network, _ = load_classifier(moved)
    logits = load_file(moved / "logits-test.safetensors")["logits"]
    torch.testing.assert_close(predict_logits(network, toy_data.test.images), logits)
    again = train_classifier(toy_data, replace(CONFIG, init=str(moved)), tmp_path / "again")
    assert (again / "program.pt2").read_bytes() == (moved / "program.pt2").read_bytes()


def test_a_run_goes_on_where_another_ended(tmp_path, toy_data):
    first = replace(CONFIG, init=None, classifier="small", epochs=4, lr=0.05)
    run = train_classifier(toy_data, first, tmp_path / "first")
    config = replace(CONFIG, init=str(run), epochs=1, lr=1e-4)
    out = train_classifier(toy_data, config, tmp_path / "second")
    before, after = (
        json.loads((folder / "stats.jsonl").read_text().splitlines()[row]) for folder, row in ((run, 0), (out, 0))
    )
    assert after["loss"] < 0.5 * before["loss"]
    inputs = json.loads((out / "config.json").read_text())["inputs"]
    assert inputs["init"] == load_classifier(run)[1]


def test_an_interrupted_fine_tuning_ends_the_same(program, tmp_path, toy_data, monkeypatch):
    config = replace(CONFIG, init=str(program))
    whole = train_and_save(toy_data, config, tmp_path / "whole")
    save = engine.save_checkpoint

    def save_and_stop(path, groups, header):
        save(path, groups, header)
        if header["step"] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train_and_save(toy_data, config, tmp_path / "stopped")
    monkeypatch.setattr(engine, "save_checkpoint", save)
    stopped = train_and_save(toy_data, config, tmp_path / "stopped")
    name = "weights.safetensors"
    assert (whole / name).read_bytes() == (stopped / name).read_bytes()


def test_other_initial_weights_are_another_run(mynets, tmp_path, toy_data):
    out = train_classifier(toy_data, CONFIG, tmp_path / "run")
    torch.save(mynets.Net().state_dict(), "pretrained.pt")
    with pytest.raises(SemmixError, match="inputs: init"):
        train_classifier(toy_data, CONFIG, out)


@pytest.mark.parametrize(
    ("changes", "mean", "std"),
    [
        ({"init": "mynets:Normalised"}, 0.25, 0.125),
        ({"init": "mynets:Normalised", "init_mean": (0.0,), "init_std": (1.0,)}, 0.0, 1.0),
        ({"init": "mynets:ready"}, None, None),
        ({"init": "mynets:ours"}, 0.75, 0.5),
    ],
)
def test_how_images_are_normalised(mynets, toy_data, changes, mean, std):
    network, _ = first_network(replace(CONFIG, **changes), toy_data)
    expected = toy_data.train.channel_stats() if mean is None else ((mean,), (std,))
    assert [network.mean.item(), network.std.item()] == pytest.approx([v[0] for v in expected])


def test_layers_the_user_froze_stay_as_they_are(mynets, tmp_path, toy_data):
    mynets.ready.conv.requires_grad_(False)
    out = train_classifier(toy_data, replace(CONFIG, init="mynets:ready"), tmp_path / "run")
    weights = load_file(out / "weights.safetensors")
    assert torch.equal(weights["net.conv.weight"], mynets.ready.conv.weight)
    assert not torch.equal(weights["net.fc.weight"], mynets.ready.fc.weight)


def test_from_the_command_line(mynets, tmp_path):
    code = CODE.replace("num_classes=3", "num_classes=10")
    (tmp_path / "tens.py").write_text(code)
    words = ["train", "digits", "--method", "ce", "--epochs", "10", "--device", "cpu"]
    words += ["--batch-size", "50", "--pad", "0", "--no-flip"]
    assert main([*words, "--init", "tens:Net", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]["acc"] > 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init": "mynets:thousand"}, r"logits \[2, 3\]: \[2, 1000\]\n.*3 outputs"),
        ({"init": "mynets:Tuple"}, "does not give logits .*: tuple"),
        ({"init": "mynets:words"}, "mynets:words is not a network: str"),
        ({"init": "mynets:tied"}, "net.conv.weight and net.again.weight"),
        ({"init": "mynets:lost"}, "cannot be called: FileNotFoundError"),
        ({"init": "mynets:nobody"}, "cannot load network mynets:nobody"),
        ({"init": "resnet19"}, "cannot start from this"),
        ({"init": "gone.pt2"}, "no exported program here"),
        ({"init": "mynets.py"}, "cannot start from this"),
        ({"init": "."}, "no trained classifier"),
        ({"init": "mynets:ours", "init_mean": (0.5,)}, "normalises its images by itself"),
        ({"init_mean": (0.5, 0.5, 0.5)}, "3 values for 1 channels"),
        ({"init_std": (0.0,)}, r"^a standard deviation is positive: \(0\.0,\)\n.*use 1 for none"),
        ({"init": None, "init_mean": (0.5,)}, "name it with --init"),
    ],
)
def test_mistakes_are_explained(mynets, tmp_path, toy_data, changes, words):
    with pytest.raises(SemmixError, match=words):
        train_classifier(toy_data, replace(CONFIG, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_programs_of_one_batch_size_are_refused(mynets, tmp_path, toy_data):
    fixed = torch.export.export(mynets.ready.eval(), (torch.zeros(4, 1, 8, 8),))
    torch.export.save(fixed, tmp_path / "fixed.pt2")
    (tmp_path / "broken.pt2").write_bytes(b"not a program")
    for name, words in (("fixed", "batches of any size"), ("broken", "torch.export.save")):
        config = replace(CONFIG, init=str(tmp_path / f"{name}.pt2"))
        with pytest.raises(SemmixError, match=words):
            train_classifier(toy_data, config, tmp_path / "run")
