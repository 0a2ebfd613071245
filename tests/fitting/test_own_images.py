"""What was found in own images, in plain words, from the finding alone."""

from pathlib import Path
from typing import Any

import pytest

from semmix import SemmixError
from semmix.fitting.own_images import finding_lines, plan_own_images, refuse_inside, warning_lines
from semmix.fitting.recipes import recipe_of, with_given

SOUND: dict[str, Any] = {
    "num_images": 1234,
    "channels": 3,
    "class_counts": {"cat": 1034, "dog": 200},
    "splits": {"train": {"cat": 800, "dog": 100}, "val": {"cat": 100, "dog": 50}, "test": {"cat": 134, "dog": 50}},
    "stored_sizes": [[640, 480, 1234]],
    "unusable": [],
    "num_unusable": 0,
    "num_ignored": 0,
    "exact_copies": [],
    "near_copies": [],
    "num_near_copies": 0,
    "in_two_classes": [],
    "across_parts": [],
    "quick_check": {"num_images": 1234, "accuracy": 0.875, "may_mirror": True},
    "suspects": [],
}


def warned(**changes: Any) -> list[str]:
    return warning_lines({**SOUND, **changes})


def test_sound_images_are_counted_and_warned_of_nothing():
    assert warned() == []
    assert finding_lines(SOUND) == [
        "1,234 images in 2 classes: cat 1,034, dog 200",
        "640 x 480 pixels, colour",
        "900 to learn from, 150 to calibrate on, 184 to test on",
    ]
    grey = finding_lines({**SOUND, "channels": 1, "stored_sizes": [[30, 20, 2000], [8, 8, 1]]})
    assert grey[1] == "2 sizes, most often 30 x 20 pixels (2,000 images), grey"


@pytest.mark.parametrize(("num", "shown"), [(12, "class-00 100, class-01 101"), (13, "from 100 (class-00) to 112")])
def test_up_to_twelve_classes_are_counted_one_by_one(num, shown):
    counts = {f"class-{k:02d}": 100 + k for k in range(num)}
    assert shown in finding_lines({**SOUND, "class_counts": counts})[0]


@pytest.mark.parametrize(("num_train", "is_rare"), [(9, True), (10, False), (0, True)])
def test_a_class_is_rare_below_ten_images_to_learn_from(num_train, is_rare):
    splits = {**SOUND["splits"], "train": {"cat": 800, "dog": num_train}}
    told = ["rare: dog have fewer than 10 images to learn from; expect little of them"]
    assert warned(splits=splits) == told * is_rare


def test_a_class_without_test_images_is_named():
    told = ["untested: dog have too few images to be tested at all"]
    for test in ({"cat": 134}, {"cat": 134, "dog": 0}):
        assert warned(splits={**SOUND["splits"], "test": test}) == told
    assert warned(splits={**SOUND["splits"], "test": {"cat": 1, "dog": 1}}) == []


def test_three_of_a_kind_are_shown_and_the_others_counted():
    bad = [{"path": f"cat/{k}.png", "kind": "truncated", "detail": ""} for k in range(5)]
    (three,) = warned(unusable=bad[:3], num_unusable=3)
    shown = "cat/0.png (truncated), cat/1.png (truncated), cat/2.png (truncated)"
    assert three == f"3 files cannot be used and are left out: {shown}"
    (five,) = warned(unusable=bad, num_unusable=5)
    assert five.startswith(f"5 files cannot be used and are left out: {shown}")
    assert "cat/3.png" not in five
    (other,) = warned(num_ignored=1)
    assert other.startswith("1 other files or folders are no images that can be read (.png, ")


def test_copies_are_told_by_where_they_are():
    near = {"near_copies": [["a", "b", "c"], ["d", "e"]], "num_near_copies": 3}
    copies = "3 images are copies of others, exactly or nearly, such as a = b"
    assert warned(**near) == [copies, "copies stay on one side of the split, so that the test stays honest"]
    across = "1 images are in several of your own parts, so the test flatters: a = b"
    assert warned(**near, across_parts=[["a", "b", "c"]]) == [copies, across]
    two = "the same image in two classes, mend these labels: a = b"
    assert warned(in_two_classes=[["a", "b", "c"]]) == [two]


@pytest.mark.parametrize(("num", "count"), [(1, "1"), (999, "999"), (1000, "at least 1,000")])
def test_doubtful_labels_are_counted_as_far_as_they_are_listed(num, count):
    suspect = {"file": "a.png", "label": "cat", "looks_like": "dog", "probability": 0.9}
    (told,) = warned(suspects=[suspect] * num)
    assert told.startswith(f"{count} labels deserve a second look: a.png looks like dog")
    assert told.endswith(" (by a quick check, itself right on 88%)")


def test_images_that_may_not_be_mirrored_are_told():
    quick = {**SOUND["quick_check"], "may_mirror": False}
    assert warned(quick_check=quick) == ["mirrored images would show something else here, so none are mirrored"]


def test_names_are_harmless_in_every_line():
    counts = {"\x1b[2Jcat": 1, "dog": 200}
    splits = {part: {"\x1b[2Jcat": 0, "dog": 1} for part in ("train", "val", "test")}
    lines = finding_lines({**SOUND, "class_counts": counts, "splits": splits})
    assert len(lines) == 5
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"methods": ("ce", "cms")}, "did you mean 'csm'"),
        ({"minutes": 0.0}, "a plan needs time: 0 minutes"),
        ({"data": {"train_size": 30, "imbalance": 2.0}}, "all of your images: --train-size 30 --imbalance 2"),
    ],
)
def test_settings_no_plan_can_heed_are_refused_before_a_file_is_read(given, error, tmp_path):
    config = with_given(recipe_of(str(tmp_path / "nowhere")), {"out": tmp_path / "out", **given})
    with pytest.raises(SemmixError, match=error):
        plan_own_images(config, given)
    assert not (tmp_path / "out").exists()


def test_the_refusal_names_a_folder_beside_the_images(tmp_path, monkeypatch):
    (tmp_path / "my photos").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SemmixError, match="results would lie among the images: my photos/out") as caught:
        refuse_inside(Path("my photos"), Path("my photos/out"))
    assert caught.value.fix == "choose a folder beside the images: --out 'runs/my photos'"
    refuse_inside(Path("my photos"), Path("out"))
    refuse_inside(Path("my photos.csv"), Path("my photos"))  # a table holds no images
