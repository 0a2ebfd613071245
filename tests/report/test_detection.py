"""OOD images: a run's logits on them, curves and areas against plain counting, the page."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file

from semmix import SemmixError, classifier
from semmix.calibration import ood_auroc, ood_fpr
from semmix.cli.main import main
from semmix.core.files import write_tensors
from semmix.data import load_dataset
from semmix.networks.saved import save_classifier
from semmix.report import predict_ood, write_report
from semmix.report.charts import roc_chart
from semmix.report.detection import FALSE_ALARMS, detections, roc_curve
from semmix.report.rows import aggregate
from semmix.runs import Run


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """A folder of grey noise, 12 x 12, in two classes."""
    root, draw = tmp_path_factory.mktemp("data") / "noise", np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for n in range(20):
            pixels = draw.integers(0, 256, (12, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")
    return root


@pytest.fixture
def trained(tmp_path, make_run):
    """A run folder with the weights of a network for colour images of 8 x 8."""
    folder = make_run(tmp_path / "run", "ce", 0)
    torch.manual_seed(0)
    network = classifier("small", num_classes=4, in_channels=3, image_size=8).eval()
    save_classifier(network, "small", (3, 8, 8), folder)
    return folder, network


def test_a_run_predicts_images_of_another_data_set(trained, noise):
    folder, network = trained
    path = predict_ood(folder, str(noise), "cpu")
    assert path == folder / "logits-ood-noise.safetensors"
    split = load_dataset(str(noise), size=8).test
    tensors = load_file(path)
    expected = network(split.images.expand(-1, 3, -1, -1)).detach()
    assert torch.equal(tensors["labels"], split.labels)
    assert torch.allclose(tensors["logits"], expected, atol=1e-6)
    first = path.stat().st_mtime_ns
    predict_ood(folder, str(noise), "cpu")
    assert path.stat().st_mtime_ns == first


def test_other_images_of_the_same_name_are_refused(trained, noise, tmp_path):
    folder, _ = trained
    path = predict_ood(folder, str(noise), "cpu")
    other = shutil.copytree(noise, tmp_path / "elsewhere" / noise.name)
    for image in other.rglob("*.png"):
        ImageOps.invert(Image.open(image)).save(image)
    with pytest.raises(SemmixError, match=r"another data set of this name(.|\n)*delete or rename"):
        predict_ood(folder, str(other), "cpu")
    write_tensors(path, load_file(path))  # as files were before they named their images
    assert predict_ood(folder, str(other), "cpu") == path
    path.write_bytes(b"nothing")
    with pytest.raises(SemmixError, match="cannot read"):
        predict_ood(folder, str(other), "cpu")


def test_its_own_images_are_not_ood_however_they_are_named(trained, noise, make_run, tmp_path, monkeypatch):
    folder, _ = trained
    make_run(folder, "ce", 0, dataset=noise.name)
    monkeypatch.chdir(noise.parent)
    for name in ("noise", "noise/", "./noise", str(noise)):
        with pytest.raises(SemmixError, match="own data set has this name"):
            predict_ood(folder, name, "cpu")
    digest = load_dataset(str(noise), size=8).test.digest
    make_run(folder, "ce", 0, dataset="before-it-was-renamed", origins={"test": digest})
    with pytest.raises(SemmixError, match="not out-of-distribution"):
        predict_ood(folder, str(noise), "cpu")
    assert not list(folder.glob("logits-ood-*"))


def test_mistakes_are_answered(trained, noise, make_run, tmp_path):
    folder, _ = trained
    with pytest.raises(SemmixError, match="own data set has this name"):
        predict_ood(folder, "digits")
    bare = make_run(tmp_path / "bare", "ce", 0)
    with pytest.raises(SemmixError, match="no trained classifier"):
        predict_ood(bare, str(noise))
    grey = classifier("small", num_classes=4, in_channels=1, image_size=8)
    save_classifier(grey, "small", (1, 8, 8), folder)
    colour = shutil.copytree(noise, tmp_path / "colour")
    for path in colour.rglob("*.png"):
        Image.open(path).convert("RGB").save(path)
    with pytest.raises(SemmixError, match="3 channels, the network takes 1"):
        predict_ood(folder, str(colour))


def test_curve_and_area_by_counting():
    """Ties included: entropies are rounded."""
    draw = np.random.default_rng(1)
    known, outside = draw.random(70).round(1), (draw.random(50) + 0.3).round(1)
    alarms, found = roc_curve((known, outside))
    assert (alarms[0], found[0], alarms[-1], found[-1]) == (0, 0, 1, 1)
    for threshold in np.unique(known):
        place = np.flatnonzero(np.isclose(alarms, np.mean(known >= threshold)))
        assert np.isclose(found[place], np.mean(outside >= threshold)).any()
    area = np.sum(np.diff(alarms) * (found[1:] + found[:-1]) / 2)
    assert area == pytest.approx(ood_auroc(known, outside))


@pytest.fixture
def with_ood(run_folders, tmp_path):
    """The runs of two methods; all have logits on far images, CSM's first two on near ones too."""
    folders = [shutil.copytree(run, tmp_path / run.name) for run in run_folders]
    for n, folder in enumerate(folders):
        draw = np.random.default_rng(n)
        for name, spread in (("far", 0.3), ("near", 1.5)):
            if name == "far" or folder.name in ("csm-0", "csm-1"):
                logits = torch.tensor(draw.normal(size=(90, 4)) * spread).float()
                tensors = {"logits": logits, "labels": torch.zeros(90, dtype=torch.int64)}
                write_tensors(folder / f"logits-ood-{name}.safetensors", tensors)
    return folders


def test_rows_tell_what_their_runs_detect(with_ood):
    found = detections(aggregate(with_ood))
    assert {name: [each.name for each in found[name]] for name in found} == {"far": ["CE", "CSM"], "near": ["CSM"]}
    (near,) = found["near"]
    assert near.place == 1
    runs = [Run.open(folder) for folder in with_ood if "csm" in folder.name][:2]
    areas, passed, areas_after = [], [], []
    for run in runs:
        logits = load_file(run.folder / "logits-ood-near.safetensors")["logits"].double()
        test = load_file(run.folder / "logits-test.safetensors")["logits"].double()
        scores = [torch.distributions.Categorical(logits=z).entropy() for z in (test, logits)]
        areas.append(ood_auroc(*scores))
        passed.append(ood_fpr(*scores))
        scaled = (test / run.temperature, logits / run.temperature)
        scores = [torch.distributions.Categorical(logits=z).entropy() for z in scaled]
        areas_after.append(ood_auroc(*scores))
    assert near.auroc.value == pytest.approx(np.mean(areas), abs=1e-6)
    assert near.auroc.num == 2
    assert near.fpr.value == pytest.approx(np.mean(passed), abs=1e-6)
    assert near.auroc_after.value == pytest.approx(np.mean(areas_after), abs=1e-6)
    assert near.auroc_after.value != near.auroc.value
    # far images get predictions of higher entropy than near ones
    assert found["far"][1].auroc.value > near.auroc.value > 0.5
    assert near.found[0] <= near.found[50] <= near.found[-1] == FALSE_ALARMS[-1] == 1


def test_the_report_shows_curves_of_ood_images(with_ood, run_folders, tmp_path):
    page = write_report(with_ood, tmp_path / "r.html", title="t").read_text()
    for name, each in detections(aggregate(with_ood)).items():
        assert str(roc_chart(each, name)) in page
        assert f"{100 * each[-1].auroc.value:.2f}" in page
    assert 'href="#ood"' in page
    without = write_report(run_folders, tmp_path / "w.html", title="t").read_text()
    assert "ood-title" not in without


def test_the_command_predicts_what_is_missing(trained, noise, tmp_path, capsys):
    folder, _ = trained
    out = tmp_path / "r.html"
    command = ["report", str(folder), "--ood", str(noise), "-o", str(out), "--device", "cpu"]
    assert main(command) == 0
    assert (folder / "logits-ood-noise.safetensors").exists()
    assert "Images of noise told from test images" in out.read_text()
