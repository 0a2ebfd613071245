"""From a finished run to a folder that can be shipped.

model.json           what it is: classes, thresholds, metrics, digests
weights.safetensors  the network; `semmix predict` and `semmix serve` read this
model.onnx           raw uint8 pixels to calibrated probabilities, any batch size
model.pt2            the same as a torch.export program
README.md            the model card, with reliability.png
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from semmix import __version__
from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError, require
from semmix.core.extras import install_command
from semmix.core.files import digest_file
from semmix.core.progress import say
from semmix.deploy.card import CARD, DIAGRAM, write_card
from semmix.deploy.model import KIND
from semmix.deploy.programs import ONNX_OPSET, CalibratedNetwork, can_write_onnx, write_programs
from semmix.deploy.rules import Rules, learn_rules, measure_predictions
from semmix.networks import saved
from semmix.networks.saved import is_user_network
from semmix.runs import Run

SPLITS = ("train", "val", "test")
FILES = (CARD, DIAGRAM, saved.WEIGHTS, saved.SAVED_PROGRAM, "model.pt2", "model.onnx")
"""What a model folder holds beside its manifest."""


def export_model(run: Run | str | Path, out: str | Path, *, onnx: bool = True) -> Path:
    """Write the finished run as a model folder: the calibrated network in three formats, and a model card.

    Does nothing if `out` holds this model already. The programs are run and compared with PyTorch
    before the folder counts as finished.

    Args:
        run: A finished training run, or its folder.
        out: Folder of the model.
        onnx: Also write `model.onnx`, which needs the extra `onnx` (see `can_write_onnx`).

    Returns:
        The folder of the model.

    Raises:
        SemmixError: If `out` holds something else, packages are missing, or the network cannot be exported.

    Example:
        >>> import tempfile
        >>> folder = export_model("zoo/cifar10/classifier", tempfile.mkdtemp(), onnx=False)  # doctest: +ELLIPSIS
        model in ...: programs agree with PyTorch to ...
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'model.json', 'model.pt2', 'reliability.png', 'weights.safetensors']
    """
    run, out = Run.open(run), Path(out)
    if onnx and not can_write_onnx():
        fix = f"{install_command('onnx')}, or export with --no-onnx"
        raise SemmixError("model.onnx needs onnx, onnxruntime and onnxscript", "missing", fix)
    network, weights = saved.load_classifier(run.folder)
    data = {split: run.inputs.get(split) for split in SPLITS}
    if not (out / saved.MANIFEST).exists() and out.resolve() != run.folder.resolve():
        there = [name for name in FILES if (out / name).exists()]
        fix = "choose another --out: the model would replace them"
        require(not there, f"{out} holds files of something else", ", ".join(there), fix)
    artifact = begin_artifact(out, saved.MANIFEST, KIND, {"weights": weights, **data, "onnx": onnx})
    if artifact.finished:
        return out

    rules, shape = learn_rules(run), saved.saved_image_shape(run.folder)
    copied = saved.copy_classifier(run.folder, out)
    calibrated = CalibratedNetwork(network, rules.temperature).eval()
    difference = write_programs(calibrated, shape, out, onnx)
    written = [*copied, "model.pt2", *(["model.onnx"] if onnx else [])]
    facts = {
        "semmix": __version__,
        "image_shape": list(shape),
        "runs_code": is_user_network(saved.saved_name(run.folder)),
        **asdict(rules),
        **_describe(run, rules),
        "opset": ONNX_OPSET if onnx else None,
        "largest_difference": difference,
        "files": {name: digest_file(out / name) for name in written},
    }
    write_card(facts, run, out)
    artifact.finish(**facts)
    say(f"model in {out}: programs agree with PyTorch to {difference:.1g}")
    return out


def _describe(run: Run, rules: Rules) -> dict[str, Any]:
    """Return how the run was made and how good its predictions are."""
    config = run.inputs["config"]
    return {
        "temperature_is_fitted": run.temperature_is_fitted,
        **measure_predictions(run.after, rules),
        "ece_before_temperature": run.before.metrics["ece"],
        "num_test_images": len(run.after.labels),
        "data": {split: run.inputs.get(split) for split in SPLITS},
        "training": {
            "dataset": run.inputs["dataset"],
            **{key: config.get(key) for key in ("method", "options", "classifier", "epochs", "seed")},
            "init": run.inputs.get("init"),
            "leak": run.leak,
            "command": run.command,
        },
    }
