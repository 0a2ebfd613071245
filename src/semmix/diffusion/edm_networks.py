"""The U-Nets of EDM, with the tensor names and shapes of the official checkpoints.

`SongUNet` (DDPM++ and NCSN++) and `DhariwalUNet` (ADM) take `c_in * x`, the noise condition and
class weights, and return the raw network output F of EDM's equation 7; `edm.py` wraps it.

References: Karras et al. 2022, https://arxiv.org/abs/2206.00364 (EDM), tables 1 and 7;
Song et al. 2021, https://arxiv.org/abs/2011.13456; Dhariwal and Nichol 2021,
https://arxiv.org/abs/2105.05233.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Resample = Literal["up", "down"] | None
BOX = (1, 1)
"""The 2 x 2 mean; every official network but NCSN++ resamples with it."""


@dataclass(frozen=True, kw_only=True)
class BlockStyle:
    """How the blocks of one U-Net are built."""

    emb_channels: int
    """Width of the noise and class embedding."""
    adaptive_scale: bool
    """The embedding scales and shifts (ADM) rather than only shifts (DDPM++)."""
    skip_scale: float
    """Factor after each residual sum."""
    eps: float
    """Of the group norms."""
    dropout: float
    """Before the second convolution."""
    resample_filter: tuple[int, ...] = BOX
    """One-dimensional filter of up- and downsampling."""
    project_resampled: bool
    """The skip of a resampling block has a 1 x 1 convolution even when the width stays."""
    head_channels: int | None
    """Channels of an attention head; None: one head."""


class GroupNorm(nn.GroupNorm):
    """A group norm that the compiler makes fast.

    Its own rendering of group norms wants all channels of a group side by side, so it copies
    channels-last images back and forth. Sums over pixels first, then over a group's channels,
    read them as they lie.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(input)
        x, grouped = input.float(), (self.num_groups, -1)
        mean, square = (
            values.mean((2, 3)).unflatten(1, grouped).mean(2, keepdim=True)  # [N, groups, 1]
            for values in (x, x.square())
        )
        deviation = (square - mean.square()).clamp(min=0).add(self.eps).sqrt()
        scale = self.weight.unflatten(0, grouped) / deviation  # [N, groups, channels of a group]
        shift = self.bias.unflatten(0, grouped) - mean * scale
        scale, shift = (part.flatten(1)[:, :, None, None] for part in (scale, shift))
        return x * scale + shift


def group_norm(channels: int, eps: float) -> nn.GroupNorm:
    """Return a group norm with at most 32 groups of at least 4 channels."""
    return GroupNorm(min(32, channels // 4), channels, eps=eps)


def double_size(x: Tensor) -> Tensor:
    """Return `x` at twice its size, every pixel copied."""
    if not torch.compiler.is_compiling():
        return F.interpolate(x, scale_factor=2.0)
    # compiled, the gradient of `interpolate` is a scatter; of this it is a sum of neighbours
    n, c, h, w = x.shape
    return x[:, :, :, None, :, None].expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w)


def resample_box(x: Tensor, mode: Resample) -> Tensor:
    """Return `x` at half its size (means of 2 x 2), at twice its size (copies), or as it is."""
    if mode is None:
        return x
    return F.avg_pool2d(x, 2) if mode == "down" else double_size(x)


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

    def __init__(self, cin: int, cout: int, style: BlockStyle, attention=False, resample: Resample = None):
        super().__init__()
        self.adaptive_scale, self.skip_scale = style.adaptive_scale, style.skip_scale
        self.dropout, self.out_channels = style.dropout, cout
        taps = style.resample_filter
        self.norm0 = group_norm(cin, style.eps)
        self.conv0 = conv(cin, cout, 3, resample, taps)
        self.affine = nn.Linear(style.emb_channels, cout * (2 if style.adaptive_scale else 1))
        self.norm1 = group_norm(cout, style.eps)
        self.conv1 = conv(cout, cout, 3)
        self.skip = None
        if cin != cout or resample:
            kernel = 1 if cin != cout or style.project_resampled else 0
            self.skip = conv(cin, cout, kernel, resample, taps)
        self.num_heads = 0
        if attention:
            self.num_heads = cout // style.head_channels if style.head_channels else 1
            self.norm2 = group_norm(cout, style.eps)
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

    def __init__(
        self,
        *,
        resolution,
        channels,
        num_classes,
        model_channels,
        channel_mult,
        num_blocks,
        attn_resolutions,
        dropout,
        augment_dim,
        embedding,
        encoder,
        channel_mult_noise,
        channel_mult_emb,
        resample_filter,
    ):
        super().__init__()
        noise_channels = model_channels * channel_mult_noise
        emb_channels = model_channels * channel_mult_emb
        style = BlockStyle(
            emb_channels=emb_channels,
            adaptive_scale=False,
            skip_scale=math.sqrt(0.5),
            eps=1e-6,
            dropout=dropout,
            resample_filter=tuple(resample_filter),
            project_resampled=True,
            head_channels=None,
        )
        self.map_noise = (
            PositionalEmbedding(noise_channels, endpoint=True)
            if embedding == "positional"
            else FourierEmbedding(noise_channels)
        )
        self.map_label = nn.Linear(num_classes, noise_channels) if num_classes else None
        self.map_augment = _augment_map(augment_dim, noise_channels)
        self.map_layer0 = nn.Linear(noise_channels, emb_channels)
        self.map_layer1 = nn.Linear(emb_channels, emb_channels)
        widths = [model_channels * mult for mult in channel_mult]
        self.enc = _encoder(
            channels,
            model_channels,
            widths,
            num_blocks,
            resolution,
            attn_resolutions,
            style,
            residual=encoder == "residual",
        )
        self.dec = _decoder(
            model_channels, widths, num_blocks, resolution, attn_resolutions, style, attend_every_block=False
        )
        self.dec[f"{resolution}x{resolution}_aux_norm"] = group_norm(widths[0], eps=1e-6)
        self.dec[f"{resolution}x{resolution}_aux_conv"] = conv(widths[0], channels, 3)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:  # not a group norm's
                nn.init.xavier_uniform_(parameter, _xavier_gain(name))

    def forward(self, x: Tensor, noise: Tensor, class_weights: Tensor) -> Tensor:
        emb = self.map_noise(noise)
        emb = emb.unflatten(1, (2, -1)).flip(1).flatten(1)  # sines first, as in DDPM++
        if self.map_label is not None:
            emb = emb + self.map_label(class_weights * math.sqrt(class_weights.shape[1]))
        emb = F.silu(self.map_layer1(F.silu(self.map_layer0(emb))))
        x, skips = _encode(self.enc, x, emb)
        return _decode(self.dec, x, emb, skips)


def _xavier_gain(name: str) -> float:
    if name.endswith(("conv1.weight", "proj.weight", "aux_conv.weight")):
        return 1e-5  # blocks start as their skips, the network as (almost) nothing
    return math.sqrt(0.2) if name.endswith("qkv.weight") else 1.0


class DhariwalUNet(nn.Module):
    """ADM: adaptive group norms, attention heads of 64 channels, class embedding added last."""

    def __init__(
        self,
        *,
        resolution,
        channels,
        num_classes,
        model_channels,
        channel_mult,
        num_blocks,
        attn_resolutions,
        dropout,
        augment_dim,
        channel_mult_emb,
    ):
        super().__init__()
        emb_channels = model_channels * channel_mult_emb
        style = BlockStyle(
            emb_channels=emb_channels,
            adaptive_scale=True,
            skip_scale=1.0,
            eps=1e-5,
            dropout=dropout,
            project_resampled=False,
            head_channels=64,
        )
        self.map_noise = PositionalEmbedding(model_channels, endpoint=False)
        self.map_augment = _augment_map(augment_dim, model_channels)
        self.map_layer0 = nn.Linear(model_channels, emb_channels)
        self.map_layer1 = nn.Linear(emb_channels, emb_channels)
        self.map_label = nn.Linear(num_classes, emb_channels, bias=False) if num_classes else None
        widths = [model_channels * mult for mult in channel_mult]
        self.enc = _encoder(channels, widths[0], widths, num_blocks, resolution, attn_resolutions, style)
        self.dec = _decoder(widths[0], widths, num_blocks, resolution, attn_resolutions, style, attend_every_block=True)
        self.out_norm = group_norm(widths[0], style.eps)
        self.out_conv = conv(widths[0], channels, 3)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
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


def _augment_map(augment_dim: int, channels: int) -> nn.Linear | None:
    """Return the input of the official training's augmentation: zero, so unused, when sampling."""
    return nn.Linear(augment_dim, channels, bias=False) if augment_dim else None


def _encoder(channels, first, widths, num_blocks, resolution, attn_resolutions, style, residual=False) -> nn.ModuleDict:
    enc = nn.ModuleDict()
    width, aux = first, channels
    for level, next_width in enumerate(widths):
        size = resolution >> level
        at = f"{size}x{size}"
        if level == 0:
            enc[f"{at}_conv"] = conv(channels, width, 3)
        else:
            enc[f"{at}_down"] = UNetBlock(width, width, style, resample="down")
            if residual:
                enc[f"{at}_aux_residual"] = ResampleConv(aux, width, 3, "down", style.resample_filter, conv_first=True)
                aux = width
        for k in range(num_blocks):
            enc[f"{at}_block{k}"] = UNetBlock(width, next_width, style, size in attn_resolutions)
            width = next_width
    return enc


def _decoder(first, widths, num_blocks, resolution, attn_resolutions, style, attend_every_block) -> nn.ModuleDict:
    dec = nn.ModuleDict()
    skips = skip_widths(first, widths, num_blocks)
    width = widths[-1]
    for level in reversed(range(len(widths))):
        size = resolution >> level
        at = f"{size}x{size}"
        if level == len(widths) - 1:
            dec[f"{at}_in0"] = UNetBlock(width, width, style, attention=True)
            dec[f"{at}_in1"] = UNetBlock(width, width, style)
        else:
            dec[f"{at}_up"] = UNetBlock(width, width, style, resample="up")
        for k in range(num_blocks + 1):
            attention = size in attn_resolutions and (attend_every_block or k == num_blocks)
            dec[f"{at}_block{k}"] = UNetBlock(width + skips.pop(), widths[level], style, attention)
            width = widths[level]
    return dec


def skip_widths(first: int, widths: list[int], num_blocks: int) -> list[int]:
    """Return the width of every encoder output, in order: the conv or down, then the blocks."""
    entries = [first, *widths]
    return [w for level, own in enumerate(widths) for w in (entries[level], *[own] * num_blocks)]


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
