"""EDM networks: presets and preconditioning.

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), table 1.
"""

from typing import Any

from torch import Tensor, nn

from semmix.core.errors import require, unknown_name
from semmix.diffusion.edm_networks import DhariwalUNet, EDMConfig, SongUNet

FOR_CPUS = {"num_blocks": 1, "attn_resolutions": (8,), "dropout": 0.1}
NCSN = {"embedding": "fourier", "encoder": "residual", "channel_mult_noise": 2, "resample_filter": (1, 3, 3, 1)}
ADM = {"architecture": "DhariwalUNet", "attn_resolutions": (32, 16, 8)}
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
    "cpu32": {**FOR_CPUS, "model_channels": 16, "channel_mult": (1, 2, 4)},
    "cpu64": {**FOR_CPUS, "model_channels": 16, "channel_mult": (1, 2, 4, 4)},
    "cpu128": {**FOR_CPUS, "model_channels": 8, "channel_mult": (1, 2, 4, 8, 8)},
    # the official networks: 55.7 M, 56.4 M (32 x 32) and 295.9 M (64 x 64)
    "edm-vp": {"augment_dim": 9, "dropout": 0.13},
    "edm-ve": {"augment_dim": 9, "dropout": 0.13, **NCSN},
    "edm-adm": {**ADM, "model_channels": 192, "channel_mult": (1, 2, 3, 4), "num_blocks": 3, "dropout": 0.1},
}


def network_preset(name: str, image_shape: tuple[int, int, int], num_classes: int) -> EDMConfig:
    """Return the configuration called `name` for images of `image_shape`."""
    if name not in PRESETS:
        raise unknown_name("network preset", name, PRESETS)
    channels, height, width = image_shape
    require(height == width, "EDM networks want square images", f"{height} x {width}", "crop them")
    return EDMConfig(resolution=height, channels=channels, num_classes=num_classes, **PRESETS[name])


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
        self.model = DhariwalUNet(config) if config.is_adm else SongUNet(config)

    def forward(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return the denoised images [N, C, H, W] for noise levels [N] and class weights [N, K]."""
        return precondition(self.model, x, sigma, class_weights, self.sigma_data)
