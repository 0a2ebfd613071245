"""`python -m semmix`."""

from semmix.cli.main import run

run()
