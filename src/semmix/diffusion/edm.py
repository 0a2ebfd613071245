"""EDM networks: configuration, presets and preconditioning.

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), table 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from semmix.core.errors import SemmixError, unknown_name
from semmix.diffusion.edm_networks import BOX, DhariwalUNet, SongUNet

T = TypeVar("T")
CHOICES = {
    "architecture": ("SongUNet", "DhariwalUNet"),
    "embedding": ("positional", "fourier"),
    "encoder": ("standard", "residual"),
}


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
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, str(getattr(self, name)), known)
        divisor = 2 ** (len(self.channel_mult) - 1)
        if self.resolution % divisor:
            levels, fits = len(self.channel_mult), self.resolution + -self.resolution % divisor
            fix = (
                f"{levels} levels need a multiple of {divisor}: use --size {fits}, "
                "or a --network with fewer levels (cpu32 has 3, digits 2)"
            )
            raise SemmixError("the image size cannot be halved that often", self.resolution, fix)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EDMConfig:
        """Return the configuration that `asdict` and JSON made of one."""
        return from_json(cls, value)


def from_json(cls: type[T], value: dict[str, Any]) -> T:
    """Return the configuration of class `cls` that JSON holds as `value`."""
    known = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    if unknown := set(value) - known:
        raise unknown_name("network setting", min(unknown), known)
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})


# Settings by name; `network_preset` adds the image shape and the number of classes.
PRESETS: dict[str, dict[str, Any]] = {
    # 0.42 M parameters at 8 x 8
    # (the demo has ten images of a class: dropout keeps it from learning them by heart)
    "digits": {"model_channels": 24, "channel_mult": (1, 2), "num_blocks": 1, "attn_resolutions": (4,), "dropout": 0.2},
    # 22.2 M at 32 x 32
    "compact32": {"model_channels": 96, "channel_mult": (1, 2, 2, 2), "num_blocks": 2},
    # the same for larger images: 22.5 M at 64 x 64, 23.3 M at 128 x 128
    "compact64": {"model_channels": 64, "channel_mult": (1, 2, 3, 4), "num_blocks": 2},
    "compact128": {"model_channels": 64, "channel_mult": (1, 1, 2, 3, 4), "num_blocks": 2},
    # for CPUs: 0.7 M at 32 x 32, 1.2 M at 64 x 64 and 128 x 128
    "cpu32": {
        "model_channels": 16,
        "channel_mult": (1, 2, 4),
        "num_blocks": 1,
        "attn_resolutions": (8,),
        "dropout": 0.1,
    },
    "cpu64": {
        "model_channels": 16,
        "channel_mult": (1, 2, 4, 4),
        "num_blocks": 1,
        "attn_resolutions": (8,),
        "dropout": 0.1,
    },
    "cpu128": {
        "model_channels": 8,
        "channel_mult": (1, 2, 4, 8, 8),
        "num_blocks": 1,
        "attn_resolutions": (8,),
        "dropout": 0.1,
    },
    # the official networks: 55.7 M, 56.4 M (32 x 32) and 295.9 M (64 x 64)
    "edm-vp": {"augment_dim": 9, "dropout": 0.13},
    "edm-ve": {
        "augment_dim": 9,
        "dropout": 0.13,
        "embedding": "fourier",
        "encoder": "residual",
        "channel_mult_noise": 2,
        "resample_filter": (1, 3, 3, 1),
    },
    "edm-adm": {
        "architecture": "DhariwalUNet",
        "model_channels": 192,
        "channel_mult": (1, 2, 3, 4),
        "num_blocks": 3,
        "attn_resolutions": (32, 16, 8),
        "dropout": 0.1,
    },
}


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


def precondition(network: nn.Module, x: Tensor, sigma: Tensor, class_weights: Tensor, sigma_data: float) -> Tensor:
    """Return D(x; sigma) = c_skip x + c_out F(c_in x; c_noise), EDM's equation 7."""
    s = sigma.reshape(-1, 1, 1, 1)
    total = (s**2 + sigma_data**2).sqrt()
    raw = network(x / total, sigma.log() / 4, class_weights)
    return (sigma_data / total) ** 2 * x + (s * sigma_data / total) * raw.to(x.dtype)


class EDMDenoiser(nn.Module):
    """EDM's preconditioning around its network."""

    def __init__(self, config: EDMConfig):
        super().__init__()
        self.sigma_data = config.sigma_data
        self.model = build_unet(config)

    def forward(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return the denoised images [N, C, H, W] for noise levels [N] and class weights [N, K]."""
        return precondition(self.model, x, sigma, class_weights, self.sigma_data)
