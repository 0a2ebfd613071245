"""The command line: help, mistakes, and each stage as its own command."""

import os
import subprocess
import sys

import pytest

from semmix import MixSets
from semmix.cli.main import COMMANDS, main


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def test_overview_lists_every_command(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert all(name in out for name in COMMANDS)
    _, group, _ = run(capsys, "data")
    assert "data import" in group
    assert "annotate" not in group


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    assert f"semmix {name}" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("semmix 0.")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["trian", "digits"], "did you mean 'train'"),
        (["data", "impart"], "did you mean 'data import'"),
        (["train", "digit"], "did you mean 'digits'"),
        (["train", "digits", "--method", "ruse", "--epochs", "1"], "unknown method"),
        (["fit", "digits", "--methods", "ce", "cms"], "did you mean 'csm'"),
        (["mix", "nowhere"], "no generator here"),
        (["mix", "zoo:cifar10", "--pairs", "3-5", "--device", "cpu"], "written i:j"),
        (["mix", "zoo:cifar10", "--pairs", "3:12", "--device", "cpu"], "not a pair"),
        (["mix", "zoo:cifar11"], "unknown zoo generator"),
        (["verify", "nowhere"], "no mixsets here"),
        (["annotate", "digits", "--encoder", "classifer:x"], "did you mean 'classifier'"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(capsys, tmp_path, monkeypatch, words, answer):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *words)
    assert status == 1
    assert answer in err


def test_unwritable_folder_is_explained(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    words = ["train", "digits", "--method", "ce", "--out", tmp_path / "file" / "run"]
    status, _, err = run(capsys, *words)
    assert status == 1
    assert "choose a writable folder" in err


def test_full_disk_while_training_is_explained_and_survived(capsys, tmp_path):
    """On a real, tiny file system; with room again, the same command ends the run."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    words = [
        "train",
        "digits",
        "--train-size",
        "50",
        "--classifier",
        "small",
        "--epochs",
        "2",
        "--batch-size",
        "50",
        "--method",
        "ce",
        "--out",
        tmp_path / "run",
    ]
    try:
        status, _, err = run(capsys, *words)
        assert status == 1
        assert "No space left" in err
        assert "->" in err
        subprocess.run(["mount", "-o", "remount,size=16m", str(tmp_path)], check=True)
        assert run(capsys, *words)[0] == 0
        assert (tmp_path / "run" / "metrics.json").exists()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_stages_one_by_one(capsys, tmp_path, monkeypatch):
    """The path by hand: generator, sample, mix, verify, train, annotate, export, train, report."""
    monkeypatch.chdir(tmp_path)
    small = ["digits", "--train-size", "100"]
    train = [*small, "--classifier", "small", "--epochs", "2", "--batch-size", "50", "--pad", "0"]
    steps = [
        ["generator", "train", *small, "--num-images", "640", "--batch-size", "64", "--network", "digits"],
        ["generator", "sample", "generator", "--per-class", "2", "--num-steps", "3"],
        ["mix", "generator", "--sets", "45", "--num-steps", "3", "--batch-size", "120"],
        ["verify", "mixsets"],
        ["train", *train, "--method", "ce", "--out", "ce"],
        ["annotate", *small, "--encoder", "classifier:ce", "--scale", "auto"],
        [
            "mix",
            "generator",
            "--sets",
            "4",
            "--num-steps",
            "2",
            "--batch-size",
            "32",
            "--confusable-by",
            "ce",
            "--num-pairs",
            "2",
            "--out",
            "confusable",
        ],
        [
            "mix",
            "generator",
            "--sets",
            "2",
            "--num-steps",
            "2",
            "--batch-size",
            "16",
            "--pairs",
            "3:5",
            "8:1",
            "--out",
            "listed",
        ],
        ["export", "mixsets", "--out", "png"],
        ["train", *train, "--method", "csm", "--mixsets", "mixsets", "--annotation", "annotation", "--out", "csm"],
        ["report", "ce", "csm", "--mixsets", "mixsets", "--annotation", "annotation"],
        ["evaluate", "csm"],
    ]
    said = {
        "generator train": "generator in generator; next: semmix mix generator",
        "generator sample": "wrote samples.png",
        "mix generator": "mixed sets in mixsets; next: semmix annotate",
        "verify mixsets": "1 of 1 shards are sound",
        "train digits": "run in ce; next: semmix evaluate ce",
        "annotate digits": "annotation in annotation, scale ",
        "export mixsets": "wrote png",
    }
    for words in steps:
        status, out, err = run(capsys, *words)
        assert status == 0, (words, out, err)
        assert said.pop(" ".join(words[:2]), "") in out  # of two that begin alike, the first
        assert ("under-confident" in out) == (words[-1] == "csm" and words[0] == "train")
    assert MixSets.open("listed").pairs().tolist() == [[3, 5], [8, 1]]
    assert len(MixSets.open("confusable").plan.pairs) == 2
    assert (tmp_path / "samples.png").exists()
    assert (tmp_path / "report.html").exists()
    assert len(list((tmp_path / "png" / "images").iterdir())) == 45 * 8


def test_letters_a_terminal_lacks_do_not_end_the_work(tmp_path):
    (tmp_path / "Ödland").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "semmix", "data", "check", str(tmp_path / "Ödland")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert "?dland: 0 images in 0 classes" in done.stdout
    assert done.stderr == ""


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "semmix", "data", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fit", "goes on from here"),
        ("data get", "goes on from here"),
        ("train", "goes on from here"),
        ("predict", "begins anew"),
        ("serve", "begins anew"),
        ("choose", "begins anew"),
        ("evaluate", "begins anew"),
        ("report", "begins anew"),
        ("balance", "begins anew"),
    ],
)
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (OSError("full"), 1)])
def test_what_is_said_of_a_stop_is_true_of_the_command(capsys, monkeypatch, name, told, error, status):
    def stop(*_):
        raise error

    monkeypatch.setattr("semmix.cli.main.run_command", stop)
    seen, _, err = run(capsys, *name.split())
    assert seen == status
    assert f"the same command {told}" in err


@pytest.mark.parametrize("word", ["help", "--help", "-h"])
def test_help_lists_every_command(word, capsys):
    assert main([word]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)
