"""Options as text: names and values of a method's options."""

import math

import pytest
import tyro

from semmix import SemmixError
from semmix.cli.fit import FitCommand
from semmix.cli.main import main
from semmix.cli.options import TEXT_READERS, TYRO_STYLE, parse_options
from semmix.training.classifier import TrainConfig


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("2", 2),
        ("focal", "focal"),
        ("a=b", "a=b"),
        ("True", True),
        ("false", False),
        ("False", False),
        ("None", None),
        ("Infinity", math.inf),
    ],
)
def test_a_value_is_written_as_in_json_or_in_python(text, value):
    (read,) = parse_options([f"name={text}"]).values()
    assert read == value
    assert type(read) is type(value)


def test_values_without_a_name_and_names_given_twice_are_refused():
    with pytest.raises(SemmixError, match="name=value: 'alpha'"):
        parse_options(["weight=1", "alpha"])
    with pytest.raises(SemmixError, match=r"given twice: alpha=0\.1 alpha=0\.2"):
        parse_options(["alpha=0.1", "alpha=0.2"])
    assert parse_options([]) == {}


@pytest.mark.parametrize(("options", "answer"), [("alpha", "name=value"), ("a=1 a=2", "given twice: a=1 a=2")])
def test_the_command_line_explains_them(capsys, tmp_path, options, answer):
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as end:
        main(["train", "digits", "--method", "ls", "--options", *options.split(), "--out", str(out)])
    assert end.value.code == 2
    assert answer in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert not out.exists()


def test_a_default_is_shown_as_it_is_written(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--options [NAME=VALUE ...]" in capsys.readouterr().out


def test_the_command_holds_what_was_given_and_nothing_else():
    """`fit` chooses defaults by the images: one that was not given must not stand in their way."""
    words = ["photos", "--train.options", "weight=0.5", "joint=True", "--seeds", "2", "--sampler.num-steps", "4"]
    with TEXT_READERS:
        given = tyro.cli(FitCommand, args=words, config=TYRO_STYLE).given
        nothing = tyro.cli(FitCommand, args=[], config=TYRO_STYLE).given
    assert not any(nothing.values())
    assert {name: value for name, value in given.items() if value} == {
        "data": {"dataset": "photos"},
        "train": {"options": {"weight": 0.5, "joint": True}},
        "seeds": 2,
        "sampler": {"num_steps": 4},
    }


def test_options_that_are_set_are_shown_as_they_are_written(capsys):
    config = TrainConfig(method="mbls", options={"margin": 6.0, "alpha": 0.1})
    with TEXT_READERS, pytest.raises(SystemExit):
        tyro.cli(TrainConfig, args=["--help"], default=config, config=TYRO_STYLE)
    assert "(default: margin=6.0 alpha=0.1)" in " ".join(capsys.readouterr().out.replace("│", "").split())
