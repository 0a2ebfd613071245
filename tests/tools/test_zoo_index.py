"""The zoo's index is the one of its files, and semmix reads it."""

import subprocess
import sys
from pathlib import Path

from semmix.cli.zoo import Source

ROOT = Path(__file__).parents[2]


def test_the_index_is_that_of_the_files():
    command = [sys.executable, ROOT / "tools" / "zoo_index.py", "--check"]
    assert subprocess.run(command).returncode == 0, "run python tools/zoo_index.py"


def test_semmix_reads_it():
    models = Source(str(ROOT / "zoo")).models()
    assert {name: model.is_whole(ROOT / "zoo" / name) for name, model in models.items()} == {
        "cifar10": True,
        "cifar100": True,
    }
    assert all(model.licence == "Apache-2.0" for model in models.values())
