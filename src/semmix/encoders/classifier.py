"""The penultimate features of one of our own trained classifiers."""

import torch
from torch import Tensor

from semmix.classifiers.saved import load_classifier


class ClassifierEncoder:
    """A finished training run, used as an encoder."""

    def __init__(self, run: str, device: torch.device):
        network, self.digest = load_classifier(run)
        self.name = f"classifier:{run}"
        self.dim = network.feature_dim
        self.network, self.device = network.to(device), device

    @torch.inference_mode()
    def embed(self, images: Tensor) -> Tensor:
        """Return features [N, dim] of uint8 images."""
        return self.network.features(images.to(self.device))
