import os
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.data import check_data, load_dataset
from semmix.data.image_folder import check_folder, read_folder


def test_undivided_folder_is_split_by_class(make_folder):
    dataset = load_dataset(make_folder(per_class=20))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.image_shape == (3, 8, 8)
    assert dataset.train.class_counts(2) == [14, 14]
    assert dataset.val.class_counts(2) == dataset.test.class_counts(2) == [3, 3]
    whole = [set(split.image_digests) for split in dataset.splits.values()]
    assert len(set.union(*whole)) == 40
    assert dataset.train.digest == load_dataset(str(make_folder("same", per_class=20))).train.digest


def test_pixels_and_labels_arrive(make_folder):
    folder = make_folder(per_class=3)
    parts, _ = read_folder(folder)
    expected = np.asarray(Image.open(folder / "dog" / "001.png"))
    row = 3 + 1
    np.testing.assert_array_equal(parts.splits[""].images[row].permute(1, 2, 0), expected)
    assert parts.splits[""].labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_own_train_val_and_test_are_used_as_they_are(make_folder):
    for part, count in {"train": 6, "val": 4, "test": 2}.items():
        folder = make_folder(f"photos/{part}", per_class=count)
    dataset = load_dataset(folder.parent)
    assert [len(split) for split in dataset.splits.values()] == [12, 8, 4]


@pytest.mark.parametrize("held_out", ["val", "test"])
@pytest.mark.parametrize(("protocol", "sizes"), [("code", [36, 4, 20]), ("paper", [40, 10, 10])])
def test_train_and_one_other_part_follow_the_protocol(make_folder, held_out, protocol, sizes):
    make_folder("photos/train", per_class=20)
    folder = make_folder(f"photos/{held_out}", per_class=10)
    dataset = load_dataset(folder.parent, protocol=protocol)
    assert [len(split) for split in dataset.splits.values()] == sizes


def test_sizes_of_held_out_parts_are_rounded(make_folder):
    dataset = load_dataset(make_folder(per_class=12))
    assert [len(split) for split in dataset.splits.values()] == [16, 4, 4]  # 3.6 of 24
    make_folder("divided/train", per_class=8)
    folder = make_folder("divided/test", per_class=2).parent
    assert [len(split) for split in load_dataset(folder).splits.values()] == [14, 2, 4]  # 1.6 of 16


@pytest.mark.parametrize("divided", [False, True])
def test_at_most_half_of_a_class_is_held_out(make_folder, divided):
    """Two of three images are copies: where they were held out, one would be left to learn from."""
    folder = make_folder("photos/train" if divided else "photos", "abcdefgh", per_class=3)
    for path in folder.glob("*/000.png"):
        shutil.copy(path, path.with_name("001.png"))
    if divided:
        folder = make_folder("photos/test", "abcdefgh", per_class=1).parent
    for seed in range(8):
        counts = load_dataset(folder, seed=seed).train.class_counts(8)
        assert min(counts) == 2
        assert sum(counts) == 24 - (2 if divided else 8)


@pytest.mark.parametrize("val", ["valid", "validation", "dev", "Val"])
def test_parts_go_by_the_names_they_have_in_tables(make_folder, val):
    for part, count in {"Training": 6, val: 4, "testing": 2}.items():
        folder = make_folder(f"photos/{part}", per_class=count)
    dataset = load_dataset(folder.parent)
    assert [len(split) for split in dataset.splits.values()] == [12, 8, 4]


def test_what_lies_beside_the_parts_is_listed_as_ignored(make_folder):
    for part in ("train", "test", "holdout", ".cache"):
        folder = make_folder(f"photos/{part}", per_class=2).parent
    (folder / "read me.txt").write_text("not an image")
    report = check_folder(folder)
    assert report.ignored == ["holdout", "read me.txt"]
    assert report.num_images.keys() == {(p, c) for p in ("train", "test") for c in ("cat", "dog")}


def test_a_class_may_be_called_train(make_folder):
    dataset = load_dataset(make_folder(classes=("ship", "test", "train")))
    assert dataset.class_names == ("ship", "test", "train")


def test_grey_folder_stays_grey_and_a_mixed_one_becomes_rgb(make_folder):
    folder = make_folder(per_class=5)
    for path in folder.glob("*/*.png"):
        Image.open(path).convert("L").save(path)
    assert load_dataset(folder).image_shape == (1, 8, 8)
    Image.new("RGB", (8, 8), "red").save(folder / "cat" / "red.png")
    parts, _ = read_folder(folder)
    images = parts.splits[""].images
    assert images.shape[1] == 3
    assert torch.equal(images[0, 0], images[0, 2])


def test_different_sizes_need_a_size(make_folder):
    folder = make_folder()
    Image.new("RGB", (30, 20)).save(folder / "dog" / "wide.jpg")
    with pytest.raises(SemmixError, match=r"differ in size: 000.png is 8 x 8, wide.jpg is 30 x 20"):
        load_dataset(folder)
    assert load_dataset(folder, size=16).image_shape == (3, 16, 16)


def test_unicode_names(make_folder):
    folder = make_folder(classes=("Äpfel", "猫"))
    assert load_dataset(folder).class_names == ("Äpfel", "猫")


def test_names_that_are_not_text_are_reported_readably(make_folder, capsys):
    folder = make_folder()
    with open(os.fsencode(folder / "cat") + b"/bad-\xff.png", "wb"):
        pass
    load_dataset(folder)
    assert r"cat/bad-\xff.png: 0 bytes" in capsys.readouterr().out


def test_names_cannot_command_the_terminal(make_folder, capsys):
    folder = make_folder()
    (folder / "cat" / "\x1b[2J\n.png").write_bytes(b"")
    (folder / "dog" / "\x1b[2J.txt").write_bytes(b"")
    assert check_data(str(folder)) == 1
    told = capsys.readouterr().out
    assert "cat/?[2J?.png: 0 bytes" in told
    assert "dog/?[2J.txt" in told
    assert "\x1b" not in told
    with pytest.raises(SemmixError, match=r"cat/\?\[2J\?\.png"):
        load_dataset(folder, strict=True)


def spoil(folder):
    """Add one file of every bad kind to the class `cat`."""
    cat = folder / "cat"
    good = (cat / "000.png").read_bytes()
    (cat / "zero.png").write_bytes(b"")
    (cat / "cut.png").write_bytes(good[:100])
    (cat / "text.jpg").write_text("hello")
    (cat / "loop.webp").symlink_to(cat / "loop.webp")
    (cat / "folder.png").mkdir()
    os.mkfifo(cat / "pipe.png")
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(cat / "moving.webp", save_all=True, append_images=frames[1:])
    (cat / "notes.txt").write_text("not an image")
    (cat / ".hidden").write_text("nobody asks")


def test_bad_files_are_named_counted_and_skipped(make_folder, capsys):
    folder = make_folder()
    spoil(folder)
    report = check_folder(folder)
    assert Counter(bad.kind for bad in report.problems) == {"empty": 1, "truncated": 1, "unreadable": 4, "animated": 1}
    assert {bad.path for bad in report.skipped} == {
        f"cat/{name}"
        for name in ("zero.png", "cut.png", "text.jpg", "loop.webp", "folder.png", "pipe.png", "moving.webp")
    }
    assert report.ignored == ["cat/notes.txt"]
    assert report.num_images == {("", "cat"): 10, ("", "dog"): 10}

    dataset = load_dataset(folder)
    assert sum(len(split) for split in dataset.splits.values()) == 20
    printed = capsys.readouterr().out
    assert "unreadable, skipped: 4" in printed
    assert "cat/moving.webp: 2 frames" in printed


def test_bitmaps_and_gifs_are_read_of_an_animated_one_the_first_picture(make_folder, capsys):
    folder = make_folder()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "cat" / "moving.gif", save_all=True, append_images=frames[1:])
    frames[1].save(folder / "dog" / "still.gif")
    frames[1].save(folder / "dog" / "map.BMP")
    report = check_folder(folder)
    assert report.num_images == {("", "cat"): 11, ("", "dog"): 12}
    assert [(bad.path, bad.kind) for bad in report.problems] == [("cat/moving.gif", "warning")]
    dataset = load_dataset(folder, strict=True)
    assert sum(len(split) for split in dataset.splits.values()) == 23
    assert "warning, kept: 1\n    cat/moving.gif: animated: its first picture is read" in capsys.readouterr().out


def test_strict_refuses_what_would_be_skipped(make_folder):
    folder = make_folder()
    load_dataset(folder, strict=True)
    spoil(folder)
    with pytest.raises(SemmixError, match="7 files cannot be used") as caught:
        load_dataset(folder, strict=True)
    assert caught.value.seen == (  # the first five
        "cat/cut.png (truncated); cat/folder.png (unreadable); cat/loop.webp (unreadable); "
        "cat/moving.webp (animated); cat/pipe.png (unreadable)"
    )


def test_check_tells_by_its_value_and_shortens_long_lists(make_folder, capsys):
    folder = make_folder()
    assert check_data(str(folder)) == 0
    for k in range(8):
        (folder / "dog" / f"zero{k}.png").write_bytes(b"")
    assert check_data(str(folder)) == 1
    printed = capsys.readouterr().out
    assert "empty, skipped: 8" in printed
    assert "and 3 more" in printed


def test_report_shows_parts_and_sizes(make_folder):
    make_folder("photos/train", per_class=4)
    folder = make_folder("photos/test", per_class=2, size=(5, 9)).parent
    lines = check_folder(folder).lines()
    assert lines[0].endswith("12 images in 2 classes")
    assert lines[1:] == ["  train: 8", "  test: 4", "  2 sizes, most often 8 x 8"]


def test_loops_of_links_end(make_folder):
    folder = make_folder()
    (folder / "loop").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    assert load_dataset(folder).class_names == ("cat", "dog")


def test_hidden_and_empty_folders_are_no_classes(make_folder):
    folder = make_folder()
    for name in (".git", "__MACOSX", "__pycache__", "empty"):
        (folder / name).mkdir()
    for name in (".git", "__MACOSX"):
        shutil.copy(folder / "cat" / "000.png", folder / name / "a.png")
    assert load_dataset(folder).class_names == ("cat", "dog")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_closed_class_folder_is_named(make_folder):
    folder = make_folder(classes=("cat", "cow", "dog"))
    (folder / "cow").chmod(0)
    try:
        report = check_folder(folder)
    finally:
        (folder / "cow").chmod(0o755)
    assert [(bad.path, bad.kind) for bad in report.skipped] == [("cow", "unreadable")]
    assert report.num_images.total() == 20


def test_folder_without_images(tmp_path):
    assert check_data(str(tmp_path)) == 1
    with pytest.raises(SemmixError, match="no images found"):
        load_dataset(tmp_path)


def test_missing_folder(tmp_path):
    with pytest.raises(SemmixError, match="no such folder"):
        load_dataset(tmp_path / "nothing")


def test_too_few_images_to_split(make_folder):
    with pytest.raises(SemmixError, match="no images are left for the val split: 2 images"):
        load_dataset(make_folder(per_class=1))


def test_no_usable_training_image(make_folder):
    folder = make_folder("photos/train", per_class=1).parent
    make_folder("photos/test")
    for path in folder.glob("train/*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(SemmixError, match="no usable training image"):
        load_dataset(folder)


def test_class_without_training_images(make_folder):
    make_folder("photos/train", classes=("cat", "dog"))
    folder = make_folder("photos/test", classes=("cat", "cow"))
    with pytest.raises(SemmixError, match="without a training image: cow"):
        load_dataset(folder.parent)


def test_one_image_over_the_memory_limit_is_enough(make_folder, monkeypatch):
    monkeypatch.setattr("semmix.data.image_folder.MAX_TOTAL_BYTES", 1000)
    with pytest.raises(SemmixError, match=r"more than 1000 bytes of memory: 8 x 8 .*\n.*give a smaller size"):
        load_dataset(make_folder())
    assert load_dataset(make_folder("small"), size=4).image_shape == (3, 4, 4)


def test_images_in_folders_within_a_class_are_found(make_folder):
    folder = make_folder(per_class=10)
    deep = folder / "cat" / "2024" / "spring"
    deep.mkdir(parents=True)
    for path in sorted((folder / "cat").glob("00[0-4].png")):
        path.rename(deep / path.name)
    (deep / "up").symlink_to(folder / "cat")
    (folder / "dog" / "all").symlink_to(folder)
    report = check_folder(folder)
    assert report.num_images == {("", "cat"): 10, ("", "dog"): 10}
    assert report.ignored == ["cat/2024/spring/up", "dog/all"]


def test_copies_stay_on_one_side_of_the_split(make_folder):
    folder = make_folder(per_class=30, size=(16, 16))
    for k in range(12):
        image = Image.open(folder / "cat" / f"{k:03d}.png")
        for copy in range(3):
            image.save(folder / ("dog" if copy == 2 else "cat") / f"copy-{copy}-{k:03d}.png")
    dataset = load_dataset(folder)
    pixels = {name: {image.numpy().tobytes() for image in split.images} for name, split in dataset.splits.items()}
    assert sum(len(split) for split in dataset.splits.values()) == 96
    assert not pixels["train"] & (pixels["val"] | pixels["test"])
    assert not pixels["val"] & pixels["test"]
    assert min(len(dataset.val), len(dataset.test)) > 9


def test_copies_across_ones_own_parts_stay_but_are_named(make_folder, capsys):
    make_folder("photos/train", per_class=20)
    folder = make_folder("photos/test", per_class=4, size=(16, 16)).parent
    load_dataset(folder, size=8)
    assert "copied" not in capsys.readouterr().out
    for copy in ("train/cat/again.png", "test/dog/seen.png"):
        shutil.copy(folder / "train" / "cat" / "000.png", folder / copy)
    for limit in (None, 0):
        load_dataset(folder, size=8, max_resident_gib=limit, strict=True)
        printed = capsys.readouterr().out
        assert "copied across parts, kept: 1" in printed
        assert "train/cat/000.png: in train, its copy test/dog/seen.png in test" in printed


def test_very_long_and_odd_names(make_folder):
    folder = make_folder(classes=("n" * 250, "Katzen und Füchse 🦊"))
    (folder / ("n" * 250) / "000.png").rename(folder / ("n" * 250) / ("ü" * 125 + ".png"))
    assert load_dataset(folder).class_names == ("Katzen und Füchse 🦊", "n" * 250)


def test_folders_that_teach_nothing_get_advice(make_folder, capsys):
    folder = make_folder(classes=("cat",))
    (folder / "loose.png").write_bytes((folder / "cat" / "000.png").read_bytes())
    assert check_data(str(folder)) == 1
    told = capsys.readouterr().out
    assert "two folders at least" in told
    assert "loose.png" in told


def test_images_of_other_kinds_are_told_which_are_read(make_folder, capsys):
    folder = make_folder()
    for file in list(folder.rglob("*.png")):
        Image.open(file).save(file.with_suffix(".tif"))
        file.unlink()
    assert check_data(str(folder)) == 1
    assert ".png, .jpg, .jpeg, .webp, .bmp, .gif files" in capsys.readouterr().out
    next(folder.rglob("*.tif")).rename(folder / "cat" / "misnamed.png")
    assert check_data(str(folder)) == 1
    assert "misnamed.png: not a PNG, JPEG, WebP, BMP or GIF file" in capsys.readouterr().out


def test_a_table_whose_paths_lead_nowhere_gets_advice_on_paths(tmp_path, capsys):
    table = tmp_path / "labels.csv"
    table.write_text("path,label\ncat\\1.png,cat\ndog\\1.png,dog\n")
    assert check_data(str(table)) == 1
    assert "paths from the table's own folder" in capsys.readouterr().out
    with pytest.raises(SemmixError, match="paths from the table's own folder"):
        load_dataset(table)


def test_digits_need_no_check(capsys):
    assert check_data("digits") == 0
    assert "scikit-learn" in capsys.readouterr().out
