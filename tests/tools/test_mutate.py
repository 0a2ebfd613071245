"""The mutation command on a package of one function, whose tests leave a boundary open."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "mutate.py"

CODE = '''"""A toy."""


def clip(value: float, most: float = 3.0) -> float:
    """Return the value, at most so much."""
    if value > most:
        return most
    return value


def count(turns: int) -> int:
    """Return how many turns were made."""
    done = 0
    while done < turns:
        done += 1
    return done
'''

TESTS = """
from semmix.toy.cut import clip, count


def test_clip():
    assert clip(4.0) == 3.0
    assert clip(2.0) == 2.0


def test_count():
    assert count(3) == 3


def test_that_fails_anyway():
    assert clip(1.0) == 9
"""


def mutate(root: Path, *arguments: str) -> str:
    command = [sys.executable, str(TOOL), *arguments, "--root", str(root), "--preload", "pytest", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A repository whose tests are mapped."""
    root = tmp_path_factory.mktemp("toy")
    for name, text in {
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n',
        "src/semmix/__init__.py": "",
        "src/semmix/toy/__init__.py": "",
        "src/semmix/toy/cut.py": CODE,
        "tests/toy/test_cut.py": TESTS,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    told = mutate(root, "map")
    assert "tests/toy/test_cut.py: 2 tests" in told
    assert "first failure tests/toy/test_cut.py::test_that_fails_anyway" in told
    return root


def report(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / "runs" / "mutation" / "report.jsonl").read_text().splitlines()]


def judge(root: Path, *changes: tuple[str, str]) -> dict[str, str]:
    """Return the verdicts on faults, given as lines before and after, by the line after."""
    kept = [{"path": "src/semmix/toy/cut.py", "before": a, "after": b, "verdict": "survived"} for a, b in changes]
    (root / "earlier.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    mutate(root, "run", "--again", str(root / "earlier.jsonl"), "--limit", "2")
    assert (root / "src/semmix/toy/cut.py").read_text() == CODE
    return {r["after"]: r["verdict"] for r in report(root)}


BOUNDARY = ("if value > most:", "if value >= most:")


def test_a_fault_is_noticed_a_boundary_is_not_and_no_end_is_a_timeout(root):
    changes = [
        BOUNDARY,
        ("if value > most:", "if value < most:"),
        ("return most", "return None"),
        ("done += 1", "pass"),
    ]
    verdicts = ["survived", "killed", "killed", "timeout"]
    assert judge(root, *changes) == {change[1]: verdict for change, verdict in zip(changes, verdicts, strict=True)}


def test_survivors_are_tried_again_with_new_tests(root):
    assert judge(root, BOUNDARY) == {"if value >= most:": "survived"}
    test = root / "tests" / "toy" / "test_cut.py"
    test.write_text(TESTS + "\n\ndef test_boundary():\n    whole = 3\n    assert clip(whole) is whole\n")
    mutate(root, "map", "tests/toy")
    assert judge(root, BOUNDARY) == {"if value >= most:": "killed"}
    assert report(root)[0]["by"] == "tests/toy/test_cut.py::test_boundary"


def test_a_sample_is_drawn_again_by_its_seed_and_goes_on(root):
    sample = ("run", "--sample", "3", "--seed", "8", "--limit", "2")
    told = mutate(root, *sample)
    assert told.count("src/semmix/toy/cut.py:") == 3
    again = mutate(root, *sample, "--resume")
    assert told.splitlines()[-2:] == again.splitlines()[-2:]
    assert "src/semmix/toy/cut.py" not in again


def test_without_a_map_the_way_to_one_is_told(tmp_path):
    command = [sys.executable, str(TOOL), "run", "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "python tools/mutate.py map" in done.stderr


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("a < b", {"a <= b", "a > b"}),
        ("a not  in b", {"a in b"}),
        ("(a) + (b)", {"(a) - (b)"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("not a", {"a"}),
        ("-a", {"a"}),
        ("3", {"4", "2", "6"}),
        ("0.0", {"1.0", "(-1.0)"}),
        ("True", {"False"}),
        ("a if b else c", {"a if not (b) else c"}),
        ("a[b:c]", {"a[:c]", "a[b:]"}),
        ("a.sum(dim=k)", {"pass"}),
        ("a.sum(dim=1)", {"pass", "a.sum(dim=0)", "a.sum(dim=2)"}),
        ("f(a, b)", {"pass", "f(b, a)"}),
        ("f(a, a)", {"pass"}),
        ("f(*a, b)", {"pass"}),
        ("raise a", {"pass"}),
        ("a += b", {"pass"}),
        ("x: int = a", set()),
        ("'text'", set()),
        ("f'{1}'", set()),
        ("@f(1)\ndef g(x: 1) -> 2: return", set()),
    ],
)
def test_the_faults_of_a_line(line, faults, tmp_path):
    (tmp_path / "line.py").write_text(f"{line}\n")
    mutate = runpy.run_path(str(TOOL), run_name="mutate")
    finder = mutate["Finder"](tmp_path, "line.py")
    assert {mutant.apply(finder.source).decode().strip() for mutant in finder.find()} == faults
