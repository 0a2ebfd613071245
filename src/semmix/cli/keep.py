"""`semmix keep`: finished runs in a form small enough to commit."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from semmix.core.errors import SemmixError
from semmix.core.progress import say
from semmix.experiments.results import keep_run


@dataclass(frozen=True, kw_only=True)
class KeepCommand:
    """Keep finished runs in a form small enough to commit."""

    runs: Positional[tuple[Path, ...]]
    """Folders of finished runs."""
    out: Path = Path("results")
    """Folder that gets one folder for each run, of the same name."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise SemmixError("nothing to keep", "no runs", "name at least one run folder")

    def run(self) -> None:
        """Copy what the numbers of the runs come from."""
        for run in self.runs:
            say(f"kept {keep_run(run, self.out)}")
