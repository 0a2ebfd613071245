"""A trained network as one self-describing file."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from semmix._errors import SemmixError
from semmix._files import digest_tensors, write_tensors
from semmix.classifiers._base import Classifier

WEIGHTS = "weights.safetensors"


def save_classifier(
    network: Classifier, name: str, image_shape: tuple[int, int, int], folder: Path
) -> None:
    """Write the weights, and in their header how to build the network again."""
    header = {
        "classifier": name,
        "num_classes": network.head.out_features,
        "in_channels": image_shape[0],
        "image_size": image_shape[1],
    }
    write_tensors(folder / WEIGHTS, network.state_dict(), header)


def load_classifier(folder: str | Path) -> tuple[Classifier, str]:
    """Return the trained network of a run folder, ready to predict, and its weights' digest."""
    from semmix.classifiers import classifier

    header, tensors = _read(folder)
    network = classifier(
        header["classifier"],
        num_classes=header["num_classes"],
        in_channels=header["in_channels"],
        image_size=header["image_size"],
    )
    network.load_state_dict(tensors)
    return network.eval(), digest_tensors(tensors)


def saved_image_shape(folder: str | Path) -> tuple[int, int, int]:
    """Return channels, height and width of the images that the network in a folder takes."""
    header, _ = _read(folder)
    return header["in_channels"], header["image_size"], header["image_size"]


def _read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return how to build the network, and its weights."""
    try:
        with safe_open(Path(folder) / WEIGHTS, framework="pt") as file:
            header = json.loads(file.metadata()["semmix"])
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        fix = "name the folder of a finished training run"
        raise SemmixError(f"no trained classifier in {folder}", error, fix) from error
