"""The public names: listed once, found at run time, and typed in a user's script."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import semmix

SOURCE = Path(semmix.__file__).parent

SCRIPT = """
import semmix

data = semmix.load_dataset("digits")
reveal_type(data)
reveal_type(semmix.interval(semmix.ece, [[0.9, 0.1]], [0]))
reveal_type(semmix.Run.open("runs/ce-0").temperature)
reveal_type(semmix.mix("zoo:cifar10", out="mixsets"))
reveal_type(semmix.annotate("mixsets", semmix.backbone("clip:x"), data).scale)
reveal_type(semmix.evaluate([[0.9, 0.1]], [0]))
reveal_type(semmix.reliability_diagram([[0.9, 0.1]], [0]))
semmix.TrainConfig(method="ce", epoch=3)
"""
TYPES = ["Dataset", "Interval", "float", "MixSets", "float", "Evaluation", "Axes"]


def listed() -> list[tuple[str, str]]:
    """Return module and name of every public name in the stub."""
    stub = ast.parse((SOURCE / "__init__.pyi").read_text())
    return [(str(n.module), alias.name) for n in stub.body if isinstance(n, ast.ImportFrom) for alias in n.names]


@pytest.mark.parametrize(("module", "name"), listed(), ids=lambda value: value)
def test_a_public_name_is_found_and_told_what_it_is_for(module, name):
    value = getattr(semmix, name)
    assert value is getattr(sys.modules[module], name)
    assert name in semmix.__all__
    assert name in dir(semmix)
    assert (value.__doc__ or "").strip()


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'calibrate'"):
        semmix.calibrate  # noqa: B018


def test_names_are_sorted_and_stand_once():
    names = [name for _, name in listed()]
    assert len(set(names)) == len(names)
    assert listed() == sorted(listed())


def test_a_users_script_is_typed(tmp_path):
    """Pyright sees the types of what is returned, and the misspelt setting."""
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    told = [line["message"].split(" is ")[-1].strip('"') for line in found if line["severity"] == "information"]
    errors = [line["message"] for line in found if line["severity"] == "error"]
    assert told == TYPES
    assert len(errors) == 1, errors
    assert "epoch" in errors[0]
