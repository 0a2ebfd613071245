"""ResNet-50 from a TensorFlow.js model, against a slow twin that follows Keras."""

import numpy as np
import pytest
import torch

from semmix import SemmixError
from semmix.networks.encoders import load_encoder
from semmix.networks.encoders.imagenet import CENTRED, KerasResNet, fill, keras_weights, read_tfjs


def keras_shapes(num_blocks, width):
    """Return the shape of every weight, by the names of Keras' file."""
    shapes = {}

    def add(place, norm, size, channels, out):
        shapes[f"{place}/kernel"], shapes[f"{place}/bias"] = (size, size, channels, out), (out,)
        for kind in ("gamma", "beta", "moving_mean", "moving_variance"):
            shapes[f"{norm}/{kind}"] = (out,)

    add("conv1", "bn_conv1", 7, 3, width)
    channels = width
    for stage, num in enumerate(num_blocks, start=2):
        for block in "abcdef"[:num]:
            branches = {"2a": (1, channels, width), "2b": (3, width, width)}
            branches["2c"] = (1, width, 4 * width)
            if block == "a":
                branches["1"] = (1, channels, 4 * width)
            for branch, sizes in branches.items():
                place = f"{stage}{block}_branch{branch}"
                add(f"res{place}", f"bn{place}", *sizes)
            channels = 4 * width
        width *= 2
    return {**shapes, "fc1000/kernel": (channels, 1000), "fc1000/bias": (1000,)}


def draw_weights(num_blocks, width):
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in keras_shapes(num_blocks, width).items():
        spread = np.prod(shape[:-1]) ** -0.5 if name.endswith("kernel") else 0.3
        arrays[name] = spread * rng.standard_normal(shape, np.float32)
        if name.endswith(("gamma", "moving_variance")):
            arrays[name] = 0.5 + arrays[name] ** 2
    return arrays


def slide(x, size, stride, pad):
    """Yield the place of every window over [h, w, c] and what it shows."""
    x = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    for row in range((x.shape[0] - size) // stride + 1):
        for column in range((x.shape[1] - size) // stride + 1):
            top, left = row * stride, column * stride
            yield row, column, x[top : top + size, left : left + size]


def twin_layer(x, weights, place, norm, stride=1):
    """Return a convolution and its norm of one image [h, w, c], pixel by pixel."""
    kernel = weights[f"{place}/kernel"].astype(float)
    pad = kernel.shape[0] // 2
    rows, columns = ((num + 2 * pad - len(kernel)) // stride + 1 for num in x.shape[:2])
    out = np.zeros((rows, columns, kernel.shape[3]))
    for row, column, window in slide(x, len(kernel), stride, pad):
        out[row, column] = np.tensordot(window, kernel, 3) + weights[f"{place}/bias"]
    mean, variance = weights[f"{norm}/moving_mean"], weights[f"{norm}/moving_variance"]
    scaled = (out - mean) / np.sqrt(variance.astype(float) + 1.001e-5)
    return scaled * weights[f"{norm}/gamma"] + weights[f"{norm}/beta"]


def twin_pool(x):
    out = np.zeros((-(-x.shape[0] // 2), -(-x.shape[1] // 2), x.shape[2]))
    for row, column, window in slide(x, 3, 2, 1):  # zeros change nothing: no pixel is negative
        out[row, column] = window.max((0, 1))
    return out


def twin_features(image, weights, num_blocks):
    """Return the features of one RGB image [h, w, 3] as Keras computes them."""
    pixels = image[:, :, ::-1] - np.array([103.939, 116.779, 123.68])
    x = twin_pool(np.maximum(twin_layer(pixels, weights, "conv1", "bn_conv1", stride=2), 0))
    for stage, num in enumerate(num_blocks, start=2):
        for block in "abcdef"[:num]:

            def branch(x, name, stride=1, place=f"{stage}{block}"):
                layer = f"{place}_branch{name}"
                return twin_layer(x, weights, f"res{layer}", f"bn{layer}", stride)

            stride = 2 if block == "a" and stage > 2 else 1
            inner = np.maximum(branch(x, "2a", stride), 0)
            inner = np.maximum(branch(inner, "2b"), 0)
            shortcut = branch(x, "1", stride) if block == "a" else x
            x = np.maximum(branch(inner, "2c") + shortcut, 0)
    return x.mean((0, 1))


@pytest.mark.parametrize("size", [24, 27])
def test_a_small_network_equals_the_slow_twin(tmp_path, write_tfjs, draw_images, size):
    num_blocks = (1, 2)
    weights = draw_weights(num_blocks, width=4)
    network = KerasResNet(num_blocks, width=4).eval()
    fill(network, keras_weights(read_tfjs(write_tfjs(tmp_path, weights, 1000))), "")
    images = draw_images(2, size=size)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CENTRED.mean, CENTRED.std))
    with torch.inference_mode():
        ours = network((images / 255 - mean) / std)
    for image, features in zip(images, ours, strict=True):
        expected = twin_features(image.permute(1, 2, 0).numpy(), weights, num_blocks)
        assert features.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory, write_tfjs):
    weights = draw_weights((3, 4, 6, 3), width=64)
    return write_tfjs(tmp_path_factory.mktemp("ResNet50"), weights, shard_bytes=4 << 20)


def test_the_whole_network_is_read(model, draw_images):
    assert len(list(model.parent.glob("*.bin"))) == 25
    assert sum(t.numel() for t in keras_weights(read_tfjs(model)).values()) == 23_587_712
    encoder = load_encoder(f"resnet50:{model}")
    features = encoder.embed(draw_images(2))
    assert features.shape == (2, encoder.dim) == (2, 2048)
    assert features.std() > 0
    assert not torch.equal(features[0], features[1])


def test_other_files_are_refused(model, tmp_path, write_tfjs):
    for shard in model.parent.glob("*.bin"):
        (tmp_path / shard.name).symlink_to(shard)
    copy = tmp_path / "model.json"
    copy.write_text(model.read_text())
    last = tmp_path / "group1-shard25of25.bin"
    last.unlink()
    with pytest.raises(SemmixError, match="a shard is missing"):
        load_encoder(f"resnet50:{copy}")
    last.write_bytes(b"1234")
    with pytest.raises(SemmixError, match="shards of the wrong length"):
        load_encoder(f"resnet50:{copy}")
    small = write_tfjs(tmp_path, draw_weights((1, 1), width=4), shard_bytes=1 << 20)
    with pytest.raises(SemmixError, match=r"conv1\.0\.weight is \(4, 3, 7, 7\), not \(64, 3, 7"):
        load_encoder(f"resnet50:{small}")
    with pytest.raises(SemmixError, match="no file here"):
        load_encoder(f"resnet50:{tmp_path}")
