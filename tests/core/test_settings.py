"""Settings as JSON values: what came later leaves the names of earlier results alone."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from semmix.core.artifact import begin_artifact, open_artifact
from semmix.core.errors import SemmixError
from semmix.core.files import digest, write_json
from semmix.core.settings import plain, since, unnamed


@dataclass(frozen=True)
class Inner:
    pairs: tuple[tuple[int, int], ...] = ((0, 1),)
    options: dict[str, object] = field(default_factory=lambda: {"weights": (1, 2)})


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    none: float | None = None
    later: float = field(default=1.0, metadata=since(2))
    size: int | str = field(default="auto", metadata=since(2, before=512))
    place: Path | None = field(default=None, metadata=unnamed())
    start: str | None = field(default=None, metadata=unnamed(before=None))


SCHEMA_1 = {"inner": {"pairs": [[0, 1]], "options": {"weights": [1, 2]}}, "none": None, "size": 512, "start": None}


def test_defaults_are_written_as_the_first_schema_did():
    assert plain(Outer()) == SCHEMA_1
    assert digest(plain(Outer())) == digest(SCHEMA_1)


def test_what_came_later_is_written_where_it_is_not_the_default():
    assert plain(Outer(later=1.5, size=64)) == {**SCHEMA_1, "later": 1.5, "size": 64}


def test_what_names_no_result_is_never_written_as_it_is():
    assert plain(Outer(place=Path("here"), start="there")) == SCHEMA_1


def test_empty_collections_stay():
    assert plain(Inner(pairs=())) == {"pairs": [], "options": {"weights": [1, 2]}}


def test_a_plan_of_the_first_version_is_read_as_one_of_this(tmp_path):
    generator = {"network": "cpu32", "checkpoint_seconds": 30.0}
    manifest = {"kind": "plan", "format": 1, "finished": True, "inputs": {}, "plan": {"generator": generator}}
    write_json(tmp_path / "plan.json", manifest)
    assert open_artifact(tmp_path, "plan.json", "plan").manifest["plan"] == {"generator": {"network": "cpu32"}}


def test_a_setting_that_is_new_is_compared(tmp_path):
    """An old run must not be taken for one with an option it did not know."""
    begin_artifact(tmp_path, "config.json", "run", {"config": {"lr": 0.1}})
    begin_artifact(tmp_path, "config.json", "run", {"config": {"lr": 0.1, "later": None}})
    with pytest.raises(SemmixError, match=r"other inputs: config\.later was None, now 1\.5"):
        begin_artifact(tmp_path, "config.json", "run", {"config": {"lr": 0.1, "later": 1.5}})
    with pytest.raises(SemmixError, match=r"other inputs: init was None, now .a network."):
        begin_artifact(tmp_path, "config.json", "run", {"config": {"lr": 0.1}, "init": "a network"})
