import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.data import Dataset, Split


def slow_digest(split):
    total = hashlib.sha256()
    images = split.images.numpy()
    num, channels, height, width = images.shape
    total.update(f"({num}, {height}, {width}, {channels})|".encode())
    for image in images:
        for y in range(height):
            for x in range(width):
                total.update(bytes(int(image[c, y, x]) for c in range(channels)))
    for label in split.labels.tolist():
        total.update(label.to_bytes(8, "little"))
    return total.hexdigest()


def slow_order_free_digest(split):
    digests = []
    for image, label in zip(split.images.numpy(), split.labels.tolist(), strict=True):
        digests.append(hashlib.sha256(bytes([label]) + image.transpose(1, 2, 0).tobytes()).digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


@pytest.mark.parametrize("shape", [(1, 3, 5), (3, 4, 4)])
def test_digests_agree_with_their_slow_twins(make_split, shape):
    split = make_split(shape=shape, per_class=3)
    assert split.digest == slow_digest(split)
    assert split.order_free_digest == slow_order_free_digest(split)


def test_digest_sees_pixels_labels_and_order_and_the_other_one_not_the_order(make_split):
    split = make_split()
    shuffled = split.select(torch.randperm(len(split), generator=torch.Generator().manual_seed(1)))
    assert shuffled.digest != split.digest
    assert shuffled.order_free_digest == split.order_free_digest

    relabelled = Split(split.images, split.labels.roll(1))
    assert relabelled.digest != split.digest
    assert relabelled.order_free_digest != split.order_free_digest

    repainted = Split(split.images.clone(), split.labels)
    repainted.images[0, 0, 0, 0] ^= 1
    assert repainted.digest != split.digest
    assert repainted.order_free_digest != split.order_free_digest


def test_digest_does_not_depend_on_memory_layout(make_split):
    split = make_split()
    strided = Split(split.images.contiguous(memory_format=torch.channels_last), split.labels)
    assert strided.digest == split.digest
    assert strided.order_free_digest == split.order_free_digest


def test_order_free_digest_takes_more_than_256_classes():
    images = torch.zeros(2, 1, 1, 1, dtype=torch.uint8)
    near = Split(images, torch.tensor([0, 255]))
    far = Split(images, torch.tensor([0, 255 + 256]))
    assert near.order_free_digest != far.order_free_digest


def test_channel_stats_agree_with_numpy(make_split):
    split = make_split(per_class=2000)  # more images than are summed at a time
    mean, std = split.channel_stats()
    pixels = split.images.numpy() / 255
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), atol=1e-12)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), atol=1e-12)


@pytest.mark.parametrize("value", [0, 77, 255])  # 77: the mean of squares is rounded
def test_constant_channel_is_not_blown_up(make_split, value):
    split = make_split()
    split.images[:, 1] = value
    mean, std = split.channel_stats()
    assert mean[1] == pytest.approx(value / 255)
    assert std[1] == 1
    assert max(std[0], std[2]) < 0.5  # channels that show something stay as they are


def test_channel_stats_of_nothing_is_an_error(make_split):
    with pytest.raises(SemmixError, match="empty split"):
        make_split().select(torch.arange(0)).channel_stats()


def test_classes_without_images_are_counted_too(make_split):
    assert make_split(num_classes=2, per_class=3).class_counts(4) == [3, 3, 0, 0]


@pytest.mark.parametrize(("size", "off"), [(5, 1), (24, 15)])
def test_resized_is_pillows_antialiased_bicubic(make_split, size, off):
    """But for rounding; and enlarged, Pillow also cuts off what overshoots along the rows."""
    split = make_split(per_class=2, shape=(3, 16, 16))
    for old, new in zip(split.images, split.resized(size).images, strict=True):
        picture = Image.fromarray(old.permute(1, 2, 0).numpy())
        expected = np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC), int)
        assert np.abs(new.permute(1, 2, 0).numpy() - expected).max() <= off


def test_resized_keeps_flat_colours_and_labels():
    images = torch.tensor([10, 200], dtype=torch.uint8).reshape(2, 1, 1, 1).expand(2, 3, 8, 8)
    split = Split(images, torch.tensor([1, 0])).resized(4)
    assert split.images.shape == (2, 3, 4, 4)
    assert (split.images[0] == 10).all()
    assert (split.images[1] == 200).all()
    assert split.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "images must be uint8"),
        (torch.zeros(2, 3, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "images must"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2), "labels must be int64"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "labels must"),
    ],
)
def test_wrong_types_and_shapes_are_refused(images, labels, message):
    with pytest.raises(SemmixError, match=message):
        Split(images, labels)


def test_describe_names_what_is_there(make_split):
    train, val, test = make_split(seed=1), make_split(seed=2), make_split(seed=3)
    dataset = Dataset("toy", ("a", "b", "c", "d"), train, val, test)
    found = dataset.describe()
    assert found["num_classes"] == dataset.num_classes == 4
    assert found["image_shape"] == [3, 6, 6]
    assert found["splits"]["val"] == {"num_images": 100, "digest": val.digest}
