"""Every network: shapes, sizes, normalisation inside, and gradients that reach every weight."""

import pytest
import torch

from semmix import SemmixError
from semmix.classifiers import classifier, list_classifiers


def num_parameters(net) -> int:
    return sum(p.numel() for p in net.parameters())


# The counts published with each network, at ten classes and 32x32 images.
@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_173_962)])
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


def test_user_mistakes():
    with pytest.raises(SemmixError, match="did you mean 'resnet18'"):
        classifier("resnet81", num_classes=10)
    with pytest.raises(SemmixError, match="1 values for 3 channels"):
        classifier("small", num_classes=10, mean=[0.5])
    with pytest.raises(SemmixError, match="too small"):
        classifier("small", num_classes=10, image_size=4)
