"""`semmix evaluate`: files of every kind, the mistakes people make, honest calibration."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from semmix import SemmixError
from semmix import calibration as cal
from semmix.cli.main import main
from semmix.core.seeds import fold_seed
from semmix.evaluation import COMPARED, EvaluateConfig, Settings, evaluate_file
from semmix.evaluation import evaluate as evaluate_arrays
from semmix.evaluation.calibrate import CALIBRATORS, FITTING_ROWS, Fitted, fit_all, make_folds
from semmix.evaluation.columns import (
    Column,
    Names,
    Part,
    best_labels,
    choose_columns,
    read_csv,
    read_csv_matrix,
    read_parquet,
)
from semmix.evaluation.human import agreement, check_human
from semmix.evaluation.measure import MOST_KEPT, measure_samples
from semmix.evaluation.read import read_matrix, read_parts
from semmix.evaluation.samples import Samples, compare_parts, look_closer, make_samples, random_rows
from semmix.report.rows import percent


def predictions(num_samples=300, num_classes=4, seed=0):
    """Overconfident logits and labels."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(num_samples, num_classes))
    return 2 * logits, (logits + random.gumbel(size=logits.shape)).argmax(1)


def evaluate(path, **options):
    options = {"calibrators": ("temperature",), "resamples": 20, **options}
    return evaluate_file(EvaluateConfig(path=path, **options)).to_json()


def given(evaluation):
    return evaluation["results"][0]["metrics"]


# --- reading --------------------------------------------------------------------------------------


def write_npz(folder, logits, labels, name="x.npz"):
    np.savez(folder / name, logits=logits, labels=labels)
    return folder / name


def write_npy(folder, logits, labels):
    np.save(folder / "my-logits.npy", logits)
    np.save(folder / "my-labels.npy", labels)
    return folder / "my-logits.npy"


def write_safetensors(folder, logits, labels):
    tensors = {"logits": torch.tensor(logits), "labels": torch.tensor(labels)}
    save_file(tensors, folder / "x.safetensors")
    return folder / "x.safetensors"


def write_csv(folder, logits, labels):
    rows = [
        ",".join(map(repr, [i, *map(float, row), int(y)]))
        for i, (row, y) in enumerate(zip(logits, labels, strict=True))
    ]
    head = ",".join(["id", *(f"class {k}" for k in range(logits.shape[1])), "label"])
    (folder / "x.csv").write_text("\n".join([head, *rows, ""]))
    return folder / "x.csv"


def write_parquet(folder, logits, labels):
    columns = {f"logit_{k}": logits[:, k] for k in range(logits.shape[1])}
    parquet.write_table(pyarrow.table({"target": labels, **columns}), folder / "x.parquet")
    return folder / "x.parquet"


def write_parquet_of_lists(folder, logits, labels):
    parquet.write_table(pyarrow.table({"logits": list(logits), "y": labels}), folder / "y.parquet")
    return folder / "y.parquet"


WRITERS = [write_npz, write_npy, write_safetensors, write_csv, write_parquet, write_parquet_of_lists]


@pytest.mark.parametrize("write", WRITERS)
def test_every_kind_of_file(write, tmp_path):
    logits, labels = predictions()
    evaluation = evaluate(write(tmp_path, logits, labels))
    expected = cal.summary(cal.softmax(logits), labels)
    for name, value in expected.items():
        assert given(evaluation)[name] == pytest.approx(value, abs=1e-12)
    assert evaluation["warnings"] == []
    assert "read as logits" in evaluation["notes"][0]


def test_probabilities_are_recognised(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "p.npz", outputs=cal.softmax(logits), y_true=labels)
    evaluation = evaluate(tmp_path / "p.npz")
    assert "read as probs" in evaluation["notes"][0]
    assert not any("sum to one" in warning for warning in evaluation["warnings"])
    assert given(evaluation)["nll"] == pytest.approx(cal.nll(cal.softmax(logits), labels))


def test_binary_files(tmp_path):
    logits, labels = predictions(num_classes=2)
    odds = logits[:, 1] - logits[:, 0]
    probs = 1 / (1 + np.exp(-odds))
    np.savez(tmp_path / "odds.npz", logits=odds, labels=labels)
    np.savez(tmp_path / "probs.npz", probs=probs, labels=labels)
    np.savez(tmp_path / "column.npz", probs=probs[:, None], labels=labels[:, None])
    np.savez(tmp_path / "odds_column.npz", logits=odds[:, None], labels=labels)
    rows = "\n".join(f"{p!r};{y}" for p, y in zip(map(float, probs), labels, strict=True))
    (tmp_path / "p.csv").write_text(f"score;label\n{rows}\n")
    for name in ("odds.npz", "probs.npz", "column.npz", "odds_column.npz", "p.csv"):
        ece = given(evaluate(tmp_path / name))["ece"]
        assert ece == pytest.approx(cal.ece(probs, labels), abs=1e-9)


def test_half_precision(tmp_path):
    logits, labels = predictions()
    tensors = {"logits": torch.tensor(logits).bfloat16(), "labels": torch.tensor(labels)}
    save_file(tensors, tmp_path / "x.safetensors")
    expected = cal.ece(cal.softmax(tensors["logits"].double().numpy()), labels)
    assert given(evaluate(tmp_path / "x.safetensors"))["ece"] == pytest.approx(expected)


def test_names_can_be_given(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "x.npz", a=logits, b=-logits, c=labels, d=labels[::-1])
    with pytest.raises(
        SemmixError, match=r"^which arrays hold scores and labels\?: x\.npz holds a \[300, 4\].*\n.*--scores NAME"
    ):
        evaluate(tmp_path / "x.npz")
    with pytest.raises(SemmixError, match="unknown array"):
        evaluate(tmp_path / "x.npz", scores="a", labels="e")
    evaluation = evaluate(tmp_path / "x.npz", scores="a", labels="c")
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_labels_in_a_file_of_their_own(tmp_path):
    logits, labels = predictions()
    np.save(tmp_path / "outputs.npy", logits)
    np.save(tmp_path / "truth.npy", labels)
    evaluation = evaluate(tmp_path / "outputs.npy", labels=str(tmp_path / "truth.npy"))
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_labels_in_an_archive(tmp_path):
    logits, labels = predictions()
    np.save(tmp_path / "outputs.npy", logits)
    np.savez(tmp_path / "x.npz", logits=logits, preds=labels[::-1], labels=labels)
    evaluation = evaluate(tmp_path / "outputs.npy", labels=str(tmp_path / "x.npz"))
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)
    np.savez(tmp_path / "x.npz", a=labels, b=labels)
    with pytest.raises(
        SemmixError, match=r"(?s)^which array holds the labels\?: x.npz holds a \[300\], b \[300\].*FILE.npy"
    ):
        evaluate(tmp_path / "outputs.npy", labels=str(tmp_path / "x.npz"))


def test_answers_are_no_labels(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "x.npz", pred_labels=logits.argmax(1), logits=logits, labels=labels)
    assert given(evaluate(tmp_path / "x.npz"))["acc"] == cal.accuracy(cal.softmax(logits), labels)
    np.savez(tmp_path / "x.npz", preds=logits.argmax(1), logits=logits)
    with pytest.raises(SemmixError, match="--labels NAME"):
        evaluate(tmp_path / "x.npz")


def test_arrays_of_training_are_read_only_if_named(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "x.npz", train_logits=logits, train_labels=labels)
    with pytest.raises(SemmixError, match=r"holds train_logits \[300, 4\], train_labels \[300\]"):
        evaluate(tmp_path / "x.npz")
    evaluation = evaluate(tmp_path / "x.npz", scores="train_logits", labels="train_labels")
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_a_validation_file_gives_its_validation_part(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "v.npz", train_logits=-logits, train_labels=labels, val_logits=2 * logits, val_labels=labels)
    evaluation = evaluate(write_npz(tmp_path, logits, labels), val=tmp_path / "v.npz")
    assert "val from v.npz: scores from 'val_logits'" in evaluation["notes"][1]


def test_a_file_of_both_parts_may_be_either(tmp_path):
    arrays = {"test_logits": np.eye(2), "test_labels": np.arange(2)}
    arrays |= {"val_logits": 2 * np.eye(3), "val_labels": np.arange(3)}
    np.savez(tmp_path / "x.npz", **arrays)
    both = (tmp_path / "x.npz").rename(tmp_path / "X.NPZ")
    for val in (None, both):
        parts = read_parts(both, val, Names(), Names())
        assert {k: part.name for k, part in parts.items()} == {"test": "test_logits", "val": "val_logits"}
        assert [len(part.labels) for part in parts.values()] == [2, 3]


@pytest.mark.parametrize(
    ("shapes", "scores", "labels"),
    [
        ({"logits": (3, 2), "labels": (3,)}, "logits", "labels"),
        ({"x": (3, 2), "t": (3,)}, "x", "t"),
        ({"x": (3, 2), "preds": (3,), "t": (3,)}, "x", "t"),
        ({"labels": (3, 2), "probs": (3, 2)}, "probs", "labels"),
        ({"labels": (3, 2), "x": (3, 2)}, "x", "labels"),
        ({"y": (3,), "scores": (3,)}, "scores", "y"),
        ({"labels": (3, 1), "probs": (3, 1)}, "probs", "labels"),
        ({"features": (3, 9), "a": (3, 2), "y": (3,), "ids": (3,)}, "a", "y"),
        ({"val_logits": (3, 2), "val_y": (3,)}, "val_logits", "val_y"),
        ({"logits": (3, 2), "test_logits": (3, 2), "test_y": (3,)}, "test_logits", "test_y"),
    ],
)
def test_arrays_are_told_by_their_names_and_shapes(shapes, scores, labels, tmp_path):
    np.savez(tmp_path / "x.npz", **{name: np.ones(shape) for name, shape in shapes.items()})
    part = read_parts(tmp_path / "x.npz", None, Names(), Names())["test"]
    assert part.name == scores
    assert part.origin.endswith(f"labels from {labels!r}")


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ("val-logits", "val-labels"),
        ("VAL_PROBS", "VAL_labels"),
        ("my_pred", "my_labels"),
        ("probabilities", "labels"),
        ("logits_of_logits", "labels_of_logits"),
        ("map", "labels"),
    ],
)
def test_labels_lie_beside_scores_under_a_like_name(scores, labels, tmp_path):
    np.save(tmp_path / f"{scores}.npy", np.eye(2))
    np.save(tmp_path / f"{labels}.npy", np.array([1, 0]))
    part = read_parts(tmp_path / f"{scores}.npy", None, Names(), Names())["test"]
    assert part.labels.tolist() == [1, 0]


def test_a_run_may_lack_its_validation_part(tmp_path):
    logits, labels = predictions()
    write_safetensors(tmp_path, logits, labels).rename(tmp_path / "logits-test.safetensors")
    parts = read_parts(tmp_path, None, Names(), Names())
    assert list(parts) == ["test"]
    assert np.array_equal(parts["test"].scores[:], logits)


def test_a_named_array_may_belong_to_any_part(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "x.npz", val_logits=logits, val_labels=labels, train_labels=labels)
    evaluation = evaluate(tmp_path / "x.npz", labels="train_labels")
    assert "labels from 'train_labels'" in evaluation["notes"][0]


def test_columns_can_be_given(tmp_path):
    logits, labels = predictions(num_classes=2)
    lines = [f"{x},{y},{z},0" for (x, y), z in zip(logits.tolist(), labels, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["my0,my1,answer,noise", *lines]))
    with pytest.raises(
        SemmixError, match=r"^which column holds the labels\?: None\n.*--labels NAME; columns: my0, my1, answer"
    ):
        evaluate(tmp_path / "x.csv")
    with pytest.raises(SemmixError, match=r"^which columns hold the scores\?: your\n.*--scores PREFIX"):
        evaluate(tmp_path / "x.csv", labels="answer", scores="your")
    evaluation = evaluate(tmp_path / "x.csv", labels="answer", scores="my")
    assert evaluation["num_classes"] == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"", r"^unknown kind of file: x\.txt\n.*\.npz"),
        ("gone.npz", None, r"^no such file: .*gone\.npz"),
        ("x.npz", b"nonsense", "^cannot read"),
        ("x.npz", b"PK\x03\x04 cut off", "^cannot read"),
        ("x.npz", b"", "^cannot read"),
        ("x.npz", b"\x93NUMPY", "^cannot read"),
        ("x.safetensors", b"nonsense", "^cannot read"),
        ("x.parquet", b"nonsense", "^cannot read"),
        ("x.csv", b"1,2,3\n4,5,6\n", "^the CSV file has no header: 1, 2, 3\n"),
        ("x.csv", b"label,p0,p1\ncat,0.5,0.5\n", "(?s)names of columns: 'cat'.*0 to K-1.*p0, p1"),
        ("x.csv", b"label,p\np,0.5\n", "^labels must be class indices or names of columns: 'p'"),
        ("x.csv", b"label,p0,p1\n0,0.5,0.5\ncat,0.5,0.5\n", "numbers"),
        ("x.csv", b"label,p0,p1,p3\n0,0.5,0.3,0.2\n", "(?s)0 to 2 or 1 to 3: p0, p1, p3.*gaps"),
        ("x.csv", b"label,p0,p0\n0,0.5,0.5\n", "not numbered"),
        ("x.csv", b"file,label\na.png,0\n", "^which columns hold the scores.: None\n.*columns: file, label"),
        ("x.csv", b"label,p0,p1\n", "^the table has no rows: 0\n"),
        (
            "x.csv",
            b"label,p0,p1\n1,0,0.5,0.5\n",
            "(?s)^a row is longer than the first line: 1, 0, 0.5, … has 4 cells, .* 3\n.*row names",
        ),
        ("x.csv", b"label;p0;p1\n0;1;0\n0;0,4;0,6\n", "(?s)with a comma: 0,4.*write 0.4"),
        ("x.csv", "label,p0,p1\n0,0.5,0.5\n".encode("utf-16"), "(?s)^cannot read .*UTF-8"),
        ("gone", None, "no such file"),
        ("x.npy", b"", r"^an \.npy file holds scores but no labels: x\.npy\n.*labels\.npy"),
        ("labels.npy", b"", r"^an \.npy file holds scores but no labels: labels\.npy"),
        ("empty", "folder", r"^nothing to evaluate in this folder: .*empty\n.*logits-test\.safetensors"),
    ],
)
def test_unreadable(name, content, message, tmp_path):
    if content == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SemmixError, match=message):
        evaluate(tmp_path / name)


def write_table(path, **columns):
    """Write columns of numbers or text under their names."""
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *lines, ""]))
    return path


def score_columns(stem, scores, order=None):
    return {f"{stem}{k}": scores[:, k] for k in order or range(scores.shape[1])}


def write_same_table(folder, kind, **columns):
    if kind == "csv":
        return write_table(folder / "x.csv", **columns)
    parquet.write_table(pyarrow.table(columns), folder / "x.parquet")
    return folder / "x.parquet"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_read_in_the_order_of_their_numbers(kind, tmp_path):
    logits, labels = predictions(num_classes=12)
    by_name = sorted(range(12), key=str)
    columns = score_columns("prob_", cal.softmax(logits), by_name)
    evaluation = evaluate(write_same_table(tmp_path, kind, label=labels, **columns))
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)
    assert "stand as prob_0, prob_1, prob_10" in evaluation["warnings"][0]
    assert "'prob_0 to prob_11' [300, 12]" in evaluation["notes"][0]


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_of_columns_may_start_at_one(first, tmp_path):
    logits, labels = predictions()
    columns = {f"p[{k + first}]": logits[:, k] for k in (3, 2, 1, 0)}
    evaluation = evaluate(write_table(tmp_path / "x.csv", label=labels, **columns))
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_columns_without_common_numbers_stay_where_they_are(tmp_path):
    logits, labels = predictions(num_classes=3)
    columns = dict(zip(("type2", "b12", "other"), logits.T, strict=True))
    evaluation = evaluate(write_table(tmp_path / "x.csv", label=labels, **columns))
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)
    assert evaluation["warnings"] == []


def test_one_kind_of_score_is_read(tmp_path):
    """Columns of the other kind, of the chosen class or of the row are no classes."""
    logits, labels = predictions()
    probs = cal.softmax(logits)
    one = score_columns("logit_", logits)
    tables = {
        "both": {"label": labels, **one, **score_columns("prob_", probs)},
        "top": {"label": labels, "pred": logits.argmax(1), "prob": probs.max(1), **one},
        "beside": {"label": labels, **score_columns("class_", probs), "confidence": probs.max(1)},
        "named": {"label": labels, **dict(zip("abcd", probs.T, strict=True)), "loss": labels * 0.1},
        "twice": {"label": labels, **score_columns("prob_", probs), "prob": probs.max(1)},
    }
    for name, columns in tables.items():
        evaluation = evaluate(write_table(tmp_path / f"{name}.csv", **columns))
        assert evaluation["num_classes"] == 4, name
        assert given(evaluation)["ece"] == pytest.approx(cal.ece(probs, labels)), name


@pytest.mark.parametrize(
    "classes",
    [
        ("healthy", "type1", "type2"),
        ("t1_low", "t2_low", "t1_high", "t2_high"),
        ("prob_healthy", "prob_type1", "prob_type2"),
        ("weight loss", "fever", "cough"),
    ],
)
def test_probabilities_that_sum_to_one_are_all_classes(classes, tmp_path):
    """Whatever numbers and words their names hold."""
    logits, labels = predictions(num_classes=len(classes))
    probs = cal.softmax(logits)
    columns = dict(zip(classes, probs.T, strict=True))
    by_name = [classes[label] for label in labels]
    for name, truth in (("numbers", labels), ("names", by_name)):
        table = write_table(tmp_path / f"{name}.csv", label=truth, **columns)
        evaluation = evaluate(table)
        assert given(evaluation)["ece"] == pytest.approx(cal.ece(probs, labels)), name


SHARES = {"healthy": [0.5, 0.2], "type1": [0.3, 0.3], "type2": [0.2, 0.5]}
LOGITS = {"a": [0.3, 1.5], "b": [2.5, 0.1]}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"pred": [1.0, 0.0], **LOGITS}, "a b"),
        ({"pred": ["x", "y"], **LOGITS}, "a b"),
        ({"pred_y": [1.0, 0.0], **LOGITS}, "a b"),
        ({"x": [3.0, ""], "t1": [0.5, 2.5], "t2": [2.5, 0.5]}, "t1 t2"),
        ({"pred": [1.0, 0.5], **LOGITS}, "pred"),
        ({"pred": [1.0, 0.0], "file": ["x", "y"]}, "pred"),
        ({"pred_0": [1.0, 0.0], "pred_1": [0.0, 1.0], **LOGITS}, "pred_0 pred_1"),
        ({"pred_cat": [1.0, 0.0], "pred_dog": [0.0, 1.0], **LOGITS}, "pred_cat pred_dog"),
        ({"true": [1.0, 0.0], "false": [0.0, 1.0]}, "true false"),
        ({"id": [1.5, 2.5], "": [0.5, 1.5], "row_idx": [0.5, 1.5], **LOGITS}, "a b"),
        ({"confidence": [0.5, 0.6], "file": ["x", "y"], **LOGITS}, "a b"),
        ({"confidence": [0.5, 0.6]}, "confidence"),
        ({"weight": [0.4, 0.9], "height": [0.6, 0.1]}, "weight height"),
        (SHARES, "healthy type1 type2"),
        ({k: [100 * x for x in v] for k, v in SHARES.items()}, "healthy type1 type2"),
        ({k: [1.019 * x for x in v] for k, v in SHARES.items()}, "healthy type1 type2"),
        ({k: [0.981 * x for x in v] for k, v in SHARES.items()}, "healthy type1 type2"),
        ({k: [101.9 * x for x in v] for k, v in SHARES.items()}, "healthy type1 type2"),
        ({k: [98.1 * x for x in v] for k, v in SHARES.items()}, "healthy type1 type2"),
        ({k: [1.03 * x for x in v] for k, v in SHARES.items()}, "type1 type2"),
        ({**SHARES, "healthy": [0.5, 0.4]}, "type1 type2"),
        ({"healthy": [-0.1, 0.2], "type1": [0.9, 0.3], "type2": [0.2, 0.5]}, "type1 type2"),
        ({"healthy": [0.0, 0.2], "type1": [0.8, 0.3], "type2": [0.2, 0.5]}, "healthy type1 type2"),
        ({"a": [0.5, ""], "b": [0.5, 1.0]}, "a b"),
        ({**LOGITS, "c": [0.5]}, "a b c"),  # a row that is cut off
        ({"score_v2": [0.5, 0.3]}, "score_v2"),
        ({"x": [3.0, 1.0], "t1": [0.5, 2.5], "t3": [2.5, 0.5]}, "x t1 t3"),
        ({"x": [3.0, 1.0], "t1": [0.5, 2.5]}, "x t1"),
        ({"p2": [3.0, 1.0], "p1": [0.5, 2.5], "p0": [2.5, 0.5]}, "p0 p1 p2"),
    ],
)
def test_columns_are_told_by_their_names_and_values(columns, expected):
    """Without labels that name them: what is an answer, of the row, or of a class."""
    table = {"label": [0.0, 1.0], **columns}
    held = [Column(k, name, head) for k, (name, head) in enumerate(table.items())]
    label, scores, _ = choose_columns(held, Names())
    assert label.name == "label"
    assert [column.name for column in scores] == expected.split()


@pytest.mark.parametrize(
    "text",
    [
        "label,p0,p1\n1,0.3,0.7\n0,0.8,0.2\n",
        "\ufeffp0;p1;label\n0.3;0.7;1\n0.8;0.2;0",
        "label\tp0\tp1\n\n1\t0.3\t0.7\n \n0\t0.8\t0.2\n\n",
        " label , 'p0' ,\"p1\"\n1,0.3,0.7\n0,0.8,0.2\n",
        "label,p0,p1\n1,0.3,0.7,\n0,0.8,0.2, \n",
        'file,label,p0,p1\n"a,b",1,0.3,0.7\nc,0,0.8,0.2\n',
        'size,label,p0,p1\n"1,5",1,0.3,0.7\n2,0,0.8,0.2\n',
        "note;label;p0;p1\na, b;1;0.3;0.7\nc;0;0.8;0.2\n",
        "label,p1,p0\n1,0.7,0.3\n0,0.2,0.8\n",
    ],
)
def test_csv_files_of_every_spelling(text, tmp_path):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    part = read_csv(tmp_path / "x.csv", Names())
    assert part.scores.tolist() == [[0.3, 0.7], [0.8, 0.2]]
    assert part.labels.tolist() == [1, 0]
    assert part.columns == ("p0", "p1")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("names", [None, "abcd"])
def test_tables_are_read_as_they_stand(kind, names, tmp_path):
    """More rows than columns are judged by."""
    logits, labels = predictions(num_samples=220)
    truth = [names[label] for label in labels] if names else labels
    columns = dict(zip(names or ("p0", "p1", "p2", "p3"), logits.T, strict=True))
    path = write_same_table(tmp_path, kind, label=truth, **columns)
    part = {"csv": read_csv, "parquet": read_parquet}[kind](path, Names())
    assert np.array_equal(part.scores, logits)
    assert np.array_equal(part.labels, labels)


def test_blanks_around_the_name_of_a_class_mean_nothing(tmp_path):
    (tmp_path / "x.csv").write_text("label,cat,dog\n dog,0.3,0.7\ncat ,0.8,0.2\n")
    assert read_csv(tmp_path / "x.csv", Names()).labels.tolist() == [1, 0]


def test_a_column_of_lists_goes_before_one_of_the_same_name(tmp_path):
    probs = [[0.3, 0.7], [0.8, 0.2]]
    columns = {"probs_top": [0.7, 0.8], "probs": probs, "probs_again": probs, "label": [1, 0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    part = read_parquet(tmp_path / "x.parquet", Names())
    assert part.scores.tolist() == probs
    assert (part.labels.tolist(), part.columns) == ([1, 0], ("probs",))


def test_a_csv_file_of_one_row(tmp_path):
    (tmp_path / "x.csv").write_text("label,p0,p1\n1,0.3,0.7\n")
    part = read_csv(tmp_path / "x.csv", Names())
    assert (part.scores.tolist(), part.labels.tolist()) == ([[0.3, 0.7]], [1])
    (tmp_path / "x.csv").write_text("0.3,0.7\n")
    assert read_csv_matrix(tmp_path / "x.csv")[0].tolist() == [[0.3, 0.7]]


@pytest.mark.parametrize(
    "text", ["\ufeff0.3,0.7\n0.8,0.2\n", ",0,1\n5,0.3,0.7\n6,0.8,0.2\n", "c2;c1\n0.7;0.3\n0.2;0.8\n"]
)
def test_a_csv_file_of_numbers_alone(text, tmp_path):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert read_csv_matrix(tmp_path / "x.csv")[0].tolist() == [[0.3, 0.7], [0.8, 0.2]]


def test_the_order_of_named_classes_is_the_tables():
    held = [Column(0, "p1", [0.5]), Column(1, "p0", [2.5]), Column(2, "label", ["p1"])]
    _, scores, warnings = choose_columns(held, Names())
    assert [column.name for column in scores] == ["p1", "p0"]
    assert warnings == []


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["y", "target", "label"], "label"),
        (["class", "y"], "y"),
        (["class", "LABEL"], "LABEL"),
        (["pred_label", "trueLabel"], "trueLabel"),
        (["labels.2", "label"], "labels.2"),
        (["predicted_class", "yes"], None),
    ],
)
def test_labels_go_by_the_likeliest_name(names, best):
    assert best_labels(names) == best


def test_labels_that_name_columns_count_from_none(tmp_path):
    logits, labels = predictions(num_classes=3)
    logits, labels = logits[labels > 0], labels[labels > 0]
    columns = {f"c{k + 1}": logits[:, k] for k in range(3)}
    truth = [f"c{label + 1}" for label in labels]
    evaluation = evaluate(write_table(tmp_path / "x.csv", label=truth, **columns))
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_two_series_of_columns_are_not_joined(tmp_path):
    logits, labels = predictions()
    columns = {**score_columns("a_logit_", logits), **score_columns("b_logit_", logits)}
    table = write_table(tmp_path / "x.csv", label=labels, **columns)
    with pytest.raises(SemmixError, match=r"(?s)^which columns hold the scores\?: a_logit_0, .*--scores PREFIX"):
        evaluate(table)
    assert evaluate(table, scores="b_logit_")["num_classes"] == 4


def test_options_that_would_change_nothing_are_refused(tmp_path):
    path = write_npz(tmp_path, *predictions())
    write_safetensors(tmp_path, *predictions()).rename(tmp_path / "logits-test.safetensors")
    for option in ({"val": path}, {"scores": "logits"}, {"val_labels": "labels"}):
        with pytest.raises(SemmixError, match=r"^a run folder holds its own parts: "):
            evaluate(tmp_path, **option)
    table = write_csv(tmp_path, *predictions())
    with pytest.raises(SemmixError, match=r"^there is no validation part to name anything of: class "):
        evaluate(table, val_scores="class ")


def test_a_validation_part_can_be_named_within_a_file(tmp_path):
    (a_logits, a_y), (b_logits, b_y) = predictions(), predictions(seed=1)
    np.savez(tmp_path / "n.npz", a_logits=a_logits, a_y=a_y, b_logits=b_logits, b_y=b_y)
    names = {"scores": "b_logits", "labels": "b_y", "val_scores": "a_logits", "val_labels": "a_y"}
    one = evaluate(tmp_path / "n.npz", **names)
    paths = [write_npz(tmp_path, a_logits, a_y, "a.npz"), write_npz(tmp_path, b_logits, b_y)]
    two = evaluate(paths[1], val=paths[0])
    assert [r["metrics"] for r in one["results"]] == [r["metrics"] for r in two["results"]]


def test_columns_of_plain_numbers(tmp_path):
    """As pandas writes them, with a column of row numbers that has no name."""
    logits, labels = predictions()
    columns = {"": range(300), **score_columns("", logits), "label": labels}
    evaluation = evaluate(write_table(tmp_path / "x.csv", **columns))
    assert "labels from 'label', read as logits" in evaluation["notes"][0]  # what has no name is not called unused
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["pred", "Predicted", "pred_label", "y_pred"])
@pytest.mark.parametrize("classes", [("p0", "p1", "p2", "p3"), ("cat", "dog", "frog", "ship")])
def test_answers_are_no_scores(kind, name, classes, tmp_path):
    logits, labels = predictions()
    files = [f"a #{n}.png" for n in range(300)]
    columns = dict(zip(classes, cal.softmax(logits).T, strict=True))
    about = {"file": files, name: logits.argmax(1), "label": labels}
    evaluation = evaluate(write_same_table(tmp_path, kind, **about, **columns))
    expected = cal.summary(cal.softmax(logits), labels)
    assert given(evaluation)["ece"] == pytest.approx(expected["ece"])
    assert f"labels from 'label', not used: file, {name}" in evaluation["notes"][0]


def test_a_column_called_pred_may_hold_the_scores(tmp_path):
    logits, labels = predictions(num_classes=2)
    probs = cal.softmax(logits)[:, 1]
    path = write_table(tmp_path / "x.csv", file=["a"] * 300, label=labels, pred=probs)
    assert given(evaluate(path))["ece"] == pytest.approx(cal.ece(probs, labels))
    path = write_table(tmp_path / "x.csv", file=["a"] * 300, label=labels, pred=probs.round())
    assert given(evaluate(path))["acc"] == cal.accuracy(probs, labels)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_labels_may_name_columns(kind, tmp_path):
    logits, labels = predictions()
    names = ["n07", "dog", "n02", "ship"]
    columns = dict(zip(names, logits.T, strict=True))
    text = [names[label] for label in labels]
    path = write_same_table(tmp_path, kind, pred=text[::-1], label=text, **columns)
    assert given(evaluate(path))["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_two_tables_with_classes_in_different_orders(tmp_path):
    logits, labels = predictions(num_classes=2)
    columns = {"label": labels, "cat": logits[:, 0], "dog": logits[:, 1]}
    test = write_table(tmp_path / "test.csv", **columns)
    val = write_table(tmp_path / "val.csv", **dict(reversed(columns.items())))
    with pytest.raises(SemmixError, match="order of classes: cat, dog in test, dog, cat"):
        evaluate(test, val=val)


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", logits=np.array([{"a": 1}], object), labels=[0])
    with pytest.raises(SemmixError, match=r"^cannot read"):
        evaluate(tmp_path / "x.npz")


# --- parts ----------------------------------------------------------------------------------------


def test_a_run_folder(tmp_path):
    for part, seed in (("val", 1), ("test", 2)):
        logits, labels = predictions(seed=seed)
        tensors = {"logits": torch.tensor(logits), "labels": torch.tensor(labels)}
        save_file(tensors, tmp_path / f"logits-{part}.safetensors")
    evaluation = evaluate(tmp_path)
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(cal.softmax(logits), labels))
    fitted = cal.TemperatureScaler().fit(*predictions(seed=1))
    after = evaluation["results"][1]
    assert after["temperature"] == pytest.approx(fitted.temperature)
    assert after["metrics"]["nll"] == pytest.approx(cal.nll(fitted.transform(logits), labels))
    written = {path.name for path in tmp_path.iterdir()}
    assert written > {"evaluation.json", "evaluation.md", "evaluation.tex", "report.html"}


def test_what_fit_leaves_is_answered_by_a_run_in_it(tmp_path):
    for folder in ("runs/ce-0", "model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "runs" / "ce-0" / "logits-test.safetensors").touch()
    (tmp_path / "model" / "model.json").touch()
    for folder in (tmp_path, tmp_path / "model"):
        with pytest.raises(SemmixError, match=r"such as .*runs/ce-0$"):
            evaluate(folder)


def test_parts_in_one_file_and_in_two(tmp_path):
    val, test = predictions(seed=1), predictions(seed=2)
    np.savez(
        tmp_path / "both.npz",
        val_logits=val[0],
        val_labels=val[1],
        test_logits=test[0],
        test_labels=test[1],
        train_logits=val[0],
    )
    one = evaluate(tmp_path / "both.npz")
    paths = [write_npz(tmp_path, *val).rename(tmp_path / "v.npz"), write_npz(tmp_path, *test)]
    two = evaluate(paths[1], val=paths[0])
    assert [r["metrics"] for r in one["results"]] == [r["metrics"] for r in two["results"]]


def test_without_validation_nothing_judges_itself(tmp_path):
    """Random labels: a calibrator judged by what it saw would look better than it is."""
    logits, _ = predictions(num_samples=200, num_classes=3)
    labels = np.random.default_rng(5).integers(0, 3, 200)
    samples = Samples(logits, labels, "logits", zero=0.0)
    folds = make_folds(200, 5, seed=0)
    fitted = fit_all(("isotonic",), samples, folds, 0)["isotonic"]
    honest = fitted.apply(slice(0, 200), logits)
    cheating = cal.IsotonicCalibrator().fit(logits, labels).transform(logits)
    assert cal.brier(cheating, labels) < 2 / 3 < cal.brier(honest, labels)
    assert np.bincount(folds).tolist() == [40] * 5


def test_cross_fitted_temperatures_come_from_the_other_folds():
    logits, labels = predictions(num_samples=200)
    samples, folds = Samples(logits, labels, "logits", zero=0.0), make_folds(200, 4, seed=0)
    fitted = fit_all(("temperature",), samples, folds, 0)["temperature"]
    others = [cal.TemperatureScaler().fit(logits[folds != k], labels[folds != k]) for k in range(4)]
    assert fitted.temperature == pytest.approx(np.mean([scaler.temperature for scaler in others]))
    probs = fitted.apply(slice(50, 150), logits[50:150])
    for row, fold in enumerate(folds[50:150], 50):
        expected = others[fold].transform(logits[row : row + 1])[0]
        np.testing.assert_allclose(probs[row - 50], expected)


def test_folds_are_drawn_by_the_seed():
    folds = make_folds(100, 5, seed=0)
    assert not np.array_equal(folds, np.arange(100) % 5)  # rows may come in such an order
    assert not np.array_equal(folds, make_folds(100, 5, seed=1))
    assert sorted(make_folds(2, 5, seed=0)) == [0, 1]


def test_folds_beyond_a_byte(tmp_path):
    folds = make_folds(1000, 300, seed=0)
    assert sorted(set(folds.tolist())) == list(range(300))


def test_one_sample_can_be_measured_but_not_split(tmp_path):
    logits, labels = predictions()
    path = write_npz(tmp_path, logits[:1], labels[:1])
    with pytest.raises(SemmixError, match=r"(?s)single sample cannot be split.*--val"):
        evaluate(path)
    np.savez(tmp_path / "v.npz", logits=logits, labels=labels)
    assert evaluate(path, val=tmp_path / "v.npz")["num_samples"] == 1


# --- mistakes -------------------------------------------------------------------------------------


def warnings_of(tmp_path, scores, labels, name="scores", **options):
    np.savez(tmp_path / "x.npz", **{name: scores, "labels": labels})
    evaluation = evaluate(tmp_path / "x.npz", **options)
    return evaluation, " ".join(evaluation["warnings"])


def test_logits_called_probabilities(tmp_path):
    logits, labels = predictions()
    for name, options in (("probs", {}), ("scores", {"kind": "probs"})):
        evaluation, text = warnings_of(tmp_path, logits, labels, name, **options)
        assert "read as logits, not probabilities" in text
        assert given(evaluation)["ece"] == pytest.approx(cal.ece(cal.softmax(logits), labels))


def test_probabilities_called_logits(tmp_path):
    logits, labels = predictions()
    evaluation, text = warnings_of(tmp_path, cal.softmax(logits), labels, "logits")
    assert "are probabilities" in text
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(cal.softmax(logits), labels))


def test_rows_that_do_not_sum_to_one(tmp_path):
    logits, labels = predictions()
    probs = cal.softmax(logits)
    evaluation, text = warnings_of(tmp_path, 0.9 * probs, labels, "probs")
    assert "do not sum to one" in text
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(probs, labels))
    assert "do not sum to one" in warnings_of(tmp_path, 0.9 * probs, labels, "scores")[1]


@pytest.mark.parametrize("name", ["probs", "scores"])
@pytest.mark.parametrize("num_samples", [5, 300])
def test_a_few_rows_do_not_change_what_all_are(name, num_samples, tmp_path):
    """Read as logits, the folds without such a row would be refused as probabilities."""
    logits, labels = predictions(num_samples)
    probs = cal.softmax(logits)
    probs[3] = [-0.05, 0.55, 0.3, 0.2]
    with pytest.raises(SemmixError, match=r"outside \[0, 1\]: -0.05 in row 3"):
        warnings_of(tmp_path, probs, labels, name)
    probs[3] = [0.1, 0.5, 0.3, 0.2]
    evaluation, text = warnings_of(tmp_path, probs, labels, name)
    assert "off by up to 0.1): normalised" in text
    assert "read as probs" in evaluation["notes"][0]


def test_a_probability_below_zero_beyond_the_rows_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.evaluation.samples.LOOKED_AT", 100)
    logits, labels = predictions()
    probs = cal.softmax(logits)
    probs[200] = [-0.05, 0.55, 0.3, 0.2]
    with pytest.raises(SemmixError, match=r"-0.05 in row 200"):
        warnings_of(tmp_path, probs, labels, "probs")


def test_what_was_asked_for_decides_only_what_is_open(tmp_path):
    logits, labels = predictions(num_classes=2)
    probs = cal.softmax(logits)
    evaluation, text = warnings_of(tmp_path, probs, labels, kind="logits")
    assert "are probabilities, whatever they are called" in text
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(probs, labels))
    evaluation, text = warnings_of(tmp_path, probs[:, 1], labels, kind="logits")
    assert "read as logits" in evaluation["notes"][0]
    assert "probabilities" not in text


@pytest.mark.parametrize("digits", [1, 8])
def test_percentages(digits, tmp_path):
    logits, labels = predictions()
    percent = (100 * cal.softmax(logits)).round(digits)
    evaluation, text = warnings_of(tmp_path, percent, labels, "probs")
    assert "rows sum to 100: divided by 100" in text
    whole = percent / percent.sum(1, keepdims=True)
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(whole, labels), abs=1e-4)


def test_one_hot_labels(tmp_path):
    logits, labels = predictions()
    np.savez(tmp_path / "x.npz", a=logits, weights=np.ones(300), y=np.eye(4)[labels])
    for names in ({}, {"scores": "a", "labels": "y"}):
        evaluation = evaluate(tmp_path / "x.npz", **names)
        assert "one-hot rows" in evaluation["warnings"][0]
        assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_one_hot_labels_of_one_column(tmp_path):
    logits, labels = predictions(num_classes=2)
    probs = cal.softmax(logits)[:, 1]
    evaluation, text = warnings_of(tmp_path, probs, np.eye(2)[labels], "probs")
    assert "one-hot rows" in text
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(probs, labels))


def test_labels_from_one(tmp_path):
    logits, labels = predictions()
    evaluation, text = warnings_of(tmp_path, logits, labels + 1)
    assert "one was subtracted" in text
    assert given(evaluation)["acc"] == cal.accuracy(cal.softmax(logits), labels)


@pytest.mark.parametrize("as_column", [False, True])
def test_labels_one_and_two_of_a_binary_problem(as_column, tmp_path):
    logits, labels = predictions(num_classes=2)
    probs = cal.softmax(logits)[:, 1]
    evaluation, text = warnings_of(tmp_path, probs[:, None] if as_column else probs, labels + 1, "probs")
    assert "labels go from 1 to 2: one was subtracted" in text
    assert given(evaluation)["ece"] == pytest.approx(cal.ece(probs, labels))


@pytest.mark.parametrize("without", ["val", "test"])
def test_labels_from_one_in_a_part_that_lacks_the_last_class(without, tmp_path):
    """Both parts count alike, whichever shows it."""
    parts = {role: predictions(seed=seed) for seed, role in enumerate(("val", "test"))}
    logits, labels = parts[without]
    parts[without] = logits[labels < 3], labels[labels < 3]
    by_first = []
    for first in (0, 1):
        paths = [
            write_npz(tmp_path, logits, labels + first, f"{role}{first}.npz")
            for role, (logits, labels) in parts.items()
        ]
        by_first.append(evaluate(paths[1], val=paths[0]))
    zero, one = ([r["metrics"] for r in evaluation["results"]] for evaluation in by_first)
    assert zero == one
    assert len([w for w in by_first[1]["warnings"] if "one was subtracted" in w]) == 2


def test_columns_numbered_from_one_tell_what_labels_mean(tmp_path):
    logits, labels = predictions()
    logits, labels = logits[labels < 3], labels[labels < 3]
    columns = {f"prob_{k + 1}": cal.softmax(logits)[:, k] for k in range(4)}
    for first in (0, 1):
        table = write_table(tmp_path / f"{first}.csv", label=labels + first, **columns)
        metrics = given(evaluate(table, out=tmp_path / f"out{first}"))
        assert metrics["acc"] == cal.accuracy(cal.softmax(logits), labels)


def test_labels_of_both_kinds_are_refused(tmp_path):
    logits, labels = predictions()
    paths = [write_npz(tmp_path, logits, labels + k, f"{k}.npz") for k in (0, 1)]
    with pytest.raises(SemmixError, match="out of range: from 1 to 4"):
        evaluate(paths[1], val=paths[0])


def test_an_accuracy_of_two_classes_is_not_near_chance_at_two_thirds(tmp_path):
    logits, labels = predictions(num_classes=2)
    labels[:40] = 1 - labels[:40]
    assert 0.6 < cal.accuracy(cal.softmax(logits), labels) < 0.75
    assert "near chance" not in warnings_of(tmp_path, logits, labels)[1]
    assert "near chance" in warnings_of(tmp_path, logits, np.arange(300) % 2)[1]


def test_a_row_beyond_the_first_ones_is_named_as_it_stands(tmp_path, monkeypatch):
    logits, labels = predictions()
    logits[250, 1] = np.nan
    monkeypatch.setattr("semmix.evaluation.samples.LOOKED_AT", 100)
    with pytest.raises(SemmixError, match="scores hold NaN or infinity: 1 entries, the first in row 250"):
        evaluate(write_npz(tmp_path, logits, labels))


def test_small_probabilities_beyond_the_first_rows_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.evaluation.samples.LOOKED_AT", 100)
    probs = np.tile([0.6, 0.4], (300, 1))
    probs[200:] = 1 - 1e-12, 1e-12
    labels = (np.arange(300) % 3 == 0).astype(int)
    evaluation, _ = warnings_of(tmp_path, probs, labels, "probs")
    assert given(evaluation)["nll"] == pytest.approx(cal.nll(probs, labels), rel=1e-9)


def test_validation_equal_to_test(tmp_path):
    logits, labels = predictions()
    path = write_npz(tmp_path, logits, labels)
    told = "100% of the test rows are also in the validation part"
    assert told in " ".join(evaluate(path, val=path)["warnings"])
    few = write_npz(tmp_path, logits[:60], labels[:60], "few.npz")
    for test, val in ((few, path), (path, few)):
        warnings = " ".join(evaluate(test, val=val)["warnings"])
        assert "of the test rows are also in the validation part" in warnings


def test_answers_that_are_all_right_tell_of_no_temperature(tmp_path):
    logits, _ = predictions(num_samples=2000)
    assert "exactly 1" not in warnings_of(tmp_path, logits, logits.argmax(1))[1]


def test_temperature_fitted_on_test(tmp_path):
    logits, labels = predictions(num_samples=2000)
    scaled = logits / cal.TemperatureScaler().fit(logits, labels).temperature
    assert "fitted on this part" in warnings_of(tmp_path, scaled, labels)[1]
    assert warnings_of(tmp_path, logits, labels)[1] == ""


def test_probabilities_rounded_to_zero(tmp_path):
    """Float16 holds nothing below 6e-8: labels there must not outweigh all others."""
    logits, labels = predictions(num_samples=4000, num_classes=10)
    calm, sharp = cal.softmax(logits), cal.softmax(6 * logits)
    evaluation, text = warnings_of(tmp_path, sharp.astype(np.float16), labels, "probs")
    assert "have a probability of exactly 0, taken for 6e-08: the NLL and the calibrators depend on it; pass" in text
    best = evaluation["results"][1]["metrics"]
    assert best["ece"] < 0.3 * given(evaluation)["ece"]
    assert best["nll"] < cal.nll(calm, labels) + 0.1
    assert "exactly 0" not in warnings_of(tmp_path, sharp, labels, "probs")[1]


def test_shuffled_labels(tmp_path):
    logits, labels = predictions(num_classes=10)
    assert "near chance" in warnings_of(tmp_path, logits, np.roll(labels, 7))[1]


def test_few_samples(tmp_path):
    logits, labels = predictions(num_samples=60)
    evaluation, text = warnings_of(tmp_path, logits / 2, labels)
    chance, ece = evaluation["results"][0]["ece_of_chance"], given(evaluation)["ece"]
    assert f"60 samples are few: a perfectly calibrated model would show an ECE near {chance:.4f}" in text
    assert f"this one shows {ece:.4f}" in text


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([[np.nan, 1.0]], [0], "NaN"),
        ([[np.nan, 1.0]], [5], "NaN"),
        ([[2.0, 1.0]], [5], "out of range"),
        ([[2.0, 1.0]] * 3, [0, 1, 2], "out of range: from 0 to 2"),
        ([[2.0, 1.0]] * 2, [-1, 1], "out of range: from -1 to 1"),
        ([[2.0, 1.0]], [0.5], "class indices: 0.5 in row 0"),
        ([[2.0, 1.0]] * 3, [0, 1, np.nan], "class indices: nan in row 2"),
        ([[2.0, 1.0]] * 4, [*"abcd"], r"^labels must be class indices: \['a', 'b', 'c'\]\n"),
        ([[2.0, 1.0]], [[0.4, 0.6]], r"(?s)one-hot: \[0.4, 0.6\] in row 0.*--human"),
        ([[2.0, 1.0]], [[0, 0, 1]], r"one-hot labels do not fit: \[1, 3\]"),
        ([["a", "b"]], [0], r"^scores must be numbers: <U1"),
        ([[2.0, 1.0]], [[1, 1]], r"must be one-hot: \[1, 1\] in row 0"),
        ([[2.0, 1.0]], [[0, 0]], r"must be one-hot: \[0, 0\] in row 0"),
        ([[2.0, 1.0]], [0, 1], r"^scores and labels do not fit: scores \[1, 2\], labels \[2\]"),
        (np.ones((0, 2)), np.ones(0), r"^scores and labels do not fit: scores \[0, 2\], labels \[0\]"),
    ],
)
def test_hopeless_input(scores, labels, message, tmp_path):
    with pytest.raises(SemmixError, match=message):
        warnings_of(tmp_path, np.array(scores), np.array(labels))


def test_arrays_of_another_shape(tmp_path):
    np.savez(tmp_path / "x.npz", maps=np.ones((2, 3, 4)), labels=np.zeros(2))
    with pytest.raises(SemmixError, match=r"'maps' has the wrong shape: \[2, 3, 4\]"):
        evaluate(tmp_path / "x.npz", scores="maps")


def test_parts_of_different_models(tmp_path):
    np.savez(tmp_path / "x.npz", val_logits=np.eye(3), val_labels=[0, 1, 2], test_logits=np.eye(2), test_labels=[0, 1])
    with pytest.raises(SemmixError, match=r"^the two parts differ in classes: 3 classes in validation, 2 in test"):
        evaluate(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "options",
    [
        *({"bins": 0}, {"resamples": 0}, {"folds": 1}, {"seed": -1}),
        *({"level": 1.0}, {"level": 0.0}, {"calibrators": ("x",)}),
    ],
)
def test_settings(options, tmp_path):
    with pytest.raises(
        SemmixError, match=r"^(\w+ is too small: |level must lie between 0 and 1: |unknown calibrator: 'x')"
    ):
        EvaluateConfig(path=tmp_path, **options)


def test_settings_at_their_ends_are_allowed():
    logits, labels = predictions(num_samples=60)
    least = {"bins": 1, "resamples": 1, "folds": 2, "seed": 0, "level": 0.01}
    found = evaluate_arrays(logits, labels, calibrators=("temperature",), **least)
    assert len(found.fitted["temperature"].calibrators) == 2


# --- results --------------------------------------------------------------------------------------


def test_what_is_written(tmp_path, capsys):
    logits, labels = predictions()
    path = write_npz(tmp_path, logits, labels)
    assert main(["evaluate", str(path), "--resamples", "20", "--calibrators", *CALIBRATORS]) == 0
    folder = tmp_path / "x-evaluation"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    names = [result["name"] for result in evaluation["results"]]
    assert names == ["as given", *CALIBRATORS]
    for shown in (capsys.readouterr().out, (folder / "evaluation.md").read_text()):
        assert all(name in shown for name in names)
        assert "labels from 'labels'" in shown
    latex = (folder / "evaluation.tex").read_text()
    assert latex.count(r"\\") == len(names) + 1
    assert latex.startswith(r"\begin{tabular}{l")


def test_no_file_overwrites_the_evaluation_of_another(tmp_path):
    logits, labels = predictions()
    first, second = write_npz(tmp_path, logits, labels), write_csv(tmp_path, logits, labels)
    evaluate(first)
    written = (tmp_path / "x-evaluation" / "evaluation.json").read_bytes()
    with pytest.raises(SemmixError, match=r"(?s)another file: x\.npz.*--out"):
        evaluate(second)
    assert (tmp_path / "x-evaluation" / "evaluation.json").read_bytes() == written
    evaluate(second, out=tmp_path / "other")
    evaluate(first, bins=10)


def test_what_a_page_needs(tmp_path):
    logits, labels = predictions(num_samples=500)
    evaluation = evaluate(write_npz(tmp_path, logits, labels), resamples=200)
    probs = cal.softmax(logits)
    result = evaluation["results"][0]
    table = cal.reliability(probs, labels)
    assert result["reliability"]["count"] == table.count.tolist()
    for bin_accuracy, low, high in zip(
        *(result["reliability"][k] for k in ("accuracy", "accuracy_low", "accuracy_high")), strict=True
    ):
        assert bin_accuracy is None or low <= bin_accuracy <= high
    low, high = result["intervals"]["ece"]
    expected = cal.interval(cal.ece, probs, labels)
    assert (low, high) == pytest.approx(tuple(expected), abs=0.02)
    right = probs.argmax(1) == labels
    edges = np.arange(51) / 50
    assert result["histogram"] == {
        "edges": edges.tolist(),
        "right": np.histogram(probs.max(1)[right], edges)[0].tolist(),
        "wrong": np.histogram(probs.max(1)[~right], edges)[0].tolist(),
    }
    assert result["risk_coverage"]["coverage"][-1] == 1
    assert len(result["risk_coverage"]["risk"]) == 200
    assert result["risk_coverage"]["risk"][-1] == pytest.approx(1 - result["metrics"]["acc"])
    assert sum(result["classes"]["count"]) == 500
    chosen = probs.argmax(1) == 2
    gap = probs[chosen].max(1).mean() - (labels[chosen] == 2).mean()
    assert result["classes"]["gap"][2] == pytest.approx(gap)


def test_a_class_never_predicted_has_no_gap(tmp_path):
    logits = np.array([[2.0, 0.0, -9.0], [0.0, 3.0, -9.0]] * 3)
    evaluation = evaluate(write_npz(tmp_path, logits, np.array([0, 1, 2] * 2)))
    assert evaluation["results"][0]["classes"]["gap"][2] is None


def test_a_class_predicted_once_has_a_gap(tmp_path):
    logits = np.array([[2.0, 0.0]] * 5 + [[0.0, 3.0]])
    evaluation = evaluate(write_npz(tmp_path, logits, np.zeros(6, int)))
    expected = [1 / (1 + np.exp(-2)) - 1, 1 / (1 + np.exp(-3)) - 0]
    assert evaluation["results"][0]["classes"]["gap"] == pytest.approx(expected)


def test_same_command_same_bytes(tmp_path):
    path = write_npz(tmp_path, *predictions())
    outputs = []
    for out in ("a", "b"):
        evaluate(path, out=tmp_path / out, calibrators=("temperature", "vector", "isotonic"))
        outputs.append((tmp_path / out / "evaluation.json").read_bytes())
    assert outputs[0] == outputs[1]


VOTES = np.array([[0.6, 0.2, 0.2], [0.6, 0.35, 0.05], [0.8, 0.1, 0.1], [0.4, 0.3, 0.3]])


def tied_predictions(num_samples=2000):
    """Probabilities with many ties, right on edges of bins, as votes and trees have them."""
    random = np.random.default_rng(3)
    probs = VOTES[random.integers(0, 4, num_samples)]
    return probs, (random.random(num_samples) > probs[:, 0] - 0.1).astype(int)


def test_equal_probabilities_stay_equal(tmp_path):
    probs, labels = tied_predictions()
    np.savez(tmp_path / "votes.npz", probs=probs, labels=labels)
    metrics = given(evaluate(tmp_path / "votes.npz"))
    for name, metric in (("ece", cal.ece), ("aece", cal.aece), ("aurc", cal.aurc)):
        assert metrics[name] == pytest.approx(metric(probs, labels), abs=1e-12)


def test_probabilities_slightly_above_one(tmp_path):
    probs = np.tile([[1.0004, 0.0, 0.0], [1.0003, 0.0, 0.0001]], (50, 1))
    evaluation, _ = warnings_of(tmp_path, probs, np.zeros(100, int), "probs")
    result = evaluation["results"][0]
    assert result["metrics"]["nll"] == 0
    assert result["metrics"]["confidence"] == 1
    assert result["intervals"]["nll"] == [0, 0]
    assert result["ece_of_chance"] == 0


def test_many_equal_probabilities_stay_equal(tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.evaluation.samples.ROWS_PER_BLOCK", 100)
    monkeypatch.setattr("semmix.evaluation.measure.MOST_KEPT", 200)
    test_equal_probabilities_stay_equal(tmp_path)


def test_intervals_hold_their_value(tmp_path):
    probs, labels = tied_predictions()
    np.savez(tmp_path / "votes.npz", probs=probs, labels=labels)
    result = evaluate(tmp_path / "votes.npz", resamples=200)["results"][0]
    for name, (low, high) in result["intervals"].items():
        assert low <= result["metrics"][name] <= high, name
    low, high = result["intervals"]["nll"]
    expected = cal.interval(cal.nll, probs, labels)
    assert (low, high) == pytest.approx(tuple(expected), abs=2e-3)


def test_intervals_end_where_values_do(tmp_path):
    """One error among forty sure answers: the intervals would reach beyond."""
    probs, labels = np.tile([0.99, 0.01], (40, 1)), np.arange(40) // 39
    np.savez(tmp_path / "sure.npz", probs=probs, labels=labels)
    intervals = evaluate(tmp_path / "sure.npz", resamples=200)["results"][0]["intervals"]
    assert intervals["acc"][1] == 1
    assert intervals["nll"][0] == intervals["brier"][0] == 0


def test_intervals_are_as_wide_as_their_level_asks(tmp_path):
    """Recomputed: of means by their standard error, of a bin's accuracy by the binomial's."""
    probs, labels = tied_predictions(1500)
    np.savez(tmp_path / "votes.npz", probs=probs, labels=labels)
    result = evaluate(tmp_path / "votes.npz", level=0.8, resamples=1000)["results"][0]
    wide = NormalDist().inv_cdf(0.9)
    squared = np.square(probs - np.eye(3)[labels]).sum(1)
    losses = {"nll": -np.log(probs[np.arange(1500), labels]), "brier": squared}
    for name, values in losses.items():
        half = wide * values.std() / 1500**0.5
        expected = (values.mean() - half, values.mean() + half)
        assert tuple(result["intervals"][name]) == pytest.approx(expected, rel=1e-9)
    table = result["reliability"]
    for row in np.flatnonzero(table["count"]):
        share, num = table["accuracy"][row], table["count"][row]
        half = wide * (share * (1 - share) / num) ** 0.5
        low, high = table["accuracy_low"][row], table["accuracy_high"][row]
        assert (low, high) == pytest.approx((share - half, share + half), abs=0.12 * half)


def test_many_samples_are_compressed_without_loss(tmp_path, monkeypatch):
    logits, labels = predictions(num_samples=1000)
    path = write_npz(tmp_path, logits, labels)
    whole = evaluate(path)["results"][0]["metrics"]
    monkeypatch.setattr("semmix.evaluation.samples.ROWS_PER_BLOCK", 100)
    monkeypatch.setattr("semmix.evaluation.measure.MOST_KEPT", 200)
    packed = evaluate(path)["results"][0]["metrics"]
    for name, value in whole.items():
        assert packed[name] == pytest.approx(value, abs=2e-3 if name == "aurc" else 1e-4)


BIG = """
import resource, sys
from pathlib import Path
from semmix.evaluation import EvaluateConfig, load_samples
from semmix.evaluation.calibrate import Fitted
from semmix.evaluation.measure import measure_samples
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples = load_samples(EvaluateConfig(path=Path(sys.argv[1])))[0]
measure_samples(samples, Fitted(), bins=15, level=0.95, resamples=10, seed=0)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    """A mapped file of 0.3 or 1.2 million rows takes about the same memory."""
    grown = []
    for num_samples in (300_000, 1_200_000):
        odds = np.sin(np.arange(num_samples, dtype=np.float32))
        np.save(tmp_path / "logits.npy", np.stack([odds, -odds], 1))
        np.save(tmp_path / "labels.npy", (odds < 0.5).astype(np.int8))
        command = [sys.executable, "-c", BIG, str(tmp_path / "logits.npy")]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        grown.append(int(output.split()[-1]))
    assert grown[1] - grown[0] < 40  # MiB: 7 of the mapped file, 8 of labels, the rest is chance


def test_the_page_is_drawn_from_a_part_of_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.evaluation.outcome.PAGE_ROWS", 200)
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(1000, 4))
    np.savez(tmp_path / "m.npz", logits=logits, labels=logits.argmax(1))
    evaluation = evaluate(tmp_path / "m.npz", level=0.5, bins=7)
    html = (tmp_path / "m-evaluation" / "report.html").read_text()
    assert "drawn from 200 random rows" in html
    assert "temperature" in html
    assert '<p class="meta">1,000 images</p>' in html
    assert "[50 % interval over the images]" in html
    assert "into 7 bins" in html
    metrics = given(evaluation)
    assert f"mean confidence {percent(metrics['confidence'])}" in html
    for name in ("nll", "brier"):  # of all rows
        assert f"{metrics[name]:.3f} <span" in html


def test_ones_own_calibrator(tmp_path, monkeypatch):
    (tmp_path / "own_calibrators.py").write_text(
        "from semmix.calibration import TemperatureScaler\nclass Mine(TemperatureScaler): pass\nclass NoFit: pass\n"
        "class FitAlone:\n    def fit(self, logits, labels): pass\n"
        "class TransformAlone:\n    def transform(self, logits): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = write_npz(tmp_path, *predictions())
    names = ("temperature", "own_calibrators:Mine")
    results = evaluate(path, calibrators=names)["results"]
    assert [result["name"] for result in results[1:]] == list(names)
    assert results[1]["metrics"] == results[2]["metrics"]
    for name, message in (
        ("own_calibrators:NoFit", "not a calibrator"),
        ("own_calibrators:FitAlone", "not a calibrator"),
        ("own_calibrators:TransformAlone", "not a calibrator"),
        ("own_calibrators:Gone", "cannot load"),
        ("nowhere_at_all:Mine", "cannot load"),
    ):
        with pytest.raises(SemmixError, match=message):
            EvaluateConfig(path=path, calibrators=(name,))
    with pytest.raises(SemmixError, match="cannot be fitted here"):
        evaluate(path, calibrators=("semmix.calibration:DensityRatioCalibrator",))


# --- people ---------------------------------------------------------------------------------------


def votes(num_samples=300, num_classes=4, num_people=50, seed=0):
    """Logits, labels and people's shares, made by one truth: what CIFAR-10H is for CIFAR-10."""
    random = np.random.default_rng(seed)
    truth = cal.softmax(1.5 * random.normal(size=(num_samples, num_classes)))
    human = np.stack([random.multinomial(num_people, p) for p in truth]) / num_people
    labels = (np.log(truth) + random.gumbel(size=truth.shape)).argmax(1)
    return 2 * np.log(truth), labels, human


def with_people(folder, human, name="cifar10h-probs.npy", **options):
    logits, labels, _ = votes()
    np.save(folder / name, human)
    return evaluate(write_npz(folder, logits, labels), human=folder / name, **options)


def test_agreement_with_people(tmp_path, capsys):
    logits, labels, human = votes()
    evaluation = with_people(tmp_path, human)
    found = evaluation["human"]
    assert list(found["agreement"]) == ["one-hot labels", "as given", "temperature"]
    expected = cal.human_agreement(cal.softmax(logits), human)
    assert found["agreement"]["as given"] == pytest.approx(expected)
    assert found["entropy"] == pytest.approx(cal.entropy(human))
    one_hot = found["agreement"]["one-hot labels"]
    assert one_hot["total_variation"] == pytest.approx(np.mean(1 - human[np.arange(300), labels]))
    assert one_hot["cross_entropy"] is one_hot["kl_divergence"] is None
    assert one_hot["entropy_correlation"] is None
    # The predictions were made twice too sharp: a temperature brings them nearer to people.
    kl, variation = (
        [found["agreement"][name][key] for name in ("as given", "temperature")]
        for key in ("kl_divergence", "total_variation")
    )
    assert kl[1] < kl[0]
    assert variation[1] < variation[0] < one_hot["total_variation"]
    folder = tmp_path / "x-evaluation"
    assert json.loads((folder / "evaluation.json").read_text())["human"] == found
    shown = f"{variation[1]:.4f}"
    assert "one-hot labels" in capsys.readouterr().out
    for name in ("evaluation.md", "report.html"):
        assert shown in (folder / name).read_text()
        assert "one-hot labels" in (folder / name).read_text()


def test_without_people_nothing_is_said_of_them(tmp_path):
    evaluation = evaluate(write_npz(tmp_path, *predictions()))
    assert evaluation["human"] is None
    assert "people-title" not in (tmp_path / "x-evaluation" / "report.html").read_text()


@pytest.mark.parametrize("kind", ["npz", "safetensors", "csv", "csv of numbers alone"])
def test_people_in_every_kind_of_file(kind, tmp_path):
    logits, labels, human = votes()
    lines = [",".join(map(repr, row)) for row in human.tolist()]
    if kind == "npz":
        np.savez(tmp_path / "h.npz", human=human, image_ids=np.arange(300))
    elif kind == "safetensors":
        save_file({"probs": torch.tensor(human)}, tmp_path / "h.safetensors")
    elif kind == "csv":
        numbered = [f"{n},{line}" for n, line in enumerate(lines)]
        (tmp_path / "h.csv").write_text("\n".join(["id,cat,dog,frog,ship", *numbered, ""]))
    else:
        (tmp_path / "h.csv").write_text("\n".join([*lines, ""]))
    (path,) = tmp_path.glob("h.*")
    evaluation = evaluate(write_npz(tmp_path, logits, labels), human=path)
    expected = cal.human_agreement(cal.softmax(logits), human)
    assert evaluation["human"]["agreement"]["as given"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda human: human[:-1], r"do not fit.*299, 4.*300 predictions"),
        (lambda human: human[:, :3], r"do not fit.*300, 3.*4 classes"),
        (lambda human: human.reshape(2, 600), r"do not fit.*2, 600"),
        (lambda human: human[0], r"^cifar10h-probs\.npy must hold one table of numbers: none\n"),
        (lambda human: 50 * human, r"sum to 1.*50 in row 0.*divide each row by its sum"),
        (lambda human: np.where(human == human[7], np.nan, human), r"probabilities.*correct"),
        (lambda human: human - 0.1, "probabilities"),
    ],
)
def test_what_people_cannot_have_said(change, message, tmp_path):
    with pytest.raises(SemmixError, match=f"(?s){message}"):
        with_people(tmp_path, change(votes()[2]))


def test_peoples_shares_may_be_rounded(tmp_path):
    human = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    test = Samples(human, np.array([0, 1, 0]), "probs", zero=0.0)
    for row, excess in ((1, 0.9e-3), (1, -0.9e-3), (2, 0.0)):
        np.save(tmp_path / "h.npy", human + excess * np.eye(3)[row][:, None] * [1, 0])
        assert check_human(read_matrix(tmp_path / "h.npy")[0], test) == []
    for row, excess, total in ((1, 2e-3, "1.002"), (2, -2e-3, "0.998")):
        np.save(tmp_path / "h.npy", human + excess * np.eye(3)[row][:, None] * [1, 0])
        with pytest.raises(SemmixError, match=f"sum to 1: {total} in row {row}"):
            check_human(read_matrix(tmp_path / "h.npy")[0], test)
    for wrong in (-0.5, np.nan, np.inf):
        np.save(tmp_path / "h.npy", np.where((human == 0.25) | (human == 1), wrong, human))
        with pytest.raises(SemmixError, match="must be probabilities: row 1"):
            check_human(read_matrix(tmp_path / "h.npy")[0], test)


def test_what_is_infinite_or_undefined_is_none():
    human = np.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]])
    sure = agreement(np.array([[0.4, 0.6, 0.0], [0.2, 0.8, 0.0]]), human)
    assert None not in sure.values()  # nobody chose the class that has no probability
    never = agreement(np.array([[0.4, 0.6, 0.0], [0.0, 1.0, 0.0]]), human)
    assert {k for k, v in never.items() if v is None} == {"cross_entropy", "kl_divergence"}
    same = agreement(np.full((2, 3), 1 / 3), human)
    assert {k for k, v in same.items() if v is None} == {"entropy_correlation"}


def test_people_are_doubted_where_most_choose_another_class():
    human = np.array([[0.6, 0.4], [0.6, 0.4], [0.3, 0.7], [0.3, 0.7]])
    half, quarter = (Samples(human, np.array(labels), "probs", zero=0.0) for labels in ([0, 1, 1, 0], [0, 1, 0, 0]))
    assert check_human(human, half) == []
    (told,) = check_human(human, quarter)
    assert "the label in 25% of the rows" in told


def test_people_in_columns_out_of_order(tmp_path):
    logits, labels, human = votes()
    path = write_table(tmp_path / "h.csv", **score_columns("p", human, [3, 1, 0, 2]))
    evaluation = evaluate(write_npz(tmp_path, logits, labels), human=path)
    expected = cal.human_agreement(cal.softmax(logits), human)
    assert evaluation["human"]["agreement"]["as given"] == pytest.approx(expected)
    assert "people: score columns stand as p3, p1, p0, p2" in evaluation["warnings"][0]


def test_people_in_another_order_are_noticed(tmp_path):
    warnings = with_people(tmp_path, np.roll(votes()[2], 1, axis=0))["warnings"]
    assert "in the same order?" in " ".join(warnings)


def test_the_page_takes_its_intervals_from_the_evaluation(tmp_path):
    evaluation = evaluate(write_npz(tmp_path, *predictions()), resamples=200)
    page = (tmp_path / "x-evaluation" / "report.html").read_text()
    for result in evaluation["results"]:
        for name in ("acc", "ece", "aece", "oe", "ue"):
            low, high = (f"{100 * end:.2f}" for end in result["intervals"][name])
            assert f"[{low}, {high}]".replace("-", "−") in page


# --- boundaries -----------------------------------------------------------------------------------


def test_the_command_says_what_it_did(tmp_path, capsys):
    path = write_npz(tmp_path, *predictions())
    evaluate(path, calibrators=("temperature", "vector"))
    printed = capsys.readouterr().out
    assert "evaluate: 900/900" in printed
    assert f"written to {tmp_path / 'x-evaluation'}\npage: {tmp_path / 'x-evaluation' / 'report.html'}\n" in printed
    assert (
        printed.index("read as logits") < printed.index("evaluate: 900/900") < printed.index("300 samples, 4 classes")
    )


def test_warnings_are_printed_once(tmp_path, capsys):
    logits, labels = predictions(num_samples=60)
    evaluation = evaluate(write_npz(tmp_path, logits / 2, labels + 1))
    printed = capsys.readouterr().out
    assert len(evaluation["warnings"]) == 2
    for warning in evaluation["warnings"]:
        assert printed.count(f"warning: {warning}\n") == 1


@pytest.mark.parametrize(("num_shared", "warned"), [(49, False), (50, True)])
def test_parts_that_share_half_of_the_smaller_one(num_shared, warned):
    test_rows, other_rows = predictions(num_samples=200)[0], predictions(num_samples=200, seed=1)[0]
    val_rows = np.concatenate([test_rows[:num_shared], other_rows[num_shared:100]])
    test, val = (Samples(rows, np.zeros(len(rows), int), "logits", 0.0) for rows in (test_rows, val_rows))
    told = compare_parts(test, val)
    assert bool(told) == warned
    assert not told or told[0].startswith("25% of the test rows")


@pytest.mark.parametrize(
    ("num_rows", "num_right", "warned"), [(400, 125, True), (400, 126, False), (10, 3, True), (10, 4, False)]
)
def test_accuracies_near_chance(num_rows, num_right, warned):
    """Of four classes: three standard deviations above a quarter, at most half as much again."""
    logits = np.eye(4)[(np.arange(num_rows) >= num_right).astype(int)]
    told = look_closer(Samples(logits, np.zeros(num_rows, int), "logits", 0.0))
    assert any("near chance" in warning for warning in told) == warned


@pytest.mark.parametrize(("row", "seen"), [(100, True), (101, False)])
def test_the_first_hundred_rows_of_a_table_are_looked_at(row, seen, tmp_path):
    lines = ["label,p0,p1", *["0,0.3,0.7"] * 120]
    lines[row] += ",0.5"
    (tmp_path / "x.csv").write_text("\n".join(lines))
    if seen:
        with pytest.raises(SemmixError, match="longer than the first line"):
            read_parts(tmp_path / "x.csv", None, Names(), Names())
    else:
        assert read_parts(tmp_path / "x.csv", None, Names(), Names())["test"].scores.shape == (120, 2)


@pytest.mark.parametrize(("row", "seen"), [(19_999, True), (20_000, False)])
def test_guesses_are_made_on_the_first_rows(row, seen):
    rows, labels = np.tile([0.25, 0.75], (20_001, 1)), np.ones(20_001, int)
    rows[row] = 1e-9, 1 - 1e-9
    labels[row] = 0
    samples, _ = make_samples(Part(rows, labels, "probs", ""), None)
    assert samples.zero == (1e-9 if seen else 1e-4 / 2)
    rows[row] = 0, 1
    samples, _ = make_samples(Part(rows, labels, "probs", ""), None)
    assert any("probability of exactly 0" in warning for warning in look_closer(samples)) == seen
    rows[row] = -0.5, 1.5
    if seen:
        with pytest.raises(SemmixError, match=r"-0\.5 in row 19999"):
            make_samples(Part(rows, labels, "probs", ""), None)
    else:
        make_samples(Part(rows, labels, "probs", ""), None)


def test_rows_beyond_the_first_ones_are_not_compared(monkeypatch):
    monkeypatch.setattr("semmix.evaluation.samples.LOOKED_AT", 100)
    first, second, shared = (predictions(100, seed=seed)[0] for seed in range(3))
    parts = [Samples(np.concatenate([own, shared]), np.zeros(200, int), "logits", 0.0) for own in (first, second)]
    assert compare_parts(*parts) == []
    parts = [Samples(np.concatenate([shared, own]), np.zeros(200, int), "logits", 0.0) for own in (first, second)]
    assert compare_parts(*parts)[0].startswith("100% of the test rows")


def test_a_temperature_is_not_sought_on_a_part_of_the_rows(monkeypatch):
    logits, labels = predictions(1200)
    samples = Samples(logits / cal.TemperatureScaler().fit(logits, labels).temperature, labels, "logits", 0.0)
    assert any("exactly 1" in warning for warning in look_closer(samples))
    monkeypatch.setattr("semmix.evaluation.samples.LOOKED_AT", 1199)
    assert look_closer(samples) == []


@pytest.mark.parametrize(
    ("temperature", "warned"), [(1.00007, True), (1.00015, False), (0.99993, True), (0.9998, False)]
)
def test_how_near_to_one_a_temperature_is_suspect(temperature, warned):
    logits, labels = predictions(1500)
    scaled = logits * temperature / cal.TemperatureScaler().fit(logits, labels).temperature
    told = look_closer(Samples(scaled, labels, "logits", 0.0))
    assert any("exactly 1" in warning for warning in told) == warned


def test_folds_and_random_rows_are_drawn_as_ever():
    """Other draws would change the figures of every evaluation."""
    assert make_folds(10, 3, seed=0).tolist() == [0, 0, 2, 1, 2, 1, 2, 0, 1, 0]
    assert np.flatnonzero(random_rows(20, 5, seed=1)).tolist() == [0, 7, 8, 13, 18]
    assert random_rows(5, 5, seed=1).all()
    assert random_rows(5, 9, seed=1).all()


def test_calibrators_are_fitted_on_the_rows_drawn_by_the_seed(monkeypatch):
    monkeypatch.setattr("semmix.evaluation.calibrate.FITTING_ROWS", 50)
    logits, labels = predictions()
    samples, rows = Samples(logits, labels, "logits", 0.0), random_rows(300, 50, fold_seed("pool", 4))
    fitted = fit_all(("temperature",), samples, None, seed=4)["temperature"]
    assert fitted.temperature == cal.TemperatureScaler().fit(logits[rows], labels[rows]).temperature


def test_the_manual_tells_how_many_samples_are_fitted_on():
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    assert f"At most {FITTING_ROWS:,} samples" in page


FIGURES = {
    "as given": [0.12696611, 0.1673556, 1.00063709, 1.13077569],
    "temperature": [0.01491096, 0.05644736, 0.87437042, 0.94395082],
    "isotonic": [0.01055875, 0.05536939, 0.88884981, 0.97010493],
}
"""The ends of the intervals of ECE and NLL."""


def test_an_evaluation_gives_the_figures_it_always_gave():
    """Of intervals and calibrators too: the same predictions and settings are the same bytes."""
    logits, labels = predictions(num_samples=2000)
    settings = {"calibrators": ("temperature", "isotonic"), "resamples": 50, "folds": 3, "seed": 2}
    results = evaluate_arrays(logits, labels, **settings).results
    found = {name: [end for key in ("ece", "nll") for end in result.measures[key]] for name, result in results.items()}
    for name, values in FIGURES.items():
        assert found[name] == pytest.approx(values, abs=1e-7)


def test_a_class_is_told_by_the_last_number_of_its_column(tmp_path):
    """Labels from 1 that lack the last class, in columns whose names hold another number."""
    logits, labels = predictions(num_classes=3)
    logits, labels = logits[labels < 2], labels[labels < 2]
    columns = {f"m2_p{k + 1}": logits[:, k] for k in range(3)}
    evaluation = evaluate(write_table(tmp_path / "x.csv", label=labels + 1, **columns))
    assert "labels go from 1 to 3: one was subtracted" in evaluation["warnings"][0]


def test_a_missing_value_in_a_list_is_named(tmp_path):
    columns = {"logits": [[0.5, 1.5], [None, 0.5]], "y": [0, 1]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    with pytest.raises(SemmixError, match="scores hold NaN or infinity: 1 entries, the first in row 1"):
        evaluate(tmp_path / "x.parquet")


def test_people_in_two_tables_are_asked_which(tmp_path):
    np.savez(tmp_path / "h.npz", a=np.eye(2), b=np.eye(2), c=np.ones(2))
    with pytest.raises(SemmixError, match=r"^h\.npz must hold one table of numbers: a, b\n.*leave one"):
        read_matrix(tmp_path / "h.npz")


def test_scores_asked_for_as_logits_are_not_doubted(tmp_path):
    logits, labels = predictions()
    rows = 0.8 * cal.softmax(logits)
    assert "read as logits" in warnings_of(tmp_path, rows, labels)[1]
    evaluation, text = warnings_of(tmp_path, rows, labels, kind="logits")
    assert "read as logits" in evaluation["notes"][0]
    assert "sum to one" not in text


def test_scores_that_do_not_sum_to_one_have_no_unit():
    rows = [[0.4, 0.4], [0.1, 0.7]]
    assert (judged(rows)[0].kind, judged(rows)[0].unit) == ("probs", 1)
    assert (judged(rows, "scores")[0].kind, judged(rows, "scores")[0].unit) == ("logits", 1)


def test_one_column_of_log_odds_beyond_one_is_refused_as_probabilities():
    assert judged([0.2, 0.9, 3.0], "scores")[0].kind == "logits"
    with pytest.raises(SemmixError, match=r"outside .* in row 2"):
        judged([0.2, 0.9, 3.0], "probs")


def test_a_broken_row_is_named_as_it_stands_in_a_later_block(monkeypatch):
    monkeypatch.setattr("semmix.evaluation.samples.ROWS_PER_BLOCK", 100)
    logits, labels = predictions()
    for broken, kind, message in ((np.nan, "logits", "first in row 250"), (-0.5, "probs", "-0.5 in row 250")):
        rows = logits.copy() if kind == "logits" else cal.softmax(logits)
        rows[250, 1] = broken
        samples = Samples(rows, labels, kind, 0.0)
        with pytest.raises(SemmixError, match=message):
            [samples.probs(where) for where in samples.slices()]


def test_many_samples_are_compressed_whenever_they_are_too_many(monkeypatch):
    monkeypatch.setattr("semmix.evaluation.samples.ROWS_PER_BLOCK", 100)
    monkeypatch.setattr("semmix.evaluation.measure.MOST_KEPT", 200)
    compress, asked = cal.CalibrationStream.compress, []
    monkeypatch.setattr(
        cal.CalibrationStream, "compress", lambda self, cells: (asked.append(cells), compress(self, cells))
    )
    logits, labels = predictions(num_samples=700)
    measure_samples(Samples(logits, labels, "logits", 0.0), Fitted(), 10, 0.95, 5, 0)
    assert asked == [10 * 4096] * 3


def judged(rows, name="probs"):
    """Samples and warnings of scores whose labels are all class 0."""
    return make_samples(Part(np.array(rows), np.zeros(len(rows), int), name, ""), None)


@pytest.mark.parametrize(
    ("row", "refused"), [([-9e-7, 1.0], ""), ([-2e-6, 1.0], "-2e-06"), ([1.0099, 0.0], ""), ([1.0101, 0.0], "1.01")]
)
def test_how_far_rounding_may_take_a_probability(row, refused):
    rows = [[0.5, 0.5]] * 3 + [row]
    if not refused:
        probs = judged(rows)[0].probs(slice(0, 4))
        assert probs.min() > 0
        assert probs.max() <= 1
    else:
        with pytest.raises(SemmixError, match=rf"^probabilities lie outside \[0, 1\]: {refused} in row 3\n"):
            judged(rows)


@pytest.mark.parametrize(
    ("excess", "warned", "kept"), [(4e-4, False, True), (9e-4, False, False), (1.1e-3, True, False)]
)
def test_sums_beside_one(excess, warned, kept):
    samples, warnings = judged([[0.5 + excess, 0.5], [0.25, 0.75]])
    assert any("do not sum to one" in warning for warning in warnings) == warned
    probs = samples.probs(slice(0, 2))
    assert (probs[0].sum() == pytest.approx(1 + excess, abs=1e-9)) == kept
    assert probs[1].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([[0.5, 0.519]], "probs"),
        ([[0.5, 0.521]], "logits"),
        ([[0.5, 0.5], [0.9, 0.9]], "probs"),
        ([[0.5, 0.5], [0.9, 0.9], [0.8, 0.8]], "logits"),
        ([[3.0, -2.0]], "logits"),
        ([0.2, 0.9, 1.0], "probs"),
        ([0.2, 0.9, 3.0], "logits"),  # of one column all has to lie in [0, 1]
        ([[50.0, 50.0], [30.0, 70.0], [90.0, 90.0]], "probs"),
        ([[50.0, 51.9]], "probs"),
        ([[50.0, 48.1]], "probs"),
        ([[50.0, 52.1]], "logits"),
        ([[50.0, 47.9]], "logits"),
    ],
)
def test_what_scores_are_is_decided_by_half_of_the_rows(rows, kind):
    samples, warnings = judged(rows, "scores")
    assert samples.kind == kind
    in_percent = kind == "probs" and np.max(rows) > 2
    assert samples.unit == (100 if in_percent else 1)
    assert any("'scores' are percentages" in warning for warning in warnings) == in_percent


def test_what_a_probability_of_zero_is_taken_for():
    assert judged([[1.0, 0.0], [0.9, 0.1]])[0].zero == 1e-4 / 2
    assert judged([[1.0, 0.0], [1 - 1e-6, 1e-6]])[0].zero == 1e-6
    assert judged([[100.0, 0.0], [100 - 1e-4, 1e-4]])[0].zero == pytest.approx(1e-6)


@pytest.mark.parametrize(("num_samples", "warned"), [(999, False), (1000, True)])
def test_a_temperature_of_one_is_noticed_on_enough_rows(num_samples, warned):
    logits, labels = predictions(num_samples)
    scaled = logits / cal.TemperatureScaler().fit(logits, labels).temperature
    told = look_closer(Samples(scaled, labels, "logits", 0.0))
    assert any("exactly 1" in warning for warning in told) == warned


def test_calibrators_are_fitted_on_some_rows_of_many(monkeypatch):
    monkeypatch.setattr("semmix.evaluation.calibrate.FITTING_ROWS", 50)
    monkeypatch.setattr("semmix.evaluation.samples.ROWS_PER_BLOCK", 100)
    seen = []
    fit = cal.TemperatureScaler.fit
    monkeypatch.setattr(cal.TemperatureScaler, "fit", lambda self, *rows: (seen.append(rows), fit(self, *rows))[1])
    logits, labels = predictions()
    fit_all(("temperature",), Samples(logits, labels, "logits", 0.0), None, seed=0)
    ((rows, targets),) = seen
    places = [int(np.flatnonzero((logits == row).all(1))[0]) for row in rows]
    assert len(set(places)) == 50
    assert places == sorted(places)
    assert targets.tolist() == labels[places].tolist()
    assert places[0] < 60
    assert places[-1] > 240


def test_the_page_tells_from_how_many_samples_on_cells_stand_for_them():
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    assert f"Beyond {MOST_KEPT:,} samples" in page


@pytest.mark.parametrize(("num", "told"), [(50_000, False), (50_001, True)])
def test_pictures_are_drawn_from_fifty_thousand_rows(tmp_path, num, told):
    probs, labels = np.tile([[0.25, 0.75], [0.5, 0.5]], (num // 2 + 1, 1))[:num], np.arange(num) % 2
    page = evaluate_arrays(probs, labels, calibrators=(), resamples=1).write(tmp_path).read_text()
    assert ("Pictures are drawn from 50,000 random rows; the table counts all." in page) == told


def test_pictures_of_all_rows_are_not_called_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.evaluation.outcome.PAGE_ROWS", 300)
    page = evaluate_arrays(*predictions(), calibrators=(), resamples=20).write(tmp_path)
    assert "random rows" not in page.read_text()


# --- from Python ----------------------------------------------------------------------------------


def test_arrays_and_files_are_evaluated_alike(tmp_path):
    logits, labels = predictions()
    settings = {"calibrators": ("temperature", "beta"), "resamples": 20, "bins": 10, "level": 0.8, "seed": 3}
    np.savez(tmp_path / "x.npz", val_logits=-logits, val_labels=labels, test_logits=logits, test_labels=labels)
    for val in (None, (-logits, labels)):
        path = write_npz(tmp_path, logits, labels, "y.npz") if val is None else tmp_path / "x.npz"
        by_file = evaluate_file(EvaluateConfig(path=path, folds=4, **settings))
        by_array = evaluate_arrays(logits, labels, val=val, folds=4, **settings)
        assert by_array.to_json()["results"] == by_file.to_json()["results"]
        assert by_array.table() == by_file.table()


def test_the_function_has_the_defaults_of_the_command():
    defaults = {name: p.default for name, p in inspect.signature(evaluate_arrays).parameters.items()}
    for field in fields(Settings):
        assert defaults[field.name] == field.default
    assert (Settings().bins, Settings().level, Settings().resamples, Settings().folds) == (15, 0.95, 1000, 5)
    given = {"bins": 15, "level": 0.95, "resamples": 1000, "folds": 5, "seed": 0, "name": "predictions"}
    found, same = (evaluate_arrays(*predictions(40), calibrators=("temperature",), **k) for k in ({}, given))
    assert found.to_json() == same.to_json()
    assert list(evaluate_arrays(*predictions(40), resamples=5).calibrated) == [*COMPARED]
    assert COMPARED == ("temperature", "vector", "histogram", "isotonic", "beta")


@pytest.mark.parametrize("kind", [torch.tensor, list, lambda values: torch.tensor(values, requires_grad=True)])
def test_tensors_and_lists_are_evaluated(kind):
    logits, labels = predictions()
    found = evaluate_arrays(kind(logits), torch.tensor(labels), calibrators=(), resamples=20)
    assert found.measures["ece"].value == pytest.approx(cal.ece(cal.softmax(logits), labels))
    assert found.notes[0] == "test from scores [300, 4], read as logits"


def test_an_evaluation_is_a_mapping_of_names_to_intervals():
    logits, labels = predictions()
    found = evaluate_arrays(cal.softmax(logits), labels, calibrators=("temperature",), resamples=200)
    ece = found.measures["ece"]
    assert ece.value == pytest.approx(cal.ece(cal.softmax(logits), labels))
    assert ece.num == 300
    assert ece.has_interval
    assert not found.measures["classwise_ece"].has_interval
    assert list(found.calibrated) == ["temperature"]
    assert found.calibrated["temperature"].temperature == pytest.approx(2, rel=0.2)
    assert f"temperature={found.calibrated['temperature'].temperature:.4g}" in repr(found.calibrated["temperature"])
    assert "temperature=" not in repr(found.results["as given"])
    assert "'acc': 0.5667, 'ece': 0.1942, 'aece':" in repr(found.results["as given"])
    assert repr(found).startswith("Evaluation(300 samples, 4 classes: accuracy 56.67 %, ECE 19.42 %;")
    assert repr(evaluate_arrays(logits, labels, calibrators=(), resamples=20)).endswith("ECE 19.42 %)")


def test_an_evaluation_shows_in_a_notebook():
    logits, labels = predictions()
    shown = evaluate_arrays(logits, labels + 1, calibrators=(), resamples=20)._repr_html_()
    assert "<caption>300 samples, 4 classes</caption>" in shown
    assert "one was subtracted</li></ul>" in shown
    assert "<ul>" not in evaluate_arrays(logits, labels, calibrators=(), resamples=20)._repr_html_()


def test_the_table_shows_the_interval_of_the_ece():
    logits, labels = predictions()
    found = evaluate_arrays(logits, labels, calibrators=(), resamples=50, level=0.9)
    table = found.table()
    low, high = (f"{100 * end:.2f}" for end in found.measures["ece"])
    assert table.headings[:5] == ["", "Accuracy %", "ECE %", "90 % interval", "AECE %"]
    assert table.rows[0][:4] == ["as given", "56.67", "19.42", f"{low} to {high}"]
    assert table.rows[0][-1] == f"{found.measures['brier'].value:.3f}"


def test_people_can_be_given_as_an_array():
    logits, labels, human = votes()
    found = evaluate_arrays(logits, labels, human=torch.tensor(human), calibrators=[], resamples=20)
    assert found.human["agreement"]["as given"] == pytest.approx(cal.human_agreement(cal.softmax(logits), human))
    assert found.tables()[1].rows[0][:2] == ["one-hot labels", "–"]
    with pytest.raises(SemmixError, match="people's labels do not fit"):
        evaluate_arrays(logits, labels, human=human[:9])


def test_an_evaluation_is_written(tmp_path):
    page = evaluate_arrays(*predictions(), calibrators=(), resamples=20, name="mine").write(tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    assert "Evaluation of mine" in page.read_text()
    assert (tmp_path / "out" / "evaluation.md").read_text().startswith("# Evaluation of mine\n")
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["source"] == "mine"


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.ones((2, 3, 4)), [0, 1], r"'scores' has the wrong shape: \[2, 3, 4\]"),
        (np.eye(2), np.zeros((2, 1, 1)), "array of labels has the wrong shape"),
        (np.eye(2), ["a", "b"], "labels must hold numbers"),
        ([], [], "scores must not be empty"),
    ],
)
def test_arrays_that_cannot_be_evaluated(scores, labels, message):
    with pytest.raises(SemmixError, match=message):
        evaluate_arrays(scores, labels)
