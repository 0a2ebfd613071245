"""Folders that do not fit in memory are the same data sets, read from their files."""

import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.data import load_dataset
from semmix.data.decoding import StreamedImages, read_ahead


def both(folder, **options):
    streamed = load_dataset(folder, max_resident_gib=0, **options)
    assert isinstance(streamed.train.images, StreamedImages)
    return load_dataset(folder, **options), streamed


@pytest.mark.parametrize("options", [{}, {"size": 4}, {"train_size": 8}, {"imbalance": 2.0}])
def test_streamed_splits_are_those_in_memory(make_folder, options):
    resident, streamed = both(make_folder(per_class=20), **options)
    assert streamed.describe() == resident.describe()
    assert streamed.train.channel_stats() == resident.train.channel_stats()
    assert torch.equal(streamed.val.labels, resident.val.labels)


def test_images_come_by_index_in_order(make_folder):
    resident, streamed = both(make_folder(per_class=20))
    order = torch.randperm(len(resident.train), generator=torch.Generator().manual_seed(0))
    batches = list(streamed.train.images.batches(order.split(5)))
    assert len(batches) == 6  # 28 images
    assert torch.equal(torch.cat(batches), resident.train.images[order])


def test_grey_stays_grey_and_fills_three_channels_beside_colour(make_folder):
    folder = make_folder(per_class=10)
    for path in folder.glob("*/*.png"):
        Image.open(path).convert("L").save(path)
    resident, streamed = both(folder)
    assert streamed.image_shape == (1, 8, 8)
    assert streamed.train.digest == resident.train.digest
    Image.new("RGB", (8, 8), "red").save(folder / "dog" / "red.png")
    resident, streamed = both(folder)
    assert streamed.image_shape == (3, 8, 8)
    assert streamed.train.digest == resident.train.digest


@pytest.mark.parametrize("ahead", [0, 2])
def test_no_more_than_the_next_batches_are_read_ahead(ahead):
    taken = []
    batches = (taken.append(k) or [k, k + 1] for k in range(6))
    squares = read_ahead(lambda k: k * k, batches, ahead)
    for k in range(6):
        assert next(squares) == [k * k, (k + 1) ** 2]
        assert len(taken) == min(k + 1 + ahead, 6)
    assert list(squares) == []


def test_streamed_images_and_their_splits_print_in_one_line(make_folder):
    _, streamed = both(make_folder(per_class=20))
    assert repr(streamed.val) == "Split(6 images of 3 x 8 x 8)"
    assert repr(streamed) == "Dataset('photos': 28 train, 6 val, 6 test, 2 classes, 3 x 8 x 8)"
    assert len(repr(streamed.val.images)) < 100


def test_what_fits_is_read_into_memory(make_folder):
    folder = make_folder(per_class=10)  # 20 images of 192 bytes
    for limit, resident in ((3840, True), (3839, False)):
        dataset = load_dataset(folder, max_resident_gib=limit / 2**30)
        assert isinstance(dataset.train.images, torch.Tensor) is resident


def test_one_colour_image_counts_for_all_and_grey_ones_for_themselves(make_folder):
    folder = make_folder(per_class=10)
    files = sorted(folder.glob("*/*.png"))
    for path in files[:-1]:
        Image.open(path).convert("L").save(path)
    limit = (20 * 8 * 8 * 3 - 1) / 2**30
    assert isinstance(load_dataset(folder, max_resident_gib=limit).train.images, StreamedImages)
    Image.open(files[-1]).convert("L").save(files[-1])
    assert isinstance(load_dataset(folder, max_resident_gib=limit).train.images, torch.Tensor)


def test_unusable_files_are_named(make_folder):
    folder = make_folder(per_class=10)
    (folder / "cat" / "004.png").write_bytes(b"")
    with pytest.raises(SemmixError, match=r"004\.png: empty"):
        load_dataset(folder, max_resident_gib=0)
    Image.new("RGB", (9, 8)).save(folder / "cat" / "004.png")
    with pytest.raises(SemmixError, match=r"differ in size: 004\.png is 9 x 8"):
        load_dataset(folder, max_resident_gib=0)


def test_no_images_at_all(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    with pytest.raises(SemmixError, match="no images found"):
        load_dataset(tmp_path / "photos", max_resident_gib=0)
