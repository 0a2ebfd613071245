"""Optional packages and users' own code: what is there is imported, what is missing says how to get it."""

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
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SemmixError, match=r"^onnx:FILE needs onnxruntime: ") as caught:
        extras.import_extra("onnxruntime", "onnx", "onnx:FILE")
    assert caught.value.fix == "pip install 'semmix[onnx]'"


def test_modules_of_the_current_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "kept_here.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert extras.import_object("kept_here:answer", "answer", "none") == 42


@pytest.mark.parametrize("path", ["no_such_module:f", "math:no_such_name", ":f", "math:"])
def test_what_cannot_be_loaded_is_explained(path):
    with pytest.raises(SemmixError, match=f"cannot load thing {path}") as caught:
        extras.import_object(path, "thing", "write package.module:name")
    assert caught.value.fix == "write package.module:name"
