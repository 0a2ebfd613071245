"""Users' own code by name."""

import sys

import pytest

from semmix import SemmixError
from semmix.core.user_code import import_object


def test_modules_of_the_current_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "kept_here.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert import_object("kept_here:answer", "answer", "none") == 42


@pytest.mark.parametrize("path", ["no_such_module:f", "math:no_such_name", ":f", "math:"])
def test_what_cannot_be_loaded_is_explained(path):
    with pytest.raises(SemmixError, match=f"cannot load thing {path}") as caught:
        import_object(path, "thing", "write package.module:name")
    assert caught.value.fix == "write package.module:name"
