"""EDM's networks, with the tensor names and shapes of the official checkpoints: configuration, presets, preconditioner.

`SongUNet` (DDPM++ and NCSN++) and `DhariwalUNet` (ADM) take `c_in * x`, the noise condition and
class weights, and return the raw network output F of EDM's equation 7; `EDMDenoiser` wraps it.

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), tables 1 and 7; Song et al. 2021,
https://arxiv.org/abs/2011.13456; Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semmix.core.errors import require, unknown_name

Resample = Literal["up", "down"] | None
BOX = (1, 1)  # the 2 x 2 mean; every official network but NCSN++ resamples with it
CHOICES = {"architecture": ("SongUNet", "DhariwalUNet"), "embedding": ("positional", "fourier")}
CHOICES |= {"encoder": ("standard", "residual")}


class NetworkConfig:
    """What the configurations of networks share."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the configuration that `asdict` and JSON made of one."""
        known = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
        if unknown := set(value) - known:
            raise unknown_name("network setting", min(unknown), known)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})


@dataclass(frozen=True, kw_only=True)
class EDMConfig(NetworkConfig):
    """The network of an EDM generator."""

    resolution: int  # height and width of the images
    channels: int  # colours of the images
    num_classes: int  # classes; 0 for a network without labels
    architecture: Literal["SongUNet", "DhariwalUNet"] = "SongUNet"  # DDPM++ and NCSN++, or ADM
    model_channels: int = 128  # width of the first level
    channel_mult: tuple[int, ...] = (2, 2, 2)  # widths as multiples of `model_channels`; each level halves the image
    num_blocks: int = 4  # residual blocks of a level
    attn_resolutions: tuple[int, ...] = (16,)  # image sizes at which blocks have attention
    dropout: float = 0.0  # dropout within blocks while training
    augment_dim: int = 0  # inputs for augmentation parameters; official networks have 9, ours none
    channel_mult_emb: int = 4  # width of the embedding as a multiple of `model_channels`
    embedding: Literal["positional", "fourier"] = "positional"  # how SongUNet sees the noise level
    encoder: Literal["standard", "residual"] = "standard"  # residual: SongUNet's also sees the shrunk image (NCSN++)
    channel_mult_noise: int = 1  # width of SongUNet's noise embedding as a multiple of `model_channels`
    resample_filter: tuple[int, ...] = BOX  # SongUNet's filter for up- and downsampling
    sigma_data: float = 0.5  # standard deviation of the images in [-1, 1]

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, str(getattr(self, name)), known)
        levels = len(self.channel_mult)
        divisor = 2 ** (levels - 1)
        size = self.resolution + -self.resolution % divisor
        fix = f"{levels} levels need a multiple of {divisor}: use --size {size}, "
        fix += "or a --network with fewer levels (cpu32 has 3, digits 2)"
        require(size == self.resolution, "the image size cannot be halved that often", self.resolution, fix)

    @property
    def is_adm(self) -> bool:
        """Whether this is ADM's network rather than DDPM++ or NCSN++."""
        return self.architecture == "DhariwalUNet"

    @property
    def emb_channels(self) -> int:
        """Width of the noise and class embedding."""
        return self.model_channels * self.channel_mult_emb

    @property
    def eps(self) -> float:
        """Of the group norms."""
        return 1e-5 if self.is_adm else 1e-6

    @property
    def taps(self) -> tuple[int, ...]:
        """One-dimensional filter of up- and downsampling."""
        return BOX if self.is_adm else self.resample_filter


class GroupNorm(nn.GroupNorm):
    """A group norm that the compiler makes fast: it takes channels-last images as they lie.

    Its own rendering wants all channels of a group side by side, so it copies such images back and forth.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(input)
        x, grouped = input.float(), (self.num_groups, -1)
        sums = (values.mean((2, 3)).unflatten(1, grouped) for values in (x, x.square()))
        mean, square = (values.mean(2, keepdim=True) for values in sums)  # [N, groups, 1]
        deviation = (square - mean.square()).clamp(min=0).add(self.eps).sqrt()
        scale = self.weight.unflatten(0, grouped) / deviation  # [N, groups, channels of a group]
        shift = self.bias.unflatten(0, grouped) - mean * scale
        scale, shift = (part.flatten(1)[:, :, None, None] for part in (scale, shift))
        return x * scale + shift


def group_norm(channels: int, eps: float) -> nn.GroupNorm:
    """Return a group norm with at most 32 groups of at least 4 channels."""
    return GroupNorm(min(32, channels // 4), channels, eps=eps)


def resample_box(x: Tensor, mode: Resample) -> Tensor:
    """Return `x` at half its size (means of 2 x 2), at twice its size (copies), or as it is."""
    if mode is None:
        return x
    if mode == "down":
        return F.avg_pool2d(x, 2)
    if not torch.compiler.is_compiling():
        return F.interpolate(x, scale_factor=2.0)
    # compiled, the gradient of `interpolate` is a scatter; of this it is a sum of neighbours
    n, c, h, w = x.shape
    return x[:, :, :, None, :, None].expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w)


class ResampleConv(nn.Module):
    """A convolution after (`conv_first`: before) resampling by two; kernel 0: resampling alone."""

    mode: Resample
    resample_filter: Tensor
    weight: Tensor | None

    def __init__(self, cin: int, cout: int, kernel: int, mode: Resample, taps=BOX, conv_first=False):
        super().__init__()
        self.mode, self.conv_first, self.is_box = mode, conv_first, tuple(taps) == BOX
        self.edge = (len(taps) - 1) // 2
        line = torch.tensor(taps, dtype=torch.float32) / sum(taps)
        self.register_buffer("resample_filter", torch.outer(line, line)[None, None])
        # plain parameters rather than a child, so that they are called `weight` and `bias`
        conv = nn.Conv2d(cin, cout, kernel) if kernel else None
        self.weight = conv.weight if conv else None
        self.bias = conv.bias if conv else None

    def forward(self, x: Tensor) -> Tensor:
        if self.conv_first:
            # as the official fused form: the filter's border is taken by the convolution
            return self._resample(self._conv(x, extra=self.edge), padding=0)
        return self._conv(self._resample(x, padding=self.edge))

    def _resample(self, x: Tensor, padding: int) -> Tensor:
        if self.is_box:  # the same numbers as below, without a slow grouped convolution
            return resample_box(x, self.mode)
        kernel = self.resample_filter.to(x.dtype).expand(x.shape[1], -1, -1, -1)
        if self.mode == "down":
            return F.conv2d(x, kernel, stride=2, padding=padding, groups=x.shape[1])
        return F.conv_transpose2d(x, 4 * kernel, stride=2, padding=padding, groups=x.shape[1])

    def _conv(self, x: Tensor, extra: int = 0) -> Tensor:
        if self.weight is None:
            return x
        return F.conv2d(x, self.weight, self.bias, padding=self.weight.shape[-1] // 2 + extra)


def conv(cin: int, cout: int, kernel: int, resample: Resample = None, taps=BOX) -> nn.Module:
    """Return a convolution that keeps the size, or one that resamples by two first."""
    if resample is None:
        return nn.Conv2d(cin, cout, kernel, padding=kernel // 2)
    return ResampleConv(cin, cout, kernel, resample, taps)


class UNetBlock(nn.Module):
    """Two convolutions with the embedding in between, a skip, and attention where asked for."""

    def __init__(self, step: Step, config: EDMConfig, attention: bool):
        super().__init__()
        cin, cout, resample = step.cin, step.cout, step.resample
        adm, eps, taps = config.is_adm, config.eps, config.taps
        self.adaptive_scale = adm  # the embedding scales and shifts (ADM) rather than only shifts (DDPM++)
        self.skip_scale = 1.0 if adm else math.sqrt(0.5)  # after each residual sum
        self.dropout, self.out_channels = config.dropout, cout
        self.norm0 = group_norm(cin, eps)
        self.conv0 = conv(cin, cout, 3, resample, taps)
        self.affine = nn.Linear(config.emb_channels, cout * (2 if adm else 1))
        self.norm1 = group_norm(cout, eps)
        self.conv1 = conv(cout, cout, 3)
        self.skip = None
        if cin != cout or resample:  # ADM resamples a skip of the same width without a convolution
            self.skip = conv(cin, cout, 0 if cin == cout and adm else 1, resample, taps)
        self.num_heads = 0
        if attention:
            self.num_heads = cout // 64 if adm else 1
            self.norm2 = group_norm(cout, eps)
            self.qkv = conv(cout, 3 * cout, 1)
            self.proj = conv(cout, cout, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        kept = x
        x = self.conv0(F.silu(self.norm0(x)))
        shift = self.affine(emb)[:, :, None, None].to(x.dtype)
        if self.adaptive_scale:
            scale, shift = shift.chunk(2, dim=1)
            x = F.silu(shift + self.norm1(x) * (scale + 1))
        else:
            x = F.silu(self.norm1(x + shift))
        x = self.conv1(F.dropout(x, self.dropout, self.training))
        x = (x + (kept if self.skip is None else self.skip(kept))) * self.skip_scale
        return (x + self.attend(x)) * self.skip_scale if self.num_heads else x

    def attend(self, x: Tensor) -> Tensor:
        """Return self-attention over the pixels of `x`."""
        n, c, h, w = x.shape
        # q, k and v are interleaved within each channel of the official checkpoints
        qkv = self.qkv(self.norm2(x)).reshape(n, self.num_heads, c // self.num_heads, 3, h * w)
        q, k, v = (part.transpose(-1, -2) for part in qkv.unbind(3))  # [N, heads, HW, C / heads]
        if torch.compiler.is_compiling():  # fast attention wants a pixel's channels side by side
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return self.proj(mixed.reshape(n, c, h, w))


class PositionalEmbedding(nn.Module):
    """Cosines, then sines, of the noise condition at geometrically falling frequencies."""

    freqs: Tensor

    def __init__(self, channels: int, endpoint: bool):
        super().__init__()
        half = channels // 2
        powers = torch.arange(half, dtype=torch.float32) / (half - 1 if endpoint else half)
        self.register_buffer("freqs", (1 / 10000) ** powers, persistent=False)

    def forward(self, noise: Tensor) -> Tensor:
        angles = torch.outer(noise, self.freqs)
        return torch.cat([angles.cos(), angles.sin()], dim=1)


class FourierEmbedding(nn.Module):
    """Cosines, then sines, of the noise condition at random fixed frequencies."""

    freqs: Tensor

    def __init__(self, channels: int, scale: float = 16):
        super().__init__()
        self.register_buffer("freqs", torch.randn(channels // 2) * scale)

    def forward(self, noise: Tensor) -> Tensor:
        angles = torch.outer(noise, 2 * math.pi * self.freqs)
        return torch.cat([angles.cos(), angles.sin()], dim=1)


class SongUNet(nn.Module):
    """DDPM++ (`embedding="positional"`, `encoder="standard"`) or NCSN++ (`fourier`, `residual`)."""

    def __init__(self, config: EDMConfig):
        super().__init__()
        noise, emb, classes = config.model_channels * config.channel_mult_noise, config.emb_channels, config.num_classes
        positional = config.embedding == "positional"
        self.map_noise = PositionalEmbedding(noise, endpoint=True) if positional else FourierEmbedding(noise)
        self.map_label = nn.Linear(classes, noise) if classes else None
        augment = config.augment_dim  # of the official training; zero, so unused, when sampling
        self.map_augment = nn.Linear(augment, noise, bias=False) if augment else None
        self.map_layer0 = nn.Linear(noise, emb)
        self.map_layer1 = nn.Linear(emb, emb)
        self.enc, self.dec = _encoder_and_decoder(config, first=config.model_channels)
        width, end = config.model_channels * config.channel_mult[0], f"{config.resolution}x{config.resolution}"
        self.dec[f"{end}_aux_norm"] = group_norm(width, config.eps)
        self.dec[f"{end}_aux_conv"] = conv(width, config.channels, 3)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:  # not a group norm's
                gain = math.sqrt(0.2) if name.endswith("qkv.weight") else 1.0
                if name.endswith(("conv1.weight", "proj.weight", "aux_conv.weight")):
                    gain = 1e-5  # blocks start as their skips, the network as (almost) nothing
                nn.init.xavier_uniform_(parameter, gain)

    def forward(self, x: Tensor, noise: Tensor, class_weights: Tensor) -> Tensor:
        emb = self.map_noise(noise)
        emb = emb.unflatten(1, (2, -1)).flip(1).flatten(1)  # sines first, as in DDPM++
        if self.map_label is not None:
            emb = emb + self.map_label(class_weights * math.sqrt(class_weights.shape[1]))
        emb = F.silu(self.map_layer1(F.silu(self.map_layer0(emb))))
        x, skips = _encode(self.enc, x, emb)
        return _decode(self.dec, x, emb, skips)


class DhariwalUNet(nn.Module):
    """ADM: adaptive group norms, attention heads of 64 channels, class embedding added last."""

    def __init__(self, config: EDMConfig):
        super().__init__()
        emb, classes = config.emb_channels, config.num_classes
        self.map_noise = PositionalEmbedding(config.model_channels, endpoint=False)
        augment = config.augment_dim  # of the official training; zero, so unused, when sampling
        self.map_augment = nn.Linear(augment, config.model_channels, bias=False) if augment else None
        self.map_layer0 = nn.Linear(config.model_channels, emb)
        self.map_layer1 = nn.Linear(emb, emb)
        self.map_label = nn.Linear(classes, emb, bias=False) if classes else None
        width = config.model_channels * config.channel_mult[0]
        self.enc, self.dec = _encoder_and_decoder(config, first=width)
        self.out_norm = group_norm(width, config.eps)
        self.out_conv = conv(width, config.channels, 3)
        # torch's own initialisation is EDM's for this network, but for these
        for name, module in self.named_modules():
            if name.rpartition(".")[2] in ("conv1", "proj", "out_conv", "map_augment"):
                for parameter in module.parameters():
                    nn.init.zeros_(parameter)
        if self.map_label is not None:
            nn.init.normal_(self.map_label.weight)

    def forward(self, x: Tensor, noise: Tensor, class_weights: Tensor) -> Tensor:
        emb = self.map_layer1(F.silu(self.map_layer0(self.map_noise(noise))))
        if self.map_label is not None:
            emb = emb + self.map_label(class_weights)
        emb = F.silu(emb)
        x, skips = _encode(self.enc, x, emb)
        return self.out_conv(F.silu(self.out_norm(_decode(self.dec, x, emb, skips))))


class Step(NamedTuple):
    """One entry of a U-Net's encoder or decoder: its kind, its widths, and the size of its output."""

    kind: str  # conv, down, up, in0, in1, block0, block1, ...
    cin: int
    cout: int
    size: int

    @property
    def name(self) -> str:
        """As the official checkpoints call it."""
        return f"{self.size}x{self.size}_{self.kind}"

    @property
    def resample(self) -> Resample:
        """How its input is resampled."""
        return "down" if self.kind == "down" else "up" if self.kind == "up" else None


def unet_steps(config: Any, first: int) -> tuple[list[Step], list[Step]]:
    """Return the entries of a U-Net's encoder, which begins `first` wide, and of its decoder.

    Each block of the decoder takes the output of one entry of the encoder besides, the latest first.
    """
    mults, num_blocks = config.channel_mult, config.num_blocks
    levels = [(config.resolution >> level, config.model_channels * mult) for level, mult in enumerate(mults)]
    encoder, decoder, width = [], [], first
    for size, own in levels:
        encoder.append(Step("down" if encoder else "conv", width, width, size))
        for k in range(num_blocks):
            encoder.append(Step(f"block{k}", width, own, size))
            width = own
    skips = [step.cout for step in encoder]
    for size, own in reversed(levels):
        decoder += [Step(kind, width, width, size) for kind in (["up"] if decoder else ["in0", "in1"])]
        for k in range(num_blocks + 1):
            decoder.append(Step(f"block{k}", width + skips.pop(), own, size))
            width = own
    return encoder, decoder


def _encoder_and_decoder(config: EDMConfig, first: int) -> tuple[nn.ModuleDict, nn.ModuleDict]:
    enc, dec, aux = nn.ModuleDict(), nn.ModuleDict(), config.channels
    encoder, decoder = unet_steps(config, first)
    for step in encoder:
        if step.kind == "conv":
            enc[step.name] = conv(config.channels, step.cout, 3)
            continue
        attention = step.size in config.attn_resolutions and not step.resample
        enc[step.name] = UNetBlock(step, config, attention)
        if step.resample and config.encoder == "residual" and not config.is_adm:
            residual = ResampleConv(aux, step.cout, 3, "down", config.taps, conv_first=True)
            enc[f"{step.size}x{step.size}_aux_residual"] = residual
            aux = step.cout
    attending = {f"block{k}" for k in range(0 if config.is_adm else config.num_blocks, config.num_blocks + 1)}
    for step in decoder:
        attention = step.kind == "in0" or (step.kind in attending and step.size in config.attn_resolutions)
        dec[step.name] = UNetBlock(step, config, attention)
    return enc, dec


def _encode(enc: nn.ModuleDict, x: Tensor, emb: Tensor) -> tuple[Tensor, list[Tensor]]:
    skips, aux = [], x
    for name, block in enc.items():
        if name.endswith("_aux_residual"):
            x = skips[-1] = aux = (x + block(aux)) * math.sqrt(0.5)
        else:
            x = block(x) if name.endswith("_conv") else block(x, emb)
            skips.append(x)
    return x, skips


def _decode(dec: nn.ModuleDict, x: Tensor, emb: Tensor, skips: list[Tensor]) -> Tensor:
    for name, block in dec.items():
        if name.endswith("_aux_norm"):
            x = F.silu(block(x))
        elif name.endswith("_aux_conv"):
            x = block(x)
        else:
            x = block(torch.cat([x, skips.pop()], dim=1) if "_block" in name else x, emb)
    return x


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
