"""Model folders: complete, checked, honest, and usable without semmix."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from semmix import SemmixError
from semmix.cli.main import main
from semmix.core.files import write_json, write_tensors
from semmix.deploy import Caution, Model, export_model, how_to_predict, load_model
from semmix.deploy.image_files import read_image
from semmix.deploy.programs import CalibratedNetwork, check_program, open_onnx, trial_images, write_programs
from semmix.deploy.rules import lower_bound
from semmix.networks import classifier
from semmix.networks.saved import WEIGHTS, load_classifier
from semmix.runs import Run
from semmix.training.classifier import TrainConfig, train


def test_folder_holds_everything(model_folder):
    names = {path.name for path in model_folder.iterdir()}
    assert names == {"model.json", "weights.safetensors", "model.onnx", "model.pt2", "README.md", "reliability.png"}
    facts = json.loads((model_folder / "model.json").read_text())
    assert facts["finished"]
    assert facts["class_names"] == [str(k) for k in range(10)]
    assert facts["image_shape"] == [1, 8, 8]
    assert facts["opset"] == 18
    accuracy = facts["metrics"]["acc"]
    assert accuracy["low"] < accuracy["value"] < accuracy["high"] <= 1
    assert set(facts["files"]) == {"weights.safetensors", "model.onnx", "model.pt2"}


def test_onnx_takes_any_batch_of_raw_pixels(model_folder):
    graph = onnx.load(model_folder / "model.onnx").graph
    (images,) = graph.input
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    dims = images.type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch", 1, 8, 8]
    assert [output.name for output in graph.output] == ["probabilities", "logits", "ood_score"]


def test_programs_agree_with_the_run_it_came_from(run, model_folder, digits):
    """Against the logits that training wrote, not against the network that export built."""
    stored = load_file(run / "logits-test.safetensors")["logits"]
    temperature = json.loads((run / "metrics.json").read_text())["temperature"]
    loaded = torch.export.load(model_folder / "model.pt2").module()
    for program in (open_onnx(model_folder / "model.onnx"), loaded):
        probs, logits, score = program(digits.test.images)
        assert torch.allclose(logits, stored, atol=1e-4)
        assert torch.allclose(probs, (stored / temperature).softmax(1), atol=1e-4)
        assert torch.allclose(score, -stored.logsumexp(1), atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_larger_networks_export(name, tmp_path):
    torch.manual_seed(0)
    network = CalibratedNetwork(classifier(name, 4, 3, 8).eval(), 0.7).eval()
    assert write_programs(network, (3, 8, 8), tmp_path, onnx=True) < 1e-4


def test_a_program_that_disagrees_is_refused(model):
    other = CalibratedNetwork(model.network.network, 1.01 * model.rules.temperature).eval()
    with pytest.raises(SemmixError, match="disagrees with PyTorch on probabilities"):
        check_program("model.onnx", other, model.network, model.image_shape)
    with pytest.raises(SemmixError, match="nan"):
        broken = CalibratedNetwork(model.network.network, float("nan")).eval()
        check_program("model.onnx", broken, model.network, model.image_shape)


class Branching(torch.nn.Module):
    """A user's network that no exporter can follow."""

    def forward(self, images):
        return images.float().mean((2, 3)) * (2 if images.sum() > 9 else 3)


class OneBatch(torch.nn.Module):
    """A user's network for batches of two."""

    def forward(self, images):
        return images.float().view(2, 3, -1).mean(2)


@pytest.mark.parametrize(
    ("network", "answer"), [(Branching(), "cannot become a program"), (OneBatch(), "cannot run a batch of 1")]
)
def test_networks_that_cannot_be_exported_are_explained(network, answer, tmp_path):
    with pytest.raises(SemmixError, match=answer):
        write_programs(CalibratedNetwork(network, 1.0), (3, 8, 8), tmp_path, onnx=False)


def test_a_users_program_takes_its_program_along(digits, tmp_path):
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 10)
    example, dims = torch.zeros(2, 1, 8, 8), ({0: torch.export.Dim("n", max=4096)},)
    program = torch.export.export(torch.nn.Sequential(*layers), (example,), dynamic_shapes=dims)
    torch.export.save(program, tmp_path / "mine.pt2")
    config = TrainConfig(method="ce", init=str(tmp_path / "mine.pt2"), epochs=1, batch_size=50)
    run = train(digits, config, tmp_path / "run").folder
    folder = export_model(run, tmp_path / "model", onnx=False)
    assert "# mine.pt2 for digits" in (folder / "README.md").read_text()
    assert "Started from a network" in (folder / "README.md").read_text()
    assert "IMAGES --trust-code`" in (folder / "README.md").read_text()
    assert how_to_predict(folder) == f"semmix predict {folder} IMAGES --trust-code"
    shutil.rmtree(run)
    (tmp_path / "mine.pt2").unlink()
    with pytest.raises(SemmixError, match=r"(?s)program\.pt2.*--trust-code"):
        load_model(folder, "cpu")
    model = load_model(folder, "cpu", trust_code=True)
    assert len(model.predict(digits.test.images[:3])) == 3


def test_code_that_a_model_folder_names_runs_only_when_trusted(
    model_folder, image_files, tmp_path, monkeypatch, capsys
):
    """A folder from elsewhere names a module that lies in wait in the current folder."""
    (tmp_path / "in_wait.py").write_text(
        "from pathlib import Path\n"
        "from semmix.networks import classifier\n"
        "Path('it-ran').touch()\n"
        "net = classifier('small', 10, 1, 8)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = shutil.copytree(model_folder, tmp_path / "model")
    header = {"classifier": "in_wait:net", "num_classes": 10, "in_channels": 1, "image_size": 8}
    write_tensors(folder / WEIGHTS, load_file(model_folder / WEIGHTS), header)
    for words in (["predict", folder, image_files[0]], ["serve", folder, "--port", "0"]):
        assert main([*map(str, words), "--device", "cpu"]) == 1
        assert "--trust-code" in capsys.readouterr().err
    with pytest.raises(SemmixError, match="in_wait:net"):
        load_classifier(folder)
    run = shutil.copytree(folder, tmp_path / "run")
    (run / "model.json").unlink()  # nor is a run trusted
    with pytest.raises(SemmixError, match="--trust-code"):
        load_model(run, "cpu")
    assert not Path("it-ran").exists()
    words = ["predict", str(folder), str(image_files[0]), "--device", "cpu", "--trust-code"]
    assert main(words) == 0
    assert Path("it-ran").exists()


def test_trials_hold_noise_and_extremes():
    trials = list(trial_images((3, 8, 8)))
    assert {len(images) for images in trials} >= {1, 2, 7}
    assert any((images == 0).all(dim=(1, 2, 3)).any() for images in trials)
    assert any((images == 255).all(dim=(1, 2, 3)).any() for images in trials)


def test_export_again_does_nothing_and_other_weights_are_refused(run, model_folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in model_folder.iterdir()}
    export_model(run, model_folder)
    assert before == {path: path.stat().st_mtime_ns for path in model_folder.iterdir()}
    with pytest.raises(SemmixError, match="made from other inputs"):
        export_model(run, model_folder, onnx=False)


def test_files_of_something_else_are_not_replaced(run, tmp_path):
    notes = tmp_path / "README.md"
    notes.write_text("my project")
    other = shutil.copytree(run, tmp_path / "other")
    for out, seen in ((tmp_path, "README.md"), (other, "weights.safetensors")):
        with pytest.raises(SemmixError, match=f"holds files of something else: {seen}"):
            export_model(run, out, onnx=False)
        assert not (out / "model.json").exists()
    assert notes.read_text() == "my project"
    assert export_model(other, other, onnx=False) == other  # a run may hold its own model


def test_export_without_onnx(run, tmp_path):
    out = export_model(run, tmp_path / "model", onnx=False)
    assert not (out / "model.onnx").exists()
    assert "onnxruntime" not in (out / "README.md").read_text()


def test_missing_packages_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.deploy.model_folder.can_write_onnx", lambda: False)
    with pytest.raises(SemmixError, match=r"pip install .*\[onnx\]"):
        export_model(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("key", ["finished", "inputs", "class_names", "temperature", "set_thresholds", "ood_threshold"])
def test_a_model_that_lacks_a_fact_is_refused(model_folder, tmp_path, key):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    facts = json.loads((folder / "model.json").read_text())
    del facts[key]
    write_json(folder / "model.json", facts)
    with pytest.raises(SemmixError, match=rf"is damaged: model.json is incomplete \('{key}'\)"):
        load_model(folder, "cpu")


def test_a_model_that_lacks_a_threshold_is_refused(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    facts = json.loads((folder / "model.json").read_text())
    for thresholds in ({"90": 0.5}, None):
        write_json(folder / "model.json", {**facts, "set_thresholds": thresholds})
        with pytest.raises(SemmixError, match="incomplete"):
            load_model(folder, "cpu")


def test_unfinished_and_damaged_models_are_refused(model_folder, run, tmp_path):
    half = shutil.copytree(model_folder, tmp_path / "half")
    facts = json.loads((half / "model.json").read_text())
    write_json(half / "model.json", {**facts, "finished": False})
    with pytest.raises(SemmixError, match="not finished"):
        load_model(half)
    write_json(half / "model.json", {**facts, "inputs": {**facts["inputs"], "weights": "0"}})
    with pytest.raises(SemmixError, match="damaged"):
        load_model(half)
    with pytest.raises(SemmixError, match="no trained classifier"):
        load_model(tmp_path)


def test_a_run_answers_like_its_model(model_folder, model, digits):
    images = digits.test.images[:20]
    assert load_model(model_folder, "cpu").predict(images) == model.predict(images)


def test_card_tells_what_was_measured(model_folder):
    facts = json.loads((model_folder / "model.json").read_text())
    card = (model_folder / "README.md").read_text()
    accuracy = facts["metrics"]["acc"]
    row = f"| Accuracy % | {100 * accuracy['value']:.2f} | {100 * accuracy['low']:.2f} to"
    assert row in card
    assert facts["data"]["train"] in card
    assert "semmix predict" in card
    assert "reliability.png" in card
    with Image.open(model_folder / "reliability.png") as diagram:
        assert diagram.width > 500


def odd_pictures(digit: Image.Image) -> dict[str, Image.Image]:
    """Return the digit as those send it whose files are not plain grey."""
    clear = Image.new("RGBA", digit.size, (200, 30, 90))
    clear.putalpha(digit)
    palette = digit.quantize(16)
    palette.info["transparency"] = palette.getpixel((0, 0))
    random = np.random.default_rng(0)
    return {
        "plain": digit,
        "transparent": clear,
        "grey with alpha": Image.merge("LA", (digit, digit)),
        "palette with a clear colour": palette,
        "16 bit": Image.fromarray(np.asarray(digit).astype(np.uint16) * 200),
        "coloured, not square": Image.fromarray(random.integers(0, 256, (12, 9, 3), np.uint8)),
        "black and white": digit.convert("1"),
    }


def check_card(folder: Path, model: Model, kind: str) -> None:
    """Run the card's program as a stranger would: in the model's folder, without semmix."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    command = [sys.executable, "-c", f"import sys; sys.modules['semmix'] = None\n{code}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    name, confidence = done.stdout.split()
    (answer,) = model.predict(read_image(folder / "image.png", model.image_shape)[None])
    assert name == answer.class_name, kind
    assert float(confidence) == pytest.approx(answer.confidence, abs=1e-4), kind


def test_the_cards_program_answers_as_predict_does(model_folder, model, image_files, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    digit = Image.open(image_files[0])
    for kind, picture in odd_pictures(digit).items():
        picture.save(folder / "image.png")
        check_card(folder, model, kind)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    digit.resize((300, 200)).save(folder / "image.png", "JPEG", exif=exif)
    check_card(folder, model, "photograph")


def test_export_command_looks_at_the_source(run, tmp_path, capsys):
    assert main(["export", str(run), "--out", str(tmp_path / "m"), "--format", "png"]) == 1
    assert "is a training run, which these do not fit: format=png" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "m")]) == 1
    assert "nothing to export here" in capsys.readouterr().err
    assert main(["export", str(run), "--out", str(tmp_path / "m"), "--no-onnx"]) == 0
    assert "semmix predict" in capsys.readouterr().out


def test_options_for_runs_do_not_fit_mixed_sets(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "m"), "--no-onnx"]) == 1
    assert "is a store of mixed sets, which these do not fit: onnx=False" in capsys.readouterr().err


def test_an_annotation_without_use_is_refused(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    labels = ["--labels", "requested", "--annotation", "notes"]
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "m"), *labels]) == 1
    assert "requested labels need no annotation: notes" in capsys.readouterr().err


def test_few_validation_images_promise_little(run, digits, tmp_path):
    """Ten: sets for 99 % hold every class, nothing is called strange, and the card says so."""
    few = shutil.copytree(run, tmp_path / "run")
    tensors = load_file(run / "logits-val.safetensors")
    write_tensors(few / "logits-val.safetensors", {k: t[:10] for k, t in tensors.items()})
    folder = export_model(few, tmp_path / "model", onnx=False)
    model = load_model(folder, "cpu")
    assert model.rules.ood_threshold is None
    for answer in model.predict(digits.test.images[:5], Caution(coverage=0.99)):
        assert len(answer.prediction_set) == 10
        assert not answer.ood_warning
    assert "too few validation images" in (folder / "README.md").read_text()


def test_validation_images_that_are_all_right_calibrate_nothing(run, tmp_path):
    """No temperature is fitted to them, nothing is made surer, and the card says so."""
    sure = shutil.copytree(run, tmp_path / "run")
    tensors = load_file(run / "logits-val.safetensors")
    right = tensors["logits"].argmax(1) == tensors["labels"]
    write_tensors(sure / "logits-val.safetensors", {k: t[right] for k, t in tensors.items()})
    folder = export_model(sure, tmp_path / "model", onnx=False)
    assert load_model(folder, "cpu").rules.temperature == 1
    card = (folder / "README.md").read_text()
    assert "No validation image was wrong: the temperature could not be fitted" in card
    assert "are calibrated" not in card


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_lower_bound_promises_what_it_says(percent):
    """Drawn from one source, a new value reaches the bound at least as often as promised."""
    random = np.random.default_rng(percent)
    num, hits = 2000, 0
    for _ in range(num):
        values = random.normal(size=121)
        hits += values[0] >= lower_bound(values[1:], percent)
    promised, spread = percent / 100, 3 * np.sqrt(percent / 100 * (1 - percent / 100) / num)
    assert promised - spread <= hits / num <= promised + spread + 1 / 121


def test_too_few_values_promise_nothing():
    assert lower_bound(np.arange(18.0), 95) is None
    assert lower_bound(np.arange(19.0), 95) == 0


def test_an_open_run_is_exported_as_it_is(run, tmp_path, monkeypatch):
    opened = Run.open(run)
    monkeypatch.setattr("semmix.runs.open_artifact", lambda *_: pytest.fail("opened again"))
    folder = export_model(opened, tmp_path / "model", onnx=False)
    assert load_model(folder, "cpu").rules.temperature == opened.temperature


def test_the_card_says_what_to_mind(run, tmp_path):
    """A run that started from another and whose mixed sets may have seen test images."""
    other = shutil.copytree(run, tmp_path / "run")
    manifest = json.loads((run / "config.json").read_text())
    manifest["inputs"]["init"] = "abcdef"
    manifest["inputs"]["config"]["options"] = {"weight": 0.5}
    write_json(other / "config.json", {**manifest, "leak": True})
    before, after = (
        (export_model(folder, tmp_path / f"{k}", onnx=False) / "README.md").read_text()
        for k, folder in enumerate((run, other))
    )
    for words in ("the figures above are too good", "Started from a network with the digest `abcdef`", "weight = 0.5"):
        assert words in after
        assert words not in before
    facts = json.loads((tmp_path / "0" / "model.json").read_text())
    assert f"The temperature is {facts['temperature']:.3f}; without it the ECE would be" in before
    assert "Sorts grey images of 8 x 8 pixels into 10 classes" in before
    assert "Classes: `0`, `1`," in before
    assert "`9`." in before
    held, num = (facts["prediction_sets"]["90"][name]["value"] for name in ("coverage", "num_classes"))
    assert f"| 90 % | {100 * held:.1f} % (" in before
    assert f"| {num:.2f} (" in before
    assert f"exceeds {facts['ood_threshold']:.4g}, as do 5 in a hundred" in before
