"""Which runs count in a table, and their numbers, from folders written by hand."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semmix import SemmixError
from semmix.calibration import (
    DensityRatioCalibrator,
    TemperatureScaler,
    ece,
    oe,
    ood_auroc,
    ood_score,
    piece,
    proximity,
    weighted_oe,
    weighted_ue,
)
from semmix.core.artifact import FORMAT
from semmix.core.files import read_named_tensors, write_json, write_tensors
from semmix.core.settings import plain
from semmix.experiments.catalog import plan_table
from semmix.experiments.cells import PROTOCOLS
from semmix.experiments.results import PROXIMITY, TTA, RunFolder, keep_run, measure_run
from semmix.experiments.running import load_data, plain_cell, write_proximity, write_tta
from semmix.networks import classifier
from semmix.runs import Run

DEMO = Path(__file__).parents[2] / "results" / "demo"
CELLS = {cell.row: cell for cell in plan_table("main", "digits")}
CE, CSM = CELLS["CE"], CELLS["CSM"]


def write_run(folder, cell, seed, finished=True, **inputs):
    """Write the manifest of a run as training leaves it."""
    config = {**plain(cell.train), "seed": seed}
    inputs = {"config": config, "dataset": cell.data.dataset, **inputs}
    path = folder / cell.run_name(seed)
    path.mkdir(parents=True, exist_ok=True)
    manifest = {"kind": "run", "format": FORMAT, "inputs": inputs, "finished": finished}
    write_json(path / "config.json", manifest)
    return path


def finished(cell, folder):
    return [run.folder for run in RunFolder(folder).finished(cell)]


def test_finished_runs_come_in_the_order_of_their_seeds(tmp_path):
    runs = [write_run(tmp_path, CE, seed) for seed in (0, 2, 10, 11)]
    write_run(tmp_path, CE, 1, finished=False)
    (tmp_path / CE.run_name(3)).mkdir()  # nothing in it yet
    assert finished(CE, tmp_path) == runs
    asked, folder = replace(CE, seeds=4), RunFolder(tmp_path)
    assert (folder.missing(asked), folder.untrained(asked)) == ([1, 3], 2)
    assert (folder.missing(replace(asked, measure="piece")), folder.untrained(replace(asked, measure="piece"))) == (
        [0, 1, 2, 3],
        2,
    )
    near = replace(CE, measure="piece")
    assert finished(near, tmp_path) == []
    write_tensors(runs[2] / PROXIMITY, {"val": torch.ones(1), "test": torch.ones(1)})
    assert finished(near, tmp_path) == [runs[2]]
    assert finished(replace(CE, measure="tta"), tmp_path) == []  # needs more views too


def test_runs_that_are_not_what_their_name_says_are_refused(tmp_path):
    mixed = {"labels": CSM.mixing.labels, "scale": CSM.mixing.scale}
    other_data = {"dataset": "cifar10"}
    other_seed = {"config": {**plain(CE.train), "seed": 7}}
    for cell, inputs in [
        (CE, other_data),
        (CE, other_seed),
        (CE, {"mixed": mixed}),
        (CSM, {}),
        (CSM, {"mixed": {**mixed, "labels": "other"}}),
        (replace(CSM, mixing=replace(CSM.mixing, scale=5.0)), {"mixed": {**mixed, "scale": 6.0}}),
    ]:
        write_run(tmp_path, cell, 0, **inputs)
        with pytest.raises(SemmixError, match=f"is no run of {cell.name}"):
            finished(cell, tmp_path)


@pytest.mark.parametrize(("asked", "used"), [(5.0, 5.0), (None, 5.0), (5.0, None)])
def test_a_scale_chosen_by_the_rule_is_the_cells_own(tmp_path, asked, used):
    cell = replace(CSM, mixing=replace(CSM.mixing, scale=asked))
    run = write_run(tmp_path, cell, 0, mixed={"labels": CSM.mixing.labels, "scale": used})
    assert finished(cell, tmp_path) == [run]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with logits of every kind, each its own."""
    folder = write_run(tmp_path_factory.mktemp("runs"), CE, 0)
    draw = torch.Generator().manual_seed(0)
    for name in ("logits-val", "logits-test", "logits-ood-noise", TTA.partition(".")[0]):
        logits = 3 * torch.randn(300, 4, generator=draw)
        labels = torch.randint(4, (300,), generator=draw)
        if name == "logits-tta":
            labels = read_named_tensors(folder / "logits-test.safetensors", "labels")[0]
        logits[torch.arange(300), labels] += 2
        write_tensors(folder / f"{name}.safetensors", {"logits": logits, "labels": labels})
    near = {name: torch.rand(300, generator=draw).double() for name in ("val", "test")}
    write_tensors(folder / PROXIMITY, near)
    return Run.open(folder)


def test_a_run_is_kept_beside_others_and_never_in_place_of_one(tmp_path):
    """Nor in place of itself, whose logits would be rounded."""
    first, second = (DEMO / "ce-0", DEMO / "ce-1")
    own = Path(shutil.copytree(first, tmp_path / "runs" / "ce-0"))
    kept = keep_run(own, tmp_path / "kept")
    assert kept == keep_run(str(own), str(tmp_path / "kept")) == tmp_path / "kept" / "ce-0"
    assert {path.name for path in kept.iterdir()} == {path.name for path in own.iterdir()}
    logits, labels = read_named_tensors(kept / "logits-test.safetensors", "logits", "labels")
    before, truth = read_named_tensors(own / "logits-test.safetensors", "logits", "labels")
    assert (logits.dtype, labels.dtype) == (torch.float16, torch.int16)
    assert torch.equal(labels.long(), truth.long())
    assert logits.amax(1).eq(0).all()
    torch.testing.assert_close(logits.double().softmax(1), before.double().softmax(1), atol=1e-3, rtol=0)
    with pytest.raises(SemmixError, match="a run cannot be kept in its own folder") as caught:
        keep_run(own, tmp_path / "runs")
    assert "choose another --out" in caught.value.fix
    other = shutil.copytree(second, tmp_path / "others" / "ce-0")
    with pytest.raises(SemmixError, match="another run of this name is kept"):
        keep_run(other, tmp_path / "kept")
    assert Run.open(kept).seed == 0


def logits_of(run, name):
    logits, labels = read_named_tensors(run.folder / f"logits-{name}.safetensors", "logits", "labels")
    return logits.double(), labels


def test_plain_numbers_are_those_before_and_after_the_temperature(run):
    logits, labels = logits_of(run, "test")
    numbers = measure_run(run, CE, PROTOCOLS["semmix"])
    assert numbers["temperature"] != 1
    before, after = logits.softmax(1), (logits / numbers["temperature"]).softmax(1)
    for probs, tail in ((before, ""), (after, "_ts")):
        assert numbers[f"ece{tail}"] == pytest.approx(ece(probs, labels), abs=1e-9)
        assert numbers[f"oe{tail}"] == pytest.approx(oe(probs, labels), abs=1e-9)
    as_in_the_code = measure_run(run, CE, PROTOCOLS["code"])
    after = (logits / as_in_the_code["temperature"]).softmax(1)
    for probs, tail in ((before, ""), (after, "_ts")):
        for name, by in (("oe", weighted_oe), ("ue", weighted_ue)):
            assert as_in_the_code[f"{name}{tail}"] == pytest.approx(by(probs, labels), abs=1e-9)


def test_the_temperature_is_sought_as_the_protocol_says(run):
    found = {}
    for search in ("ece-grid", "nll"):
        protocol = replace(PROTOCOLS["semmix"], temperature=search)
        found[search] = measure_run(run, CE, protocol)["temperature"]
        scaler = TemperatureScaler(search=search).fit(*logits_of(run, "val"))
        assert found[search] == scaler.temperature
    assert found["ece-grid"] != found["nll"]


def test_measures_besides_logits_take_their_own_files(run):
    near_val, near_test = read_named_tensors(run.folder / PROXIMITY, "val", "test")
    (val, val_labels), (logits, labels) = logits_of(run, "val"), logits_of(run, "test")
    calibrator = DensityRatioCalibrator().fit(val, val_labels, near_val)
    probs = {
        "piece": logits.softmax(1),
        "tta": logits_of(run, "tta")[0].softmax(1),
        "procal": calibrator.transform(logits, near_test),
    }
    for measure, expected in probs.items():
        numbers = measure_run(run, replace(CE, measure=measure), PROTOCOLS["semmix"])
        assert numbers["ece"] == pytest.approx(ece(expected, labels), abs=1e-9)
        assert numbers["piece"] == pytest.approx(piece(expected, labels, near_test), abs=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_ood_images_are_told_by_scores_of_the_lines_own_probabilities(run, scaled):
    cell = replace(CE, measure="ood:noise", scaled=scaled)
    numbers = measure_run(run, cell, PROTOCOLS["semmix"])
    by = TemperatureScaler(PROTOCOLS["semmix"].temperature).fit(*logits_of(run, "val")).temperature if scaled else 1
    own, outside = (ood_score(logits_of(run, name)[0] / by) for name in ("test", "ood-noise"))
    assert numbers["auroc"] == ood_auroc(own, outside)
    assert numbers["auroc"] != ood_auroc(outside, own)


def test_an_encoder_of_our_own_is_a_plain_run_on_the_same_images():
    train = replace(CSM.train, eq_data=True, allow_leak=True, epochs=7)
    cell = replace(CSM, train=train, measure="piece", times_encoder=2)
    plain = plain_cell(cell)
    assert plain.data == cell.data
    assert plain.mixing is None
    assert (plain.measure, plain.times_encoder, plain.seeds) == ("plain", 1, 1)
    assert (plain.train.method, plain.train.options, plain.train.epochs) == ("ce", {}, 3)
    assert not plain.train.eq_data
    assert not plain.train.allow_leak
    assert plain_cell(replace(cell, times_encoder=9)).train.epochs == 1


def test_proximity_and_views_are_those_of_the_trained_network(tmp_path):
    torch.manual_seed(0)
    data = load_data(CE.data)
    network = classifier("small", data.num_classes, 1, 8)  # in training mode, as it is built
    write_proximity(network, data, tmp_path)
    write_tta(network.train(), data.test, 0, False, tmp_path)
    network.eval()
    with torch.no_grad():
        val, test = (network.features(part.images) for part in (data.val, data.test))
        log_probs = network(data.test.images).log_softmax(1)
    near_val, near_test = read_named_tensors(tmp_path / PROXIMITY, "val", "test")
    assert near_val.tolist() == pytest.approx(proximity(val).tolist(), abs=1e-6)
    assert near_test.tolist() == pytest.approx(proximity(test, pool=val).tolist(), abs=1e-6)
    logits, labels = read_named_tensors(tmp_path / TTA, "logits", "labels")
    torch.testing.assert_close(logits, log_probs, rtol=1e-4, atol=1e-4)  # one view: as it is
    assert torch.equal(labels, data.test.labels)
