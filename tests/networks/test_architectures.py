"""Networks of ours against plain twins that read their weights by name."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from semmix.networks import classifier
from semmix.networks.architectures import BasicBlock, Bottleneck, PaddedBlock, ResNet


def lively(network):
    """Return the network in float64 with norms that change what passes through them."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return network.eval().double()


def normed(state, name, x):
    weight, bias, mean, var = (
        state[f"{name}.{kind}"][:, None, None] for kind in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def conv_normed(state, name, k, x, stride=1):
    """Return layers `k` and `k + 1`: a convolution that keeps the size, and its norm."""
    weight = state[f"{name}.{k}.weight"]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    return normed(state, f"{name}.{k + 1}", x)


def twin_resnet(state, x, block, depths, pooled):
    x = conv_normed(state, "stem", 0, x).relu()
    strides = [2 if stage and not k else 1 for stage, num in enumerate(depths) for k in range(num)]
    for number, stride in enumerate(strides):
        name = f"blocks.{number}"
        if block is Bottleneck:
            inner = conv_normed(state, f"{name}.main", 0, x).relu()
            inner = conv_normed(state, f"{name}.main", 3, inner, stride).relu()
            inner = conv_normed(state, f"{name}.main", 6, inner)
        else:
            inner = conv_normed(state, f"{name}.main", 0, x, stride).relu()
            inner = conv_normed(state, f"{name}.main", 3, inner)
        if block is PaddedBlock:
            x, extra = x[:, :, ::stride, ::stride], inner.shape[1] - x.shape[1]
            empty = torch.zeros_like(x[:, :1]).expand(-1, extra // 2, -1, -1)
            x = torch.cat([empty, x, empty], 1)
        elif f"{name}.shortcut.0.weight" in state:
            x = conv_normed(state, f"{name}.shortcut", 0, x, stride)
        x = (inner + x).relu()
    size = x.shape[-1] // pooled
    return x.unflatten(2, (pooled, size)).unflatten(4, (pooled, size)).mean((3, 5)).flatten(1)


@pytest.mark.parametrize("pooled", [1, 2])
@pytest.mark.parametrize("block", [BasicBlock, PaddedBlock, Bottleneck])
def test_residual_networks_equal_the_plain_twin(block, pooled):
    torch.manual_seed(0)
    depths, stem_width = (2, 1, 2), 4
    network = lively(ResNet(block, depths, (4, 6, 8), 3, stem_width, pooled))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        ours = network(x)
        twin = twin_resnet(network.state_dict(), x, block, depths, pooled)
    assert ours.shape == (2, network.feature_dim)
    torch.testing.assert_close(ours, twin)


def test_densenet_equals_the_plain_twin():
    torch.manual_seed(0)
    network = lively(classifier("densenet121", num_classes=3).body)
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    state = network.state_dict()
    x, at = F.conv2d(images, state["layers.0.weight"], padding=1), 1
    for depth in (6, 12, 24, 16):
        for k in range(depth):
            name = f"layers.{at + k}.new"
            inner = F.conv2d(normed(state, f"{name}.0", x).relu(), state[f"{name}.2.weight"])
            inner = normed(state, f"{name}.3", inner).relu()
            x = torch.cat([x, F.conv2d(inner, state[f"{name}.5.weight"], padding=1)], 1)
        x = normed(state, f"layers.{at + depth}", x).relu()
        if depth != 16:
            x = F.conv2d(x, state[f"layers.{at + depth + 2}.weight"])
            x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
        at += depth + 4
    with torch.no_grad():
        torch.testing.assert_close(network(images), x.mean((2, 3)))


def test_the_small_network_equals_the_plain_twin():
    torch.manual_seed(0)
    network = lively(classifier("small", num_classes=3, in_channels=1, image_size=8).body)
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    x = images
    for k, stride in ((0, 1), (3, 2), (6, 2)):
        x = conv_normed(network.state_dict(), "layers", k, x, stride).relu()
    with torch.no_grad():
        torch.testing.assert_close(network(images), x.flatten(1))  # 2 x 2 pixels are left


@pytest.mark.parametrize("name", ["resnet32", "wrn26_10"])
def test_some_convolutions_start_as_he_draws_them(name):
    """Normal, with a variance of two over the fan-out."""
    torch.manual_seed(0)
    for layer in classifier(name, num_classes=3).modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 2000:
            fan_out = layer.weight[:, 0].numel()
            scaled = layer.weight.detach() * math.sqrt(fan_out / 2)
            assert scaled.square().mean() == pytest.approx(1, abs=0.1)
            assert scaled.abs().max() > 2.5  # of a uniform draw, 1.7
