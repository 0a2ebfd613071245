"""CONTRIBUTING.md, followed word by word: its files are written into a copy of the code, its lines run there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def blocks_of(heading: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a section, each with its language."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)


class Newcomer:
    """Somebody with a copy of the code and a folder to work in."""

    def __init__(self, folder: Path):
        self.folder, self.lines = folder, ""
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))

    def follow(self, heading: str) -> str:
        """Do what a section says; return what was printed."""
        printed = ""
        for language, block in blocks_of(heading):
            path = re.match(r"# (\+ )?(src/\S+)\n", block)
            if language == "sh":
                for line in block.splitlines():
                    assert line.startswith("semmix ")
                    printed += self.run("-m", *line.split())
            elif path:
                file = self.folder / path[2]
                assert file.exists() == bool(path[1])
                file.write_text((file.read_text() if path[1] else "") + block[path.end() :])
            else:
                printed += self.run("-c", self.lines + block)
                self.lines += "".join(re.findall(r"^(?:import|from) .*\n", block, re.MULTILINE))
        return printed

    def run(self, *arguments: str) -> str:
        """Run Python on the copy."""
        code = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "SEMMIX_CACHE": str(self.folder / "cache")}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=code, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory) -> Newcomer:
    """One newcomer, who reads the page from top to bottom."""
    return Newcomer(tmp_path_factory.mktemp("newcomer"))


def test_a_method(newcomer):
    newcomer.follow("Add a method")
    settings = (newcomer.folder / "run" / "config.json").read_text()
    assert '"method": "logit_norm"' in settings
    assert '"tau": 0.1' in settings
    assert "logit_norm" in newcomer.run("-c", "import semmix; print(semmix.list_methods())")


def test_a_method_passes_the_tests_of_all_methods(newcomer):
    test = ROOT / "tests" / "methods" / "test_all.py"
    printed = newcomer.run("-m", "pytest", "-o", "addopts=--import-mode=importlib", "-k", "logit_norm", str(test))
    assert int(re.search(r"(\d+) passed", printed)[1]) >= 3


def test_a_metric(newcomer):
    printed = newcomer.follow("Add a metric")
    value = float(re.search(r"Spherical score .*?(0\.\d+)", printed)[1])
    assert 0.1 < value < 1
    assert "temperature adds" in printed


def test_a_backbone(newcomer):
    printed = newcomer.follow("Add a backbone")
    assert float(re.search(r"scale ([\d.]+)", printed)[1]) > 0


def test_a_table(newcomer):
    printed = newcomer.follow("Add a table")
    assert "digits/small/LS, alpha = 0.05" in printed
    assert "digits/small/LS, alpha = 0.2" in printed


def test_every_block_with_a_path_or_a_command_is_followed():
    followed = sum(len(blocks_of(f"Add a {thing}")) for thing in ("method", "metric", "backbone", "table"))
    assert followed == PAGE.count("```") / 2 == 8
