"""Answers to files: right, cautious, complete, in order, and never stopped by a bad file."""

import csv
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from semmix import SemmixError
from semmix.cli.main import main
from semmix.core.files import write_json
from semmix.deploy import Caution, Model, load_model
from semmix.deploy.image_files import find_images, fit_channels, read_image
from semmix.deploy.model import BATCH_SIZE
from semmix.deploy.predict import predict_files
from semmix.deploy.rules import in_set
from semmix.runs import Run


def predict(capsys, *words: object) -> tuple[int, str]:
    status = main(["predict", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_answers_are_those_of_the_network(model, digits, image_files):
    assert len(image_files) > BATCH_SIZE  # more than one batch
    rows = list(predict_files(model, image_files))
    assert [row["file"] for row in rows] == list(map(str, image_files))
    probs = model.network(digits.test.images[:70])[0].detach()
    assert [row["class_name"] for row in rows] == [str(k) for k in probs.argmax(1).tolist()]
    confidence = torch.tensor([row["confidence"] for row in rows])
    assert torch.allclose(confidence, probs.max(1).values, atol=1e-6)
    entropy = -(probs * probs.log()).sum(1)
    assert torch.allclose(torch.tensor([row["entropy"] for row in rows]), entropy, atol=1e-5)


def test_accuracy_is_that_of_the_run(run, model, digits):
    """Through the whole path of answers the test images come out as training measured them."""
    metrics = json.loads((run / "metrics.json").read_text())
    names = [answer.class_name for answer in model.predict(digits.test.images)]
    right = np.mean([int(n) == k for n, k in zip(names, digits.test.labels.tolist(), strict=True)])
    assert right == pytest.approx(metrics["test"]["acc"], abs=1e-9)


@pytest.mark.parametrize("coverage", [0.9, 0.95, 0.99])
def test_sets_hold_the_truth_as_often_as_promised(model, digits, coverage):
    answers = model.predict(digits.test.images, Caution(coverage=coverage))
    labels = digits.test.labels.tolist()
    held = np.mean([str(k) in a.prediction_set for k, a in zip(labels, answers, strict=True)])
    # Validation and test vary by chance: 300 and 1,297 images.
    spread = math.sqrt(coverage * (1 - coverage) * (1 / 300 + 1 / len(labels)))
    assert held >= coverage - 3 * spread


def test_sets_follow_the_threshold_and_hold_the_likeliest(model, digits):
    threshold = model.rules.set_thresholds["99"]
    probs = model.network(digits.test.images[:200])[0].detach().double().numpy()
    answers = model.predict(digits.test.images[:200], Caution(coverage=0.99))
    for row, answer in zip(probs, answers, strict=True):
        wanted = {str(k) for k in range(10) if row[k] >= threshold} | {str(row.argmax())}
        assert set(answer.prediction_set) == wanted
        assert answer.prediction_set[0] == answer.class_name
    assert in_set(np.array([[0.4, 0.3, 0.3]]), 0.9).tolist() == [[True, False, False]]
    assert in_set(np.array([[0.5, 0.3, 0.2]]), 0.3).tolist() == [[True, True, False]]


def test_warnings_are_rare_inside_and_frequent_outside(run, model, digits):
    inside = np.mean([a.ood_warning for a in model.predict(digits.test.images)])
    assert 0.01 < inside < 0.12  # 5 in a hundred, give or take
    flat = torch.full((50, 1, 8, 8), 128, dtype=torch.uint8)
    assert all(answer.ood_warning for answer in model.predict(flat))
    energies = -load_file(run / "logits-val.safetensors")["logits"].logsumexp(1)
    assert (energies > model.rules.ood_threshold).float().mean() <= 0.05


def test_rules_are_those_of_the_calibrated_validation_answers(run, model):
    """Recounted: each threshold has as many true classes below it as its coverage allows."""
    val = load_file(run / "logits-val.safetensors")
    num, temperature = len(val["labels"]), Run.open(run).temperature
    probs = (val["logits"].double() / temperature).softmax(1)
    of_truth = sorted(probs[range(num), val["labels"]].tolist())
    assert model.rules.temperature == temperature != 1
    for percent in range(50, 100):
        num_below = math.floor((num + 1) * (1 - percent / 100) + 1e-9) - 1
        threshold = model.rules.set_thresholds[str(percent)]
        assert threshold == pytest.approx(of_truth[num_below], rel=1e-6)
    energies = sorted((-val["logits"].double().logsumexp(1)).tolist(), reverse=True)
    num_above = math.floor((num + 1) * 0.05 + 1e-9) - 1
    assert model.rules.ood_threshold == pytest.approx(energies[num_above], rel=1e-6)


def test_classes_are_called_by_their_names_or_else_by_their_numbers(run, digits, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    manifest = json.loads((run / "config.json").read_text())
    for names in (list("abcdefghij"), None):
        (copy / "config.json").write_text(json.dumps({**manifest, "class_names": names}))
        answers = load_model(copy, "cpu").predict(digits.test.images[:50])
        predicted = Run.open(run).after.predicted[:50]
        known = names or list("0123456789")
        assert [answer.class_name for answer in answers] == [known[k] for k in predicted]


def test_abstaining_is_a_matter_of_confidence(model, digits):
    answers = model.predict(digits.test.images[:200], Caution(abstain=0.8))
    assert {a.abstain for a in answers} == {True, False}
    assert all(a.abstain == (a.confidence < 0.8) for a in answers)
    assert not any(a.abstain for a in model.predict(digits.test.images[:200]))


def test_at_a_threshold_it_answers_and_does_not_warn(model, digits):
    (answer,) = model.predict(digits.test.images[:1])
    rules = replace(model.rules, ood_threshold=answer.ood_score)
    again = replace(model, rules=rules).predict(digits.test.images[:1], Caution(abstain=answer.confidence))
    assert (again[0].abstain, again[0].ood_warning) == (False, False)


@pytest.mark.parametrize("abstain", [-0.1, 1.2])
@pytest.mark.parametrize("coverage", [0.4, 0.898, 0.904, 0.995])
def test_impossible_caution_is_refused(abstain, coverage):
    with pytest.raises(SemmixError, match="abstain is a confidence"):
        Caution(abstain=abstain)
    with pytest.raises(SemmixError, match="whole per cent"):
        Caution(coverage=coverage)


def test_every_whole_per_cent_is_a_coverage_and_every_share_a_confidence():
    for percent in range(50, 100):
        assert Caution(coverage=percent / 100).percent == str(percent)
    assert Caution(abstain=1).abstain == 1


def test_csv_and_jsonl_hold_the_same(capsys, run, image_files, tmp_path):
    (image_files[0].parent / "bad.png").write_bytes(b"no image")
    rows = {}
    for ending in ("csv", "jsonl"):
        out = tmp_path / f"answers.{ending}"
        status, said = predict(capsys, run, tmp_path / "images", "--out", out)
        assert status == 0
        assert "71 images: 70 answered" in said
        assert "1 could not be read" in said
        rows[ending] = out.read_text().splitlines()
    table = list(csv.DictReader(rows["csv"]))
    lines = [json.loads(line) for line in rows["jsonl"]]
    assert len(table) == len(lines) == 71
    for cells, line in zip(table, lines, strict=True):
        assert cells["file"] == line["file"]
        assert (cells["error"] or None) == line["error"]
        if not line["error"]:
            assert float(cells["confidence"]) == line["confidence"]
            assert json.loads(cells["prediction_set"]) == line["prediction_set"]
    (bad,) = [line for line in lines if line["error"]]
    assert bad["file"].endswith("bad.png")
    assert bad["class_name"] is None


def test_many_batches_come_in_order(model, image_files, monkeypatch):
    expected = list(predict_files(model, image_files))
    monkeypatch.setattr("semmix.deploy.model.BATCH_SIZE", 16)
    rows = list(predict_files(model, iter(image_files)))
    assert [(r["file"], r["class_name"]) for r in rows] == [(r["file"], r["class_name"]) for r in expected]


def test_the_summary_counts_what_the_rows_say(capsys, run, image_files, tmp_path):
    Image.new("L", (8, 8), 128).save(image_files[0])  # nothing like a digit
    out = tmp_path / "answers.jsonl"
    _, said = predict(capsys, run, *image_files[:40], "--abstain", "0.9", "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    asked = sum(row["abstain"] for row in rows)
    warned = sum(row["ood_warning"] for row in rows)
    assert 0 < asked < 40
    assert warned > 0
    assert f"40 images: {40 - asked} answered, {asked} to ask (confidence below 0.9)" in said
    assert f"{warned} unlike the training images;" in said


def test_the_terminal_gets_a_table(capsys, run, image_files):
    status, said = predict(capsys, run, *image_files[:3], "--abstain", "0.999")
    assert status == 0
    assert "confidence %" in said
    assert "ask a person" in said
    assert "(confidence below 0.999)" in said


def test_a_line_says_what_its_row_says(capsys, run, model, image_files, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8), 128).save(image_files[0])  # nothing like a digit
    names = [str(image_files[0]), *(str(p.relative_to(tmp_path)) for p in image_files[1:40])]
    rows = list(predict_files(model, map(Path, names), Caution(abstain=0.9, coverage=0.99)))
    _, said = predict(capsys, run, *names, "--abstain", "0.9", "--coverage", "0.99")
    lines = said.splitlines()[1:41]
    assert lines[0].startswith(f"…{names[0][-43:]}  ")
    assert all(line.startswith(f"{name:44}  ") for name, line in zip(names[1:], lines[1:], strict=True))
    for row, line in zip(rows, lines, strict=True):
        name, confidence, entropy = line[44:].split()[:3]
        assert (name, confidence) == (row["class_name"], f"{100 * row['confidence']:.1f}")
        assert entropy == f"{row['entropy']:.3f}"
        several = len(row["prediction_set"]) > 1
        assert ("ask a person" in line) is row["abstain"]
        assert ("unlike the training images" in line) is row["ood_warning"]
        assert line.endswith(f"one of {', '.join(row['prediction_set'])}") is several
    assert {len(row["prediction_set"]) > 1 for row in rows} == {True, False}


def test_names_cannot_command_the_terminal(capsys, run, tmp_path):
    (tmp_path / "a\x1b[31m\nb.png").touch()
    _, said = predict(capsys, run, tmp_path)
    assert "a?[31m?b.png" in said
    assert "\x1b" not in said


def test_classes_cannot_command_the_terminal(capsys, model_folder, image_files, tmp_path):
    model = shutil.copytree(model_folder, tmp_path / "model")
    facts = json.loads((model / "model.json").read_text())
    names = [f"\x1b[31m\n{k}" for k in range(10)]
    write_json(model / "model.json", {**facts, "class_names": names})
    _, said = predict(capsys, model, image_files[0], "--coverage", "0.99")
    assert "?[31m?" in said
    assert "\x1b" not in said


def test_status_tells_whether_all_failed(capsys, run, image_files, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG")
    assert predict(capsys, run, tmp_path / "bad.png")[0] == 1
    assert predict(capsys, run, tmp_path / "bad.png", image_files[0])[0] == 0
    status, said = predict(capsys, run, tmp_path / "nowhere.png")
    assert status == 1
    assert "No such file" in said


@pytest.mark.parametrize(
    ("words", "answer"), [([], "no images found"), (["x.png", "--out", "x.txt"], ".csv or .jsonl")]
)
def test_mistakes_are_answered(capsys, run, words, answer):
    try:
        status, said = predict(capsys, run, *words)
    except SystemExit as stop:  # refused while the arguments are read
        status, said = stop.code, capsys.readouterr().err
    assert status
    assert answer in said


def test_files_folders_and_globs_are_listed(tmp_path):
    for name in ("a.png", "b.JPG", "c.txt", "deep/d.webp", "[odd].png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.symlink(tmp_path, tmp_path / "deep" / "loop")

    def listed(*names: str) -> list[str]:
        paths = find_images([str(tmp_path / name) for name in names])
        return [str(path.relative_to(tmp_path)) for path in paths]

    assert listed("") == ["[odd].png", "a.png", "b.JPG", "deep/d.webp"]
    assert listed("*.png") == ["[odd].png", "a.png"]
    assert listed("**/*.webp") == ["deep/d.webp"]
    assert listed("[odd].png", "c.txt") == ["[odd].png", "c.txt"]  # what is named is taken
    with pytest.raises(SemmixError, match="no images found"):
        find_images([str(tmp_path / "*.gif")])


def test_every_kind_of_file_fits_the_network(tmp_path):
    """Modes, sizes and EXIF as in training; colour for a grey network turns grey."""
    red = Image.new("RGB", (40, 20), (255, 0, 0))
    for mode in ("RGB", "RGBA", "CMYK", "L", "P", "1", "LA"):
        path = tmp_path / f"{mode}.{'jpg' if mode == 'CMYK' else 'png'}"
        red.convert(mode).save(path)
        assert read_image(path, (3, 8, 8)).shape == (3, 8, 8)
        assert read_image(path, (1, 8, 8)).shape == (1, 8, 8)
    assert read_image(tmp_path / "RGB.png", (3, 8, 8))[:, 0, 0].tolist() == [255, 0, 0]
    assert read_image(tmp_path / "RGB.png", (1, 8, 8)).unique().tolist() == [76]
    grey = np.full((4, 4, 1), 9, np.uint8)
    assert fit_channels(grey, 3)[:, 0, 0].tolist() == [9, 9, 9]


def test_grey_is_pillows():
    colour = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    grey = fit_channels(colour, 1)
    assert grey.dtype == torch.uint8
    expected = np.asarray(Image.fromarray(colour).convert("L"), np.int64)
    assert abs(grey[0].numpy() - expected).max() <= 1  # Pillow's weights are rounded


def test_exif_turns_images_upright(tmp_path):
    half = Image.new("L", (16, 16))
    half.paste(255, (0, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    half.save(tmp_path / "turned.png", exif=exif)
    image = read_image(tmp_path / "turned.png", (1, 8, 8))[0]
    assert image[0].max() < 10
    assert image[-1].min() > 245


def test_odd_names_are_written(model, digits, tmp_path):
    path = tmp_path / os.fsdecode(b'n\xff,"\n\xe2\x82\xac.png')
    Image.fromarray(digits.test.images[0, 0].numpy()).save(path)
    (row,) = predict_files(model, [path])
    assert row["error"] is None
    assert row["file"].endswith('n\\xff,"\n€.png')


def test_files_are_listed_by_name_at_any_depth(tmp_path):
    names = [f"{k}/deep/er/{k}.png" for k in range(9)]
    for name in reversed(names):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    paths = [tmp_path / name for name in names]
    assert find_images([str(tmp_path)]) == find_images([f"{tmp_path}/**/*.png"]) == paths


def test_a_file_with_many_names_goes_by_the_first(tmp_path):
    (tmp_path / "9.png").touch()
    for k in (5, 0, 7, 2, 8, 1, 6, 3, 4):
        (tmp_path / f"{k}.png").symlink_to(tmp_path / "9.png")
    assert find_images([f"{tmp_path}/*.png"]) == [tmp_path / "0.png"]


def test_links_to_folders_are_followed_each_folder_once(tmp_path):
    for name in ("photos/b/1.png", "elsewhere/2.png", "elsewhere/deep/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    photos = tmp_path / "photos"
    (photos / "more").symlink_to(tmp_path / "elsewhere")
    (photos / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(photos)
    paths = find_images([str(photos)])
    assert [str(path.relative_to(photos)) for path in paths] == ["b/1.png", "again/2.png", "again/deep/3.png"]


def test_files_go_by_the_names_they_have_without_links(tmp_path):
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "1.png").touch()
    (tmp_path / "a").symlink_to(tmp_path / "z")
    assert find_images([str(tmp_path)]) == [tmp_path / "z" / "1.png"]


def test_hidden_files_and_folders_are_left_out(tmp_path):
    for name in ("1.png", ".2.png", ".git/3.png", "deep/4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    assert [path.name for path in find_images([str(tmp_path)])] == ["1.png", "4.png"]
    assert find_images([str(tmp_path / ".2.png")]) == [tmp_path / ".2.png"]


def test_files_folders_pillow_images_and_arrays_get_the_same_prediction(model, digits, image_files):
    pixels = digits.test.images[:3]
    expected = model.predict(pixels)
    paths = image_files[:3]
    given = [
        paths,
        [str(path) for path in paths],
        [Image.open(path) for path in paths],
        [np.asarray(Image.open(path)) for path in paths],
        [image.permute(1, 2, 0).numpy() for image in pixels],  # [H, W, 1]
        [paths[0], Image.open(paths[1]), np.asarray(Image.open(paths[2]))],
        pixels.numpy(),
    ]
    for images in given:
        assert [p.class_name for p in model.predict(images)] == [p.class_name for p in expected]
        assert [p.confidence for p in model.predict(images)] == pytest.approx([p.confidence for p in expected])
    for one in (paths[0], str(paths[0]), Image.open(paths[0]), np.asarray(Image.open(paths[0]))):
        assert [p.class_name for p in model.predict(one)] == [expected[0].class_name]
    folder = image_files[0].parent
    assert len(model.predict(folder)) == len(image_files) == len(model.predict([f"{folder}/**/*.png"]))
    assert model.predict([]) == []
    (unsure,) = model.predict(paths[0], Caution(abstain=1.0))
    assert unsure.abstain


def test_colour_and_size_are_fitted_to_the_network(model):
    grey = np.full((20, 30), 90, np.uint8)
    colour = np.repeat(grey[..., None], 3, axis=2)
    alpha = np.concatenate([colour, np.full((20, 30, 1), 255, np.uint8)], axis=2)
    first, *others = model.predict([grey, colour, alpha, Image.fromarray(colour)])
    assert all(other.confidence == pytest.approx(first.confidence) for other in others)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 1, 8, 9, dtype=torch.uint8), r"do not fit the model: torch.uint8 \(2, 1, 8, 9\)"),
        (torch.zeros(2, 1, 8, 8), "do not fit the model: torch.float32"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), "pass uint8 .N, 1, 8, 8."),
        (np.zeros((2, 8, 8, 1), np.uint8), "do not fit the model"),
        ([np.zeros((8, 8))], r"this is no image: float64 \(8, 8\)"),
        ([np.zeros((8, 8, 2), np.uint8)], "this is no image"),
        ([np.zeros(8, np.uint8)], "this is no image"),
        (["nowhere.png"], "not every file can be read as an image: nowhere.png"),
        (["*.nothing"], "no images found"),
    ],
)
def test_what_is_no_image_is_refused(model, images, said):
    with pytest.raises(SemmixError, match=said):
        model.predict(images)


def test_all_files_that_cannot_be_read_are_named(model, image_files, tmp_path, monkeypatch):
    monkeypatch.setattr("semmix.deploy.model.BATCH_SIZE", 2)
    (tmp_path / "bad.png").write_bytes(b"x")
    with pytest.raises(SemmixError, match=r"bad\.png \(unreadable\), .*none\.png \(unreadable\)\n.*leave those out"):
        model.predict([image_files[0], tmp_path / "bad.png", image_files[1], tmp_path / "none.png", image_files[2]])


def test_files_are_read_in_batches(model, image_files, monkeypatch):
    """No more images than a few batches are held at once."""
    monkeypatch.setattr("semmix.deploy.model.BATCH_SIZE", 16)
    assert [len(batch) for batch in model.read(image_files)] == [16, 16, 16, 16, 6]
    seen, predict = [], Model.predict
    monkeypatch.setattr(Model, "predict", lambda self, *args: (seen.append(len(args[0])), predict(self, *args))[1])
    list(predict_files(model, image_files))
    assert seen == [16, 16, 16, 16, 6]


def test_a_model_is_shown_in_one_line(model):
    assert repr(model) == f"Model(10 classes, images 1 x 8 x 8, T = {model.rules.temperature:.2f})"
