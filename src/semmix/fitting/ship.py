"""Which of the trained classifiers is shipped, and what its confidence is worth, in plain words."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from semmix.calibration.metrics import log_losses
from semmix.core.files import read_json
from semmix.core.progress import harmless
from semmix.deploy import can_write_onnx, export_model
from semmix.deploy.model import MANIFEST
from semmix.networks.saved import load_classifier
from semmix.report.rows import METHOD_NAMES, percent
from semmix.runs import Predictions, Run

HIGH, LOW = 0.9, 0.6
"""Confidences from which, and below which, accuracy is told apart."""


def best_run(runs: Sequence[Run]) -> tuple[Run, str]:
    """Return the run to ship, and why: of the method that fits validation images best, the best.

    Fit is the NLL after temperature scaling; the test images have no say, so they stay a test. The
    first run's method, the plain one, gives way only to one that fits better beyond chance: what
    cannot be shown to help may do harm.
    """
    by_method: dict[str, dict[Run, np.ndarray]] = defaultdict(dict)
    for run in runs:
        by_method[run.method][run] = validation_losses(run)
    losses = {name: np.mean(list(found.values()), axis=0) for name, found in by_method.items()}
    plain, ranked = next(iter(losses)), sorted(losses, key=lambda name: losses[name].mean())
    clear = (name for name in ranked if is_clear(losses[plain] - losses[name]))
    best, why = next(clear, plain), "the best on the validation images"
    if best != ranked[0]:
        why = "on the validation images no other is better beyond chance"
    elif len(runs) == 1:
        why = "the only one trained"
    return min(by_method[best], key=lambda run: by_method[best][run].mean()), why


def validation_losses(run: Run) -> np.ndarray:
    """Return a run's NLL of each validation image after the temperature fitted to them."""
    return log_losses(run.val.probs(run.temperature), run.val.labels)


def is_clear(gains: np.ndarray) -> bool:
    """Return whether the mean gain of images is more than its standard error."""
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def ship(run: Run, out: Path) -> Path:
    """Write the run as a model folder; a model of another run there gives way to it.

    So does one made when ONNX could not be written and now can, or the other way round.
    """
    onnx = can_write_onnx()
    if (out / MANIFEST).exists():
        made_from = read_json(out / MANIFEST).get("inputs", {})
        if (made_from.get("weights"), made_from.get("onnx")) != (load_classifier(run.folder)[1], onnx):
            _make_way(out)
    return export_model(run, out, onnx=onnx)


def _make_way(model: Path) -> None:
    """Remove what is in a model folder, last what tells that it is one."""
    for path in sorted(model.iterdir(), key=lambda path: path.name == MANIFEST):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def closing_words(run: Run, why: str) -> list[str]:
    """Return why this model is shipped, and what its confidence is worth on the test images."""
    lines = [f"the model is {METHOD_NAMES.get(run.method, run.method)}, seed {run.seed}: {why}"]
    if not run.temperature_is_fitted:
        lines.append(
            "no validation image was wrong: the temperature could not be fitted, and its confidence is "
            "as trained; more, or harder, images would tell what it is worth"
        )
    return [*lines, *worth(run.after, run.class_names)]


def worth(predictions: Predictions, class_names: Sequence[str]) -> list[str]:
    """Return in plain words how far predictions and their confidence can be trusted."""
    confidence, correct = predictions.confidence, predictions.correct
    num, accuracy = len(correct), float(correct.mean())
    lines = [
        f"on {num:,} test images its mean confidence is {percent(confidence.mean())}, "
        f"and it is right on {percent(accuracy)}"
    ]
    counts = np.bincount(predictions.labels, minlength=len(class_names))
    frequent = int(counts.argmax())
    always = counts[frequent] / num
    if accuracy - always <= 2 * np.sqrt(accuracy * (1 - accuracy) / num):  # within two standard errors
        lines.append(
            f"always saying {harmless(class_names[frequent])} would be right on {percent(always)}: "
            "do not rely on it, give it more images or more time"
        )
    parts = {f"at least {HIGH:.0%}": confidence >= HIGH, f"below {LOW:.0%}": confidence < LOW}
    for when, chosen in parts.items():
        if chosen.any():
            right = percent(correct[chosen].mean())
            lines.append(f"where its confidence is {when} ({chosen.sum():,} images), it is right on {right}")
        else:
            lines.append(f"its confidence is never {when}")
    return lines
