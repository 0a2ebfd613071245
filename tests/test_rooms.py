"""The import rules of docs/design.md, read from its table, and the cost of `import semmix`."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semmix"


def read_rules() -> dict[str, set[str]]:
    """Return for each room the rooms it may import, the ground floor and itself included."""
    table = (ROOT / "docs" / "design.md").read_text().split("## The rooms")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    rules: dict[str, set[str]] = {}
    ground: set[str] = set()
    for names, _, allowed in rows:
        rooms = re.findall(r"`([\w]+)/?`", names)
        above = set(rules)
        listed = {word.strip(" `") for word in allowed.split(",")} - {"–"}
        if "all above" in allowed or allowed == "all":
            left_out = set(re.findall(r"but (\w+)", allowed))
            listed = above - left_out
        ground = ground or set(rooms)
        for room in rooms:
            rules[room] = listed | ground | set(rooms)
    return rules


RULES = read_rules()


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms of semmix that a file imports, wherever in the file it does so."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        rooms |= {p[1] for p in parts if p[0] == "semmix" and len(p) > 1}
    return rooms & {p.stem for p in SOURCE.iterdir()}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_import_only_what_the_design_allows(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return
    assert room in RULES, f"{room} has no row in docs/design.md"
    assert imported_rooms(path) <= RULES[room]


def test_the_table_is_understood():
    assert RULES["core"] == {"core"}
    assert RULES["data"] == {"data", "core"}
    assert "diffusion" in RULES["mixing"]
    assert "training" not in RULES["report"]
    assert "training" in RULES["fitting"]


LIGHT = """
import sys, torch, numpy
before = set(sys.modules)
import semmix
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)))
"""


def test_import_loads_torch_and_numpy_only():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['semmix']"


def test_no_public_name_is_a_module():
    import semmix

    modules = {p.stem for p in SOURCE.iterdir()}
    assert not modules & set(semmix.__all__)
