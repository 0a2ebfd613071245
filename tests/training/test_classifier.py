"""The classifier loop: any method, the same run after any interruption."""

import json
import math
import multiprocessing
import random
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from semmix import SemmixError
from semmix.calibration import TemperatureScaler, summary
from semmix.cli.main import main
from semmix.core.runtime import Runtime
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain
from semmix.data import Split
from semmix.methods import Batch, list_methods, method
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier
from semmix.training import classifier as loop
from semmix.training import engine
from semmix.training.batches import crop_and_flip
from semmix.training.classifier import TrainConfig, build_network, make_batch, train, under_confidence_warning

SMALL = TrainConfig(method="ce", classifier="small", epochs=3, batch_size=20, lr=0.05, pad=1, flip=False)
CPU = Runtime(device="cpu")


def train_classifier(*args, runtime=CPU):
    """Train and return the run's folder."""
    return train(*args, runtime=runtime).folder


train_and_save = partial(train_classifier, runtime=replace(CPU, checkpoint_seconds=0))
train_rarely_saving = partial(train_classifier, runtime=replace(CPU, checkpoint_seconds=1e9))
LAST_FILES = {
    "config.json",
    "env.json",
    "stats.jsonl",
    "weights.safetensors",
    "logits-val.safetensors",
    "logits-test.safetensors",
    "metrics.json",
}


def same_weights(a, b) -> bool:
    first, second = (load_file(folder / "weights.safetensors") for folder in (a, b))
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_run_leaves_all_its_files(tmp_path, toy_data):
    out = train_classifier(toy_data, SMALL, tmp_path / "run")
    assert {p.name for p in out.iterdir()} - {"tensorboard"} == LAST_FILES
    stats = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in stats] == [1, 2, 3]
    assert stats[-1]["nimg"] == 180
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["test"]["acc"] > 0.6
    assert metrics["temperature"] > 0
    manifest = json.loads((out / "config.json").read_text())
    assert (manifest["class_names"], manifest["leak"]) == (["dark", "grey", "light"], False)
    network, _ = load_classifier(out)
    logits = load_file(out / "logits-test.safetensors")["logits"]
    assert torch.allclose(predict_logits(network, toy_data.test.images), logits, atol=1e-5)


def test_a_run_is_plain_sgd_on_shuffled_crops(tmp_path, toy_data):
    """Against the loop written out; of 60 images, batches of 16 leave 12 out of every pass."""
    config = replace(
        SMALL, batch_size=16, schedule="cosine", clip_norm=0.5, weight_decay=0.01, momentum=0.8, flip=True, seed=3
    )
    out = train_classifier(toy_data, config, tmp_path / "run")
    stats = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]

    torch.manual_seed(fold_seed("weights", 3))
    network = build_network("small", toy_data).train()
    sgd = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.8, weight_decay=0.01)
    losses = []
    for step in range(9):
        torch.manual_seed(fold_seed("order", 3, step // 3))
        rows = torch.rand(60).argsort()[16 * (step % 3) :][:16]
        torch.manual_seed(fold_seed("step", 3, step))
        images = crop_and_flip(toy_data.train.images[rows], 1, True)
        loss = torch.nn.functional.cross_entropy(network(images), toy_data.train.labels[rows])
        sgd.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        sgd.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / 9)) / 2
        sgd.step()
        losses.append(loss.item())
        if step % 3 == 2:
            row = stats[step // 3]
            assert row["loss"] == pytest.approx(sum(losses[-3:]) / 3, rel=1e-5)
            assert row["lr"] == pytest.approx(sgd.param_groups[0]["lr"])
            logits = predict_logits(network, toy_data.val.images)
            network.train()
            measured = summary(logits.softmax(1), toy_data.val.labels)
            for name in ("acc", "nll", "ece", "oe", "ue"):
                assert row[f"val_{name}"] == pytest.approx(measured[name], rel=1e-5, abs=1e-7)
    for name, weight in load_classifier(out)[0].state_dict().items():
        torch.testing.assert_close(weight, network.state_dict()[name])


def test_metrics_are_those_of_the_logits(tmp_path, toy_data):
    out = train_classifier(toy_data, SMALL, tmp_path / "run")
    metrics = json.loads((out / "metrics.json").read_text())
    val, test = (load_file(out / f"logits-{name}.safetensors") for name in ("val", "test"))
    for saved, split in ((val, toy_data.val), (test, toy_data.test)):
        assert torch.equal(saved["labels"], split.labels)
        assert len(saved["logits"]) == len(split)
    scaler = TemperatureScaler().fit(val["logits"], val["labels"])
    assert metrics == {
        "test": summary(test["logits"].softmax(1), test["labels"]),
        "temperature": scaler.temperature,
        "test_after_temperature": summary(scaler.transform(test["logits"]), test["labels"]),
    }


@pytest.mark.parametrize(("measured", "kept"), [([0.2, 0.6, 0.6, 0.4], 1), ([0.0, 0.0], 0)])
def test_the_first_of_the_best_epochs_is_kept(tmp_path, toy_data, monkeypatch, measured, kept):
    """Accuracies are given; which weights each epoch ended with is watched."""
    accuracies, weights = iter(measured), []

    def watched(network, images, *args, predict=loop.predict_logits, **settings):
        weights.append({name: t.clone() for name, t in network.state_dict().items()})
        return predict(network, images, *args, **settings)

    def rated(probs, labels, whole=loop.summary):
        return {**whole(probs, labels), "acc": next(accuracies, 0.0)}

    monkeypatch.setattr(loop, "predict_logits", watched)
    monkeypatch.setattr(loop, "summary", rated)
    config = replace(SMALL, epochs=len(measured), select="best")
    network, _ = load_classifier(train_classifier(toy_data, config, tmp_path / "run"))
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, weights[kept][name])
    assert not all(torch.equal(weights[kept][name], weights[kept + 1][name]) for name in weights[kept])


OWN_METHOD = """
from semmix.methods.ce import CrossEntropy

seen = []

class Watching(CrossEntropy):
    def setup(self, labels):
        seen.append(labels)

    def end_epoch(self, logits, labels):
        seen.append((logits, labels))
"""


def test_a_method_is_told_the_training_labels_and_every_validation(tmp_path, toy_data, monkeypatch):
    (tmp_path / "own_method.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(SMALL, method="own_method:Watching")
    out = train_classifier(toy_data, config, tmp_path / "run")
    first, *epochs = sys.modules.pop("own_method").seen
    assert torch.equal(first, toy_data.train.labels)
    assert len(epochs) == 3
    assert all(torch.equal(labels, toy_data.val.labels) for _, labels in epochs)
    last = load_file(out / "logits-val.safetensors")["logits"]
    torch.testing.assert_close(epochs[-1][0], last)


def test_mixed_images_are_drawn_and_augmented_after_the_real_ones(toy_data, toy_source):
    config = replace(SMALL, pad=2, flip=True)
    pixels, labels = toy_data.train.images[:7], toy_data.train.labels[:7]
    torch.manual_seed(1)
    batch = make_batch(pixels, labels, torch.arange(7), toy_source.images, 2, config)
    torch.manual_seed(1)
    assert torch.equal(batch.images, crop_and_flip(pixels, 2, True))
    drawn, soft_labels = toy_source.images.draw(labels, 2)
    assert torch.equal(batch.mixed_images, crop_and_flip(drawn, 2, True))
    assert torch.equal(batch.mixed_labels, soft_labels)
    assert torch.equal(batch.labels, labels)
    assert torch.equal(batch.index, torch.arange(7))


def test_real_images_alone_are_a_batch_without_mixed_ones(toy_data, toy_source):
    pixels, labels = toy_data.train.images[:7], toy_data.train.labels[:7]
    for source, num_mixed in ((None, 2), (toy_source.images, 0)):
        batch = make_batch(pixels, labels, torch.arange(7), source, num_mixed, SMALL)
        assert batch.mixed_images is None
        assert batch.mixed_labels is None


@pytest.mark.parametrize("clip_norm", [None, 1e-3])
def test_a_step_leaves_gradients_of_its_batch(toy_data, clip_norm):
    network = build_network("small", toy_data).train()
    batch = Batch(images=toy_data.train.images[:9] / 255, labels=toy_data.train.labels[:9], index=torch.arange(9))
    loss = loop.make_step(network, method("ce", 3), lambda: batch, clip_norm, 0, 1)()
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    expected = torch.nn.functional.cross_entropy(network(batch.images), batch.labels)
    expected.backward()
    if clip_norm:
        torch.nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
    assert loss.item() == pytest.approx(expected.item())
    assert not loss.requires_grad
    torch.testing.assert_close(found, [p.grad for p in network.parameters()])


def test_a_run_that_goes_on_keeps_the_record_of_where_it_began(tmp_path, toy_data, monkeypatch):
    config = replace(SMALL, epochs=1)
    _stop_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        train_and_save(toy_data, config, tmp_path / "run")
    monkeypatch.undo()
    record = tmp_path / "run" / "env.json"
    assert json.loads(record.read_text())
    record.write_text('{"machine": "the first"}')
    train_and_save(toy_data, config, tmp_path / "run")
    assert record.read_text() == '{"machine": "the first"}'


@pytest.mark.parametrize(
    ("num_images", "batch_size", "num_mixed", "words"),
    [
        (1000, 100, 2, "see 1200 images, 20% more than the 1000 real ones; use a smaller --batch-size, such as 33"),
        (20, 10, 2, "see 30 images, 50% more than the 20 real ones; use a smaller --batch-size, such as 2"),
        (1000, 50, 1, None),
        (60, 22, 2, None),
    ],
)
def test_smaller_batches_are_advised_where_epochs_overshoot(num_images, batch_size, num_mixed, words):
    told = loop.surplus_warning(num_images, batch_size, num_mixed)
    assert told == (words and f"--eq-data: an epoch, in whole steps, will {words}")


def test_settings_can_be_told_apart_in_a_set():
    assert len({TrainConfig(), TrainConfig(options={}), TrainConfig(seed=1)}) == 2


def test_settings_at_their_ends_are_allowed():
    TrainConfig(epochs=1, batch_size=2, momentum=0.0, weight_decay=0.0, pad=0, clip_norm=None, lr=1e-9)
    TrainConfig(init="mine", init_mean=(0.0,), init_std=(0.1,))


def test_the_defaults_are_the_published_recipe():
    assert plain(TrainConfig()) == {
        "method": "csm",
        "options": {},
        "classifier": "resnet18",
        "epochs": 200,
        "batch_size": 128,
        "lr": 0.1,
        "schedule": "multistep",
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "clip_norm": 2.0,
        "pad": 4,
        "flip": True,
        "eq_data": False,
        "select": "last",
        "seed": 0,
    }


def test_permissions_and_the_network_to_start_from_name_no_run():
    given = TrainConfig(init="here/mine", init_mean=(0.5,), init_std=(2.0,), allow_leak=True)
    assert plain(given) == plain(TrainConfig())


def test_a_second_process_in_the_folder_is_refused(tmp_path, toy_data, monkeypatch):
    """Two would interleave their lines of stats.jsonl and overwrite each other's checkpoints."""
    whole = train_classifier(toy_data, SMALL, tmp_path / "whole")
    refused = []

    def also_train(path, row, append=engine.append_stats):
        with pytest.raises(SemmixError, match="another process works in this folder"):
            train_classifier(toy_data, SMALL, path.parent)
        refused.append(row["epoch"])
        append(path, row)

    monkeypatch.setattr(engine, "append_stats", also_train)
    out = train_classifier(toy_data, SMALL, tmp_path / "run")
    assert refused == [1, 2, 3]
    assert (out / "stats.jsonl").read_bytes() == (whole / "stats.jsonl").read_bytes()
    assert {p.name for p in out.iterdir()} == {p.name for p in whole.iterdir()}


@pytest.mark.parametrize("name", list_methods())
def test_every_method_trains(tmp_path, toy_data, toy_source, name):
    config = replace(SMALL, method=name, epochs=2)
    out = train_classifier(toy_data, config, tmp_path / "run", toy_source)
    assert json.loads((out / "config.json").read_text())["finished"]


def test_real_images_alone_can_teach_the_statistics(tmp_path, toy_data, toy_source):
    """Training stays the same; prediction normalises by what real images show, not mixed ones."""
    sets = replace(toy_source.images, images=torch.full_like(toy_source.images.images, 255))
    source = replace(toy_source, images=sets)
    tensors, away = {}, {}
    for kind in ("both", "real"):
        options = {"batch_statistics": kind}
        config = replace(SMALL, method="csm", epochs=12, lr=1e-4, pad=0, options=options)
        run = train_classifier(toy_data, config, tmp_path / kind, source)
        tensors[kind] = load_file(run / "weights.safetensors")
        away[kind] = first_mean_away(load_classifier(run)[0], toy_data.train.images)
    both, real = tensors["both"], tensors["real"]
    differing = {name for name in both if not torch.equal(both[name], real[name])}
    assert differing == {name for name in both if "running" in name}
    assert away["real"] < 0.1 * away["both"]


def first_mean_away(network, images) -> float:
    """Return how far the first running mean is from that of these images."""
    norm = next(m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d))
    seen = []
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].mean((0, 2, 3))))
    predict_logits(network, images)
    return (seen[0] - norm.running_mean).norm().item()


def test_same_seed_same_run_other_seed_other_run(tmp_path, toy_data):
    a, b = (train_classifier(toy_data, SMALL, tmp_path / name) for name in "ab")
    c = train_classifier(toy_data, replace(SMALL, seed=1), tmp_path / "c")
    assert same_weights(a, b)
    assert not same_weights(a, c)


@pytest.mark.parametrize("name", ["ce", "csm", "crl", "cals"])
@pytest.mark.parametrize("select", ["last", "best"])
def test_stopped_run_goes_on_to_the_same_weights(tmp_path, toy_data, toy_source, monkeypatch, name, select):
    config = replace(SMALL, method=name, select=select)
    whole = train_and_save(toy_data, config, tmp_path / "whole", toy_source)
    for stop_at in (2, 5, 7):  # steps, three to an epoch
        _stop_after(monkeypatch, stop_at)
        with pytest.raises(KeyboardInterrupt):
            train_and_save(toy_data, config, tmp_path / "stopped", toy_source)
        monkeypatch.undo()
    stopped = train_and_save(toy_data, config, tmp_path / "stopped", toy_source)
    assert same_weights(whole, stopped)
    assert (whole / "stats.jsonl").read_text() == (stopped / "stats.jsonl").read_text()
    assert (whole / "metrics.json").read_text() == (stopped / "metrics.json").read_text()


def test_stats_after_the_last_checkpoint_are_written_once(tmp_path, toy_data, stopped_past_its_checkpoint):
    """The second line, of step 6, comes again."""
    config = replace(SMALL)
    whole = train_and_save(toy_data, config, tmp_path / "whole")
    with stopped_past_its_checkpoint():
        train_and_save(toy_data, config, tmp_path / "stopped")
    stopped = train_and_save(toy_data, config, tmp_path / "stopped")
    assert same_weights(whole, stopped)
    assert (whole / "stats.jsonl").read_bytes() == (stopped / "stats.jsonl").read_bytes()


def test_run_without_momentum_goes_on_to_the_same_weights(tmp_path, toy_data, monkeypatch):
    """Its optimizer has no memory, so a checkpoint holds none."""
    config = replace(SMALL, momentum=0.0)
    whole = train_and_save(toy_data, config, tmp_path / "whole")
    _stop_after(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        train_and_save(toy_data, config, tmp_path / "stopped")
    monkeypatch.undo()
    assert same_weights(whole, train_and_save(toy_data, config, tmp_path / "stopped"))


def _stop_after(monkeypatch, step: int) -> None:
    """Stop the loop right after the checkpoint of `step`, as Ctrl-C there would."""
    save = engine.save_checkpoint

    def save_and_stop(path, groups, header):
        save(path, groups, header)
        if header["step"] == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "save_checkpoint", save_and_stop)


@pytest.mark.parametrize("name", ["ce", "csm", "crl", "cals"])
def test_ctrl_c_within_a_step_loses_nothing(tmp_path, toy_data, toy_source, monkeypatch, name):
    """No checkpoint is due: the one of Ctrl-C, after the step it came in, is all there is."""
    config = replace(SMALL, method=name, select="best")
    whole = train_rarely_saving(toy_data, config, tmp_path / "whole", toy_source)
    out = tmp_path / "stopped"
    for stop_at in (2, 6, 9):  # steps, three to an epoch, nine in all
        _press_ctrl_c_in(monkeypatch, stop_at)
        with pytest.raises(KeyboardInterrupt):
            train_rarely_saving(toy_data, config, out, toy_source)
        monkeypatch.undo()
        assert engine.load_checkpoint(out / "checkpoint.safetensors")[1] == {"step": stop_at}
    train_rarely_saving(toy_data, config, out, toy_source)
    assert same_weights(whole, out)
    for file in ("stats.jsonl", "metrics.json"):
        assert (whole / file).read_text() == (out / file).read_text()


def _press_ctrl_c_in(monkeypatch, step: int) -> None:
    """Press Ctrl-C in the middle of a step: its gradients are there, the weights still the old."""
    before = (step - 1) / 9

    def rate_and_stop(schedule, peak, done, rate=loop.classifier_lr):
        if done == before:
            signal.raise_signal(signal.SIGINT)
        return rate(schedule, peak, done)

    monkeypatch.setattr(loop, "classifier_lr", rate_and_stop)


def test_run_killed_ten_times_ends_with_the_same_weights(tmp_path, toy_data):
    """kill -9, at whatever step it happens to be."""
    config = replace(SMALL, epochs=60)
    whole = train_and_save(toy_data, config, tmp_path / "whole")
    processes = multiprocessing.get_context("forkserver")
    # Imported once instead of ten times (optimizers load dynamo when first used).
    processes.set_forkserver_preload(["semmix.training.classifier", "torch._dynamo"])
    moments = random.Random(0)
    out = tmp_path / "killed"
    for _ in range(10):
        process = processes.Process(target=train_and_save, args=(toy_data, config, out))
        before = _written(out / "checkpoint.safetensors")
        process.start()
        while process.is_alive() and _written(out / "checkpoint.safetensors") == before:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run was over before it was killed"
    train_and_save(toy_data, config, out)
    assert same_weights(whole, out)
    assert (whole / "stats.jsonl").read_text() == (out / "stats.jsonl").read_text()


def _written(path) -> int | None:
    """Return when the file was written last."""
    return path.stat().st_mtime_ns if path.exists() else None


def test_finished_run_is_not_done_again(tmp_path, toy_data):
    out = train_classifier(toy_data, SMALL, tmp_path / "run")
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    train(toy_data, SMALL, out, runtime=Runtime(checkpoint_seconds=1.0))
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
    with pytest.raises(SemmixError, match="made from other inputs"):
        train_classifier(toy_data, replace(SMALL, lr=0.1), out)


def test_a_run_killed_at_its_very_end_leaves_no_checkpoint(tmp_path, toy_data):
    out = train_classifier(toy_data, SMALL, tmp_path / "run")
    (out / "checkpoint.safetensors").write_bytes(b"the last thing to be removed")
    train_classifier(toy_data, SMALL, out)
    assert {p.name for p in out.iterdir() if p.is_file()} == LAST_FILES


def test_divergence_stops_with_the_last_good_checkpoint(tmp_path, toy_data):
    config = replace(SMALL, lr=1e30, clip_norm=1e30, epochs=20)
    with pytest.raises(SemmixError, match="diverged"):
        train_and_save(toy_data, config, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert all(t.isfinite().all() for k, t in saved.items() if k.startswith(("epoch/", "network/")))


@pytest.mark.parametrize("batch_size", [20, 60])  # with a single step its loss is still a number
def test_divergence_is_named_before_the_metrics_see_it(tmp_path, toy_data, batch_size):
    config = replace(SMALL, lr=1e38, clip_norm=None, batch_size=batch_size)
    with pytest.raises(SemmixError, match=r"diverged.*\n.*lower --lr"):
        train_classifier(toy_data, config, tmp_path / "run")


def test_gradients_may_be_left_unclipped(tmp_path, toy_data):
    """A bound that no gradient reaches, and none at all, are the same run."""
    none, high, low = (
        train_classifier(toy_data, replace(SMALL, clip_norm=norm), tmp_path / str(norm)) for norm in (None, 1e9, 1e-3)
    )
    assert same_weights(none, high)
    assert not same_weights(none, low)


def test_equal_data_sees_as_many_images(tmp_path, toy_data, toy_source):
    config = replace(SMALL, epochs=6)
    for name, eq_data in (("ce", False), ("csm", True)):
        settings = replace(config, method=name, eq_data=eq_data)
        out = train_classifier(toy_data, settings, tmp_path / name, toy_source)
        stats = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
        assert stats[-1]["nimg"] == 6 * 60, name


@pytest.mark.parametrize(
    ("batch_size", "words"), [(20, ""), (22, ""), (23, "see 69 images, 15% more"), (60, "see 180 images, 200% more")]
)
def test_equal_data_says_where_it_cannot_be_equal(tmp_path, toy_data, toy_source, capsys, batch_size, words):
    """Of 60 real images; batches of 22 see 66, which is just within a tenth."""
    config = replace(SMALL, method="csm", epochs=1, batch_size=batch_size, eq_data=True)
    train_classifier(toy_data, config, tmp_path / "run", toy_source)
    told = capsys.readouterr().out
    assert words in told
    assert ("more than the 60 real ones; use a smaller --batch-size" in told) == bool(words)


@pytest.mark.parametrize(
    ("num_images", "num_right", "told"),
    [
        (400, 400, "confidence is 20.0% below its accuracy; more epochs"),
        (10_000, 8510, "5.1% below"),
        (10_000, 8490, ""),  # 4.9 %: hardly worth a word
        (40, 38, ""),  # 15 %, which 40 images may show by chance: three standard errors are 19 %
        (40, 40, "20.0% below"),
        (400, 200, ""),  # over-confident
    ],
)
def test_under_confidence_is_told(num_images, num_right, told):
    """Every answer is class 0, with 80 %."""
    labels = (torch.arange(num_images) >= num_right).long()
    words = under_confidence_warning(torch.tensor([[0.8, 0.2]]).expand(num_images, 2), labels)
    assert told in (words or "")
    assert bool(words) == bool(told)


def test_equal_data_changes_nothing_without_mixed_images(tmp_path, toy_data):
    """Nor where the last batch is incomplete, which an epoch leaves out."""
    config = replace(SMALL, batch_size=32)
    plain, equal = (
        train_classifier(toy_data, replace(config, eq_data=eq_data), tmp_path / str(eq_data))
        for eq_data in (False, True)
    )
    assert same_weights(plain, equal)
    assert (plain / "stats.jsonl").read_text() == (equal / "stats.jsonl").read_text()


def test_methods_that_need_mixed_sets_say_so(tmp_path, toy_data):
    words = r"^method csm learns from mixed sets: none given\n.*make mixed sets \(semmix mix\), annotate"
    with pytest.raises(SemmixError, match=words):
        train_classifier(toy_data, replace(SMALL, method="csm"), tmp_path / "run")


def test_leaking_generator_is_refused_unless_allowed(tmp_path, toy_data, toy_source):
    leaky = replace(toy_source, trained_on="another split")
    config = replace(SMALL, method="csm", epochs=1)
    with pytest.raises(SemmixError, match="allow-leak"):
        train_classifier(toy_data, config, tmp_path / "run", leaky)
    out = train_classifier(toy_data, replace(config, allow_leak=True), tmp_path / "run", leaky)
    assert json.loads((out / "config.json").read_text())["leak"] is True


def test_leaking_annotation_is_refused_unless_allowed(tmp_path, toy_data, toy_source):
    config, own = (replace(SMALL, method="csm", epochs=1), (toy_data.train.digest, toy_data.val.digest))
    fair = replace(toy_source, annotated_with=own, encoder_trained_on=own[0])
    out = train_classifier(toy_data, config, tmp_path / "fair", fair)
    assert json.loads((out / "config.json").read_text())["leak"] is False
    tested = toy_data.test.digest
    for k, changes in enumerate(
        [{"annotated_with": (tested, own[1])}, {"annotated_with": (own[0], tested)}, {"encoder_trained_on": tested}]
    ):
        leaky = replace(fair, **changes)
        with pytest.raises(SemmixError, match="allow-leak"):
            train_classifier(toy_data, config, tmp_path / str(k), leaky)
        run = train_classifier(toy_data, replace(config, allow_leak=True), tmp_path / str(k), leaky)
        assert json.loads((run / "config.json").read_text())["leak"] is True


def test_sets_of_other_images_are_refused_before_any_leak(tmp_path, toy_data, toy_source):
    """The advice to allow a leak would only lead to the next error, or to none."""
    mixed, config = toy_source.images, replace(SMALL, method="csm", allow_leak=True)
    small = replace(mixed, images=mixed.images[..., :5, :5])
    two = replace(mixed, soft_labels=mixed.soft_labels[..., :2])
    grey = replace(mixed, images=mixed.images.expand(-1, -1, 3, -1, -1))
    cases = ((small, "give their --size 5"), (two, "in 2 classes"), (grey, "name the data set"))
    for images, words in cases:
        leaky = replace(toy_source, images=images, trained_on="another split")
        for allow_leak in (False, True):
            settings = replace(config, allow_leak=allow_leak)
            with pytest.raises(SemmixError, match="do not fit") as caught:
                train_classifier(toy_data, settings, tmp_path / "run", leaky)
            assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_belongs_to_the_sets_it_learned_from(tmp_path, toy_data, toy_source):
    other = replace(toy_source, inputs={**toy_source.inputs, "mixsets": "others"})
    config = replace(SMALL, method="csm", epochs=1)
    out = train_classifier(toy_data, config, tmp_path / "csm", toy_source)
    inputs = json.loads((out / "config.json").read_text())["inputs"]
    assert inputs == {
        "config": plain(config),
        "dataset": "toy",
        "train": toy_data.train.digest,
        "val": toy_data.val.digest,
        "test": toy_data.test.digest,
        "mixed": toy_source.inputs,
    }
    with pytest.raises(SemmixError, match=r"mixed\.mixsets was 'toy', now 'others'"):
        train_classifier(toy_data, config, out, other)
    config = replace(config, method="ce")  # which learns from none
    out = train_classifier(toy_data, config, tmp_path / "ce", toy_source)
    assert json.loads((out / "config.json").read_text())["inputs"]["mixed"] is None
    train_classifier(toy_data, config, out, other)


def test_batches_are_no_larger_than_the_training_split(tmp_path, toy_data):
    whole, larger = (
        train_classifier(toy_data, replace(SMALL, batch_size=size), tmp_path / str(size)) for size in (60, 100)
    )
    assert same_weights(whole, larger)


def test_excluded_sets_are_named_where_they_are_missed(tmp_path, toy_data, toy_source):
    mixed = toy_source.images
    kept = (mixed.pairs != 2).all(1)
    images = mixed.build(mixed.images[kept], mixed.soft_labels[kept], mixed.pairs[kept])
    source = replace(toy_source, images=images, num_excluded=8)
    with pytest.raises(SemmixError, match=r"light\n.*--exclude left out 8 sets"):
        train_classifier(toy_data, replace(SMALL, method="csm"), tmp_path / "run", source)


def test_one_class_is_no_training(tmp_path, toy_data):
    lone = replace(toy_data, train=toy_data.train.select((toy_data.train.labels == 1).nonzero()[:, 0]))
    with pytest.raises(SemmixError, match="needs two classes: 1 in 20 training images"):
        train_classifier(lone, SMALL, tmp_path / "run")


@pytest.mark.parametrize("split", ["val", "test"])
def test_empty_splits_are_refused_before_the_folder_is_claimed(tmp_path, toy_data, split):
    """Of the test split this would be noticed after the last epoch."""
    empty = toy_data.test.select(toy_data.test.labels[:0])
    with pytest.raises(SemmixError, match=f"measured on its {split} split: no images"):
        train_classifier(replace(toy_data, **{split: empty}), SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_oblong_images_are_refused_before_the_folder_is_claimed(tmp_path, toy_data):
    splits = {name: Split(split.images[..., :6], split.labels) for name, split in toy_data.splits.items()}
    with pytest.raises(SemmixError, match=r"square images: 8 x 6\n.*--size 6"):
        train_classifier(replace(toy_data, **splits), SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("ce --mixsets m --annotation a", "method ce learns from no mixed sets: mixsets=m, annot"),
        ("ce --labels requested", "no mixed sets: labels=requested"),
        ("mixup --scale 4", "no mixed sets: scale=4.0"),
        ("ls --exclude d.json", "no mixed sets: exclude=d.json"),
        ("csm --options num_mixed=0 --mixsets m", "-> use num_mixed >= 1, or leave"),
        ("csm --options num_mixed=0", "-> use num_mixed >= 1"),
        ("csm --mixsets m --labels requested --scale 4", "'requested' have no scale: 4.0"),
        ("csm --mixsets m --annotation a --labels one_hot --scale 4", "'one_hot' have no scale"),
    ],
)
def test_options_without_effect_are_refused(capsys, tmp_path, words, answer):
    out = tmp_path / "run"
    small = ["digits", "--train-size", "50", "--classifier", "small", "--epochs", "1"]
    assert main(["train", *small, "--out", str(out), "--method", *words.split()]) == 1
    assert answer in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_options_reach_the_method(tmp_path, toy_data):
    config = replace(SMALL, method="ls", options={"alpha": 0.2})
    out = train_classifier(toy_data, config, tmp_path / "run")
    settings = json.loads((out / "config.json").read_text())["inputs"]["config"]
    assert settings["options"] == {"alpha": 0.2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "csn"}, "did you mean 'csm'"),
        ({"schedule": "cos"}, r"^unknown schedule: 'cos'\n.*cosine"),
        ({"select": "lest"}, r"^unknown choice of weights: 'lest'\n.*best"),
        ({"epochs": 0}, "^nothing to train: epochs=0, batch_size=20\n.*at least 1 epoch and batches of 2"),
        ({"batch_size": 1}, "^nothing to train: epochs=3, batch_size=1\n"),
        ({"init_mean": (0.5,)}, r"^these belong to a network of yours: .*\n.*name it with --init"),
        ({"init_std": (0.5,)}, "^these belong to a network of yours: "),
        ({"init": "x", "init_std": (0.5, -1.0)}, "^a standard deviation is positive: "),
        ({"method": "ls", "options": {"alfa": 1}}, "did you mean 'alpha'"),
        ({"method": "ls", "options": {"alpha": "foo"}}, "alpha must be a number"),
        ({"method": "fl", "options": {"gamma": math.nan}}, "gamma must be a number: nan"),
        ({"method": "mixup", "options": {"alpha": math.inf}}, "alpha must be a number: inf"),
        ({"classifier": "resnet19"}, "did you mean 'resnet18'"),
        ({"init": "nowhere"}, "nowhere"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"momentum": -1.0}, "momentum must be a share"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"pad": -1}, "pad must not be negative"),
    ],
)
def test_mistakes_are_explained_and_claim_no_folder(tmp_path, toy_data, changes, words):
    with pytest.raises(SemmixError, match=words):
        train_classifier(toy_data, replace(SMALL, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_device_claims_no_folder(tmp_path, toy_data):
    with pytest.raises(SemmixError, match="unknown device"):
        train(toy_data, SMALL, tmp_path / "run", runtime=Runtime(device="tpu9"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("epoch", "rate"), [(0, 0.1), (79, 0.1), (80, 0.01), (120, 0.001)])
def test_multistep_is_the_published_one(epoch, rate):
    assert loop.classifier_lr("multistep", 0.1, epoch / 200) == pytest.approx(rate)


def test_cosine_falls_to_zero():
    rates = [loop.classifier_lr("cosine", 0.2, k / 10) for k in range(11)]
    assert rates[0] == 0.2
    assert rates[5] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(0)
    assert rates == sorted(rates, reverse=True)
