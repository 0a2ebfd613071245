"""Every network: shapes, sizes, normalisation inside, and gradients that reach every weight."""

import sys

import pytest
import torch
from torch import nn

from semmix import SemmixError
from semmix.networks import classifier, list_classifiers
from semmix.networks.architectures import PaddedShortcut
from semmix.networks.saved import UserClassifier

# The counts published with each network, at ten classes and 32x32 images.
PUBLISHED = {
    "resnet18": 11_173_962,
    "resnet32": 464_154,
    "resnet50": 23_520_842,
    "resnet101": 42_512_970,
    "wrn26_10": 36_481_434,
    "densenet121": 6_956_298,
}


def num_parameters(net) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_published_parameter_counts(name, count):
    with torch.device("meta"):
        assert num_parameters(classifier(name, num_classes=10)) == count


@pytest.mark.parametrize("name", list_classifiers())
@pytest.mark.parametrize("image_size", [32, 64])
def test_shapes(name, image_size):
    with torch.device("meta"):
        net = classifier(name, num_classes=7, image_size=image_size)
        images = torch.zeros(2, 3, image_size, image_size)
        assert net.features(images).shape == (2, net.feature_dim)
        assert net(images).shape == (2, 7)


@pytest.mark.parametrize(("image_size", "feature_dim"), [(32, 2048), (64, 8192)])
def test_resnet50_keeps_a_grid_of_features_for_larger_images(image_size, feature_dim):
    with torch.device("meta"):
        net = classifier("resnet50", num_classes=200, image_size=image_size)
    assert net.feature_dim == feature_dim


@pytest.mark.parametrize("name", ["small", "resnet18", "resnet32", "densenet121"])
def test_gradients_reach_every_weight(name):
    net = classifier(name, num_classes=3)
    net(torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("name", ["small", "resnet32"])
def test_channels_last_and_one_compiled_graph(name):
    net = classifier(name, num_classes=3).eval()
    images = torch.rand(2, 3, 16, 16)
    plain = net(images)
    net = net.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(images), plain, atol=1e-4, rtol=1e-4)
    # The eager backend costs nothing, and fullgraph refuses any break in the graph.
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), net(images))


def test_padded_shortcut_has_no_weights():
    x = torch.rand(2, 4, 6, 6)
    out = PaddedShortcut(stride=2, extra=4)(x)
    torch.testing.assert_close(out[:, 2:6], x[:, :, ::2, ::2])
    assert out.shape == (2, 8, 3, 3)
    assert out[:, :2].abs().sum() == out[:, 6:].abs().sum() == 0


def test_small_network_takes_small_grey_images():
    net = classifier("small", num_classes=10, in_channels=1, image_size=8).eval()
    assert num_parameters(net) < 100_000
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(net(images), net(images / 255.0))


def test_normalisation_is_a_part_of_the_network():
    net = classifier("small", num_classes=3, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7]).eval()
    images = torch.rand(2, 3, 8, 8)
    by_hand = (images - net.mean) / net.std
    torch.testing.assert_close(net.features(images), net.body(by_hand))
    assert set(net.state_dict()) >= {"mean", "std"}
    plain = classifier("small", num_classes=3)
    torch.testing.assert_close(plain.normalised(images), 2 * images - 1)


def test_features_of_user_networks_are_what_their_last_linear_layer_sees():
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh())
    net = UserClassifier(nn.Sequential(body, nn.Linear(5, 2), nn.Softsign()), 2, [0.5], [0.5])
    images = torch.rand(4, 3, 2, 2)
    torch.testing.assert_close(net.features(images), body(2 * images - 1))
    without = UserClassifier(nn.Sequential(nn.Flatten(), nn.Softsign()), 12, [0.5], [0.5])
    torch.testing.assert_close(without.features(images), without(images))


@pytest.mark.parametrize(("name", "image_size"), [("resnet18", 32), ("vit_tiny_patch16_224", 64)])
def test_timm_networks(name, image_size):
    pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    net = classifier(f"timm:{name}", num_classes=5, image_size=image_size)
    images = torch.rand(2, 3, image_size, image_size)
    assert net.features(images).shape == (2, net.feature_dim)
    assert net(images).shape == (2, 5)


def test_user_mistakes(monkeypatch):
    with pytest.raises(SemmixError, match="did you mean 'resnet18'"):
        classifier("resnet81", num_classes=10)
    with pytest.raises(SemmixError, match="1 values for 3 channels"):
        classifier("small", num_classes=10, mean=[0.5])
    with pytest.raises(SemmixError, match="too small"):
        classifier("small", num_classes=10, image_size=7)
    assert classifier("small", num_classes=10, image_size=8)(torch.zeros(2, 3, 8, 8)).shape == (2, 10)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SemmixError, match=r"pip install '.*\[timm\]'"):
        classifier("timm:resnet18", num_classes=10)
