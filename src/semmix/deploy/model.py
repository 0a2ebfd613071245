"""A model that answers with care: class, confidence, a set of classes, a warning, or a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semmix.core.artifact import open_artifact
from semmix.core.device import pick_device, to_device
from semmix.core.errors import SemmixError
from semmix.data.decoding import BadImageError
from semmix.deploy.calibrated import CalibratedNetwork
from semmix.deploy.measured import in_set
from semmix.deploy.rules import PERCENTS, Rules, learn_rules
from semmix.networks.predicting import full_precision
from semmix.networks.saved import MANIFEST, load_classifier, makers_code, saved_image_shape, saved_name
from semmix.networks.user_network import is_user_network
from semmix.runs import Run

KIND = "model"

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Caution:
    """When to ask rather than answer, and how large prediction sets are."""

    abstain: float = 0.0
    """Ask a person where the calibrated confidence is below this; semmix choose finds it."""
    coverage: float = 0.9
    """How often prediction sets hold the true class: 0.50 to 0.99."""

    def __post_init__(self) -> None:
        if not 0 <= self.abstain <= 1:
            raise SemmixError("abstain is a confidence", self.abstain, "choose 0 to 1, as in 0.9")
        percent = 100 * self.coverage
        if round(percent) not in PERCENTS or abs(percent - round(percent)) > 1e-9:
            raise SemmixError("coverage is a share in whole per cent", self.coverage, "choose 0.50 to 0.99")

    @property
    def percent(self) -> str:
        """The coverage as `Rules.set_thresholds` names it."""
        return str(round(100 * self.coverage))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer to one image; the fields are those of the files and of the HTTP answers."""

    class_name: str
    confidence: float
    """Calibrated: of answers with confidence 0.9, nine in ten are right."""
    entropy: float
    """Of the calibrated probabilities, in nats."""
    ood_score: float
    """Energy of the logits: higher for images unlike the training data."""
    ood_warning: bool
    """Whether the score is above that of nearly all validation images."""
    prediction_set: list[str]
    """Classes that hold the true one as often as the coverage says, the likeliest first."""
    abstain: bool
    """Whether the confidence is too low to answer without asking."""


@dataclass(frozen=True, eq=False)
class Model:
    """A calibrated network with the rules learned on its validation images."""

    network: CalibratedNetwork
    rules: Rules
    image_shape: tuple[int, int, int]

    def predict(self, images: Tensor, caution: Caution | None = None) -> list[Prediction]:
        """Return the answer to each of some uint8 images `[N, C, H, W]`."""
        device = self.network.temperature.device
        with full_precision():
            outputs = self.network(images.to(device))
        probs, _, scores = (out.cpu().double().numpy() for out in outputs)
        return [self._answer(row, float(score), caution or Caution()) for row, score in zip(probs, scores, strict=True)]

    def _answer(self, probs: np.ndarray, score: float, caution: Caution) -> Prediction:
        names, limit = self.rules.class_names, self.rules.ood_threshold
        order = np.argsort(-probs, kind="stable")
        members = in_set(probs[None], self.rules.set_thresholds[caution.percent])[0]
        confidence = float(probs[order[0]])
        return Prediction(
            class_name=names[order[0]],
            confidence=confidence,
            entropy=float(-(probs * np.log(np.maximum(probs, np.finfo(float).tiny))).sum()),
            ood_score=score,
            ood_warning=limit is not None and score > limit,
            prediction_set=[names[k] for k in order if members[k]],
            abstain=confidence < caution.abstain,
        )


ANSWER_FIELDS = (*(field.name for field in fields(Prediction)), "error")
"""What is told of an image: a prediction, or why there is none."""


def answer_images(model: Model, images: Sequence[Tensor | BadImageError], caution: Caution | None = None) -> list[Row]:
    """Return `ANSWER_FIELDS` of each image `[C, H, W]`, or of what was wrong with its file."""
    good = [image for image in images if isinstance(image, Tensor)]
    answers = iter(model.predict(torch.stack(good), caution) if good else [])
    none = dict.fromkeys(ANSWER_FIELDS)
    return [none | (asdict(next(answers)) if isinstance(image, Tensor) else {"error": str(image)}) for image in images]


def predict_command(folder: str | Path) -> str:
    """Return what to type to use the model folder; only who made it may trust it unasked."""
    trust = " --trust-code" if is_user_network(saved_name(folder)) else ""
    return f"semmix predict {quote(str(folder))} IMAGES{trust}"


def load_model(folder: str | Path, device: str = "auto", *, trust_code: bool = False) -> Model:
    """Return the model in a model folder, or that of a finished run.

    Args:
        folder: made by `export_model` or by training.
        device: auto, cpu or cuda.
        trust_code: whether the folder may run code of its maker, as one with a network of the
            maker's own (package.module:name, or an exported program) does.
    """
    folder = Path(folder)
    if is_user_network(name := saved_name(folder)) and not trust_code:
        raise makers_code(folder, name)
    network, weights = load_classifier(folder, trust_code=trust_code)
    rules = _read_rules(folder, weights) if (folder / MANIFEST).exists() else learn_rules(Run.open(folder))
    calibrated = to_device(CalibratedNetwork(network, rules.temperature).eval(), pick_device(device))
    return Model(calibrated, rules, saved_image_shape(folder))


def _read_rules(folder: Path, weights: str) -> Rules:
    artifact = open_artifact(folder, MANIFEST, KIND)
    fix = "run its semmix export again"
    try:
        if not artifact.finished:
            raise SemmixError(f"{folder} is not finished", "half done", fix)
        if artifact.manifest["inputs"]["weights"] != weights:
            raise SemmixError(f"{folder} is damaged", f"other weights than {MANIFEST} names", fix)
        return Rules.from_json(artifact.manifest)
    except (KeyError, TypeError) as error:
        seen = f"{MANIFEST} is incomplete ({error})"
        raise SemmixError(f"{folder} is damaged", seen, fix) from error
