"""A method is one file, found by its name."""

import ast
import inspect
from itertools import pairwise

import pytest
import torch

from semmix import SemmixError, methods
from semmix.methods import Batch, list_methods, method, method_options

OWN_METHOD = '''
from dataclasses import dataclass
from semmix.methods import Method

@dataclass(kw_only=True, eq=False)
class Own(Method):
    scale: float = 2.0
    """Factor."""

    def step(self, forward, batch):
        return {"loss": self.scale * forward(batch.images).square().mean()}
'''


def loss_of_own(name: str) -> float:
    batch = Batch(
        images=torch.ones(2, 3), labels=torch.zeros(2).long(), index=torch.zeros(2).long()
    )
    return method(name, num_classes=3, scale=5.0).step(lambda x: x, batch)["loss"].item()


def test_a_new_file_in_the_folder_is_a_new_method(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN_METHOD)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert "own" in list_methods()
    assert method_options("own") == {"scale": 2.0}
    assert loss_of_own("own") == 5.0


def test_a_users_method_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "their_methods.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    assert loss_of_own("their_methods:Own") == 5.0
    with pytest.raises(SemmixError, match=r"package\.module:ClassName"):
        method("their_methods:Missing", num_classes=3)
    with pytest.raises(SemmixError, match="is not a method"):
        method("their_methods:dataclass", num_classes=3)


def test_names_and_options_are_checked():
    with pytest.raises(SemmixError, match="did you mean 'csm'"):
        method("cms", num_classes=10)
    with pytest.raises(SemmixError, match="did you mean 'gamma'"):
        method("csm", num_classes=10, gama=2)


@pytest.mark.parametrize("name", list_methods())
def test_every_option_has_a_docstring_in_its_file(name):
    body = ast.parse(inspect.getsource(methods.method_class(name))).body[0].body
    documented = {
        field.target.id
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
    assert set(method_options(name)) <= documented
