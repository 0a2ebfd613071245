"""`semmix table`: a table of the paper, ours beside the published numbers."""

from semmix.experiments.table import TableConfig, make_table


class TableCommand(TableConfig):
    """Make a table of the paper: ours beside the published numbers."""

    def run(self) -> None:
        """Plan, run what is missing, print what there is."""
        make_table(self)
