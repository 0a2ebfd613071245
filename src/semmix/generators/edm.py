"""EDM generators: the network's configuration, preconditioning, and the folder it is kept in.

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), table 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from semmix._artifact import Artifact, open_artifact
from semmix._errors import SemmixError, unknown_name
from semmix._files import digest, digest_tensors, write_tensors
from semmix.generators.networks import BOX, DhariwalUNet, SongUNet

MANIFEST = "generator.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, kw_only=True)
class EDMConfig:
    """The network of an EDM generator."""

    resolution: int
    """Height and width of the images."""
    channels: int
    """Colours of the images."""
    num_classes: int
    """Classes; 0 for a network without labels."""
    architecture: Literal["SongUNet", "DhariwalUNet"] = "SongUNet"
    """DDPM++ and NCSN++, or ADM."""
    model_channels: int = 128
    """Width of the first level."""
    channel_mult: tuple[int, ...] = (2, 2, 2)
    """Width of each level as a multiple of `model_channels`; each level halves the image."""
    num_blocks: int = 4
    """Residual blocks of a level."""
    attn_resolutions: tuple[int, ...] = (16,)
    """Image sizes at which blocks have attention."""
    dropout: float = 0.0
    """Dropout within blocks while training."""
    augment_dim: int = 0
    """Inputs for augmentation parameters; official networks have 9, ours none."""
    channel_mult_emb: int = 4
    """Width of the embedding as a multiple of `model_channels`."""
    embedding: Literal["positional", "fourier"] = "positional"
    """How SongUNet sees the noise level."""
    encoder: Literal["standard", "residual"] = "standard"
    """Whether SongUNet's encoder also sees the shrunk image (NCSN++)."""
    channel_mult_noise: int = 1
    """Width of SongUNet's noise embedding as a multiple of `model_channels`."""
    resample_filter: tuple[int, ...] = BOX
    """SongUNet's filter for up- and downsampling."""
    sigma_data: float = 0.5
    """Standard deviation of the images in [-1, 1]."""

    def __post_init__(self) -> None:
        divisor = 2 ** (len(self.channel_mult) - 1)
        if self.resolution % divisor:
            fix = f"{len(self.channel_mult)} levels need a multiple of {divisor}"
            raise SemmixError("the image size cannot be halved that often", self.resolution, fix)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EDMConfig:
        """Return the configuration that `asdict` and JSON made of one."""
        known = {field.name for field in fields(cls)}
        if unknown := set(value) - known:
            raise unknown_name("network setting", min(unknown), known)
        settings: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in value.items()
        }
        return cls(**settings)


# Settings by name; `network_preset` adds the image shape and the number of classes.
PRESETS: dict[str, dict[str, Any]] = {
    # 0.42 M parameters at 8 x 8
    "digits": {
        "model_channels": 24, "channel_mult": (1, 2), "num_blocks": 1, "attn_resolutions": (4,),
    },
    # 22.2 M at 32 x 32
    "compact32": {"model_channels": 96, "channel_mult": (1, 2, 2, 2), "num_blocks": 2},
    # the official networks: 55.7 M, 56.4 M (32 x 32) and 295.9 M (64 x 64)
    "edm-vp": {"augment_dim": 9, "dropout": 0.13},
    "edm-ve": {
        "augment_dim": 9, "dropout": 0.13, "embedding": "fourier", "encoder": "residual",
        "channel_mult_noise": 2, "resample_filter": (1, 3, 3, 1),
    },
    "edm-adm": {
        "architecture": "DhariwalUNet", "model_channels": 192, "channel_mult": (1, 2, 3, 4),
        "num_blocks": 3, "attn_resolutions": (32, 16, 8), "dropout": 0.1,
    },
}  # fmt: skip


def network_preset(name: str, image_shape: tuple[int, int, int], num_classes: int) -> EDMConfig:
    """Return the configuration called `name` for images of `image_shape`."""
    if name not in PRESETS:
        raise unknown_name("network preset", name, PRESETS)
    channels, height, width = image_shape
    if height != width:
        raise SemmixError("EDM networks want square images", f"{height} x {width}", "crop them")
    return EDMConfig(resolution=height, channels=channels, num_classes=num_classes, **PRESETS[name])


def build_unet(config: EDMConfig) -> nn.Module:
    """Return the freshly initialised network F of `config`."""
    settings = asdict(config)
    for name in ("architecture", "sigma_data"):
        del settings[name]
    if config.architecture == "SongUNet":
        return SongUNet(**settings)
    for name in ("embedding", "encoder", "channel_mult_noise", "resample_filter"):
        del settings[name]
    return DhariwalUNet(**settings)


class EDMDenoiser(nn.Module):
    """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise), EDM's equation 7."""

    def __init__(self, config: EDMConfig):
        super().__init__()
        self.sigma_data = config.sigma_data
        self.model = build_unet(config)

    def forward(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return the denoised images [N, C, H, W] for noise levels [N] and class weights [N, K]."""
        sd, s = self.sigma_data, sigma.reshape(-1, 1, 1, 1)
        total = (s**2 + sd**2).sqrt()
        raw = self.model(x / total, sigma.log() / 4, class_weights)
        return (sd / total) ** 2 * x + (s * sd / total) * raw.to(x.dtype)


def to_device(network: EDMDenoiser, device: torch.device) -> EDMDenoiser:
    """Return the network on `device`, its weights laid out as the device likes them."""
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    return network.to(device=device, memory_format=layout)  # pyright: ignore[reportCallIssue]


@dataclass
class EDMGenerator:
    """An EDM network as a `Generator`."""

    name: str
    network: nn.Module
    image_shape: tuple[int, int, int]
    num_classes: int
    trained_on: str | None
    digest: str

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return next(self.network.parameters()).device

    def denoise(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return D(x; sigma), [N, C, H, W]."""
        return self.network(x, sigma, class_weights)


def save_generator(
    artifact: Artifact,
    config: EDMConfig,
    weights: dict[str, Tensor],
    trained_on: str | None,
    **details: Any,
) -> None:
    """Write weights and manifest into `artifact`'s folder, which is then finished."""
    write_tensors(artifact.folder / WEIGHTS, weights)
    artifact.finish(
        network=asdict(config),
        trained_on=trained_on,
        digest=generator_digest(config, weights),
        **details,
    )


def generator_digest(config: EDMConfig, weights: dict[str, Tensor]) -> str:
    """Return what names a generator: its network's settings and weights."""
    return digest({"network": asdict(config), "weights": digest_tensors(weights)})


def load_edm_generator(folder: Path, device: torch.device) -> EDMGenerator:
    """Return the generator that `save_generator` wrote, checked against its digest."""
    artifact = open_artifact(folder, MANIFEST, "generator")
    if not artifact.finished:
        fix = "run the same training command again; it goes on where it stopped"
        raise SemmixError("this generator is not finished", folder, fix)
    config = EDMConfig.from_json(artifact.manifest["network"])
    weights = _read_weights(folder / WEIGHTS)
    if generator_digest(config, weights) != artifact.manifest["digest"]:
        fix = f"delete {folder} and make it again"
        raise SemmixError("the weights do not match the generator's digest", folder / WEIGHTS, fix)
    network = EDMDenoiser(config).eval().requires_grad_(False)
    network.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return EDMGenerator(
        name=folder.resolve().name,
        network=to_device(network, device),
        image_shape=(config.channels, config.resolution, config.resolution),
        num_classes=config.num_classes,
        trained_on=artifact.manifest["trained_on"],
        digest=artifact.manifest["digest"],
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise SemmixError(f"cannot read {path}", error, "make or download it again") from error
