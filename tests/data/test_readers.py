"""Small files of every official format, through the same door as the real ones."""

import gzip
import io
import json
import lzma
import struct
import tarfile
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.data import Split
from semmix.data.known import CATALOG, read_source
from semmix.data.readers import to_split


def random_split(num, num_classes, shape, seed):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (num, *shape), dtype=np.uint8)
    return Split(torch.from_numpy(images), torch.arange(num) % num_classes)


def promise(entry, train, test):
    """The catalogue's entry, as if the data set were these few images."""
    parts = {"train": train, "test": test}
    return replace(
        entry,
        num_images={part: len(split) for part, split in parts.items()},
        order_free_digests={part: split.order_free_digest for part, split in parts.items()},
        official_digests={part: split.digest for part, split in parts.items()},
    )


def hwc(split):
    return split.images.permute(0, 2, 3, 1).numpy()


@pytest.fixture
def cifar10():
    train = random_split(20, 10, (3, 32, 32), seed=1)
    test = random_split(20, 10, (3, 32, 32), seed=2)
    return promise(CATALOG["cifar10"], train, test), train, test


def records(split, num_label_bytes):
    labels = np.zeros((len(split), num_label_bytes), np.uint8)
    labels[:, -1] = split.labels.numpy()  # the coarse label, if any, comes first
    return np.concatenate([labels, split.images.flatten(1).numpy()], 1)


def tar_bytes(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def write_tar(path, files):
    path.write_bytes(gzip.compress(tar_bytes(files)))
    return path


def write_folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def binary_files(train, test):
    batches = np.array_split(records(train, 1), 5)
    files = {f"bin/data_batch_{k}.bin": b.tobytes() for k, b in enumerate(batches, 1)}
    return {**files, "bin/test_batch.bin": records(test, 1).tobytes()}


def npm_files(train, test):
    files = {f"package/data_batch_{k}.png": rows for k, rows in enumerate(png_rows(train, 5), 1)}
    return {
        "package/package.json": b"{}",
        **files,
        "package/test_batch.png": png_rows(test, 1)[0],
        "package/train_lables.json": json.dumps(train.labels.tolist()).encode(),
        "package/test_lables.json": json.dumps(test.labels.tolist()).encode(),
    }


def png_rows(split, num_files):
    files = []
    for pixels in np.array_split(hwc(split).reshape(len(split), 1024, 3), num_files):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    return files


def check_same(entry, source, train, test):
    parts = read_source(entry, source)
    assert parts.class_names == entry.class_names
    assert parts.splits["train"].digest == train.digest
    assert parts.splits["test"].digest == test.digest


@pytest.mark.parametrize("files_of", [binary_files, npm_files])
def test_cifar10_official_files_from_archive_and_folder(cifar10, tmp_path, files_of):
    entry, train, test = cifar10
    files = files_of(train, test)
    check_same(entry, write_tar(tmp_path / "archive.tgz", files), train, test)
    check_same(entry, write_folder(tmp_path / "folder", files), train, test)


@pytest.mark.parametrize("layout", [hwc, lambda split: split.images.numpy()])
def test_npz_in_both_layouts(cifar10, tmp_path, layout):
    entry, train, test = cifar10
    np.savez(
        tmp_path / "data.npz",
        train_images=layout(train),
        train_labels=train.labels.numpy()[:, None],
        test_images=layout(test),
        test_labels=test.labels.numpy().astype(np.uint8),
        class_names=np.array(entry.class_names),
    )
    check_same(entry, tmp_path / "data.npz", train, test)


def test_image_folder_and_a_shuffled_npz_lead_to_the_same_order(cifar10, tmp_path):
    entry, train, test = cifar10
    for part, split in {"train": train, "test": test}.items():
        for k, (pixels, label) in enumerate(zip(hwc(split), split.labels.tolist(), strict=True)):
            folder = tmp_path / "images" / part / entry.class_names[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{k}.png")
    np.savez(
        tmp_path / "shuffled.npz",
        train_images=hwc(train)[::-1],
        train_labels=train.labels.numpy()[::-1],
        test_images=hwc(test)[::-1],
        test_labels=test.labels.numpy()[::-1],
    )
    one = read_source(entry, tmp_path / "images")
    two = read_source(entry, tmp_path / "shuffled.npz")
    for part, split in {"train": train, "test": test}.items():
        assert one.splits[part].digest == two.splits[part].digest
        assert one.splits[part].order_free_digest == split.order_free_digest


def test_cifar100_takes_the_fine_labels(tmp_path):
    train = random_split(200, 100, (3, 32, 32), seed=1)
    test = random_split(100, 100, (3, 32, 32), seed=2)
    files = {"train.bin": records(train, 2).tobytes(), "test.bin": records(test, 2).tobytes()}
    source = write_tar(tmp_path / "cifar-100-binary.tar.gz", files)
    check_same(promise(CATALOG["cifar100"], train, test), source, train, test)


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_idx_files(tmp_path, packed):
    train = random_split(20, 10, (1, 28, 28), seed=1)
    test = random_split(10, 10, (1, 28, 28), seed=2)
    files = {}
    for prefix, split in {"train": train, "t10k": test}.items():
        header = struct.pack(">4B3i", 0, 0, 8, 3, len(split), 28, 28)
        files[f"{prefix}-images-idx3-ubyte"] = header + split.images.numpy().tobytes()
        header = struct.pack(">4Bi", 0, 0, 8, 1, len(split))
        files[f"{prefix}-labels-idx1-ubyte"] = header + bytes(split.labels.tolist())
    if packed:
        files = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    source = write_folder(tmp_path / "fashion", files)
    check_same(promise(CATALOG["fashion-mnist"], train, test), source, train, test)


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\x08", b"\0\0\x08\x03\0", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x0d\x01\0\0\0\x03abc"]
)
def test_damaged_idx_file_is_named(tmp_path, data):
    source = write_folder(tmp_path / "fashion", {"train-images-idx3-ubyte": data})
    with pytest.raises(SemmixError, match="train-images-idx3-ubyte"):
        read_source(CATALOG["fashion-mnist"], source)


@pytest.mark.parametrize("length", [5, 2**32 - 1])
def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch, length):
    monkeypatch.setattr("semmix.data.readers.FASHION_BYTES", 2**20)
    bomb = gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, length) + bytes(50 * 2**20))
    source = write_folder(tmp_path / "fashion", {"train-images-idx3-ubyte.gz": bomb})
    tracemalloc.start()
    with pytest.raises(SemmixError, match="as many bytes as its header says"):
        read_source(CATALOG["fashion-mnist"], source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


def jpeg(colour, mode="RGB", size=(64, 64)):
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def tiny_files():
    """Three classes of two training images, four val images in an order of their own."""
    files = {
        "t/wnids.txt": b"n03\nn01\nn02\n",
        "t/words.txt": b"n01\tcrane\nn02\tcrane, bird\nn03\tgoldfish, Carassius auratus\n\n",
        "t/val/val_annotations.txt": b"".join(
            f"val_{k}.JPEG\t{wnid}\t0\t0\t9\t9\n".encode() for k, wnid in enumerate(["n02", "n03", "n01", "n02"])
        )
        + b"\n",
        **{f"t/val/images/val_{k}.JPEG": jpeg((10 * k, 0, 0)) for k in (3, 1, 2)},
        "t/val/images/val_0.JPEG": jpeg(77, "L"),
    }
    for k, wnid in enumerate(["n01", "n02", "n03"]):
        for i in range(2):
            files[f"t/train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg((0, 100 * k, 50 * i))
        files[f"t/train/{wnid}/{wnid}_boxes.txt"] = b""
    return files


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_tiny_imagenet(tiny_files, tmp_path):
    entry = replace(CATALOG["tiny-imagenet"], num_images={"train": 6, "test": 4})
    for source in (write_zip(tmp_path / "t.zip", tiny_files), write_folder(tmp_path / "f", tiny_files)):
        parts = read_source(entry, source)
        assert parts.class_names == ("crane", "crane, bird", "goldfish")
        train, test = parts.splits["train"], parts.splits["test"]
        assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert test.labels.tolist() == [1, 2, 0, 1]
        np.testing.assert_allclose(train.images[3].float().mean((1, 2)), [0, 100, 50], atol=4)
        assert (test.images[0] == 77).all()  # grey fills the three channels


def test_tiny_imagenet_images_stand_upright_in_the_order_of_their_names(tiny_files, tmp_path):
    """However the archive is packed; the top is black, the bottom left white."""
    picture = Image.new("L", (64, 64))
    picture.paste(255, (0, 32, 32, 64))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95)
    files = {**tiny_files, "t/train/n02/images/n02_1.JPEG": file.getvalue()}
    source = write_zip(tmp_path / "t.zip", dict(reversed(files.items())))
    entry = replace(CATALOG["tiny-imagenet"], num_images={"train": 6, "test": 4})
    train = read_source(entry, source).splits["train"]
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(train.images[3], np.asarray(picture)[None].repeat(3, 0), atol=40)


def test_tiny_imagenet_val_alone(tiny_files, tmp_path):
    files = {name: data for name, data in tiny_files.items() if "/train/" not in name}
    source = write_zip(tmp_path / "val.zip", files)
    parts = read_source(replace(CATALOG["tiny-imagenet-val"], num_images={"test": 4}), source)
    assert list(parts.splits) == ["test"]
    with pytest.raises(SemmixError, match="tiny-imagenet-val"):
        read_source(CATALOG["tiny-imagenet"], source)


def test_tiny_imagenet_with_missing_or_unknown_images(tiny_files, tmp_path):
    entry = replace(CATALOG["tiny-imagenet-val"], num_images={"test": 4})
    lines = tiny_files["t/val/val_annotations.txt"]
    unknown = {**tiny_files, "t/val/val_annotations.txt": lines.replace(b"n03", b"n99")}
    with pytest.raises(SemmixError, match="unknown class n99"):
        read_source(entry, write_zip(tmp_path / "unknown.zip", unknown))
    small = {**tiny_files, "t/val/images/val_1.JPEG": jpeg(0, size=(1, 1))}
    with pytest.raises(SemmixError, match=r"val_1.JPEG has \(1, 1\) pixels"):
        read_source(entry, write_zip(tmp_path / "small.zip", small))
    broken = {**tiny_files, "t/val/images/val_1.JPEG": b"\xff\xd8"}
    with pytest.raises(SemmixError, match=r"val_1.JPEG is unreadable"):
        read_source(entry, write_zip(tmp_path / "broken.zip", broken))
    del tiny_files["t/val/images/val_2.JPEG"]
    with pytest.raises(SemmixError, match=r"1 images such as val_2.JPEG are missing"):
        read_source(entry, write_zip(tmp_path / "missing.zip", tiny_files))


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_text_that_is_not_utf8_is_named(tiny_files, tmp_path, name):
    source = write_zip(tmp_path / "t.zip", {**tiny_files, f"t/{name}": b"n01\tgr\xfcn\n"})
    with pytest.raises(SemmixError, match=rf"{name}: 'utf-8'(.|\n)*text in UTF-8"):
        read_source(CATALOG["tiny-imagenet-val"], source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.array(["cow", "pig"])}, "whole numbers: <U3 .*'cow'"),
        ({"train_labels": np.array([0.0, np.nan])}, "whole numbers: float64 .*nan"),
        ({"test_labels": np.array([0.5, 1.0])}, "whole numbers: float64 .*0.5"),
        ({"class_names": np.array("cow")}, r"class_names has the shape \(\)"),
    ],
)
def test_arrays_of_the_wrong_kind_are_named(tmp_path, changes, message):
    images, labels = np.zeros((2, 32, 32, 3), np.uint8), np.arange(2)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images}
    np.savez(tmp_path / "data.npz", **{**arrays, "test_labels": labels, **changes})
    with pytest.raises(SemmixError, match=message):
        read_source(CATALOG["cifar10"], tmp_path / "data.npz")


@pytest.mark.parametrize("labels", [[[1.0], [0.0]], ["1", "0"], [True, False]])
def test_labels_may_stand_for_whole_numbers(labels):
    split = to_split(np.zeros((2, 8, 8), np.uint8), np.array(labels))
    assert split.labels.tolist() == [1, 0]


def test_labels_that_are_partly_numbers_are_refused():
    with pytest.raises(SemmixError, match="whole numbers"):
        to_split(np.zeros((2, 8, 8), np.uint8), np.array(["1", "cow"]))


def test_grey_images_may_have_their_channel_last_first_or_not_at_all():
    pixels = np.arange(2 * 8 * 5, dtype=np.uint8).reshape(2, 8, 5)
    for images in (pixels, pixels[..., None], pixels[:, None]):
        assert np.array_equal(to_split(images, np.arange(2)).images, pixels[:, None])


@pytest.mark.parametrize("images", [np.zeros((2, 8, 8)), np.zeros((2, 64), np.uint8)])
def test_images_of_another_kind_are_refused(images):
    with pytest.raises(SemmixError, match="images must be uint8"):
        to_split(images, np.arange(2))


def test_one_wrong_pixel_or_label_is_noticed(cifar10, tmp_path):
    entry, train, test = cifar10
    repainted = Split(train.images.clone(), train.labels)
    repainted.images[7, 1, 2, 3] ^= 1
    relabelled = Split(train.images, train.labels.roll(1))
    for name, wrong in {"pixel": repainted, "label": relabelled}.items():
        source = write_folder(tmp_path / name, binary_files(wrong, test))
        with pytest.raises(SemmixError, match=r"train images of .* are not those of CIFAR-10"):
            read_source(entry, source)


def test_missing_images_are_counted(cifar10, tmp_path):
    entry, train, test = cifar10
    source = write_folder(tmp_path / "few", binary_files(train, test.select(torch.arange(19))))
    with pytest.raises(SemmixError, match="test images of CIFAR-10: 19 of"):
        read_source(entry, source)


def test_other_class_names_are_refused(cifar10, tmp_path):
    entry, train, test = cifar10
    np.savez(
        tmp_path / "data.npz",
        train_images=hwc(train),
        train_labels=train.labels,
        class_names=np.array(["cow", "pig"]),
        test_images=hwc(test),
        test_labels=test.labels,
    )
    with pytest.raises(SemmixError, match=r"the classes of .*: cow, pig"):
        read_source(entry, tmp_path / "data.npz")


def test_pickled_arrays_are_refused(tmp_path):
    labels = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "evil.npz", train_images=labels, train_labels=labels)
    with pytest.raises(SemmixError, match="a plain NumPy array"):
        read_source(CATALOG["cifar10"], tmp_path / "evil.npz")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("bin/data_batch_2.bin", b"short", "data_batch_2.bin has 5 bytes"),
        ("bin/data_batch_2.bin", b"", "data_batch_2.bin has 0 bytes"),
        ("package/data_batch_2.png", jpeg(0, size=(512, 2)), r"rows of \(512, 3\)"),
        ("package/data_batch_3.png", b"", "data_batch_3.png is empty"),
        ("package/train_lables.json", b"{", "a JSON list of numbers"),
    ],
)
def test_damaged_official_files_are_named(cifar10, tmp_path, name, data, message):
    entry, train, test = cifar10
    files = binary_files(train, test) if name.endswith("bin") else npm_files(train, test)
    with pytest.raises(SemmixError, match=message):
        read_source(entry, write_folder(tmp_path / "damaged", {**files, name: data}))


def test_absent_official_file_is_named(cifar10, tmp_path):
    entry, train, test = cifar10
    files = binary_files(train, test)
    del files["bin/data_batch_4.bin"]
    with pytest.raises(SemmixError, match=r"lacks a file: data_batch_4.bin"):
        read_source(entry, write_folder(tmp_path / "absent", files))


def test_damaged_archives(cifar10, tmp_path):
    entry, train, test = cifar10
    whole = write_tar(tmp_path / "whole.tgz", binary_files(train, test)).read_bytes()
    (tmp_path / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SemmixError, match="cannot read"):
        read_source(entry, tmp_path / "cut.tgz")
    (tmp_path / "noise.bin").write_bytes(b"noise")
    with pytest.raises(SemmixError, match="neither a folder nor an archive"):
        read_source(entry, tmp_path / "noise.bin")
    with pytest.raises(SemmixError, match="no such file"):
        read_source(entry, tmp_path / "absent.tgz")


def test_a_damaged_xz_archive(cifar10, tmp_path):
    entry, train, test = cifar10
    whole = lzma.compress(tar_bytes(binary_files(train, test)))
    half = len(whole) // 2
    (tmp_path / "bad.tar.xz").write_bytes(whole[:half] + bytes(50) + whole[half + 50 :])
    with pytest.raises(SemmixError, match="cannot read"):
        read_source(entry, tmp_path / "bad.tar.xz")


@pytest.mark.parametrize(
    ("local", "central", "value", "message"),
    [(6, 8, 1, "is encrypted"), (8, 10, 99, "compression method is not supported"), (4, 6, 99, "zip file version 9.9")],
)
def test_zips_that_python_cannot_unpack(tmp_path, local, central, value, message):
    source = write_zip(tmp_path / "data.npz", {"train_images.npy": b"numbers"})
    data = bytearray(source.read_bytes())
    data[data.find(b"PK\1\2") + central] = data[data.find(b"PK\3\4") + local] = value
    source.write_bytes(data)
    with pytest.raises(SemmixError, match=rf"{message}.*\n.*unpack it"):
        read_source(CATALOG["cifar10"], source)


@pytest.mark.parametrize("shape", [(10**13,), (10**30,), (-1,), (2**62, 2**62)])
def test_an_array_that_claims_more_than_there_is(tmp_path, shape):
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    source = write_zip(tmp_path / "huge.npz", {"train_images.npy": file.getvalue()})
    with pytest.raises(SemmixError, match="a plain NumPy array"):
        read_source(CATALOG["cifar10"], source)


@pytest.mark.parametrize("entry", CATALOG.values(), ids=list(CATALOG))
def test_a_strange_folder_is_told_what_could_be_read(entry, tmp_path):
    with pytest.raises(SemmixError, match="it can be read from"):
        read_source(entry, tmp_path)


@pytest.mark.parametrize(("name", "num_classes"), [("cifar10", 10), ("cifar100", 100), ("fashion-mnist", 10)])
def test_class_names_are_complete(name, num_classes):
    names = CATALOG[name].class_names
    assert len(set(names)) == len(names) == num_classes
