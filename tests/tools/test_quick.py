"""What `make quick` runs for which change, and that it keeps to its time."""

import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = runpy.run_path(str(ROOT / "tools" / "quick.py"))
changed_files, choose, run_until = QUICK["changed_files"], QUICK["choose_tests"], QUICK["run_until"]


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{time.monotonic_ns()}\n")


@pytest.fixture
def repository(tmp_path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    for name in ("first.py", "second.py"):
        write(tmp_path, name)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", name)
    return tmp_path


def test_on_main_the_last_commit_counts_until_something_changes(repository):
    assert changed_files(repository) == ["second.py"]
    write(repository, "first.py", "a folder/new file.py")
    assert changed_files(repository) == ["a folder/new file.py", "first.py"]


def test_on_a_branch_all_counts_since_it_left_main(repository):
    git(repository, "checkout", "-q", "-b", "branch")
    write(repository, "third.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "third")
    write(repository, "fourth.py", "first.py")
    assert changed_files(repository) == ["first.py", "fourth.py", "third.py"]


def test_without_main_what_is_not_committed_counts(repository):
    git(repository, "branch", "-m", "other")
    write(repository, "first.py")
    assert changed_files(repository) == ["first.py"]


def test_a_modules_own_tests_come_first_then_its_rooms(tmp_path):
    write(tmp_path, "tests/test_rooms.py", "tests/core/test_a.py", "tests/core/test_zoo.py", "tests/core/conftest.py")
    write(tmp_path, "src/semmix/core/zoo.py", "tests/data/test_other.py")
    own = ["tests/core/test_zoo.py", "src/semmix/core/zoo.py"]
    chosen = choose(["src/semmix/core/zoo.py"], tmp_path)
    assert chosen == [*own, "tests/test_rooms.py", "tests/core/test_a.py"]


def test_tests_themselves_and_what_they_share(tmp_path):
    write(tmp_path, "tests/test_rooms.py", "tests/core/test_a.py", "tests/core/test_b.py", "tests/test_docs.py")
    rest = ["tests/test_rooms.py", "tests/core/test_a.py"]
    assert choose(["tests/core/test_b.py"], tmp_path) == ["tests/core/test_b.py", *rest]
    assert choose(["tests/core/conftest.py"], tmp_path) == [*rest, "tests/core/test_b.py"]
    assert choose(["tests/test_docs.py"], tmp_path) == ["tests/test_docs.py", "tests/test_rooms.py"]
    assert choose(["tests/core/test_gone.py"], tmp_path) == [*rest, "tests/core/test_b.py"]


def test_what_is_no_module_of_a_room():
    assert choose(["src/semmix/runs.py"], ROOT) == ["src/semmix/runs.py", "tests/test_rooms.py", "tests/test_runs.py"]
    assert choose(["docs/index.md", "mkdocs.yml"], ROOT) == ["tests/test_rooms.py", "tests/test_docs.py"]
    assert "tests/report/test_browser.py" in choose(["src/semmix/report/templates/base.html"], ROOT)
    assert choose(["LICENSE", "results/demo/ce-0/config.json"], ROOT) == []


def test_the_tests_of_everything_else_exist():
    assert [name for name in (*QUICK["OTHERS"], *QUICK["OTHERS"].values()) if not (ROOT / name).exists()] == []


def test_commands_that_fail_are_returned_and_slow_ones_stopped(capsys):
    def python(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    start = time.monotonic()
    good, bad, slow = python("pass"), python("raise SystemExit(3)"), python("import time; time.sleep(60)")
    assert run_until([slow, bad, good], start + 2, ROOT) == [bad]
    assert time.monotonic() - start < 30
    assert "time is over: `make test` runs the rest" in capsys.readouterr().out
