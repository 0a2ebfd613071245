"""User networks: what is taken, what is refused, and that looking at them changes nothing."""

import sys

import pytest
import torch
from torch import nn

from semmix.core.errors import SemmixError
from semmix.networks import classifier
from semmix.networks.saved import Program, UserClassifier, checked, load_classifier, save_classifier, user_classifier

SHAPE = (1, 4, 4)


class Norm(nn.Module):
    """A network with batch normalisation and dropout, as an exported program keeps them."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm2d(1), nn.Dropout(0.5), nn.Linear(16, 3)

    def forward(self, images):
        return self.fc(self.drop(self.norm(images).flatten(1)))


@pytest.fixture
def program(tmp_path):
    """The file of an exported program whose weights were frozen before it was exported."""
    network = Norm().eval().requires_grad_(False)
    dynamic = {"images": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(network, (torch.zeros(2, *SHAPE),), dynamic_shapes=dynamic)
    torch.export.save(exported, tmp_path / "program.pt2")
    return str(tmp_path / "program.pt2")


def test_asking_for_features_leaves_no_hook_behind():
    linear = nn.Linear(16, 3)
    network = UserClassifier(nn.Sequential(nn.Flatten(), linear), 3, [0.0], [1.0])
    for _ in range(3):
        network.features(torch.zeros(2, *SHAPE))
    assert len(linear._forward_pre_hooks) == 0


def test_all_weights_of_a_frozen_program_can_be_trained(program):
    network = user_classifier(program, 3, SHAPE).train()
    parameters = dict(network.named_parameters())
    assert len(parameters) == 4
    network(torch.rand(8, *SHAPE)).square().sum().backward()
    assert all(p.requires_grad and p.grad is not None and p.grad.abs().sum() > 0 for p in parameters.values())


def test_the_modes_of_a_program_reach_its_operations(program):
    network = user_classifier(program, 3, SHAPE)
    images = torch.rand(8, *SHAPE)
    assert not network.training
    assert torch.equal(network(images), network(images))
    before = network.state_dict()["net.module.norm.running_mean"].clone()
    network.train()
    assert not torch.equal(network(images), network(images))
    assert not torch.equal(before, network.state_dict()["net.module.norm.running_mean"])


def test_a_program_is_in_training_mode_as_its_flag_says(program):
    module = Program(torch.export.load(program).module())
    images = torch.rand(8, *SHAPE)
    assert module.training
    assert not torch.equal(module(images), module(images))  # dropout


SCALED = """
import torch

class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(32, 3)

    def forward(self, images):
        return self.fc(images.flatten(1))

class Scaled(Plain):
    mean, std = torch.tensor([0.1, 0.2]), (4,)
"""


@pytest.mark.parametrize(
    ("name", "named", "mean", "std"),
    [
        ("Scaled", ((), ()), [0.1, 0.2], [4, 4]),
        ("Scaled", ((0.5,), ()), [0.5, 0.5], [4, 4]),
        ("Scaled", ((), (2.0, 3.0)), [0.1, 0.2], [2, 3]),
        ("Plain", ((), ()), [0.7, 0.7], [0.8, 0.8]),
    ],
)
def test_statistics_are_those_named_or_the_networks_own_or_the_default(tmp_path, monkeypatch, name, named, mean, std):
    (tmp_path / "scaled_nets.py").write_text(SCALED)
    monkeypatch.syspath_prepend(tmp_path)
    network = user_classifier(f"scaled_nets:{name}", 3, (2, 4, 4), named, ((0.7,), (0.8,)))
    assert network.mean.flatten().tolist() == pytest.approx(mean)
    assert network.std.flatten().tolist() == pytest.approx(std)
    assert network.feature_dim == 32


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("make = dict", "wrong_nets:make is not a network: dict"),
        ("def make(): raise RuntimeError('no file')", "wrong_nets:make cannot be called: RuntimeError: no file"),
        ("other = 1", "cannot load network wrong_nets:make"),
    ],
)
def test_what_is_no_network_is_refused_in_words(tmp_path, monkeypatch, code, words):
    (tmp_path / "wrong_nets.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_nets", raising=False)
    with pytest.raises(SemmixError, match=words):
        user_classifier("wrong_nets:make", 3, SHAPE)
    with pytest.raises(SemmixError, match=r"no exported program here: none\.pt2"):
        user_classifier("none.pt2", 3, SHAPE)


class Picky(nn.Module):
    """Takes batches of one size."""

    def __init__(self, num: int):
        super().__init__()
        self.num, self.fc = num, nn.Linear(16, 3)

    def forward(self, images):
        return self.fc(images.reshape(self.num, 16))


@pytest.mark.parametrize(("num", "refused"), [(2, 3), (3, 2)])
def test_a_network_for_one_size_of_batches_is_refused(num, refused):
    network = UserClassifier(Picky(num), 3, [0.0], [1.0])
    with pytest.raises(SemmixError, match=rf"it must take float images \[{refused}, 1, 4, 4\]"):
        checked(network, 3, SHAPE, "picky")


def test_the_number_of_classes_must_be_the_number_of_logits():
    network = UserClassifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), 3, [0.0], [1.0])
    assert checked(network.train(), 3, SHAPE, "net") is network
    assert not network.training
    with pytest.raises(SemmixError, match=r"does not give logits \[2, 4\]: \[2, 3\]"):
        checked(network, 4, SHAPE, "net")


def test_a_loaded_classifier_is_ready_to_predict(tmp_path):
    network = classifier("small", 3, 1, 8)
    assert network.training
    save_classifier(network, "small", (1, 8, 8), tmp_path)
    loaded, _ = load_classifier(tmp_path)
    assert not any(module.training for module in loaded.modules())
    assert not loaded.body.training
