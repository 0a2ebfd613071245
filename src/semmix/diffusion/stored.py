"""The folder a generator is kept in: `generator.json` and `weights.safetensors`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semmix.core.artifact import Artifact, open_artifact
from semmix.core.device import to_device
from semmix.core.errors import require, unknown_name
from semmix.core.files import digest, digest_tensors, read_tensors, write_tensors
from semmix.diffusion import describe_generator
from semmix.diffusion.edm import EDMConfig, EDMDenoiser
from semmix.diffusion.edm2 import EDM2Config, EDM2Denoiser

MANIFEST = "generator.json"
WEIGHTS = "weights.safetensors"
AnyConfig = EDMConfig | EDM2Config
CONFIGS = {"SongUNet": EDMConfig, "DhariwalUNet": EDMConfig, "EDM2UNet": EDM2Config}


def build_denoiser(config: AnyConfig) -> EDMDenoiser | EDM2Denoiser:
    """Return the freshly initialised denoiser D of `config`."""
    return EDM2Denoiser(config) if isinstance(config, EDM2Config) else EDMDenoiser(config)


@dataclass(repr=False)
class NetworkGenerator:
    """A network of ours as a `Generator`."""

    name: str
    network: nn.Module
    image_shape: tuple[int, int, int]
    num_classes: int
    trained_on: str | None
    digest: str
    knows_no_class: bool = False
    """Whether class weights of zero mean something to it: it was trained with label dropout."""
    takes_emphasis = True  # its network embeds class weights linearly, so that they may leave the simplex a little
    folder: Path | None = None  # where it is kept

    def __repr__(self) -> str:
        return describe_generator(self, type(next(self.network.children())).__name__)

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return next(self.network.parameters()).device

    def denoise(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return D(x; sigma), [N, C, H, W]."""
        return self.network(x, sigma, class_weights)


def save_generator(
    artifact: Artifact, config: AnyConfig, weights: dict[str, Tensor], trained_on: str | None, **details: Any
) -> None:
    """Write weights and manifest into `artifact`'s folder, which is then finished."""
    write_tensors(artifact.folder / WEIGHTS, weights)
    artifact.finish(network=asdict(config), trained_on=trained_on, digest=generator_digest(config, weights), **details)


def generator_digest(config: AnyConfig, weights: dict[str, Tensor]) -> str:
    """Return what names a generator: its network's settings and weights."""
    return digest({"network": asdict(config), "weights": digest_tensors(weights)})


def load_stored(folder: Path, device: torch.device) -> NetworkGenerator:
    """Return the generator that `save_generator` wrote, checked against its digest."""
    artifact = open_artifact(folder, MANIFEST, "generator")
    fix = "run the same training command again; it goes on where it stopped"
    require(artifact.finished, "this generator is not finished", folder, fix)
    settings = artifact.manifest["network"]
    architecture = settings.get("architecture", "")
    if architecture not in CONFIGS:
        raise unknown_name("network architecture", architecture, CONFIGS)
    config = CONFIGS[architecture].from_json(settings)
    weights = read_tensors(folder / WEIGHTS, "make or download it again")
    intact = generator_digest(config, weights) == artifact.manifest["digest"]
    fix = f"delete {folder} and make it again"
    require(intact, "the weights do not match the generator's digest", folder / WEIGHTS, fix)
    network = build_denoiser(config).eval().requires_grad_(False)
    network.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return NetworkGenerator(
        name=folder.resolve().name,
        network=to_device(network, device),
        image_shape=(config.channels, config.resolution, config.resolution),
        num_classes=config.num_classes,
        trained_on=artifact.manifest["trained_on"],
        digest=artifact.manifest["digest"],
        knows_no_class=artifact.manifest.get("label_dropout", 0) > 0,
        folder=folder,
    )
