"""The doctor's exit status tells."""

import re
import tomllib
from pathlib import Path

import torch

from semmix import __version__ as version
from semmix.cli import doctor
from semmix.cli.doctor import DoctorCommand


def test_a_sound_installation_passes_the_self_test(capsys, tmp_path):
    assert DoctorCommand(root=tmp_path).run() == 0
    out = capsys.readouterr().out
    assert "all is well" in out
    assert "torch" in out
    assert "digits, generator to report" in out


def test_a_missing_package_and_a_failing_check_are_told(capsys, tmp_path, monkeypatch):
    def failing(folder):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(doctor, "SELF_TESTS", {"metrics": failing})
    monkeypatch.setattr(doctor, "CORE", ("torch", "no-such-package"))
    assert DoctorCommand(root=tmp_path).run() == 1
    out = capsys.readouterr().out
    assert "!! missing" in out
    assert "!! broken on purpose" in out


def test_it_looks_for_what_the_package_asks_for():
    """Every package that semmix needs, and of each extra the one its code imports."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]} == set(doctor.CORE)
    assert set(project["optional-dependencies"]) - {"dev", "docs"} == set(doctor.EXTRAS)


def test_a_quick_look_shows_what_is_here_and_tests_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "EXTRAS", {"clip": "no-such-package", "hub": "numpy"})
    assert DoctorCommand(quick=True, root=tmp_path).run() == 0
    out = capsys.readouterr().out
    assert out.startswith(f"semmix {version}\n")
    assert f"\n  {'torch':24} {torch.__version__.partition('+')[0]}" in out
    assert f"\nextras:\n  {'  [clip] no-such-package':24} not installed\n" in out
    assert f"\ndevices:\n  cpu, {torch.get_num_threads()} threads\n" in out
    assert f"\ndata:\ndata folder: {tmp_path}\n" in out
    assert not any(name in out for name in doctor.SELF_TESTS)
    assert out.endswith("\nall is well\n")


def test_a_missing_package_is_enough_to_be_unwell(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CORE", ("no-such-package", "torch"))
    assert DoctorCommand(quick=True, root=tmp_path).run() == 1
    out = capsys.readouterr().out
    assert f"  {'no-such-package':24} !! missing: pip install semmix\n" in out
    assert out.endswith("something is wrong: see the lines marked !!\n")


def test_a_check_that_passes_is_shown_and_one_that_fails_says_why(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "SELF_TESTS", {"metrics": doctor.SELF_TESTS["metrics"]})
    assert DoctorCommand(root=tmp_path).run() == 0
    assert f"  {'metrics':24} ok\n" in capsys.readouterr().out
