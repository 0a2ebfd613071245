"""A trained network as one self-describing file."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

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

    path = Path(folder) / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["semmix"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        fix = "name the folder of a finished training run"
        raise SemmixError(f"no trained classifier in {folder}", error, fix) from error
    network = classifier(
        header["classifier"],
        num_classes=header["num_classes"],
        in_channels=header["in_channels"],
        image_size=header["image_size"],
    )
    network.load_state_dict(tensors)
    return network.eval(), digest_tensors(tensors)
