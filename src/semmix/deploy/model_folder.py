"""From a finished run to a folder that can be shipped.

model.json           what it is: classes, thresholds, metrics, digests
weights.safetensors  the network; `semmix predict` and `semmix serve` read this
model.onnx           raw uint8 pixels to calibrated probabilities, any batch size
model.pt2            the same as a torch.export program
README.md            the model card, with reliability.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semmix import __version__
from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError
from semmix.core.files import digest_file
from semmix.core.progress import say
from semmix.deploy.calibrated import CalibratedNetwork
from semmix.deploy.card import CARD, DIAGRAM, write_card
from semmix.deploy.measured import measure_answers
from semmix.deploy.model import KIND
from semmix.deploy.programs import ONNX_OPSET, can_write_onnx, write_programs
from semmix.deploy.rules import learn_rules
from semmix.networks.saved import (
    MANIFEST,
    SAVED_PROGRAM,
    WEIGHTS,
    copy_classifier,
    load_classifier,
    saved_image_shape,
    saved_name,
)
from semmix.networks.user_network import is_user_network
from semmix.runs import Run

SPLITS = ("train", "val", "test")
FILES = (CARD, DIAGRAM, WEIGHTS, SAVED_PROGRAM, "model.pt2", "model.onnx")
"""What a model folder holds beside its manifest."""


def export_model(run: Run | str | Path, out: str | Path, *, onnx: bool = True) -> Path:
    """Write the finished run as a model folder; return `out`.

    Does nothing if `out` holds this model already. The programs are run and compared with PyTorch
    before the folder counts as finished.

    Args:
        run: A finished training run, or its folder.
        out: folder of the model.
        onnx: also write `model.onnx`, which needs the extra `onnx` (see `can_write_onnx`).
    """
    out = Path(out)
    if onnx and not can_write_onnx():
        fix = "pip install 'semmix[onnx]', or export with --no-onnx"
        raise SemmixError("model.onnx needs onnx, onnxruntime and onnxscript", "missing", fix)
    trained = Run.open(run)
    run = trained.folder
    network, weights = load_classifier(run)
    data = {split: trained.manifest["inputs"].get(split) for split in SPLITS}
    _refuse_others(out, run)
    artifact = begin_artifact(out, MANIFEST, KIND, {"weights": weights, **data, "onnx": onnx})
    if artifact.finished:
        return out

    rules, shape = learn_rules(trained), saved_image_shape(run)
    copied = copy_classifier(run, out)
    calibrated = CalibratedNetwork(network, rules.temperature).eval()
    difference = write_programs(calibrated, shape, out, onnx)
    written = [*copied, "model.pt2", *(["model.onnx"] if onnx else [])]
    facts = {
        "semmix": __version__,
        "image_shape": list(shape),
        "runs_code": is_user_network(saved_name(run)),
        **rules.to_json(),
        "temperature_is_fitted": trained.temperature_is_fitted,
        **measure_answers(trained.after, rules),
        "ece_before_temperature": trained.before.metrics["ece"],
        "num_test_images": len(trained.after.labels),
        "data": data,
        "training": describe_training(trained),
        "opset": ONNX_OPSET if onnx else None,
        "largest_difference": difference,
        "files": {name: digest_file(out / name) for name in written},
    }
    write_card(facts, trained, out)
    artifact.finish(**facts)
    say(f"model in {out}: programs agree with PyTorch to {difference:.1g}")
    return out


def _refuse_others(out: Path, run: Path) -> None:
    """Raise the error for a folder of something else, of which files would be replaced."""
    if (out / MANIFEST).exists() or out.resolve() == run.resolve():
        return
    there = [name for name in FILES if (out / name).exists()]
    if there:
        fix = "choose another --out: the model would replace them"
        raise SemmixError(f"{out} holds files of something else", ", ".join(there), fix)


def describe_training(run: Run) -> dict[str, Any]:
    """Return how the network was trained, for the card."""
    config = run.manifest["inputs"]["config"]
    return {
        "dataset": run.manifest["inputs"]["dataset"],
        **{key: config.get(key) for key in ("method", "options", "classifier", "epochs", "seed")},
        "init": run.manifest["inputs"].get("init"),
        "leak": run.leak,
        "command": run.command,
    }
