"""Our networks against the official checkpoints' names, and against a plain float64 twin."""

import math

import pytest
import torch
from torch.nn import functional as F

from semmix._errors import SemmixError
from semmix.generators.edm import EDMConfig, EDMDenoiser, network_preset

# ---- the slow twin: reads tensors by their official names, float64, nothing shared with src


def twin_norm(state, name, x, eps):
    n, c, h, w = x.shape
    groups = min(32, c // 4)
    parts = x.reshape(n, groups, -1)
    mean = parts.mean(2, keepdim=True)
    var = ((parts - mean) ** 2).mean(2, keepdim=True)
    x = ((parts - mean) / (var + eps).sqrt()).reshape(n, c, h, w)
    return (
        x * state[f"{name}.weight"][None, :, None, None]
        + state[f"{name}.bias"][None, :, None, None]
    )


def twin_filter(x, taps, mode):
    """Separable filter by explicit sums over zero-padded or zero-stuffed rows and columns."""
    taps = torch.tensor(taps, dtype=torch.float64) / sum(taps)
    edge = (len(taps) - 1) // 2
    for dim in (2, 3):
        x = x.movedim(dim, -1)
        size = x.shape[-1]
        if mode == "down":
            padded = F.pad(x, (edge, edge))
            x = sum(
                tap * padded[..., k : k + size : 2][..., : size // 2] for k, tap in enumerate(taps)
            )
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
    x = twin_conv(
        state, f"{name}.conv0", F.silu(twin_norm(state, f"{name}.norm0", x, eps)), mode, taps
    )
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


def twin_denoise(state, x, sigma, labels, *, adm=False, taps=(1, 1)):
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
        emb = F.silu(emb + twin_linear(state, "map_label", labels))
    else:
        emb = torch.cat([angles.sin(), angles.cos()], 1)
        emb = emb + twin_linear(state, "map_label", labels * math.sqrt(labels.shape[1]))
        emb = F.silu(
            twin_linear(state, "map_layer1", F.silu(twin_linear(state, "map_layer0", emb)))
        )
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
        resolution=8, channels=3, num_classes=5, model_channels=16, channel_mult=(1, 2),
        num_blocks=2, attn_resolutions=(4,), augment_dim=9,
    ),
    "ve": EDMConfig(
        resolution=16, channels=3, num_classes=5, model_channels=16, channel_mult=(1, 2, 2),
        num_blocks=1, attn_resolutions=(8,), embedding="fourier", encoder="residual",
        channel_mult_noise=2, resample_filter=(1, 3, 3, 1),
    ),
    "adm": EDMConfig(
        architecture="DhariwalUNet", resolution=8, channels=3, num_classes=5, model_channels=64,
        channel_mult=(1, 2), num_blocks=1, attn_resolutions=(4,),
    ),
}  # fmt: skip


def lively(config):
    """A network none of whose parts is near zero, so that every one of them shows."""
    torch.manual_seed(0)
    network = EDMDenoiser(config).eval()
    for parameter in network.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
        torch.nn.init.normal_(parameter, std=1 / math.sqrt(fan_in))
    return network


@pytest.mark.parametrize("kind", SMALL)
def test_output_equals_plain_float64_twin(kind):
    config = SMALL[kind]
    network = lively(config)
    x = torch.randn(3, config.channels, config.resolution, config.resolution)
    sigma = torch.tensor([0.01, 0.7, 5.0])
    labels = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.3, 0, 0.7, 0], [0, 0, 0, 0, 1]])
    expected = twin_denoise(
        network.state_dict(), x, sigma, labels, adm=kind == "adm", taps=config.resample_filter
    )
    with torch.no_grad():
        ours = network(x, sigma, labels)
    assert (ours - x).abs().max() > 0.1  # the network does something
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)


def shapes(preset, image_shape, num_classes):
    with torch.device("meta"):
        network = EDMDenoiser(network_preset(preset, image_shape, num_classes))
    entries = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    return entries, sum(p.numel() for p in network.parameters())


def test_cifar10_cond_vp_has_the_official_entries():
    entries, num_parameters = shapes("edm-vp", (3, 32, 32), 10)
    assert len(entries) == 427
    assert num_parameters == 55_735_299
    assert sum(math.prod(entries[name]) for name in entries if "resample_filter" in name) == 32
    assert entries["model.map_label.weight"] == (128, 10)
    assert entries["model.map_augment.weight"] == (128, 9)
    assert entries["model.map_layer0.weight"] == (512, 128)
    assert entries["model.enc.32x32_conv.weight"] == (128, 3, 3, 3)
    assert entries["model.dec.32x32_aux_conv.weight"] == (3, 256, 3, 3)
    attending = {name.split(".")[2] for name in entries if "qkv" in name}
    assert attending == {f"16x16_block{k}" for k in range(5)} | {"8x8_in0"}


def test_other_official_networks_have_their_entries():
    entries, num_parameters = shapes("edm-ve", (3, 32, 32), 10)
    assert entries["model.map_noise.freqs"] == (128,)
    assert entries["model.enc.16x16_aux_residual.weight"] == (256, 3, 3, 3)
    assert num_parameters == 56_400_643
    entries, num_parameters = shapes("edm-adm", (3, 64, 64), 1000)
    assert num_parameters == 295_899_267
    assert "model.map_label.bias" not in entries
    assert "model.enc.32x32_down.skip.weight" not in entries  # resampling alone
    assert entries["model.enc.32x32_down.skip.resample_filter"] == (1, 1, 2, 2)


def test_compact_presets_have_their_size():
    assert shapes("compact32", (3, 32, 32), 10)[1] == 22_171_011
    assert 300_000 < shapes("digits", (1, 8, 8), 10)[1] < 600_000


def test_mixed_label_equals_mixed_class_embedding():
    linear = lively(SMALL["vp"]).model.map_label
    weights = torch.tensor([0.25, 0, 0.75, 0, 0])
    mixed = linear(weights * 5**0.5)
    ends = [linear(row * 5**0.5) for row in torch.eye(5)]
    torch.testing.assert_close(mixed, 0.25 * ends[0] + 0.75 * ends[2])


def test_networks_compile_without_graph_breaks():
    network = EDMDenoiser(SMALL["vp"]).eval()
    x, sigma, labels = torch.randn(2, 3, 8, 8), torch.rand(2) + 0.1, torch.eye(5)[:2]
    explained = torch._dynamo.explain(network)(x, sigma, labels)
    assert explained.graph_break_count == 0
    torch._dynamo.reset()


def test_user_mistakes_are_explained():
    with pytest.raises(SemmixError, match="multiple of 8"):
        EDMConfig(resolution=12, channels=3, num_classes=2, channel_mult=(1, 1, 1, 1))
    with pytest.raises(SemmixError, match="compact32"):
        network_preset("compact3", (3, 32, 32), 10)
    with pytest.raises(SemmixError, match="square"):
        network_preset("compact32", (3, 32, 16), 10)
    with pytest.raises(SemmixError, match="model_channels"):
        EDMConfig.from_json({"resolution": 8, "channels": 1, "num_classes": 2, "model_chanels": 3})
