"""Small networks, and slow float64 twins that read tensors by their official names."""

import math

import pytest
import torch
from torch.nn import functional as F

from semmix.diffusion.edm import EDMConfig
from semmix.diffusion.stored import build_denoiser

# ---- the slow twin: reads tensors by their official names, float64, nothing shared with src


def twin_norm(state, name, x, eps):
    n, c, h, w = x.shape
    groups = min(32, c // 4)
    parts = x.reshape(n, groups, -1)
    mean = parts.mean(2, keepdim=True)
    var = ((parts - mean) ** 2).mean(2, keepdim=True)
    x = ((parts - mean) / (var + eps).sqrt()).reshape(n, c, h, w)
    return x * state[f"{name}.weight"][None, :, None, None] + state[f"{name}.bias"][None, :, None, None]


def twin_filter(x, taps, mode):
    """Separable filter by explicit sums over zero-padded or zero-stuffed rows and columns."""
    taps = torch.tensor(taps, dtype=torch.float64) / sum(taps)
    edge = (len(taps) - 1) // 2
    for dim in (2, 3):
        x = x.movedim(dim, -1)
        size = x.shape[-1]
        if mode == "down":
            padded = F.pad(x, (edge, edge))
            x = sum(tap * padded[..., k : k + size : 2][..., : size // 2] for k, tap in enumerate(taps))
        else:
            out = x.new_zeros(*x.shape[:-1], 2 * size + len(taps))
            for k, tap in enumerate(taps):
                out[..., k : k + 2 * size : 2] += 2 * tap * x
            x = out[..., edge : edge + 2 * size]
        x = x.movedim(-1, dim)
    return x


def twin_conv(state, name, x, mode=None, taps=(1, 1), conv_first=False):
    weight = state.get(f"{name}.weight")
    bias = state.get(f"{name}.bias")
    if conv_first:  # convolve at full size, one more pixel of border for the filter
        edge = (len(taps) - 1) // 2
        return twin_filter_valid(F.conv2d(x, weight, bias, padding=1 + edge), taps)
    if mode:
        x = twin_filter(x, taps, mode)
    return x if weight is None else F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


def twin_filter_valid(x, taps):
    """Downsample without padding."""
    taps = torch.tensor(taps, dtype=torch.float64) / sum(taps)
    for dim in (2, 3):
        x = x.movedim(dim, -1)
        size = (x.shape[-1] - len(taps)) // 2 + 1
        x = sum(tap * x[..., k : k + 2 * size : 2] for k, tap in enumerate(taps))
        x = x.movedim(-1, dim)
    return x


def twin_linear(state, name, x):
    y = x @ state[f"{name}.weight"].T
    return y + state[f"{name}.bias"] if f"{name}.bias" in state else y


def twin_block(state, name, x, emb, adm, taps):
    eps, scale_by = (1e-5, 1.0) if adm else (1e-6, math.sqrt(0.5))
    mode = "down" if name.endswith("_down") else "up" if name.endswith("_up") else None
    kept = x
    x = twin_conv(state, f"{name}.conv0", F.silu(twin_norm(state, f"{name}.norm0", x, eps)), mode, taps)
    shift = twin_linear(state, f"{name}.affine", emb)[:, :, None, None]
    if adm:
        scale, shift = shift[:, : x.shape[1]], shift[:, x.shape[1] :]
        x = F.silu(twin_norm(state, f"{name}.norm1", x, eps) * (1 + scale) + shift)
    else:
        x = F.silu(twin_norm(state, f"{name}.norm1", x + shift, eps))
    x = twin_conv(state, f"{name}.conv1", x)
    x = (x + twin_conv(state, f"{name}.skip", kept, mode, taps)) * scale_by
    if f"{name}.qkv.weight" not in state:
        return x
    n, c, h, w = x.shape
    heads = c // 64 if adm else 1
    y = twin_conv(state, f"{name}.qkv", twin_norm(state, f"{name}.norm2", x, eps))
    y = y.reshape(n * heads, c // heads, 3, h * w)
    q, k, v = y[:, :, 0], y[:, :, 1], y[:, :, 2]
    attention = torch.softmax(torch.einsum("ncq,nck->nqk", q, k) / math.sqrt(c // heads), dim=2)
    mixed = torch.einsum("nqk,nck->ncq", attention, v).reshape(n, c, h, w)
    return (x + twin_conv(state, f"{name}.proj", mixed)) * scale_by


def _twin_denoise(state, x, sigma, labels, *, adm=False, taps=(1, 1)):
    """D(x; sigma) of an EDMPrecond whose tensors are `state`."""
    state = {name.removeprefix("model."): t.double() for name, t in state.items()}
    x, sigma, labels = x.double(), sigma.double(), labels.double()
    s = sigma[:, None, None, None]
    noise = sigma.log() / 4
    if "map_noise.freqs" in state:
        angles = 2 * math.pi * noise[:, None] * state["map_noise.freqs"]
    else:
        half = state["map_layer0.weight"].shape[1] // 2
        powers = torch.arange(half, dtype=torch.float64) / (half if adm else half - 1)
        angles = noise[:, None] * 10000**-powers
    if adm:
        emb = torch.cat([angles.cos(), angles.sin()], 1)
        emb = twin_linear(state, "map_layer1", F.silu(twin_linear(state, "map_layer0", emb)))
        if "map_label.weight" in state:
            emb = emb + twin_linear(state, "map_label", labels)
        emb = F.silu(emb)
    else:
        emb = torch.cat([angles.sin(), angles.cos()], 1)
        if "map_label.weight" in state:
            emb = emb + twin_linear(state, "map_label", labels * math.sqrt(labels.shape[1]))
        emb = F.silu(twin_linear(state, "map_layer1", F.silu(twin_linear(state, "map_layer0", emb))))
    h = aux = x / (s**2 + 0.25).sqrt()
    skips = []
    for name in dict.fromkeys(".".join(k.split(".")[:2]) for k in state if k.startswith("enc.")):
        if name.endswith("_conv"):
            h = twin_conv(state, name, h)
        elif name.endswith("_aux_residual"):
            aux = (h + twin_conv(state, name, aux, "down", taps, conv_first=True)) / math.sqrt(2)
            h = skips[-1] = aux
            continue
        else:
            h = twin_block(state, name, h, emb, adm, taps)
        skips.append(h)
    for name in dict.fromkeys(".".join(k.split(".")[:2]) for k in state if k.startswith("dec.")):
        if name.endswith("_aux_norm"):
            h = F.silu(twin_norm(state, name, h, 1e-6))
        elif name.endswith("_aux_conv"):
            h = twin_conv(state, name, h)
        else:
            if "_block" in name:
                h = torch.cat([h, skips.pop()], 1)
            h = twin_block(state, name, h, emb, adm, taps)
    if adm:
        h = twin_conv(state, "out_conv", F.silu(twin_norm(state, "out_norm", h, 1e-5)))
    return 0.25 / (s**2 + 0.25) * x + s * 0.5 / (s**2 + 0.25).sqrt() * h


SMALL = {
    "vp": EDMConfig(
        resolution=8,
        channels=3,
        num_classes=5,
        model_channels=16,
        channel_mult=(1, 2),
        num_blocks=2,
        attn_resolutions=(4,),
        augment_dim=9,
    ),
    "ve": EDMConfig(
        resolution=16,
        channels=3,
        num_classes=5,
        model_channels=16,
        channel_mult=(1, 2, 2),
        num_blocks=1,
        attn_resolutions=(8,),
        embedding="fourier",
        encoder="residual",
        channel_mult_noise=2,
        resample_filter=(1, 3, 3, 1),
    ),
    "adm": EDMConfig(
        architecture="DhariwalUNet",
        resolution=8,
        channels=3,
        num_classes=5,
        model_channels=64,
        channel_mult=(1, 2),
        num_blocks=1,
        attn_resolutions=(4,),
    ),
}


def _lively(config):
    """A network none of whose parts is near zero, so that every one of them shows."""
    torch.manual_seed(0)
    network = build_denoiser(config).eval()
    for parameter in network.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
        torch.nn.init.normal_(parameter, std=1 / math.sqrt(fan_in))
    return network


@pytest.fixture(scope="session")
def small_networks():
    return SMALL


@pytest.fixture(scope="session")
def lively():
    return _lively


@pytest.fixture(scope="session")
def twin_denoise():
    return _twin_denoise
