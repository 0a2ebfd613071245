"""`semmix table`: a table of the paper, ours beside the published numbers."""

from semmix.experiments.making import TableConfig, make_table


class TableCommand(TableConfig):
    """Make a table of the paper: ours beside the published numbers."""

    run = make_table
