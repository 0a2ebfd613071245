"""Small ImageNet networks: against a plain twin, and from state dicts in the layout of the published files."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from semmix import SemmixError
from semmix.networks.encoders import load_encoder
from semmix.networks.encoders.imagenet import (
    IMAGENET,
    LITES,
    SameConv2d,
    build_mobilenet,
    fill,
    find_lite,
    lite_weights,
)

# Expansion and stride of the first block of each stage, in both papers.
STAGES = [(1, 1), (6, 2), (6, 2), (6, 2), (6, 1), (6, 2), (6, 1)]
DEPTHS = {
    "mobilenet": (1, 2, 3, 4, 3, 3, 1),
    "lite0": (1, 2, 2, 3, 3, 4, 1),
    "lite1": (1, 3, 3, 4, 4, 5, 1),
    "lite2": (1, 3, 3, 4, 4, 5, 1),
}


def build(name):
    """Return the network with weights under which every layer shows."""
    torch.manual_seed(0)
    network = build_mobilenet() if name == "mobilenet" else LITES[int(name[-1])].build()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, 0, 1)
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return network.eval().double()  # exact enough for eps to show


def twin_features(network, x, depths, same, eps):
    """Return pooled features from the weights alone, in the order they are applied."""
    tensors = iter([t for n, t in network.state_dict().items() if "num_batches" not in n])

    def normed(x, stride=1, depthwise=False):
        kernel, weight, bias, mean, var = (next(tensors) for _ in range(5))
        size, pads = kernel.shape[-1], [kernel.shape[-1] // 2] * 4
        if same:
            lack = [max(-(-n // stride) * stride - stride + size - n, 0) for n in x.shape[:1:-1]]
            pads = [side for n in lack for side in (n // 2, n - n // 2)]
        x = F.conv2d(F.pad(x, pads), kernel, stride=stride, groups=len(kernel) if depthwise else 1)
        scale = weight / (var + eps).sqrt()
        return x * scale[:, None, None] + (bias - mean * scale)[:, None, None]

    x = normed(x, stride=2).clamp(0, 6)
    for (expansion, first), depth in zip(STAGES, depths, strict=True):
        for k in range(depth):
            inner = normed(x).clamp(0, 6) if expansion > 1 else x
            inner = normed(inner, first if k == 0 else 1, depthwise=True).clamp(0, 6)
            inner = normed(inner)
            x = inner if k == 0 else x + inner  # the first block of each stage changes the width
    x = normed(x).clamp(0, 6)
    assert next(tensors, None) is None
    return x.mean((2, 3))


@pytest.mark.parametrize("name", DEPTHS)
def test_networks_equal_the_plain_twin(name):
    network, is_mobilenet = build(name), name == "mobilenet"
    images = torch.rand(1, 3, 37, 50, dtype=torch.float64)
    eps = 1e-5 if is_mobilenet else 1e-3
    with torch.inference_mode():
        ours = network(images)
        twin = twin_features(network, images, DEPTHS[name], not is_mobilenet, eps)
    assert ours.std() > 0.01
    torch.testing.assert_close(ours, twin, rtol=1e-7, atol=1e-7)


def test_mobilenet_prepares_images_as_torchvision_does():
    """256 pixels along the shorter edge, the middle 224 of them, ImageNet's mean and spread."""
    image = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    resized = Image.fromarray(image).resize((341, 256), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized)[16:240, 58:282] / 255
    expected = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    ours = IMAGENET(torch.from_numpy(image).permute(2, 0, 1)[None])[0]
    difference = np.abs(ours.permute(1, 2, 0).numpy() - expected)
    assert difference.max() < 1.01 / 255 / 0.224  # Pillow rounds to whole numbers


KERNELS = (3, 3, 5, 3, 5, 5, 3)


def draw_file(lite, seed=0):
    """Return random weights by the names and shapes of the published file."""
    generator, tensors = torch.Generator().manual_seed(seed), {}

    def add(place, conv, norm, *shape):
        fan = shape[1] * shape[2] * shape[3]
        weight = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
        tensors[f"{place}{conv}.weight"] = weight
        for kind in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{place}{norm}.{kind}"] = torch.rand(shape[0], generator=generator) + 0.5
        tensors[f"{place}{norm}.num_batches_tracked"] = torch.tensor(0)

    add("", "_conv_stem", "_bn0", 32, 3, 3, 3)
    channels, k = 32, 0
    for out, num, size in zip(lite.channels, lite.num_blocks, KERNELS, strict=True):
        for _ in range(num):
            place, hidden = f"_blocks.{k}.", channels * (6 if k else 1)
            if k:
                add(place, "_expand_conv", "_bn0", hidden, channels, 1, 1)
            add(place, "_depthwise_conv", "_bn1", hidden, 1, size, size)
            add(place, "_project_conv", "_bn2", out, hidden, 1, 1)
            channels, k = out, k + 1
    add("", "_conv_head", "_bn1", 1280, channels, 1, 1)
    return {**tensors, "_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


@pytest.mark.parametrize(
    ("number", "num_tensors", "num_parameters"),
    [(0, 296, 4_652_008), (1, 386, 5_416_680), (2, 386, 6_092_072)],  # those of the real files
)
def test_the_size_is_told_from_the_weights(number, num_tensors, num_parameters, tmp_path, draw_images):
    tensors = draw_file(LITES[number])
    assert len(tensors) == num_tensors
    trained = [t for name, t in tensors.items() if "running" not in name and t.ndim]
    assert sum(t.numel() for t in trained) == num_parameters
    assert find_lite(tensors) is LITES[number]
    torch.save(tensors, tmp_path / "lite.pth")
    encoder = load_encoder(f"efficientnet:{tmp_path / 'lite.pth'}")
    features = encoder.embed(draw_images(2))
    assert features.shape == (2, encoder.dim) == (2, 1280)
    assert features.std() > 0
    assert not torch.equal(features[0], features[1])


def test_weights_go_where_the_file_names_them(tmp_path, draw_images):
    """The file written here names layers in the order they are applied, as our networks do."""
    tensors = draw_file(LITES[0])
    network = LITES[0].build().eval()
    fill(network, lite_weights(tensors, network), "")
    ours, theirs = (
        [t for name, t in named.items() if not ("num_batches" in name or name.startswith("_fc"))]
        for named in (network.state_dict(), tensors)
    )
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))
    torch.save(tensors, tmp_path / "lite.pth")
    features = load_encoder(f"efficientnet:{tmp_path / 'lite.pth'}").embed(draw_images(1))
    with torch.inference_mode():
        expected = network(LITES[0].preprocess()(draw_images(1)))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


def test_images_are_as_large_as_in_training(draw_images):
    shapes = [tuple(lite.preprocess()(draw_images(1)).shape[2:]) for lite in LITES]
    assert shapes == [(224, 224), (240, 240), (260, 260)]
    assert LITES[0].preprocess()(draw_images(1)[:, :, :8]).shape[2:] == (224, 224)
    white = LITES[0].preprocess()(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))
    assert white.unique().tolist() == [1.0]


@pytest.mark.parametrize("number", range(3))
def test_the_network_equals_timms(number):
    timm = pytest.importorskip("timm")
    network = LITES[number].build().eval()
    fill(network, lite_weights(draw_file(LITES[number]), network), "")
    other = timm.create_model(f"tf_efficientnet_lite{number}", num_classes=0).eval()
    names = zip(other.state_dict(), network.state_dict().values(), strict=True)
    other.load_state_dict(dict(names))
    images = torch.rand(1, 3, LITES[number].pixels, LITES[number].pixels)
    with torch.inference_mode():
        assert torch.allclose(network(images), other(images), rtol=1e-4, atol=1e-4)


def twin_same(x, kernel, stride):
    """Return TensorFlow's SAME convolution of one channel [h, w], pixel by pixel.

    The output has ceil(n / stride) pixels; what windows lack is split, the larger half behind.
    """
    size = len(kernel)
    nums = [-(-num // stride) for num in x.shape]
    lack = [max((n - 1) * stride + size - num, 0) for n, num in zip(nums, x.shape, strict=True)]
    out = np.zeros(nums)
    for row, column in np.ndindex(*nums):
        for a, b in np.ndindex(size, size):
            y, z = row * stride + a - lack[0] // 2, column * stride + b - lack[1] // 2
            if 0 <= y < x.shape[0] and 0 <= z < x.shape[1]:
                out[row, column] += x[y, z] * kernel[a, b]
    return out


@pytest.mark.parametrize("shape", [(8, 8), (7, 8), (9, 5), (1, 2)])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_equals_the_slow_twin(shape, size, stride):
    torch.manual_seed(0)
    convolution = SameConv2d(1, 1, size, stride, bias=False)
    x = torch.rand(1, 1, *shape)
    with torch.inference_mode():
        ours = convolution(x)[0, 0].numpy()
    expected = twin_same(x[0, 0].numpy(), convolution.weight[0, 0].detach().numpy(), stride)
    assert ours.shape == expected.shape
    assert ours == pytest.approx(expected, abs=1e-5)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "lite.pth"
    tensors = draw_file(LITES[0])
    wrong = [
        ({"features.0.0.weight": torch.zeros(1)}, "neither EfficientNet-Lite0, nor 1, nor 2: 0 bl"),
        ({**tensors, "_blocks.16._project_conv.weight": torch.zeros(1)}, "nor 2: 17 blocks, 320"),
        ({**tensors, "_conv_stem.weight": torch.zeros(32, 3, 5, 5)}, r"is \(32, 3, 5, 5\), not"),
        ({**tensors, "_blocks.3._se_reduce.weight": torch.zeros(1)}, "_se_reduce.weight is"),
        ({k: t for k, t in tensors.items() if k != "_bn1.bias"}, r"is missing, not \(1280,\)"),
    ]
    for content, complaint in wrong:
        torch.save(content, path)
        with pytest.raises(SemmixError, match=complaint):
            load_encoder(f"efficientnet:{path}")
    torch.save(tensors, path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(SemmixError, match="cannot read weights"):
        load_encoder(f"efficientnet:{path}")
