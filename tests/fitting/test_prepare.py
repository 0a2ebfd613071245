"""Folders as people have them: every awkward thing is handled, named, and does no harm."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from semmix import SemmixError
from semmix.data import load_dataset
from semmix.data.config import DatasetConfig
from semmix.fitting.own_images import finding_lines, prepare, usual_side


def picture(seed, size=(24, 24)):
    """A smooth random picture."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 5, 5, generator=draw)
    smooth = torch.nn.functional.interpolate(coarse, size, mode="bicubic")[0].clamp(0, 1)
    return Image.fromarray((smooth * 255).to(torch.uint8).permute(1, 2, 0).numpy())


@pytest.fixture
def photos(tmp_path):
    """Thirty images of each of two classes."""
    for c, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(30):
            picture(100 * c + k).save(tmp_path / "photos" / name / f"{k:03d}.png")
    return tmp_path / "photos"


def prepared(photos, size=32, **options):
    config = DatasetConfig(dataset=str(photos), **options)
    data, findings = prepare(config, size, photos.parent / "out")
    return data, findings, "\n".join(finding_lines(findings))


def test_a_sound_folder_is_counted_split_and_kept(photos):
    data, _, words = prepared(photos)
    assert "60 images in 2 classes: cat 30, dog 30" in words
    assert "24 x 24 pixels, colour" in words
    assert "42 to learn from, 9 to calibrate on, 9 to test on" in words
    assert data.image_shape == (3, 32, 32)
    again = load_dataset(photos.parent / "out" / "images")
    assert again.name == "photos"
    assert again.describe() == data.describe()
    data = json.loads((photos.parent / "out" / "data.json").read_text())
    listed = [name for names in data["files"].values() for name in names]
    assert sorted(listed) == [f"{name}/{k:03d}.png" for name in ("cat", "dog") for k in range(30)]


def test_splits_that_are_decided_take_no_other_seed(photos):
    """They would stay the same, and nobody would be told."""
    prepared(photos, split_seed=5)
    kept = photos.parent / "out" / "images"
    for other in ({"seed": 5}, {"protocol": "paper"}):
        with pytest.raises(SemmixError, match=r"decided: protocol(.|\n)*name the folder of photos"):
            load_dataset(kept, **other)
    first, second = (load_dataset(kept, seed=seed, train_size=20) for seed in (0, 1))
    assert first.train.digest != second.train.digest  # there it draws, and may be given


def test_what_is_prepared_is_not_read_again_but_a_changed_folder_is_noticed(photos):
    first, *_ = prepared(photos)
    kept = photos.parent / "out" / "images" / "train.safetensors"
    stamp = kept.stat().st_mtime_ns
    second, *_ = prepared(photos)
    assert kept.stat().st_mtime_ns == stamp
    assert second.train.digest == first.train.digest
    picture(999).save(photos / "cat" / "new.png")
    with pytest.raises(SemmixError, match="made from other inputs"):
        prepared(photos)


def test_a_file_that_was_written_again_and_another_split_are_other_inputs(photos, capsys):
    prepared(photos)
    assert "checking labels" in capsys.readouterr().out
    for changes in ({"split_seed": 1}, {"protocol": "paper"}, {"size": 64}):
        with pytest.raises(SemmixError, match="made from other inputs"):
            prepared(photos, **changes)
    prepared(photos)
    assert "checking labels" not in capsys.readouterr().out
    os.utime(photos / "cat" / "000.png", (1, 1))
    with pytest.raises(SemmixError, match="made from other inputs"):
        prepared(photos)


def test_an_interrupted_preparation_is_done_again(photos):
    first, *_ = prepared(photos)
    path = photos.parent / "out" / "data.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "finished": False}))
    (photos.parent / "out" / "images" / "test.safetensors").unlink()
    second, *_ = prepared(photos)
    assert second.describe() == first.describe()


def test_corrupt_files_are_named_and_left_out(photos):
    (photos / "cat" / "broken.png").write_bytes((photos / "cat" / "000.png").read_bytes()[:200])
    (photos / "dog" / "empty.jpg").write_bytes(b"")
    (photos / "dog" / "notes.txt").write_text("hello")
    _, findings, words = prepared(photos)
    assert findings["num_images"] == 60
    assert "2 files cannot be used and are left out: cat/broken.png (truncated)" in words
    assert "1 other files or folders are no images that can be read (.png, .jpg" in words
    with pytest.raises(SemmixError, match="2 files cannot be used"):
        prepare(DatasetConfig(dataset=str(photos), strict=True), 32, photos.parent / "strict")


def test_strict_is_heard_after_the_folder_was_read_without_it(photos):
    prepared(photos, strict=False)
    prepared(photos, strict=True)
    shutil.rmtree(photos.parent / "out")
    (photos / "dog" / "empty.jpg").write_bytes(b"")
    prepared(photos, strict=False)
    with pytest.raises(SemmixError, match=r"1 files cannot be used: dog/empty.jpg \(empty\)"):
        prepared(photos, strict=True)


def test_names_cannot_command_the_terminal(photos):
    (photos / "cat" / "\x1b[2J\n.png").write_bytes(b"")
    *_, words = prepared(photos)
    assert "cat/?[2J?.png (empty)" in words


def test_a_pipe_and_a_name_no_file_can_have_are_left_out(photos):
    os.mkfifo(photos / "cat" / "pipe.png")
    rows = [f"{path.parent.name}/{path.name},{path.parent.name}" for path in photos.glob("*/*.png")]
    table = photos / "labels.csv"
    table.write_text("\n".join(["path,label", *rows, "cat/a\0.png,cat"]))
    assert usual_side(DatasetConfig(dataset=str(table))) == 24
    *_, words = prepared(table)
    assert "2 files cannot be used and are left out" in words
    assert "cat/a?.png (unreadable)" in words


def test_a_class_of_one_image_is_learned_but_not_tested(photos):
    (photos / "cow").mkdir()
    picture(777).save(photos / "cow" / "only.png")
    data, _, words = prepared(photos)
    assert data.train.class_counts(3)[1] == 1
    assert "rare: cow have fewer than 10 images to learn from" in words
    assert "untested: cow have too few images" in words


def test_mixed_modes_and_rotation_become_one_shape(photos):
    wide = picture(5, (20, 40))
    grey = np.asarray(wide.convert("L")).astype(np.uint16) * 257
    exif = Image.Exif()
    exif[0x0112] = 6
    wide.convert("CMYK").save(photos / "cat" / "cmyk.jpg")
    Image.fromarray(grey).save(photos / "cat" / "sixteen.png")
    wide.convert("P").save(photos / "cat" / "palette.png")
    wide.convert("RGBA").save(photos / "cat" / "alpha.webp")
    wide.convert("L").save(photos / "cat" / "grey.png")
    wide.save(photos / "cat" / "rotated.jpg", exif=exif)
    data, findings, words = prepared(photos)
    assert findings["num_images"] == 66
    assert data.image_shape == (3, 32, 32)
    assert "2 sizes, most often 24 x 24 pixels (60 images)" in words


def test_the_same_image_in_two_classes_is_named(photos):
    shutil.copy(photos / "cat" / "003.png", photos / "dog" / "stray.png")
    shutil.copy(photos / "cat" / "003.png", photos / "cat" / "004.png")
    Image.open(photos / "cat" / "007.png").save(photos / "cat" / "again.jpg", quality=90)
    _, findings, words = prepared(photos)
    assert findings["in_two_classes"] == [["cat/003.png", "dog/stray.png", "cat/004.png"]]
    assert "same image in two classes, mend these labels: cat/003.png = dog/stray.png" in words
    assert "3 images are copies of others, exactly or nearly" in words
    assert "copies stay on one side of the split" in words


def test_copies_across_a_persons_own_parts_are_named(photos):
    for part, first in (("train", 0), ("val", 18), ("test", 24)):
        for name in ("cat", "dog"):
            folder = photos / part / name
            folder.mkdir(parents=True)
            for k in range(first, {0: 18, 18: 24, 24: 30}[first]):
                (photos / name / f"{k:03d}.png").rename(folder / f"{k:03d}.png")
    for name in ("cat", "dog"):
        (photos / name).rmdir()
    for copy in ("train/cat/002.png", "test/cat/seen.png"):
        shutil.copy(photos / "train" / "cat" / "001.png", photos / copy)
    data, _, words = prepared(photos)
    assert [len(split) for split in data.splits.values()] == [36, 12, 13]
    assert "in several of your own parts" in words
    assert "train/cat/001.png = test/cat/seen.png" in words


def test_test_images_do_not_decide_whether_images_are_mirrored(tmp_path):
    """Classes differ by colour in training images, and by the brighter side in many test images."""

    def save(part, name, k, pixels):
        folder = tmp_path / "photos" / part / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{k:03d}.png")

    for c, name in enumerate(("cat", "dog")):
        for k in range(60):
            pixels = np.array(picture(1000 * c + k)) // 2
            if k < 20:
                pixels[..., c] += 100
                save("train", name, k, pixels)
            else:
                pixels[:, 12 * c : 12 * (c + 1)] += 100
                save("test", name, k, pixels)
    _, findings, _ = prepared(tmp_path / "photos")
    assert findings["quick_check"]["may_mirror"]


def test_long_and_foreign_names_stay_readable(photos):
    (photos / "dog").rename(photos / "Füchse 🦊")
    long = "n" * 240 + ".png"
    shutil.copy(photos / "cat" / "000.png", photos / "cat" / long)
    *_, words = prepared(photos)
    assert "Füchse 🦊 30" in words
    assert max(map(len, words.splitlines())) < 200 + len(long)


def test_a_folder_whose_name_is_no_text_is_read_and_kept(photos):
    odd = photos.rename(os.fsdecode(os.fsencode(photos) + b"\xe9"))
    data, *_ = prepared(odd)
    assert data.name == "photos\\xe9"
    again, *_ = prepared(odd)
    assert again.train.digest == data.train.digest


def test_links_that_loop_end(photos):
    (photos / "loop").symlink_to(photos)
    (photos / "cat" / "back").symlink_to(photos / "cat")
    (photos / "cat" / "self.png").symlink_to(photos / "cat" / "self.png")
    _, findings, words = prepared(photos)
    assert findings["class_counts"] == {"cat": 30, "dog": 30}
    assert "cat/self.png (unreadable)" in words


def test_an_empty_folder_and_a_single_class_are_answered(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SemmixError, match="no images found"):
        prepare(DatasetConfig(dataset=str(tmp_path / "empty")), 32, tmp_path / "out")
    (tmp_path / "one" / "cat").mkdir(parents=True)
    for k in range(10):
        picture(k).save(tmp_path / "one" / "cat" / f"{k}.png")
    with pytest.raises(SemmixError, match="a classifier needs two classes: cat"):
        prepare(DatasetConfig(dataset=str(tmp_path / "one")), 32, tmp_path / "out-one")


@pytest.mark.parametrize(("rise", "told"), [(1, "from 8 (class-00) to 21 (class-13)"), (0, "8 of each")])
def test_many_classes_are_summed_up(tmp_path, rise, told):
    for c in range(14):
        folder = tmp_path / "many" / f"class-{c:02d}"
        folder.mkdir(parents=True)
        for k in range(8 + rise * c):
            picture(100 * c + k, (8, 8)).save(folder / f"{k}.png")
    *_, words = prepared(tmp_path / "many")
    assert f"in 14 classes: {told}" in words


def test_the_usual_side_is_the_median_of_the_shorter_ones(tmp_path):
    for number, size in enumerate([(40, 9), (9, 50), (12, 60), (70, 33), (34, 34)]):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", size).save(path)
    assert usual_side(DatasetConfig(dataset=str(tmp_path))) == 12


def test_of_many_files_some_are_looked_at_from_first_to_last(tmp_path):
    """Of 402 every second one: those between are larger, and not asked."""
    (tmp_path / "a").mkdir()
    for k in range(402):
        Image.new("L", (30, 30) if k % 2 else (20, 20)).save(tmp_path / "a" / f"{k:03d}.png")
    assert usual_side(DatasetConfig(dataset=str(tmp_path))) == 20
    for k in range(300, 402):
        (tmp_path / "a" / f"{k:03d}.png").unlink()
    assert usual_side(DatasetConfig(dataset=str(tmp_path))) == 25  # now all


def test_the_usual_side_comes_from_headers(photos):
    assert usual_side(DatasetConfig(dataset=str(photos))) == 24
    for path in photos.glob("dog/*.png"):
        path.write_bytes(b"no image")
    assert usual_side(DatasetConfig(dataset=str(photos))) == 24


def test_a_folder_that_was_refused_may_be_mended(tmp_path):
    """The refused attempt keeps nothing, so it does not claim the output folder."""
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    for k in range(30):
        picture(k).save(photos / "cat" / f"{k}.png")
    with pytest.raises(SemmixError, match="needs two classes"):
        prepared(photos)
    (photos / "dog").mkdir()
    for k in range(30):
        picture(100 + k).save(photos / "dog" / f"{k}.png")
    assert prepared(photos)[0].num_classes == 2
