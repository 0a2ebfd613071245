"""What encoders share: preprocessing, batches, precision, a digest; and a trained classifier as an encoder."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from semmix.core.errors import SemmixError, require
from semmix.core.files import digest, digest_tensors, read_json
from semmix.networks.predicting import full_precision
from semmix.networks.saved import load_classifier, run_folder

BATCH_SIZE = 256
"""Images the network sees at once."""
CPU_BATCH_SIZE = 32
"""The same on a CPU, where larger batches are slower and take gigabytes."""


class PretrainedEncoder:
    """A network trained elsewhere. Images go to its device as bytes and come back as features."""

    def __init__(
        self,
        name: str,
        network: Callable[[Tensor], Tensor],
        preprocess: Callable[[Tensor], Tensor],
        weights: str,
        device: torch.device,
        exact: bool = False,
    ):
        """Wrap `network`, which turns preprocessed images into features [N, D].

        Args:
            preprocess: A dataclass that can be called: its settings are part of the digest.
            weights: Digest of the weights.
            exact: Compute in float32 on a GPU too; other networks compute in bfloat16 there.
        """
        self.name, self.device = name, device
        self._exact = exact or device.type == "cpu"
        self._network, self._preprocess = network, preprocess
        self.digest = digest({"weights": weights, "preprocess": repr(preprocess)})
        self.cache_key = f"{self.digest} on {device.type} in {'float32' if self._exact else 'bfloat16'}"
        try:
            shape = tuple(self.embed(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape)
        except SemmixError:
            raise
        except Exception as error:  # a network of another kind may raise anything
            fix = "name a network that takes images alone, of the size its preprocessing gives"
            raise SemmixError(f"{name} cannot read an image", f"{type(error).__name__}: {error}", fix) from error
        fix = "an encoder must give one row of numbers per image; choose another output"
        require(len(shape) == 2 and shape[0] == 1, f"{name} gives no features", f"shape {shape}", fix)
        self.dim = shape[1]

    def __repr__(self) -> str:
        return f"Encoder({self.name}: {self.dim} features)"

    @torch.inference_mode()
    def embed(self, images: Tensor) -> Tensor:
        """Return float32 features [N, dim] of uint8 images [N, C, H, W]."""
        size = CPU_BATCH_SIZE if self.device.type == "cpu" else BATCH_SIZE
        return torch.cat([self._embed(batch) for batch in images.split(size)])

    def _embed(self, images: Tensor) -> Tensor:
        pixels = self._preprocess(images.to(self.device))
        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=not self._exact),
            torch.backends.cudnn.flags(enabled=True, allow_tf32=not self._exact),
        ):
            return self._network(pixels).float()


def wrap_network(
    name: str, network: nn.Module, preprocess: Callable[[Tensor], Tensor], device: torch.device
) -> PretrainedEncoder:
    """Return the encoder of a network that is a module, its weights named by their digest."""
    weights = digest_tensors(network.state_dict())
    network = network.to(device).eval()
    # Convolutions are faster with channels last, by a third on a CPU.
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return PretrainedEncoder(name, network, preprocess, weights, device)


class ClassifierEncoder:
    """The penultimate features of a finished training run, or of an exported model."""

    def __init__(self, run: str, device: torch.device):
        network, self.digest = load_classifier(run)
        self.name = f"classifier:{run}"
        config = run_folder(run) / "config.json"
        manifest = read_json(config) if config.exists() else {}
        # The digest of the split it learned from; an exported model does not record it.
        self.trained_on = manifest["inputs"].get("train") if manifest.get("kind") == "run" else None
        self.dim = network.feature_dim
        self.network, self.device = network.to(device), device

    def __repr__(self) -> str:
        return f"Encoder({self.name}: {self.dim} features)"

    def embed(self, images: Tensor) -> Tensor:
        """Return features [N, dim] of uint8 images; grey ones are repeated if it takes colour."""
        channels, num = self.network.mean.shape[1], images.shape[1]
        seen, fix = f"{num} channels, it takes {channels}", "name a run trained on such images"
        require(num in (1, channels), f"{self.name} cannot read these images", seen, fix)
        with full_precision():
            return self.network.features(images.to(self.device))
