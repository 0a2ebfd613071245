"""The penultimate features of one of our own trained classifiers."""

import torch
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.files import read_json
from semmix.networks.predicting import full_precision
from semmix.networks.saved import load_classifier, run_folder


class ClassifierEncoder:
    """A finished training run, or a model, used as an encoder."""

    def __init__(self, run: str, device: torch.device):
        network, self.digest = load_classifier(run)
        self.name = f"classifier:{run}"
        self.trained_on = _training_split(run)
        self.dim = network.feature_dim
        self.network, self.device = network.to(device), device

    def __repr__(self) -> str:
        return f"Encoder({self.name}: {self.dim} features)"

    def embed(self, images: Tensor) -> Tensor:
        """Return features [N, dim] of uint8 images; grey ones are repeated if it takes colour."""
        channels = self.network.mean.shape[1]
        if images.shape[1] not in (1, channels):
            seen = f"{images.shape[1]} channels, it takes {channels}"
            fix = "name a run trained on such images"
            raise SemmixError(f"{self.name} cannot read these images", seen, fix)
        with full_precision():
            return self.network.features(images.to(self.device))


def _training_split(run: str) -> str | None:
    """Return the digest of the split a run learned from; None for a model, which does not tell."""
    path = run_folder(run) / "config.json"
    manifest = read_json(path) if path.exists() else {}
    return manifest["inputs"].get("train") if manifest.get("kind") == "run" else None
