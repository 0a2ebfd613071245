"""`semmix keep`: finished runs in a form small enough to commit."""

from semmix.experiments.results import KeepConfig, keep_runs


class KeepCommand(KeepConfig):
    """Keep finished runs in a form small enough to commit."""

    def run(self) -> None:
        """Copy what the numbers of the runs come from."""
        keep_runs(self)
