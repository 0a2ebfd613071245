"""The network as it is shipped: raw pixels in, calibrated probabilities out."""

import torch
from torch import Tensor, nn

from semmix.networks import Classifier

OUTPUTS = ("probabilities", "logits", "ood_score")


class CalibratedNetwork(nn.Module):
    """A classifier with its normalisation before it and its temperature behind it."""

    temperature: Tensor

    def __init__(self, network: Classifier, temperature: float):
        super().__init__()
        self.network = network
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `OUTPUTS` of uint8 images `[N, C, H, W]`.

        The probabilities `[N, K]` are calibrated; the logits `[N, K]` are as trained, before the
        temperature; the score `[N]` is their energy, higher for images unlike the training data.
        """
        logits = self.network(images)
        return (logits / self.temperature).softmax(1), logits, -logits.logsumexp(1)
