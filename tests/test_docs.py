"""The documentation: its Python runs, its links lead somewhere, its commands exist."""

import re
from pathlib import Path

import pytest

from semmix.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "NOTICE", *sorted((ROOT / "docs").glob("*.md"))]


def test_readme_python_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 13
    exec(compile(block, "README.md", "exec"), {})
    assert "after temperature" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_named_exist(page):
    groups = {name.split()[0] for name in COMMANDS}
    for command in re.findall(r"(?:`|\n    |\$ )semmix ([a-z]+)", page.read_text()):
        assert command in groups, command
