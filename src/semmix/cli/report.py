"""`semmix report`: one page about finished runs."""

from semmix.report import ReportConfig, run_report


class ReportCommand(ReportConfig):
    """Which runs to report on, and where to."""

    run = run_report
