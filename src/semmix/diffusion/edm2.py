"""EDM2's magnitude-preserving network, for loading official weights.

Official files store raw weights that are normalised at every use. `fold_magnitudes` does it once,
when a checkpoint is converted, so the layers here are plain convolutions.

References: Karras et al. 2024, https://arxiv.org/abs/2312.02696 (EDM2), appendix B.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semmix.diffusion.edm import NetworkConfig, Resample, Step, precondition, resample_box, unet_steps

PIXEL_EPS = 1e-4


@dataclass(frozen=True, kw_only=True)
class EDM2Config(NetworkConfig):
    """The network of an EDM2 generator."""

    resolution: int  # height and width of the images
    channels: int  # colours of the images
    num_classes: int  # classes; 0 for a network without labels
    architecture: Literal["EDM2UNet"] = "EDM2UNet"  # tells this configuration from EDM's
    model_channels: int = 192  # width of the first level
    channel_mult: tuple[int, ...] = (1, 2, 3, 4)  # width of each level as a multiple of `model_channels`
    num_blocks: int = 3  # residual blocks of a level
    attn_resolutions: tuple[int, ...] = (16, 8)  # image sizes at which blocks have attention
    channel_mult_noise: int | None = None  # width of the noise embedding as a multiple; None: that of the first level
    channel_mult_emb: int | None = None  # width of the embedding as a multiple; None: that of the widest level
    channels_per_head: int = 64  # channels of an attention head
    dropout: float = 0.0  # dropout of the official training; without effect here
    label_balance: float = 0.5  # share of the class in the embedding
    concat_balance: float = 0.5  # share of the skip in a concatenation
    res_balance: float = 0.3  # share of the residual branch in its sum
    attn_balance: float = 0.3  # share of attention in its sum
    clip_act: float | None = 256  # limit of activations
    sigma_data: float = 0.5  # standard deviation of the images in [-1, 1]


def normalize(x: Tensor, dims: list[int]) -> Tensor:
    """Return `x` scaled to a mean square of one over `dims`."""
    rms = x.float().square().mean(dims, keepdim=True).sqrt()
    return (x / (PIXEL_EPS + rms)).to(x.dtype)


def mp_silu(x: Tensor) -> Tensor:
    """Magnitude-preserving SiLU, equation 81."""
    return F.silu(x) / 0.596


def mp_sum(a: Tensor, b: Tensor, share: float) -> Tensor:
    """Magnitude-preserving sum, equation 88."""
    return ((1 - share) * a + share * b) / math.hypot(1 - share, share)


def mp_cat(a: Tensor, b: Tensor, share: float) -> Tensor:
    """Magnitude-preserving concatenation, equation 103."""
    na, nb = a.shape[1], b.shape[1]
    scale = math.sqrt(na + nb) / math.hypot(1 - share, share)
    return torch.cat([a * (scale * (1 - share) / na**0.5), b * (scale * share / nb**0.5)], dim=1)


def fold_magnitudes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights ready for use: every filter normalised and divided by sqrt(fan-in).

    Equations 47 and 66; gains (numbers) and Fourier features (vectors) stay as they are.
    """
    filters = {name: weight.float() for name, weight in weights.items()}
    for name, x in filters.items():
        if x.ndim >= 2:
            filters[name] = normalize(x, list(range(1, x.ndim))) / math.sqrt(x[0].numel())
    return filters


class Fourier(nn.Module):
    """Magnitude-preserving Fourier features, equation 75."""

    freqs: Tensor
    phases: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("freqs", 2 * math.pi * torch.randn(channels))
        self.register_buffer("phases", 2 * math.pi * torch.rand(channels))

    def forward(self, noise: Tensor) -> Tensor:
        return (torch.outer(noise, self.freqs) + self.phases).cos() * math.sqrt(2)


def plain_conv(cin: int, cout: int, kernel: int) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size."""
    return nn.Conv2d(cin, cout, kernel, padding=kernel // 2, bias=False)


class EDM2Block(nn.Module):
    """EDM2's encoder or decoder block, figure 21."""

    mode: Resample

    def __init__(self, step: Step, emb: int, config: EDM2Config, decoder: bool, attention: bool):
        super().__init__()
        cin, cout = step.cin, step.cout
        self.config, self.decoder, self.mode = config, decoder, step.resample
        self.num_heads = cout // config.channels_per_head if attention else 0
        self.emb_gain = nn.Parameter(torch.zeros([]))
        self.conv_res0 = plain_conv(cin if decoder else cout, cout, 3)
        self.emb_linear = nn.Linear(emb, cout, bias=False)
        self.conv_res1 = plain_conv(cout, cout, 3)
        self.conv_skip = plain_conv(cin, cout, 1) if cin != cout else None
        self.attn_qkv = plain_conv(cout, 3 * cout, 1) if self.num_heads else None
        self.attn_proj = plain_conv(cout, cout, 1) if self.num_heads else None

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        x = resample_box(x, self.mode)
        if not self.decoder:
            x = normalize(x if self.conv_skip is None else self.conv_skip(x), [1])
        scale = self.emb_linear(emb) * self.emb_gain + 1
        y = self.conv_res0(mp_silu(x))
        y = self.conv_res1(mp_silu(y * scale[:, :, None, None].to(y.dtype)))
        if self.decoder and self.conv_skip is not None:
            x = self.conv_skip(x)
        x = mp_sum(x, y, self.config.res_balance)
        if self.num_heads:
            x = mp_sum(x, self.attend(x), self.config.attn_balance)
        limit = self.config.clip_act
        return x if limit is None else x.clip(-limit, limit)

    def attend(self, x: Tensor) -> Tensor:
        """Return cosine-like self-attention over the pixels of `x`."""
        assert self.attn_qkv is not None
        assert self.attn_proj is not None
        n, c, h, w = x.shape
        qkv = self.attn_qkv(x).reshape(n, self.num_heads, c // self.num_heads, 3, h * w)
        q, k, v = (part.transpose(-1, -2) for part in normalize(qkv, [2]).unbind(3))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return self.attn_proj(mixed.reshape(n, c, h, w))


class EDM2UNet(nn.Module):
    """EDM2's U-Net."""

    def __init__(self, config: EDM2Config):
        super().__init__()
        self.config = config
        width = config.model_channels * config.channel_mult[0]
        noise = config.model_channels * (config.channel_mult_noise or config.channel_mult[0])
        emb = config.model_channels * (config.channel_mult_emb or max(config.channel_mult))
        self.out_gain = nn.Parameter(torch.zeros([]))
        self.emb_fourier = Fourier(noise)
        self.emb_noise = nn.Linear(noise, emb, bias=False)
        self.emb_label = nn.Linear(config.num_classes, emb, bias=False) if config.num_classes else None
        encoder, decoder = unet_steps(config, first=width)
        self.enc = nn.ModuleDict({step.name: self._entry(step, emb, decoder=False) for step in encoder})
        self.dec = nn.ModuleDict({step.name: self._entry(step, emb, decoder=True) for step in decoder})
        self.out_conv = plain_conv(width, config.channels, 3)

    def _entry(self, step: Step, emb: int, decoder: bool) -> nn.Module:
        if step.kind == "conv":  # one more channel, of ones, stands for the bias
            return plain_conv(self.config.channels + 1, step.cout, 3)
        inner = step.kind.startswith("block") and step.size in self.config.attn_resolutions
        return EDM2Block(step, emb, self.config, decoder, attention=inner or step.kind == "in0")

    def forward(self, x: Tensor, noise: Tensor, class_weights: Tensor) -> Tensor:
        emb = self.emb_noise(self.emb_fourier(noise))
        if self.emb_label is not None:
            label = self.emb_label(class_weights * math.sqrt(class_weights.shape[1]))
            emb = mp_sum(emb, label, self.config.label_balance)
        emb = mp_silu(emb)
        x, skips = torch.cat([x, torch.ones_like(x[:, :1])], dim=1), []
        for name, block in self.enc.items():
            x = block(x) if name.endswith("_conv") else block(x, emb)
            skips.append(x)
        for name, block in self.dec.items():
            x = mp_cat(x, skips.pop(), self.config.concat_balance) if "_block" in name else x
            x = block(x, emb)
        return self.out_conv(x) * self.out_gain


class EDM2Denoiser(nn.Module):
    """EDM's preconditioning around EDM2's network."""

    def __init__(self, config: EDM2Config):
        super().__init__()
        self.sigma_data = config.sigma_data
        self.unet = EDM2UNet(config)

    def forward(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return the denoised images [N, C, H, W] for noise levels [N] and class weights [N, K]."""
        return precondition(self.unet, x, sigma, class_weights, self.sigma_data)
