"""Our networks against the official checkpoints' names, and against a plain float64 twin."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch

from semmix.core.errors import SemmixError
from semmix.diffusion.edm import EDMConfig, EDMDenoiser, FourierEmbedding, group_norm, network_preset


@pytest.mark.parametrize("kind", ["vp", "ve", "adm"])
def test_output_equals_plain_float64_twin(kind, small_networks, lively, twin_denoise):
    config = small_networks[kind]
    network = lively(config)
    x = torch.randn(3, config.channels, config.resolution, config.resolution)
    sigma = torch.tensor([0.01, 0.7, 5.0])
    labels = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.3, 0, 0.7, 0], [0, 0, 0, 0, 1]])
    expected = twin_denoise(network.state_dict(), x, sigma, labels, adm=kind == "adm", taps=config.resample_filter)
    with torch.no_grad():
        ours = network(x, sigma, labels)
    assert (ours - x).abs().max() > 0.1  # the network does something
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["vp", "adm"])
def test_networks_without_classes_equal_the_twin(kind, small_networks, lively, twin_denoise):
    network = lively(replace(small_networks[kind], num_classes=0))
    x, sigma, labels = torch.randn(2, 3, 8, 8), torch.tensor([0.1, 2.0]), torch.zeros(2, 0)
    assert not [name for name in network.state_dict() if "map_label" in name]
    expected = twin_denoise(network.state_dict(), x, sigma, labels, adm=kind == "adm")
    with torch.no_grad():
        ours = network(x, sigma, labels)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)


def test_fresh_fourier_frequencies_are_normal_with_a_deviation_of_16():
    torch.manual_seed(0)
    freqs = FourierEmbedding(20_000).freqs / 16
    for power, moment in ((1, 0), (2, 1), (4, 3)):
        assert (freqs**power).mean() == pytest.approx(moment, abs=0.15)


def test_group_norms_have_at_most_32_groups():
    groups = {channels: group_norm(channels, 1e-6).num_groups for channels in (16, 64, 128, 768)}
    assert groups == {16: 4, 64: 16, 128: 32, 768: 32}


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


@pytest.mark.parametrize(
    ("preset", "size", "num_parameters", "dropout"),
    [
        ("digits", 8, 422_617, 0.2),
        ("compact32", 32, 22_171_011, 0.0),
        ("compact64", 64, 22_479_171, 0.0),
        ("compact128", 128, 23_257_155, 0.0),
        ("cpu32", 32, 744_979, 0.1),
        ("cpu64", 64, 1_235_155, 0.1),
        ("cpu128", 128, 1_212_235, 0.1),
        ("edm-vp", 32, 55_735_299, 0.13),
        ("edm-ve", 32, 56_400_643, 0.13),
        ("edm-adm", 64, 295_138_947, 0.1),
    ],
)
def test_presets_have_their_size(preset, size, num_parameters, dropout):
    image_shape = (1 if preset == "digits" else 3, size, size)
    assert shapes(preset, image_shape, 10)[1] == num_parameters
    assert network_preset(preset, image_shape, 10).dropout == dropout


def test_a_fresh_ddpm_starts_as_its_skips(small_networks):
    """Uniform weights of Xavier's width, next to nothing where a block's own part ends."""
    torch.manual_seed(0)
    for name, parameter in EDMDenoiser(small_networks["vp"]).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            fan_out, fan_in = (parameter.transpose(0, k)[0].numel() for k in (0, 1))
            width = math.sqrt(6 / (fan_in + fan_out))
            if name.endswith(("conv1.weight", "proj.weight", "aux_conv.weight")):
                width *= 1e-5
            if name.endswith("qkv.weight"):
                width *= math.sqrt(0.2)
            assert 0.9 * width < parameter.abs().max() <= width * (1 + 1e-6), name


def test_a_fresh_adm_starts_as_its_skips(small_networks):
    torch.manual_seed(0)
    config = replace(small_networks["adm"], augment_dim=9)
    for name, parameter in EDMDenoiser(config).named_parameters():
        layer = name.split(".")[-2]
        if layer in ("conv1", "proj", "out_conv", "map_augment"):
            assert not parameter.any(), name
        elif layer == "map_label":
            assert parameter.detach().std() == pytest.approx(1, abs=0.05)
        elif "norm" not in layer and name.endswith("weight"):
            width = parameter[0].numel() ** -0.5
            assert 0.9 * width < parameter.abs().max() <= width * (1 + 1e-6), name


def test_mixed_label_equals_mixed_class_embedding(small_networks, lively):
    linear = lively(small_networks["vp"]).model.map_label
    weights = torch.tensor([0.25, 0, 0.75, 0, 0])
    mixed = linear(weights * 5**0.5)
    ends = [linear(row * 5**0.5) for row in torch.eye(5)]
    torch.testing.assert_close(mixed, 0.25 * ends[0] + 0.75 * ends[2])


@pytest.mark.parametrize("kind", ["vp", "ve", "adm"])
def test_networks_compile_without_graph_breaks_to_the_same_output_and_gradients(kind, small_networks, lively):
    torch._dynamo.reset()
    config = replace(small_networks[kind], num_blocks=1, channel_mult=(1, 2), resolution=8)
    network = lively(config).double()  # so that rounding hides nothing
    x = torch.randn(2, config.channels, config.resolution, config.resolution, dtype=torch.float64)
    inputs = x, torch.tensor([0.1, 3.0]).double(), torch.eye(5)[:2].double()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    results = []
    for denoise in (network, compiled):
        network.zero_grad(set_to_none=True)
        output = denoise(*inputs)
        output.square().sum().backward()
        grads = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
        results.append({"output": output.detach(), **grads})
    plain, fast = results
    assert plain.keys() == fast.keys()
    for name, value in plain.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-4, atol=1e-6 * value.abs().max().item())


@pytest.mark.parametrize("kind", ["vp", "ve", "adm"])
def test_settings_survive_json(kind, small_networks):
    config = small_networks[kind]
    assert EDMConfig.from_json(json.loads(json.dumps(asdict(config)))) == config


def test_user_mistakes_are_explained():
    with pytest.raises(SemmixError, match="multiple of 8: use --size 16"):
        EDMConfig(resolution=12, channels=3, num_classes=2, channel_mult=(1, 1, 1, 1))
    with pytest.raises(SemmixError, match="compact32"):
        network_preset("compact3", (3, 32, 32), 10)
    with pytest.raises(SemmixError, match="square"):
        network_preset("compact32", (3, 32, 16), 10)
    with pytest.raises(SemmixError, match="model_channels"):
        EDMConfig.from_json({"resolution": 8, "channels": 1, "num_classes": 2, "model_chanels": 3})
