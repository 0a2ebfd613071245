"""Optional packages: what is there is imported, what is missing says how to get it."""

import sys

import pytest

from semmix.core import extras
from semmix.core.errors import SemmixError


def test_a_missing_package_says_what_needs_it_and_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "CLONE", tmp_path)
    with pytest.raises(SemmixError, match=r"^timm:NAME needs timm: ") as caught:
        extras.import_extra("timm.models", "timm", "timm:NAME")
    assert caught.value.fix == f"pip install '{tmp_path}[timm]'"


def test_an_installed_copy_is_completed_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "CLONE", tmp_path)
    assert extras.install_command("onnx") == "pip install 'semmix[onnx]'"
