"""Networks of inverted residuals against a plain twin, with the tables of the papers."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from semmix.networks.encoders.mobile_networks import IMAGENET, LITES, build_mobilenet

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
