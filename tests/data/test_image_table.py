"""Tables of paths and labels: every usual spelling is understood, every mistake answered."""

import json

import pytest

from semmix import SemmixError
from semmix.data import load_dataset
from semmix.data.image_table import TableRow, read_table


def write(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "path,label\na/1.png,cat\nb/2.jpg,dog\n",
        "﻿File,Class\na/1.png,cat\nb/2.jpg,dog\n",
        "label;image_path\ncat;a/1.png\ndog;b/2.jpg\n",
        "id\tfilename\tcategory\n7\ta/1.png\tcat\n8\tb/2.jpg\tdog\n",
        ",path,label\n0,a/1.png,cat\n1,b/2.jpg,dog\n",  # as pandas numbers its rows
        "a/1.png,cat\n\nb/2.jpg, dog\n",
        "cat, a/1.png\ndog, b/2.jpg\n",
        "path , label\na/1.png,cat\nb/2.jpg,dog\n",
        '"path"    ,"label"\n"a/1.png" ,"cat" \r\n"b/2.jpg" ,"dog" ',  # aligned by hand
        "cat,a/1.png\ndog,b/2.jpg\n",
    ],
)
def test_columns_and_delimiters_are_guessed(tmp_path, text):
    rows = read_table(write(tmp_path, text))
    assert rows == [TableRow("a/1.png", "cat", ""), TableRow("b/2.jpg", "dog", "")]


def test_json_lines_with_a_split(tmp_path):
    records = [
        {"file_name": "1.png", "label": 3, "split": "Training"},
        {"file_name": "2.png", "label": "4 ", "split": " dev"},
        {"file_name": "3.png", "label": 4, "split": "test"},
    ]
    table = write(tmp_path, "\n".join(map(json.dumps, records)), "labels.jsonl")
    assert [(row.label, row.part) for row in read_table(table)] == [("3", "train"), ("4", "val"), ("4", "test")]


@pytest.mark.parametrize("line", ["1.PNG,cat,dev", "cat,1.PNG,dev"])
def test_a_split_may_come_third_without_a_header(tmp_path, line):
    assert read_table(write(tmp_path, f"{line}\n")) == [TableRow("1.PNG", "cat", "val")]


def test_null_is_nothing_and_blank_lines_are_no_rows(tmp_path):
    text = '{"path": "1.png", "label": "cat", "split": null}\n \n'
    assert read_table(write(tmp_path, text, "a.jsonl")) == [TableRow("1.png", "cat", "")]
    with pytest.raises(SemmixError, match="line 1 is incomplete"):
        read_table(write(tmp_path, '{"path": "1.png", "label": null}', "a.jsonl"))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.jsonl", ['{"path": "1.png", "label": "cat"}', "", '{"path": "2.png", "label": "dog"}', " "]),
        ("a.csv", ["", "path,label", " , ", "1.png,cat", "", "2.png,dog", ""]),
        ("a.csv", ["1.png,cat", ",", "2.png,dog"]),
    ],
)
def test_what_stands_below_a_blank_line_is_read(tmp_path, name, lines):
    table = write(tmp_path, "\n".join(lines), name)
    assert read_table(table) == [TableRow("1.png", "cat", ""), TableRow("2.png", "dog", "")]


def test_the_kind_of_a_table_does_not_hang_on_upper_case(tmp_path):
    table = write(tmp_path, '{"path": "1.png", "label": "cat"}', "LABELS.JSONL")
    assert read_table(table) == [TableRow("1.png", "cat", "")]


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("a.csv", "", "has no rows"),
        ("a.csv", "path,label\n", "has no rows"),
        ("a.csv", "path,animal\n1.png,cat\n", "no column for the label: columns path, animal"),
        ("a.csv", "picture,label\n1.bmp,cat\n", "no column for the path"),
        ("a.csv", "path,label\n1.png,\n", "line 2 is incomplete"),
        ("a.csv", "path,label\n ,cat\n", "line 2 is incomplete"),
        ("a.csv", "path,label,split\n1.png,cat,holdout\n", "unknown split: 'holdout'"),
        ("a.csv", "path,label,split\n1.png,cat,train\n2.png,cat,\n", "have no split"),
        ("a.csv", 'path,label\n1.png,"' + "x" * 200_000, "line 2 is not CSV"),
        ("a.csv", 'path,label\n1.png,a\n2.png,"a\n3.png,b\n4.png,b\n', "line 3 is not CSV"),
        ("a.csv", 'path,label\n1.png,"a\nb"\n2.png,\n', "line 4 is incomplete"),
        ("a.jsonl", '{"path": "1.png"', "line 1 is not JSON"),
        ("a.jsonl", '["1.png", "cat"]', "line 1 is not an object"),
        ("a.jsonl", r'{"path": "\ud83d.png", "label": "cat"}', "line 1 holds half a character"),
        ("a.jsonl", r'{"path": "1.png", "label": "\ud83d"}', "line 1 holds half a character"),
    ],
)
def test_mistakes_are_answered(tmp_path, name, text, answer):
    with pytest.raises(SemmixError, match=answer):
        read_table(write(tmp_path, text, name))


def test_labels_keep_line_ends_of_their_own(tmp_path):
    label = "two\nlines\u2028and\x85more"
    table = write(tmp_path, f'path,label\n1.png,"{label}"\n2.png,dog\n')
    assert [row.label for row in read_table(table)] == [label, "dog"]
    record = json.dumps({"path": "1.png", "label": label}, ensure_ascii=False)
    assert read_table(write(tmp_path, f"{record}\n", "a.jsonl"))[0].label == label


def test_missing_table(tmp_path):
    with pytest.raises(SemmixError, match="cannot read"):
        load_dataset(tmp_path / "labels.csv")


def test_a_table_loads_like_the_folder_it_lists(make_folder):
    """Paths are relative to the table; files that are not there are named and left out."""
    folder = make_folder(per_class=20)
    listed = sorted(folder.glob("*/*.png"))
    lines = [f"{path.relative_to(folder.parent)},{path.parent.name}" for path in listed]
    table = write(folder.parent, "\n".join(["path,label", *lines, "photos/gone.png,cat"]))
    dataset = load_dataset(table)
    assert dataset.name == "labels"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.digest == load_dataset(folder).train.digest


def test_a_tables_own_split_is_used(make_folder):
    folder = make_folder(per_class=6)
    parts = ["train", "train", "train", "val", "test", "test"] * 2
    files = sorted(folder.glob("*/*.png"))
    lines = [f"{p},{p.parent.name},{part}" for p, part in zip(files, parts, strict=True)]
    table = write(folder, "\n".join(["path,label,split", *lines]))
    assert [len(split) for split in load_dataset(table).splits.values()] == [6, 2, 4]
