"""A method is one file, found by its name."""

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from semmix import SemmixError, methods
from semmix.methods import Batch, list_methods, method, method_options

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.fixture
def example():
    """Return the method that the documentation shows how to write."""
    return re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1]


def extra_batch() -> Batch:
    return Batch(images=torch.ones(2, 3), labels=torch.tensor([0, 1]), index=torch.arange(2))


def extra_loss(name: str) -> float:
    terms = method(name, num_classes=3, weight=5.0).step(lambda images: images, extra_batch())
    return (terms["loss"] - terms["ce"]).item()


def test_a_new_file_in_the_folder_is_a_new_method(example, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(example)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert "mine" in list_methods()
    assert method_options("mine") == {"weight": 1.0}
    assert extra_loss("mine") == pytest.approx(5.0)


def test_a_users_method_by_import_path(example, tmp_path, monkeypatch):
    (tmp_path / "their_methods.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    assert extra_loss("their_methods:Mine") == pytest.approx(5.0)
    with pytest.raises(SemmixError, match=r"package\.module:ClassName"):
        method("their_methods:Missing", num_classes=3)
    with pytest.raises(SemmixError, match="is not a method"):
        method("their_methods:dataclass", num_classes=3)


def test_a_file_holds_one_method(tmp_path, monkeypatch):
    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(SemmixError, match="must define one method"):
        method("empty", num_classes=3)


def test_every_method_is_documented():
    table = DOCS.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in table for name in list_methods())


@pytest.mark.parametrize("name", list_methods())
def test_defaults_are_the_documented_ones(name):
    """A run's folder is named by what is asked for: another default would pass for the same run."""
    row = re.search(rf"^\| `{name}` \|.*", DOCS.read_text(encoding="utf-8"), re.MULTILINE)[0]
    defaults = re.split(r"(?<!\\)\|", row)[3].strip().replace("−", "-")
    for option, value in (text.split() for text in defaults.split(", ") if defaults != "–"):
        default = method_options(name)[option]
        assert default == (value if isinstance(default, str) else float(value)), option


def test_names_and_options_are_checked():
    with pytest.raises(SemmixError, match="did you mean 'csm'"):
        method("cms", num_classes=10)
    with pytest.raises(SemmixError, match="did you mean 'gamma'"):
        method("csm", num_classes=10, gama=2)


@pytest.mark.parametrize(
    ("name", "option", "value", "words"),
    [
        ("ls", "alpha", "foo", "must be a number: 'foo'"),
        ("ls", "alpha", True, "must be a number: True"),
        ("csm", "weight", float("nan"), "must be a number: nan"),
        ("csm", "num_mixed", 2.5, "must be a whole number: 2.5"),
        ("csm", "loss", 3, "must be a word: 3"),
        ("csm", "batch_statistics", True, "must be a word: True"),
    ],
)
def test_values_of_another_type_are_refused(name, option, value, words):
    with pytest.raises(SemmixError, match=words):
        method(name, num_classes=10, **{option: value})


CHOICES = [
    ("csm", "loss"),
    ("csm", "protocol"),
    ("csm", "batch_statistics"),
    ("ecp", "protocol"),
    ("mixup", "loss"),
    ("mmce_w", "protocol"),
    ("rankmixup", "ranking"),
    ("rankmixup", "protocol"),
    ("regmixup", "protocol"),
]


@pytest.mark.parametrize(("name", "option"), CHOICES)
def test_an_option_with_choices_takes_no_other_word(name, option):
    default = method_options(name)[option]
    with pytest.raises(SemmixError, match=f"unknown {option}: 'mine'\n.*known: .*{default}"):
        method(name, num_classes=10, **{option: "mine"})
    assert getattr(method(name, num_classes=10, **{option: default}), option) == default


def test_a_method_without_a_step_cannot_be_trained():
    with pytest.raises(NotImplementedError):
        methods.Method(num_classes=2).step(lambda images: images, extra_batch())


def test_whole_numbers_and_numpys_are_numbers():
    assert method("csm", num_classes=10, weight=2).weight == 2
    assert method("csm", num_classes=10, weight=np.float32(0.5), num_mixed=np.int64(3)).weight == 0.5


def test_a_users_options_are_checked_by_their_defaults(tmp_path, monkeypatch):
    (tmp_path / "whole.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from semmix.methods import Method\n"
        "@dataclass(kw_only=True, eq=False)\n"
        "class Whole(Method):\n"
        "    weight: float = 1\n"
        "    start: list | None = None\n"
        "    twice: bool = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rule = method("whole:Whole", num_classes=3, weight=0.5, start=[1, 2], twice=True)
    assert (rule.weight, rule.start, rule.twice) == (0.5, [1, 2], True)
    with pytest.raises(SemmixError, match="must be true or false: 1"):
        method("whole:Whole", num_classes=3, twice=1)


@pytest.mark.parametrize("name", list_methods())
def test_every_option_has_a_docstring_in_its_file(name):
    body = ast.parse(inspect.getsource(methods.method_class(name))).body[0].body
    documented = {
        field.target.id
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
    assert set(method_options(name)) <= documented
