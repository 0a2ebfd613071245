"""The doctor's exit status tells."""

import re
import tomllib
from pathlib import Path

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
