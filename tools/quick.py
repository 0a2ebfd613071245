"""Run lint, types, and the tests of what changed, in under 90 seconds: `make quick`.

Changed is what differs from the branch `main` (on main: from the last commit) and whatever is not committed. A changed
module's own tests run first, then its room's. When the time is over, `make test` has to run the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CODE = ("src", "tests", "benchmarks", "examples", "tools")
SECONDS = 85.0
PYTEST = ("-m", "pytest", "-x", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
OTHERS = {
    "docs": "tests/test_docs.py",
    "mkdocs.yml": "tests/test_docs.py",
    "README.md": "tests/test_docs.py",
    "CHANGELOG.md": "tests/test_docs.py",
    "NOTICE": "tests/test_docs.py",
    "CONTRIBUTING.md": "tests/test_contributing.py",
    "examples": "tests/test_examples.py",
    "tools": "tests/tools",
    "zoo": "tests/test_packages.py",
    "pyproject.toml": "tests/test_packages.py",
    "constraints.txt": "tests/test_packages.py",
    "Makefile": "tests/test_workflows.py",
    ".github": "tests/test_workflows.py",
}
"""The tests of what lies outside src/ and tests/."""


def main() -> int:
    """Run the checks; return 0 if none failed."""
    start, changed = time.monotonic(), changed_files(ROOT)
    tests = choose_tests(changed, ROOT)
    print(f"{len(changed)} files changed; their tests are in {len(tests)} files", flush=True)
    lint = [[BIN / "ruff", "check", "-q", *CODE], [BIN / "ruff", "format", "-q", "--check", *CODE]]
    failed = [command for command in lint if subprocess.run(command, cwd=ROOT).returncode]
    slow = [[BIN / "pyright"], *([[sys.executable, *PYTEST, *tests]] if tests else [])]
    failed += run_until(slow, start + SECONDS, ROOT)
    print(f"{time.monotonic() - start:.0f} s: {'something failed' if failed else 'all is well'}")
    return 1 if failed else 0


def changed_files(root: Path) -> list[str]:
    """Return the files that differ from where the branch left main, or from the last commit, and new ones."""
    base = _git(root, "merge-base", "main", "HEAD") or ["HEAD"]
    if base == _git(root, "rev-parse", "HEAD") and not _git(root, "status", "--porcelain"):
        base = ["HEAD~1"]
    return sorted(
        {*_git(root, "diff", "--name-only", *base), *_git(root, "ls-files", "--others", "--exclude-standard")}
    )


def _git(root: Path, *arguments: str) -> list[str]:
    """Return the lines that git prints; none where it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def choose_tests(changed: Iterable[str], root: Path) -> list[str]:
    """Return the test files and doctests to run: first those of the changed files themselves, then their rooms'."""
    first, then = [], ["tests/test_rooms.py"]
    for path in map(Path, changed):
        if path.parts[:2] == ("src", "semmix"):
            room = path.parts[2].removesuffix(".py")
            first += [f"tests/{room}/test_{path.stem}.py", *([str(path)] if path.suffix == ".py" else [])]
            then += [f"tests/{room}", f"tests/test_{room}.py"]
        elif path.parts[0] == "tests":
            first += [str(path)] if path.name.startswith("test_") else []
            then += [str(path.parent)] if len(path.parts) > 2 else []
        elif path.parts[0] in OTHERS:
            then.append(OTHERS[path.parts[0]])
    if then == ["tests/test_rooms.py"] and not first:
        return []
    files = (file for name in [*first, *then] for file in _test_files(root, name))
    return list(dict.fromkeys(files))


def _test_files(root: Path, name: str) -> list[str]:
    """Return the file of that name, the test files in the folder of that name, or nothing."""
    if (root / name).is_dir():
        return [str(path.relative_to(root)) for path in sorted((root / name).rglob("test_*.py"))]
    return [name] if (root / name).is_file() else []


def run_until(commands: Sequence[Sequence[str | Path]], deadline: float, root: Path) -> list[Sequence[str | Path]]:
    """Run commands side by side and return those that failed; those that are not done by then are stopped."""
    running = [(command, subprocess.Popen(command, cwd=root, start_new_session=True)) for command in commands]
    failed = []
    for command, process in running:
        try:
            failed += [command] if process.wait(max(deadline - time.monotonic(), 0)) else []
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            print(f"time is over: `make test` runs the rest of {' '.join(map(str, command[:4]))} ...")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
