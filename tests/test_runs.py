"""`Run`: what it says of a run's files, and how often it reads them."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from semmix import SemmixError, ece
from semmix.calibration import TemperatureScaler
from semmix.core import artifact, files
from semmix.runs import Logits, Predictions, Run

NUM, NUM_CLASSES = 200, 3


@pytest.fixture
def folder(tmp_path):
    """A run of an over-confident network, with images of another data set."""
    folder, draw = tmp_path / "csm-1", torch.Generator().manual_seed(0)
    folder.mkdir()
    config = {"method": "csm", "options": {"weight": 0.5}, "classifier": "small", "epochs": 5, "seed": 1}
    mixed = {"labels": "reannotated", "scale": 4.0, "excluded": "eee"}
    inputs = {"dataset": "digits", "config": config, "mixed": mixed, "train": "aaa", "test": "bbb", "init": "ccc"}
    manifest = {"kind": "run", "format": 1, "finished": True, "leak": True, "inputs": inputs}
    (folder / "config.json").write_text(json.dumps(manifest))
    (folder / "env.json").write_text(json.dumps({"command": "semmix train digits"}))
    (folder / "stats.jsonl").write_text('{"epoch": 1}\n\n{"epoch": 2}\n')
    for name in ("val", "test", "ood-noise", "ood-art"):
        logits = 4 * torch.randn(NUM, NUM_CLASSES, generator=draw)
        labels = torch.randint(NUM_CLASSES, (NUM,), generator=draw)
        logits[torch.arange(NUM), labels] += 2
        save_file({"logits": logits.half(), "labels": labels.short()}, folder / f"logits-{name}.safetensors")
    return folder


@pytest.fixture
def reads(monkeypatch):
    """The names of files read so far, in order."""
    names = []

    def counted(read):
        def reader(path, *args):
            names.append(path.name)
            return read(path, *args)

        return reader

    for module in (artifact, files, __import__("semmix.runs", fromlist=["runs"])):
        for name in ("read_json", "read_named_tensors"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return names


def test_everything_is_read_once_and_only_when_it_is_asked_for(folder, reads):
    run = Run.open(folder)
    assert (run.seed, run.method, run.leak) == (1, "csm", True)
    assert reads == ["config.json"]
    for _ in range(2):
        assert run.command == "semmix train digits"
        assert run.temperature > 1
        assert run.before.metrics["ece"] > run.after.metrics["ece"]
        assert len(run.ood["noise"].labels) == NUM
    assert reads == [
        "config.json",
        "env.json",
        "logits-val.safetensors",
        "logits-test.safetensors",
        "logits-ood-noise.safetensors",
    ]
    assert Run.open(run) is run


def test_temperatures_are_those_of_a_scaler_and_fitted_once(folder, monkeypatch):
    fitted, fit = [], TemperatureScaler.fit
    monkeypatch.setattr(TemperatureScaler, "fit", lambda self, *a: (fitted.append(self.search), fit(self, *a))[1])
    run = Run.open(folder)
    for search in ("nll", "ece-grid", "nll", "ece-grid"):
        expected = fit(TemperatureScaler(search), run.val.logits, run.val.labels)
        assert run.temperature_by(search) == expected.temperature
        probs = expected.transform(run.test.logits)
        np.testing.assert_allclose(run.scaled(search).probs, probs, atol=1e-6)
    assert run.temperature == run.temperature_by("nll") != run.temperature_by("ece-grid")
    assert run.after is run.scaled("nll")
    assert fitted == ["nll", "ece-grid"]


def test_predictions_are_the_softmax_of_the_logits(folder):
    run = Run.open(folder)
    assert (run.test.logits.dtype, run.test.labels.dtype) == (np.float32, np.int64)
    logits = torch.from_numpy(run.test.logits).double()
    np.testing.assert_allclose(run.test.probs(2.0), (logits / 2).softmax(1).numpy(), atol=1e-12)
    assert run.before.probs.dtype == np.float32
    assert run.before.metrics["ece"] == pytest.approx(ece(logits.softmax(1), run.test.labels), abs=1e-6)
    assert run.before.metrics["acc"] == run.before.correct.mean()
    assert run.before.confidence.tolist() == run.before.probs.max(1).tolist()


def test_settings_and_origins_tell_what_was_trained(folder):
    run = Run.open(folder)
    assert run.settings == {
        "dataset": "digits",
        "method": "csm",
        "classifier": "small",
        "epochs": 5,
        "weight": 0.5,
        "labels": "reannotated",
        "scale": 4.0,
    }
    assert run.origins == {"train": "aaa", "test": "bbb", "init": "ccc", "excluded": "eee"}
    run.inputs["config"]["classifier"] = "module:Network"
    assert "init" not in run.origins
    assert [line["epoch"] for line in run.stats] == [1, 2]
    assert run.class_names == ["0", "1", "2"]
    run.manifest["class_names"] = ["cat", "dog", "cow"]
    assert run.class_names == ["cat", "dog", "cow"]


def test_other_data_sets_are_found_by_name(folder):
    ood = Run.open(folder).ood
    assert [*ood] == ["art", "noise"]
    assert len(ood) == 2
    assert "digits" not in ood
    with pytest.raises(KeyError):
        ood["digits"]


def test_metrics_are_read_from_their_file_or_measured(folder, reads):
    run = Run.open(folder)
    assert run.metrics == {
        "test": run.before.metrics,
        "temperature": run.temperature,
        "test_after_temperature": run.after.metrics,
    }
    stored = {"test": {"acc": 0.5, "ece": 0.1234}}
    (folder / "metrics.json").write_text(json.dumps(stored))
    reads.clear()
    run = Run.open(folder)
    assert run.metrics == stored
    assert repr(run) == f"Run({str(folder)!r}: csm on digits, seed 1, accuracy 50.0 %, ECE 12.34 %)"
    assert reads == ["config.json", "metrics.json"]


def test_a_notebook_shows_both_lines_of_metrics(folder):
    run = Run.open(folder)
    html = run._repr_html_()
    assert html.startswith(f"<table><caption>Run(&#x27;{folder}&#x27;: csm on digits")
    before, after = (f"<td>{100 * each.metrics['ece']:.2f}</td>" for each in (run.before, run.after))
    assert html.index("as trained") < html.index(before) < html.index(f"at temperature {run.temperature:.2f}")
    assert html.index(f"at temperature {run.temperature:.2f}") < html.index(after)


def test_what_is_released_is_read_again(folder, reads):
    run = Run.open(folder)
    temperature, error = run.temperature, run.after.metrics["ece"]
    run.release()
    reads.clear()
    assert run.temperature == temperature
    assert reads == []
    assert run.after.metrics["ece"] == error
    assert reads == ["logits-test.safetensors"]


def test_a_temperature_needs_a_wrong_prediction(folder):
    run = Run.open(folder)
    assert run.temperature_is_fitted
    logits = torch.eye(NUM_CLASSES)
    save_file({"logits": logits, "labels": torch.arange(NUM_CLASSES)}, folder / "logits-val.safetensors")
    assert not Run.open(folder).temperature_is_fitted


def test_no_unfinished_and_broken_runs_are_refused(folder, tmp_path):
    with pytest.raises(SemmixError, match="no run here"):
        Run.open(tmp_path / "nothing")
    (folder / "stats.jsonl").write_text('{"epoch": 1}\nnot json\n')
    with pytest.raises(SemmixError, match=r"stats\.jsonl.*\n.*delete the line"):
        _ = Run.open(folder).stats
    (folder / "stats.jsonl").unlink()
    assert Run.open(folder).stats == []
    manifest = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**manifest, "finished": False}))
    with pytest.raises(SemmixError, match="is not finished"):
        Run.open(folder)


def test_arrays_are_shown_by_their_size():
    labels = np.zeros(1200, int)
    assert repr(Predictions(np.ones((1200, 1)), labels)) == "Predictions(1,200 images, 1 classes)"
    assert repr(Logits(np.ones((1200, 7), np.float32), labels)) == "Logits(1,200 images, 7 classes)"
