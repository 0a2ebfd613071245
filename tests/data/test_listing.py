"""Which files are of which class: links, names and folders as people have them."""

import json

import pytest

from semmix import SemmixError
from semmix.data.listing import FolderReport, list_files, name_of


def listed(folder):
    """The names of the files by class, and what is ignored."""
    report = FolderReport(folder)
    classes = {}
    for file in list_files(report):
        classes.setdefault(file.class_name, []).append(file.name)
    return classes, report.ignored


@pytest.mark.parametrize("target", ["dog", "dog/deep"])
def test_a_link_to_another_class_takes_none_of_its_images(make_folder, target):
    folder = make_folder(per_class=2)
    (folder / "dog" / "deep").mkdir()
    (folder / "dog" / "001.png").rename(folder / "dog" / "deep" / "001.png")
    (folder / "cat" / "friends").symlink_to(folder / target)
    classes, ignored = listed(folder)
    assert classes == {"cat": ["cat/000.png", "cat/001.png"], "dog": ["dog/000.png", "dog/deep/001.png"]}
    assert ignored == ["cat/friends"]


def test_a_second_name_of_a_class_is_ignored(make_folder):
    folder = make_folder(per_class=1)
    (folder / "ape").symlink_to(folder / "dog")
    classes, ignored = listed(folder)
    assert classes == {"cat": ["cat/000.png"], "dog": ["dog/000.png"]}
    assert ignored == ["ape"]


def test_links_to_folders_elsewhere_are_followed(make_folder):
    other = make_folder("other", classes=("x", "y"), per_class=1)
    folder = make_folder(classes=("cat",), per_class=1)
    (folder / "cat" / "more").symlink_to(other / "x")
    (folder / "cow").symlink_to(other / "y")
    classes, ignored = listed(folder)
    assert classes == {"cat": ["cat/000.png", "cat/more/000.png"], "cow": ["cow/000.png"]}
    assert ignored == []


def test_a_class_may_begin_with_underscores(make_folder):
    classes, _ = listed(make_folder(classes=("__none__", "cat"), per_class=1))
    assert classes.keys() == {"__none__", "cat"}


def test_empty_classes_and_broken_links_are_named(make_folder):
    folder = make_folder(per_class=1)
    (folder / "cow" / "2024").mkdir(parents=True)
    (folder / "ewe").symlink_to(folder / "gone")
    (folder / "dog" / "pup").symlink_to(folder / "gone")
    assert sorted(listed(folder)[1]) == ["cow", "dog/pup", "ewe"]


def test_a_folder_is_called_by_its_whole_name_and_a_table_without_its_ending(tmp_path):
    (tmp_path / "photos.v2").mkdir()
    assert name_of(tmp_path / "photos.v2") == name_of(tmp_path / "photos.v2" / "x" / "..") == "photos.v2"
    assert name_of(tmp_path / "photos.v2.csv") == "photos.v2"


def test_hidden_names_are_passed_over(make_folder):
    folder = make_folder(per_class=1)
    for name in (".cache/a.png", "__MACOSX/a.png", "cat/.a.png", "cat/__pycache__/a.png", "cat/.deep/a.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert listed(folder) == ({"cat": ["cat/000.png"], "dog": ["dog/000.png"]}, [])


def test_images_lie_at_any_depth_of_a_class_in_the_order_of_their_paths(make_folder):
    folder = make_folder(classes=("cat",), per_class=2)
    for name in ("0/1.png", "0/deep/2.png", "0002.png"):
        (folder / "cat" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cat" / name).touch()
    names = ["0/1.png", "0/deep/2.png", "000.png", "0002.png", "001.png"]
    assert listed(folder)[0] == {"cat": [f"cat/{name}" for name in names]}


@pytest.mark.parametrize("parts", [("val", "test"), ("Validation", "dev"), ("train", "test")])
def test_parts_are_not_taken_for_classes(make_folder, parts):
    """No train part, or one that holds the images themselves."""
    folder = make_folder(classes=parts, per_class=1)
    with pytest.raises(SemmixError, match="no train part with class folders in it"):
        listed(folder)


def test_what_no_file_can_be_called_is_listed_all_the_same(tmp_path):
    """It is named as unreadable when the images are read."""
    table = tmp_path / "a.jsonl"
    rows = [{"path": "a\0.png", "label": "cat"}, {"path": "b\udcff.png", "label": "d\udcff"}]
    table.write_text("\n".join(map(json.dumps, rows)))
    assert listed(table)[0] == {"cat": ["a\0.png"], "d\\xff": ["b\\xff.png"]}
