"""A model that predicts with care: class, confidence, a set of classes, a warning, or a question."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from semmix.core.artifact import open_artifact
from semmix.core.device import pick_device, to_device
from semmix.core.errors import SemmixError, require, some_of
from semmix.data.decoding import BadImageError, read_ahead
from semmix.deploy.image_files import find_images, prepare_image
from semmix.deploy.programs import CalibratedNetwork
from semmix.deploy.rules import PERCENTS, Rules, in_set, learn_rules
from semmix.networks.predicting import full_precision
from semmix.networks.saved import (
    MANIFEST,
    is_user_network,
    load_classifier,
    makers_code,
    run_folder,
    saved_image_shape,
    saved_name,
)
from semmix.runs import Run

BATCH_SIZE = 64
KIND = "model"

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Caution:
    """When to ask a person, and how large prediction sets are."""

    abstain: float = 0.0
    """Ask a person where the calibrated confidence is below this; semmix choose finds it."""
    coverage: float = 0.9
    """How often prediction sets hold the true class: 0.50 to 0.99."""

    def __post_init__(self) -> None:
        require(0 <= self.abstain <= 1, "abstain is a confidence", self.abstain, "choose 0 to 1, as in 0.9")
        percent = 100 * self.coverage
        whole = round(percent) in PERCENTS and abs(percent - round(percent)) <= 1e-9
        require(whole, "coverage is a share in whole per cent", self.coverage, "choose 0.50 to 0.99")

    @property
    def percent(self) -> str:
        """The coverage as `Rules.set_thresholds` names it."""
        return str(round(100 * self.coverage))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is predicted of one image; the fields are those of the files and of the HTTP responses."""

    class_name: str
    confidence: float
    """Calibrated: of predictions with confidence 0.9, nine in ten are right."""
    entropy: float
    """Of the calibrated probabilities, in nats."""
    ood_score: float
    """Energy of the logits: higher for images unlike the training data."""
    ood_warning: bool
    """Whether the score is above that of nearly all validation images."""
    prediction_set: list[str]
    """Classes that hold the true one as often as the coverage says, the likeliest first."""
    abstain: bool
    """Whether the confidence is too low to rely on without asking a person."""


Picture = str | Path | Image.Image | np.ndarray
F = TypeVar("F", bound=Path | Image.Image | np.ndarray)


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A calibrated network with the rules learned on its validation images."""

    network: CalibratedNetwork
    rules: Rules
    image_shape: tuple[int, int, int]

    def predict(self, images: Tensor | Picture | Sequence[Picture], caution: Caution | None = None) -> list[Prediction]:
        """Return the prediction for each image.

        Args:
            images: Image files, folders of them or globs; Pillow images; arrays of uint8 pixels `[H, W]` or
                `[H, W, C]`; or a list of any of these. They are scaled and cropped as for training. Or a batch of
                uint8 pixels `[N, C, H, W]` in the shape that the network takes.
            caution: When to ask a person, and how large prediction sets are.

        Returns:
            One prediction for each image, in the order given.

        Raises:
            SemmixError: If a file cannot be read, or pixels are not in a shape the network takes.

        Example:
            >>> model = load_model("zoo:cifar10", "cpu")
            >>> prediction = model.predict("zoo/cifar10/samples.png")[0]
            >>> 0 < prediction.confidence <= 1, prediction.class_name in model.rules.class_names
            (True, True)
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = torch.from_numpy(images)
        if not isinstance(images, Tensor):
            given = [images] if isinstance(images, Picture) else images
            found = (find_images([str(each)]) if isinstance(each, (str, Path)) else [each] for each in given)
            predictions, bad = [], []
            for batch in self.read([each for some in found for each in some]):
                bad += [f"{str(name)[-40:]} ({bad.kind})" for name, bad in batch if isinstance(bad, BadImageError)]
                good = [image for _, image in batch if isinstance(image, Tensor)]
                predictions += self.predict(torch.stack(good), caution) if good and not bad else []
            require(not bad, "not every file can be read as an image", some_of(bad), "leave those out")
            return predictions
        fits = images.dtype == torch.uint8 and images.ndim == 4 and tuple(images.shape[1:]) == self.image_shape
        fix = f"pass uint8 [N, {', '.join(map(str, self.image_shape))}], files, Pillow images or arrays [H, W, C]"
        require(fits, "these pixels do not fit the model", f"{images.dtype} {tuple(images.shape)}", fix)
        with full_precision():
            outputs = self.network(images.to(self.network.temperature.device))
        probs, _, scores = (out.cpu().double().numpy() for out in outputs)
        caution = caution or Caution()
        return [self._prediction(row, float(score), caution) for row, score in zip(probs, scores, strict=True)]

    def read(self, pictures: Sequence[F]) -> Iterator[list[tuple[F, Tensor | BadImageError]]]:
        """Yield batches of pictures, each with the pixels the network takes or what is wrong; threads read ahead."""

        def prepare(picture: F) -> tuple[F, Tensor | BadImageError]:
            try:
                return picture, prepare_image(picture, self.image_shape)
            except BadImageError as bad:
                return picture, bad

        return read_ahead(prepare, (pictures[k : k + BATCH_SIZE] for k in range(0, len(pictures), BATCH_SIZE)))

    def _prediction(self, probs: np.ndarray, score: float, caution: Caution) -> Prediction:
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

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.image_shape))
        return f"Model({len(self.rules.class_names)} classes, images {shape}, T = {self.rules.temperature:.2f})"


ROW_FIELDS = (*(field.name for field in fields(Prediction)), "error")
"""What is told of an image: a prediction, or why there is none."""


def prediction_rows(
    model: Model, images: Sequence[Tensor | BadImageError], caution: Caution | None = None
) -> list[Row]:
    """Return `ROW_FIELDS` of each image `[C, H, W]`, or of what was wrong with its file."""
    good = [image for image in images if isinstance(image, Tensor)]
    predictions = iter(model.predict(torch.stack(good), caution) if good else [])
    told = [asdict(next(predictions)) if isinstance(each, Tensor) else {"error": str(each)} for each in images]
    return [dict.fromkeys(ROW_FIELDS) | each for each in told]


def how_to_predict(folder: str | Path) -> str:
    """Return what to type to use the model folder; only who made it may trust it unasked."""
    trust = " --trust-code" if is_user_network(saved_name(folder)) else ""
    return f"semmix predict {quote(str(folder))} IMAGES{trust}"


def load_model(folder: str | Path, device: str = "auto", *, trust_code: bool = False) -> Model:
    """Return the model in a model folder, or that of a finished run.

    Args:
        folder: Made by `export_model` or by training; or `zoo:NAME`.
        device: auto, cpu or cuda.
        trust_code: Whether the folder may run code of its maker, as one with a network of the
            maker's own (package.module:name, or an exported program) does.

    Returns:
        The model, ready to predict.

    Raises:
        SemmixError: If there is no model, it is damaged, or it would run code that is not trusted.

    Example:
        >>> load_model("zoo:cifar10", "cpu")
        Model(10 classes, images 3 x 32 x 32, T = 1.48)
    """
    folder = run_folder(folder)
    if is_user_network(name := saved_name(folder)) and not trust_code:
        raise makers_code(folder, name)
    network, weights = load_classifier(folder, trust_code=trust_code)
    rules = _read_rules(folder, weights) if (folder / MANIFEST).exists() else learn_rules(Run.open(folder))
    calibrated = to_device(CalibratedNetwork(network, rules.temperature).eval(), pick_device(device))
    return Model(calibrated, rules, saved_image_shape(folder))


def _read_rules(folder: Path, weights: str) -> Rules:
    artifact, fix = open_artifact(folder, MANIFEST, KIND), "run its semmix export again"
    try:
        require(artifact.finished, f"{folder} is not finished", "half done", fix)
        same = artifact.manifest["inputs"]["weights"] == weights
        require(same, f"{folder} is damaged", f"other weights than {MANIFEST} names", fix)
        return Rules.from_json(artifact.manifest)
    except (KeyError, TypeError) as error:
        raise SemmixError(f"{folder} is damaged", f"{MANIFEST} is incomplete ({error})", fix) from error
