"""Two processes train what one trains."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from semmix import SemmixError
from semmix.core.runtime import Runtime
from semmix.data import load_dataset
from semmix.training import classifier as loop
from semmix.training import distributed
from semmix.training.classifier import TrainConfig, build_network
from semmix.training.distributed import own_draws, shared_forward

train_classifier = partial(loop.train, runtime=Runtime(device="cpu"))
CONFIG = TrainConfig(
    method="ce",
    classifier="small",
    epochs=2,
    batch_size=20,
    lr=0.05,
    pad=1,
    clip_norm=1e9,  # clipping would hide a wrong scale
)
# Methods that draw in a step, compare images of a batch, remember, or learn from validation.
METHODS = ("ce", "csm", "regmixup", "unimix", "mmce", "crl", "cals")


def without_batch_statistics(name, data):
    """Batch statistics are those of a process's own share; without them runs must agree."""
    network = build_network(name, data)
    for index, layer in enumerate(network.body.layers):
        if isinstance(layer, nn.BatchNorm2d):
            network.body.layers[index] = nn.GroupNorm(4, layer.num_features)
    return network


def train_all(data, source, photos, folder) -> None:
    train_classifier(data, CONFIG, folder / "statistics")
    loop.build_network = without_batch_statistics
    for name in METHODS:
        train_classifier(data, replace(CONFIG, method=name), folder / name, source)
    train_classifier(load_dataset(photos, max_resident_gib=0), CONFIG, folder / "streamed")
    loop.build_network = build_network


SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
from conftest import toy_dataset, toy_mixed
from semmix.core.device import rank_and_world
from semmix.training.distributed import from_first
from test_distributed import train_all
torch.set_num_threads(1)
data = toy_dataset()
train_all(data, toy_mixed(data), sys.argv[2], Path(sys.argv[3]))
rank, world_size = rank_and_world()
Path(sys.argv[3], f"from-first-{rank}").write_text(str(from_first(5 + rank, world_size)))
"""


def start(here, photos, folder, rank: int, port: int) -> subprocess.Popen:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **address, "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", SCRIPT, str(here), str(photos), str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, toy_data, toy_source, toy_folder, request):
    """The folders of all runs, made by one process and by two."""
    folder = tmp_path_factory.mktemp("runs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here, two = request.path.parent, folder / "two"
    ranks = [start(here, toy_folder, two, rank, port) for rank in (0, 1)]
    train_all(toy_data, toy_source, toy_folder, folder / "one")
    assert [process.wait(timeout=100) for process in ranks] == [0, 0]
    return folder


@pytest.mark.parametrize("name", [*METHODS, "streamed"])
def test_two_processes_learn_what_one_learns(runs, name):
    one, two = (load_file(runs / n / name / "weights.safetensors") for n in ("one", "two"))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-4, atol=1e-5)


def test_statistics_of_shares_are_averaged(runs):
    """With batch normalisation two processes learn nearly, not exactly, what one learns."""
    one, two = (load_file(runs / n / "statistics/weights.safetensors") for n in ("one", "two"))
    for key in one:
        if "running_mean" in key:
            assert (one[key] - two[key]).norm() < 0.3 * one[key].norm(), key
    metrics = json.loads((runs / "two/statistics/metrics.json").read_text())
    assert metrics["test"]["acc"] > 0.6


def test_the_first_process_alone_writes(runs):
    names = [{p.name for p in (runs / n / "csm").iterdir()} for n in ("one", "two")]
    assert names[0] == names[1]
    lines = (runs / "two/csm/stats.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_what_the_first_process_measures_holds_for_all(runs):
    assert [(runs / f"two/from-first-{rank}").read_text() for rank in (0, 1)] == ["5", "5"]


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, toy_data, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SemmixError, match="multiple of 3"):
        train_classifier(toy_data, CONFIG, tmp_path / "run")


def masks(images):
    return nn.functional.dropout(torch.ones_like(images))


def step_of(rank: int, world_size: int = 2) -> list[torch.Tensor]:
    """A step's draws: one for all, two passes with dropout, and one for all again."""
    forward, images = own_draws(masks, rank, world_size), torch.zeros(8, 50)
    torch.manual_seed(7)
    return [torch.rand(3), forward(images), forward(images), torch.rand(3)]


def test_processes_share_their_draws_but_not_their_dropout():
    (before, first, second, after), other = step_of(0), step_of(1)
    assert torch.equal(before, other[0])
    assert torch.equal(after, other[3])
    for a, b in ((first, other[1]), (second, other[2]), (first, second), (first, other[2])):
        assert 0.3 < (a == b).float().mean() < 0.7
    assert all(map(torch.equal, step_of(1), other))  # by the seed alone, as a resumed run needs


def test_dropout_of_a_step_does_not_depend_on_steps_before():
    forward, images = own_draws(masks, 1, 2), torch.zeros(8, 50)
    for seed in (3, 7):
        torch.manual_seed(seed)
        passes = [forward(images), forward(images)]
    assert all(map(torch.equal, passes, step_of(1)[1:3]))


def test_one_process_draws_as_ever():
    torch.manual_seed(7)
    plain = [torch.rand(3), *(masks(torch.zeros(8, 50)) for _ in range(2)), torch.rand(3)]
    assert all(map(torch.equal, step_of(0, world_size=1), plain))


def test_rows_of_a_shared_batch_have_masks_of_their_own(monkeypatch):
    monkeypatch.setattr(distributed, "gather_rows", lambda own, *_: own.repeat(2, 1))
    shares = []
    for rank in (0, 1):
        torch.manual_seed(7)
        shares.append(shared_forward(masks, rank, 2)(torch.zeros(8, 50)))
    assert 0.3 < (shares[0] == shares[1]).float().mean() < 0.7
