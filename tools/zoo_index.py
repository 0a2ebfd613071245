"""Write zoo/index.json: every model's files, sizes and digests, as `semmix zoo get` reads them.

python tools/zoo_index.py            # write it
python tools/zoo_index.py --check    # only compare; the tests do
"""

import hashlib
import json
import sys
import tomllib
from pathlib import Path

ZOO = Path(__file__).parents[1] / "zoo"


def make_index(zoo: Path) -> dict:
    """Return the index of the models in a folder."""
    return {
        "kind": "zoo",
        "schema": 1,
        "models": {p.parent.name: _model(p) for p in sorted(zoo.glob("*/pyproject.toml"))},
    }


def _model(pyproject: Path) -> dict:
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    files = sorted(path for path in pyproject.parent.rglob("*") if path.is_file() and path != pyproject)
    return {
        "description": project["description"],
        "licence": project["license"],
        "files": {path.relative_to(pyproject.parent).as_posix(): _file(path) for path in files},
    }


def _file(path: Path) -> dict:
    content = path.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def main() -> int:
    """Write the index, or compare it; return the exit status."""
    index, text = ZOO / "index.json", json.dumps(make_index(ZOO), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if index.is_file() and index.read_text(encoding="utf-8") == text else 1
    index.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
