"""The generator loop: resume to the byte, shares over processes, averages, guard, schedule."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from statistics import NormalDist

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from semmix.cli.main import main
from semmix.core.device import to_device
from semmix.core.errors import SemmixError
from semmix.core.runtime import Runtime
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain
from semmix.data import Dataset, Split, load_dataset
from semmix.diffusion import load_generator
from semmix.diffusion.edm import EDMConfig, EDMDenoiser
from semmix.training import engine
from semmix.training import generator as loop
from semmix.training.engine import load_checkpoint
from semmix.training.generator import GeneratorConfig, PowerEMA, evened_out, gamma_of_length, train_generator

NETWORK = EDMConfig(
    resolution=4, channels=1, num_classes=2, model_channels=8, channel_mult=(1, 1), num_blocks=1, attn_resolutions=(2,)
)
CONFIG = GeneratorConfig(network=NETWORK, num_images=160, batch_size=8, num_grids=2, flip=True, label_dropout=0.1)


def toy_images(num=40):
    """Class 0 is bright on the left, class 1 on the right."""
    labels = torch.arange(num) % 2
    images = torch.zeros(num, 1, 4, 4, dtype=torch.uint8)
    images[labels == 0, :, :, :2] = 255
    images[labels == 1, :, :, 2:] = 255
    return images, labels


def dataset(labels=None, num_held_out=20):
    images, own = toy_images()
    held_out = Split(*toy_images(num_held_out))
    return Dataset("toy", ("left", "right"), Split(images, own if labels is None else labels), held_out, held_out)


DATA = dataset()


CPU = Runtime(device="cpu")
EVERY_STEP = replace(CPU, checkpoint_seconds=0)


def train(out, config=CONFIG, runtime=CPU, data=DATA):
    return train_generator(data, config, out, runtime).folder


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "g")


def test_artifact_holds_what_the_design_says(trained):
    assert set(contents(trained)) == {
        "generator.json",
        "weights.safetensors",
        "stats.jsonl",
        "samples-050.png",
        "samples-100.png",
    }
    manifest = json.loads((trained / "generator.json").read_text())
    assert manifest["trained_on"] == DATA.train.digest
    assert manifest["num_images"] == 160
    assert manifest["ema_length"] in CONFIG.ema_lengths
    losses = manifest["held_out_losses"]
    assert CONFIG.ema_lengths[losses.index(min(losses))] == manifest["ema_length"]
    rows = [json.loads(line) for line in (trained / "stats.jsonl").read_text().splitlines()]
    assert [row["nimg"] for row in rows] == [8 * k for k in range(1, 21)]
    loaded = load_generator(trained, "cpu")
    assert (loaded.image_shape, loaded.num_classes) == ((1, 4, 4), 2)
    assert (loaded.trained_on, loaded.digest) == (DATA.train.digest, manifest["digest"])


def test_a_run_is_adam_on_the_denoising_loss(tmp_path, monkeypatch):
    """Against the loop written out: 44 images are six batches of 8, three to a line of stats."""
    monkeypatch.setattr(loop, "NUM_STATS", 2)
    config = replace(
        CONFIG, num_images=44, lr=0.01, warmup=0.3, decay=0.5, betas=(0.8, 0.99), seed=3, ema_lengths=(0.2, 0.1)
    )
    out = train(tmp_path, config, data=dataset(num_held_out=0))
    images, labels = toy_images()
    torch.manual_seed(fold_seed(3, "generator weights"))
    network = EDMDenoiser(NETWORK).train()
    adam = torch.optim.Adam(network.parameters(), 1.0, (0.8, 0.99))
    average = {name: torch.zeros_like(weight) for name, weight in network.named_parameters()}
    losses = []
    for step in range(6):
        torch.manual_seed(fold_seed(3, "generator step", step))
        batch = loop.draw_batch(images, torch.eye(2)[labels], config)
        loss = loop.denoising_loss(network, *batch, NETWORK.sigma_data).mean()
        adam.zero_grad()
        loss.backward()
        adam.param_groups[0]["lr"] = loop.generator_lr(config, (step + 0.5) / 6)
        adam.step()
        losses.append(loss.item())
        share = 1 - (step / (step + 1)) ** (gamma_of_length(0.2) + 1)
        for name, weight in network.named_parameters():
            average[name] += share * (weight.detach() - average[name])
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert [row["nimg"] for row in rows] == [24, 48]
    for k, row in enumerate(rows):
        assert row["loss"] == pytest.approx(np.mean(losses[3 * k : 3 * k + 3]), rel=1e-4)
        assert row["lr"] == loop.generator_lr(config, (3 * k + 2.5) / 6)
    saved = load_file(out / "weights.safetensors")
    for name, weight in average.items():
        # A step is 1e-2; Adam makes rounding visible where a gradient is nearly zero.
        torch.testing.assert_close(saved[name], weight, rtol=1e-4, atol=1e-5)
    manifest = json.loads((out / "generator.json").read_text())
    assert (manifest["num_images"], manifest["ema_length"]) == (48, 0.2)
    assert (manifest["held_out_losses"], manifest["label_dropout"]) == ([], 0.1)


def test_held_out_losses_match_plain_loops():
    """Every image has one noise level, spread evenly over EDM's, and counts alike."""
    torch.manual_seed(0)
    networks = [EDMDenoiser(NETWORK).eval() for _ in range(2)]
    images, labels = torch.randint(0, 256, (21, 1, 4, 4), dtype=torch.uint8), torch.arange(21) % 2
    fixed = torch.Generator().manual_seed(fold_seed("held-out noise"))
    noise = torch.randn(21, 1, 4, 4, generator=fixed)
    ranks = torch.randperm(21, generator=fixed).tolist()
    found = loop.held_out_losses(networks, Split(images, labels), 2, batch_size=8)
    for network, loss in zip(networks, found, strict=True):
        losses = []
        for n, rank in enumerate(ranks):
            clean, classes = images[n : n + 1] / 127.5 - 1, torch.eye(2)[labels[n : n + 1]]
            level = torch.tensor([math.exp(NormalDist(-1.2, 1.2).inv_cdf((rank + 0.5) / 21))])
            given = (clean, classes, level, noise[n : n + 1], 0.5)
            losses.append(loop.denoising_loss(network, *given).item())
        assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found[0] != found[1]


def test_half_of_the_images_are_mirrored_where_asked_for():
    images, labels = toy_images()
    torch.manual_seed(0)
    settings = replace(CONFIG, batch_size=2000, label_dropout=0.0)
    clean, weights, *_ = loop.draw_batch(images, torch.eye(2)[labels], settings)
    mirrored = (clean[:, 0, 0, 0] > 0) != (weights[:, 0] > 0)
    assert 0.45 < mirrored.float().mean() < 0.55
    assert torch.equal(clean[..., :2], -clean[..., 2:])


def test_the_defaults_name_the_generators_made_with_them():
    assert plain(GeneratorConfig(init="anywhere", even_out=True)) == {
        "network": "compact32",
        "init": None,
        "num_images": 10_000_000,
        "minutes": None,
        "batch_size": 512,
        "lr": 1e-3,
        "betas": [0.9, 0.999],
        "warmup": 0.03,
        "decay": 0.35,
        "ema_lengths": [0.1, 0.05, 0.15],
        "label_dropout": 0.0,
        "flip": False,
        "noise_mean": -1.2,
        "noise_std": 1.2,
        "seed": 0,
        "num_grids": 4,
        "weights_dtype": "float32",
    }


def test_finished_run_is_left_alone_and_other_inputs_refused(trained):
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    train(trained)
    assert {path: path.stat().st_mtime_ns for path in trained.iterdir()} == before
    with pytest.raises(SemmixError, match="other inputs"):
        train(trained, replace(CONFIG, lr=0.5))
    with pytest.raises(SemmixError, match="other inputs"):
        train(trained, data=dataset(num_held_out=0))


def test_a_second_process_in_the_folder_is_refused(trained, tmp_path, monkeypatch):
    def also_train(path, row, append=engine.append_stats):
        with pytest.raises(SemmixError, match="another process works in this folder"):
            train(path.parent)
        append(path, row)

    monkeypatch.setattr(engine, "append_stats", also_train)
    assert contents(train(tmp_path / "g")) == contents(trained)


class Stop(BaseException):
    """Stands for the power cut."""


@pytest.mark.parametrize("stop_after", [1, 7, 19])
def test_stopped_run_ends_with_the_same_bytes(trained, tmp_path, monkeypatch, stop_after):
    def cut(path, groups, header, save=engine.save_checkpoint):
        save(path, groups, header)
        if header["step"] == stop_after:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(engine, "save_checkpoint", cut)
        with pytest.raises(Stop):
            train(tmp_path, runtime=EVERY_STEP)
    assert not json.loads((tmp_path / "generator.json").read_text())["finished"]
    with pytest.raises(SemmixError, match="not finished"):
        load_generator(tmp_path, "cpu")
    train(tmp_path)
    assert contents(tmp_path) == contents(trained)


def test_a_run_stopped_between_two_lines_of_stats_ends_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "NUM_STATS", 2)
    config = replace(CONFIG, num_images=80, num_grids=1)  # five steps to a line
    expected = contents(train(tmp_path / "whole", config, EVERY_STEP))

    def cut(path, groups, header, save=engine.save_checkpoint):
        save(path, groups, header)
        if header["step"] == 7:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(engine, "save_checkpoint", cut)
        with pytest.raises(Stop):
            train(tmp_path / "stopped", config, EVERY_STEP)
    assert contents(train(tmp_path / "stopped", config, EVERY_STEP)) == expected


def test_stats_after_the_last_checkpoint_are_written_once(trained, tmp_path, stopped_past_its_checkpoint):
    with stopped_past_its_checkpoint():
        train(tmp_path, runtime=EVERY_STEP)
    assert contents(train(tmp_path)) == contents(trained)


@pytest.mark.parametrize("stop_at", [1, 7, 20])
def test_ctrl_c_within_a_step_loses_nothing(trained, tmp_path, monkeypatch, stop_at):
    """No checkpoint is due: the one of Ctrl-C, after the step it came in, is all there is."""
    calls = []

    def interrupted(*args, whole=loop.denoising_loss):
        calls.append(args)
        if len(calls) == stop_at:
            signal.raise_signal(signal.SIGINT)
        return whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "denoising_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.safetensors")[1] == {"step": stop_at}
    train(tmp_path)
    assert contents(tmp_path) == contents(trained)


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_generator import CONFIG, EVERY_STEP, replace, train
torch.set_num_threads(int(sys.argv[4]))  # bytes depend on it
config = replace(CONFIG, num_images=int(sys.argv[3]), flip=False)
train(sys.argv[2], config, EVERY_STEP)
"""


def start(folder, num_images, **environment):
    here = os.path.dirname(__file__)
    numbers = [str(num_images), str(torch.get_num_threads())]
    command = [sys.executable, "-c", SCRIPT, here, str(folder), *numbers]
    return subprocess.Popen(command, env={**os.environ, **environment})


def test_killed_process_ends_with_the_same_bytes(tmp_path):
    config = replace(CONFIG, num_images=800, flip=False)
    expected = contents(train(tmp_path / "whole", config))
    process = start(tmp_path / "killed", 800)
    while not (tmp_path / "killed" / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    train(tmp_path / "killed", config)
    killed = contents(tmp_path / "killed")
    assert {name: killed[name] for name in expected} == expected
    leftovers = set(killed) - set(expected)  # at most a temporary file the kill left behind
    assert all(name.startswith(".") for name in leftovers)


def test_two_processes_learn_what_one_learns(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [start(tmp_path / "two", 80, RANK=str(rank), **address) for rank in (0, 1)]
    train(tmp_path / "one", replace(CONFIG, num_images=80, flip=False))
    assert [process.wait() for process in ranks] == [0, 0]
    one, two = (load_generator(tmp_path / n, "cpu").network.state_dict() for n in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_budget_in_minutes_is_measured_once(tmp_path, monkeypatch):
    config = replace(CONFIG, minutes=0.004)
    expected = train(tmp_path / "a", config)
    num_images = json.loads((expected / "budget.json").read_text())["num_images"]
    assert num_images > 0
    # a run that was stopped keeps the measured length, however fast the machine is then
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "budget.json").write_bytes((expected / "budget.json").read_bytes())
    assert contents(train(tmp_path / "b", config)) == contents(expected)


@pytest.mark.parametrize(("seconds", "num_steps"), [(24.0, 2), (2.0, 8), (0.1, 42)])
def test_the_speed_test_is_short_where_steps_are_slow(monkeypatch, seconds, num_steps):
    clock, calls = [0.0], []

    def step(number):
        calls.append(number)
        clock[0] += seconds if len(calls) > 1 else 100.0  # the first compiles

    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    found = loop.speed_test(step, 0.02 * 300, torch.device("cpu"))
    assert found == pytest.approx(seconds)
    assert len(calls) == num_steps


def test_a_budget_buys_as_many_images_as_it_has_time_for(tmp_path, monkeypatch):
    """Five minutes in batches of 8, two seconds each; 2 % of them are for the test itself."""
    clock, rates = [0.0], []

    def train_step(step, lr):
        rates.append(lr)
        clock[0] += 2

    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    config = replace(CONFIG, minutes=5.0, lr=0.25)
    for _ in range(2):  # measured once, then read
        assert loop._run_length(config, tmp_path, train_step, torch.device("cpu"), 0, 1) == 8 * 150
    assert rates == [0.25] * 8  # one to set up, one to guess by, three twice
    assert json.loads((tmp_path / "budget.json").read_text()) == {"minutes": 5.0, "num_images": 1200}
    assert loop._run_length(CONFIG, tmp_path, train_step, torch.device("cpu"), 0, 1) == 160


def test_only_the_first_process_writes_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "speed_test", lambda *_: 0.5)
    loop._run_length(replace(CONFIG, minutes=1.0), tmp_path, None, torch.device("cpu"), 1, 1)
    assert not list(tmp_path.iterdir())


def test_grids_are_written_at_even_parts_of_the_run(tmp_path):
    out = train(tmp_path, replace(CONFIG, num_images=64, num_grids=4))
    assert {path.name for path in out.glob("*.png")} == {f"samples-{part}.png" for part in ("025", "050", "075", "100")}


@pytest.mark.parametrize(("num_classes", "columns"), [(2, 8), (64, 8), (65, 7), (171, 2), (256, 2), (600, 1)])
def test_a_grid_of_many_classes_has_fewer_columns(tmp_path, monkeypatch, num_classes, columns):
    """Images of 4 x 4, with a grey line beside each, thirteen times as large."""
    monkeypatch.setattr(loop, "sample_classes", lambda g, num, _: torch.zeros(2, num, 1, 4, 4, dtype=torch.uint8))
    data = replace(DATA, class_names=tuple(map(str, range(num_classes))))
    loop._write_samples(tmp_path / "grid.png", EDMDenoiser(NETWORK).eval(), data)
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.size == (columns * 65, 2 * 65)


def test_batches_are_drawn_as_ever():
    """Other draws of the same kind would make other generators."""
    images = torch.randint(0, 256, (30, 1, 4, 4), dtype=torch.uint8)
    classes = torch.eye(30)
    config = replace(CONFIG, batch_size=500, label_dropout=0.3, noise_mean=0.5, noise_std=0.25)
    torch.manual_seed(9)
    index, mirrored = torch.randint(30, (500,)), torch.rand(500, 1, 1, 1) < 0.5
    kept, level = torch.rand(500, 1) >= 0.3, torch.randn(500)
    noise = torch.randn(500, 1, 4, 4)
    torch.manual_seed(9)
    clean, weights, sigma, drawn = loop.draw_batch(images, classes, config)
    chosen = images[index] / 127.5 - 1
    torch.testing.assert_close(clean, torch.where(mirrored, chosen.flip(3), chosen))
    assert torch.equal(weights, classes[index] * kept)
    torch.testing.assert_close(sigma, (0.5 + 0.25 * level).exp())
    assert torch.equal(drawn, noise)


def test_weights_can_be_stored_in_half_the_space(trained, tmp_path):
    folder = train(tmp_path, replace(CONFIG, weights_dtype="bfloat16"))
    whole, half = (load_generator(f, "cpu").network.state_dict() for f in (trained, folder))
    for name, weight in whole.items():
        exact = "resample_filter" in name
        assert torch.equal(half[name], weight if exact else weight.bfloat16().float())
    size, half_size = ((f / "weights.safetensors").stat().st_size for f in (trained, folder))
    assert half_size < 0.75 * size  # names take their part in so small a network


def test_it_learns_the_classes(tmp_path):
    config = replace(CONFIG, num_images=10_000, batch_size=32, lr=4e-3, flip=False)
    folder = train(tmp_path, config)
    rows = [json.loads(line) for line in (folder / "stats.jsonl").read_text().splitlines()]
    early, late = (np.mean([row["loss"] for row in part]) for part in (rows[:10], rows[-10:]))
    assert late < early / 3
    generator = load_generator(folder, "cpu")
    images = loop.sample_classes(generator, 8, loop.MixConfig(num_steps=10, batch_size=16)).float()
    left, right = images[..., :2].mean((1, 2, 3, 4)), images[..., 2:].mean((1, 2, 3, 4))
    assert left[0] > right[0] + 150
    assert right[1] > left[1] + 150


def spoil(monkeypatch, is_bad):
    """Make the loss of those steps NaN whose number is bad."""
    steps = count()

    def spoilt(*args, whole=loop.denoising_loss):
        return whole(*args) * (float("nan") if is_bad(next(steps)) else 1)

    monkeypatch.setattr(loop, "denoising_loss", spoilt)


def losses_in(folder):
    lines = (folder / "stats.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_bad_batch_now_and_then_does_not_reach_the_weights(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda step: step % 2 == 0)
    folder = train(tmp_path, replace(CONFIG, num_images=64))
    assert np.isfinite(losses_in(folder)).tolist() == 4 * [False, True]
    weights = load_generator(folder, "cpu").network.state_dict()
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


def test_a_diverged_run_is_stopped(tmp_path, monkeypatch, capsys):
    spoil(monkeypatch, lambda step: step == 1 or step >= 5)
    with pytest.raises(SemmixError, match="training diverged") as caught:
        train(tmp_path)
    assert np.isfinite(losses_in(tmp_path)).tolist() == [True, False, *3 * [True], False, False]
    assert str(tmp_path) in caught.value.fix
    for command, prefix in (("generator train", "--"), ("fit digits", "--generator.")):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        told = capsys.readouterr().out
        for option in (f"{prefix}lr", f"{prefix}warmup"):
            assert option in caught.value.fix
            assert f"{option} " in told


def test_loss_matches_plain_loops():
    torch.manual_seed(0)
    clean, noise = torch.rand(3, 1, 2, 2), torch.randn(3, 1, 2, 2)
    sigma, classes = torch.tensor([0.1, 1.0, 3.0]), torch.eye(3)

    def denoise(x, sigma, class_weights):
        return 0.5 * x + class_weights.sum(1).reshape(-1, 1, 1, 1) * 0.1

    ours = loop.denoising_loss(denoise, clean, classes, sigma, noise, 0.5)
    for n in range(3):
        s, total = float(sigma[n]), 0.0
        for c, e in zip(clean[n].flatten().tolist(), noise[n].flatten().tolist(), strict=True):
            total += (0.5 * (c + s * e) + 0.1 - c) ** 2
        weight = (s**2 + 0.25) / (s * 0.5) ** 2
        assert float(ours[n]) == pytest.approx(weight * total / 4, rel=1e-5)


def test_rare_classes_are_shown_more_often_by_the_root_of_how_rare_they_are():
    labels = torch.tensor([0] * 36 + [1] * 4 + [2] * 9)
    images = torch.arange(49, dtype=torch.uint8).view(49, 1, 1, 1)
    even = evened_out(Split(images, labels), num_classes=4)
    assert torch.bincount(even.labels).tolist() == [36, 4 * 3, 9 * 2]
    assert torch.bincount(even.images.flatten()).tolist() == [1] * 36 + [3] * 4 + [2] * 9
    assert torch.equal(labels[even.images.flatten().long()], even.labels)


def test_evened_out_images_are_other_inputs_but_the_same_split(tmp_path):
    few = torch.tensor([0] * 36 + [1] * 4)
    data = dataset(labels=few)
    config = replace(CONFIG, num_images=16, num_grids=1)
    folders = [train(tmp_path / str(even), replace(config, even_out=even), data=data) for even in (False, True)]
    manifests = [json.loads((folder / "generator.json").read_text()) for folder in folders]
    assert {manifest["trained_on"] for manifest in manifests} == {data.train.digest}
    assert manifests[0]["inputs"].pop("images") != manifests[1]["inputs"].pop("images")
    assert manifests[0]["inputs"] == manifests[1]["inputs"]


def test_noise_levels_follow_the_settings():
    images, classes = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.eye(4)
    settings = GeneratorConfig(batch_size=20_000, noise_mean=0.5, noise_std=0.3)
    torch.manual_seed(0)
    logs = loop.draw_batch(images, classes, settings)[2].log()
    assert float(logs.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(logs.std()) == pytest.approx(0.3, abs=0.01)


def test_learning_rate_rises_holds_and_falls():
    config = replace(CONFIG, lr=2.0, warmup=0.1, decay=0.4)
    rates = [loop.generator_lr(config, done) for done in (0.0, 0.05, 0.1, 0.5, 0.6, 0.8, 1.0)]
    assert rates == pytest.approx([0, 1, 2, 2, 2, 1, 0])


def test_batch_is_drawn_from_the_default_generator_alone():
    images, labels = toy_images()
    classes = torch.eye(2)[labels]
    config = replace(CONFIG, batch_size=1000, flip=False, label_dropout=0.3)
    torch.manual_seed(5)
    clean, weights, sigma, noise = loop.draw_batch(images, classes, config)
    torch.manual_seed(5)
    assert torch.equal(loop.draw_batch(images, classes, config)[3], noise)
    assert sorted(clean.unique().tolist()) == [-1, 1]
    shown = weights.sum(1) == 1
    assert 0.6 < shown.float().mean() < 0.8
    assert torch.equal(clean[shown, 0, 0, 0] > 0, weights[shown, 0] > 0)
    assert float(sigma.log().mean()) == pytest.approx(-1.2, abs=0.15)
    assert float(sigma.log().std()) == pytest.approx(1.2, abs=0.15)


def step_on(device, config):
    """A network with the step that leaves its gradients, and a function that returns them."""
    torch.manual_seed(0)
    network = to_device(EDMDenoiser(NETWORK), device).train()
    images, labels = toy_images()
    classes = torch.eye(2)[labels].to(device)
    step = loop.gradient_step(network, images.to(device), classes, config)
    step.prepare()

    def gradients(seed):
        torch.manual_seed(seed)
        loss = step()
        return loss.item(), torch.cat([p.grad.flatten().cpu() for p in network.parameters()])

    return step, gradients


def test_step_replaces_gradients_and_follows_the_seed():
    _, gradients = step_on(torch.device("cpu"), CONFIG)
    loss, first = gradients(1)
    assert gradients(2)[0] != loss
    assert gradients(1)[0] == loss
    assert torch.equal(gradients(1)[1], first)  # written, not added up


@pytest.mark.parametrize("slope", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_no_numbers_become_zero(monkeypatch, slope):
    _, gradients = step_on(torch.device("cpu"), CONFIG)
    plain = gradients(1)[1]

    def steep(denoise, *args, whole=loop.denoising_loss):
        return whole(denoise, *args) + slope * denoise.model.map_layer0.bias.sum()

    monkeypatch.setattr(loop, "denoising_loss", steep)
    found = gradients(1)[1]
    changed = found != plain
    assert changed.sum() > 0
    assert not found[changed].any()


def dropout_masks(rank, monkeypatch):
    """Whether each value was kept, in every layer, in a step of one process of two."""
    kept, dropout = [], torch.nn.functional.dropout

    def watched(x, *settings):
        dropped = dropout(x, *settings)
        kept.append(dropped != 0)
        return dropped

    network = EDMDenoiser(replace(NETWORK, dropout=0.5)).train()
    images, labels = toy_images()
    step = loop.gradient_step(network, images, torch.eye(2)[labels], CONFIG, rank, 2)
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", watched)
        torch.manual_seed(1)
        step()
    return torch.cat([mask.flatten() for mask in kept])


def test_each_process_has_dropout_of_its_own(monkeypatch):
    first, second = (dropout_masks(rank, monkeypatch) for rank in (0, 1))
    assert 0.3 < (first == second).float().mean() < 0.7
    assert torch.equal(dropout_masks(1, monkeypatch), second)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_step_equals_the_plain_one_on_a_gpu():
    step, gradients = step_on(torch.device("cuda"), CONFIG)
    captured = [gradients(seed) for seed in (1, 2, 1)]
    assert step.graph is not None
    step.graph, step.captures = None, False
    plain = [gradients(seed) for seed in (1, 2)]
    assert captured[0][0] == captured[2][0] != captured[1][0]
    for (loss, grads), (plain_loss, plain_grads) in zip(captured, plain, strict=False):
        assert loss == pytest.approx(plain_loss, rel=1e-3)
        assert (grads - plain_grads).norm() < 0.02 * plain_grads.norm()


def test_an_averaged_network_is_a_copy_without_dropout():
    network = EDMDenoiser(replace(NETWORK, dropout=0.5)).train()
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    ema = PowerEMA({name: weight + 1 for name, weight in network.named_parameters()}, 0.1)
    averaged = loop.with_average(network, ema)
    assert (averaged.training, network.training) == (False, True)
    assert not any(weight.requires_grad for weight in averaged.parameters())
    for name, weight in averaged.named_parameters():
        assert torch.equal(weight, before[name] + 1)
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


@pytest.mark.parametrize("length", [0.01, 0.05, 0.1, 0.15, 0.25])
def test_gamma_solves_its_equation(length):
    gamma = gamma_of_length(length)
    assert gamma > 0
    assert (gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3)) == pytest.approx(length**2, rel=1e-9)


def test_average_has_the_power_profile():
    """The weight of step t in the average is proportional to t^gamma, and as wide as asked for."""
    num_steps, length = 400, 0.1
    steps = {f"{t}": torch.zeros(()) for t in range(num_steps + 1)}
    ema = PowerEMA(steps, length)
    for t in range(1, num_steps + 1):
        ema.update({name: torch.tensor(float(name == str(t))) for name in steps}, t)
    share = np.array([float(ema.weights[str(t)]) for t in range(num_steps + 1)])
    assert share.sum() == pytest.approx(1, abs=1e-5)
    t = np.arange(num_steps + 1) / num_steps
    mean = (share * t).sum()
    assert np.sqrt((share * (t - mean) ** 2).sum()) == pytest.approx(length, rel=0.02)
    gamma = gamma_of_length(length)
    assert share[200] / share[400] == pytest.approx(0.5**gamma, rel=0.05)


def test_user_mistakes_are_explained(tmp_path):
    with pytest.raises(SemmixError, match="positive images or minutes"):
        GeneratorConfig(minutes=0)
    words = r"^warm-up and decay are parts of the run: warmup=0\.8, decay=0\.8\n.*at most 1 together"
    with pytest.raises(SemmixError, match=words):
        GeneratorConfig(num_images=1, warmup=0.8, decay=0.8)
    with pytest.raises(SemmixError, match="EMA"):
        GeneratorConfig(num_images=1, ema_lengths=(0.5,))
    with pytest.raises(SemmixError, match="needs two classes"):
        train(tmp_path / "a", data=dataset(labels=torch.zeros(40, dtype=torch.int64)))
    words = r"^the network does not fit the data: images \(1, 4, 4\) of 3 classes, network \(1, 4, 4\) of 2\n"
    with pytest.raises(SemmixError, match=words):
        train(tmp_path / "b", data=replace(DATA, class_names=("left", "right", "neither")))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"noise_std": -1.0}, "noise_std must be positive"),
        ({"noise_mean": float("nan")}, "noise_mean must be a finite number"),
        ({"noise_mean": float("-inf")}, "noise_mean must be a finite number"),
        ({"label_dropout": 2.0}, "label_dropout must be a share"),
        ({"betas": (0.9, 1.0)}, "beta_2 must be a share"),
        ({"betas": (1.0, 0.9)}, "beta_1 must be a share"),
        ({"num_images": 0}, "needs a length"),
        ({"minutes": float("nan")}, "needs a length"),
        ({"minutes": 0.0}, "^a run needs a length: num_images=160, minutes=0.0\n.*positive images or minutes"),
        ({"minutes": math.inf}, "needs a length"),
        ({"warmup": float("nan")}, "parts of the run"),
        ({"warmup": -0.1}, "parts of the run"),
        ({"decay": -0.1}, "parts of the run"),
        ({"ema_lengths": ()}, "unusable EMA lengths"),
        ({"ema_lengths": (0.1, 0.0)}, "unusable EMA lengths"),
        ({"ema_lengths": (0.1, 0.26)}, "unusable EMA lengths"),
    ],
)
def test_senseless_settings_are_refused(changes, words):
    with pytest.raises(SemmixError, match=words):
        replace(CONFIG, **changes)


def test_settings_at_their_ends_are_allowed():
    replace(CONFIG, num_images=1, warmup=0.4, decay=0.6, ema_lengths=(0.25,), betas=(0.0, 0.0))
    replace(CONFIG, warmup=0.0, decay=0.0, minutes=0.001)


def test_training_goes_on_from_another_generator(trained, tmp_path):
    """With a learning rate of next to nothing, the start's weights are what comes out."""
    config = replace(CONFIG, init=str(trained), lr=1e-12, num_images=20, warmup=0.0, decay=0.0)
    out = train(tmp_path / "more", config)
    before, after = (load_file(folder / "weights.safetensors") for folder in (trained, out))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    manifest = json.loads((out / "generator.json").read_text())
    start = json.loads((trained / "generator.json").read_text())
    assert manifest["inputs"]["init"] == start["digest"]


def test_no_start_from_other_images_or_another_network(trained, tmp_path):
    config = replace(CONFIG, init=str(trained))
    words = "^the generator to start from saw other images: .* learned from split "
    with pytest.raises(SemmixError, match=words):
        train(tmp_path / "a", config, data=dataset(labels=1 - DATA.train.labels))
    wider = replace(config, network=replace(NETWORK, model_channels=2 * NETWORK.model_channels))
    with pytest.raises(SemmixError, match="another network"):
        train(tmp_path / "b", wider)
    with pytest.raises(SemmixError, match="no generator here"):
        train(tmp_path / "c", replace(config, init="nowhere"))
    assert not list(tmp_path.iterdir())  # no folder is claimed by what cannot begin


def test_a_preset_is_fitted_to_the_data(tmp_path):
    config = GeneratorConfig(network="digits", num_images=8, batch_size=8, num_grids=1)
    generator = train_generator(load_dataset("digits", train_size=100), config, tmp_path, CPU)
    assert (generator.image_shape, generator.num_classes) == ((1, 8, 8), 10)
