"""Figures, tables and the HTML report: what the runs say, for people to look at."""

from semmix.report.gallery import Gallery, open_gallery
from semmix.report.html import ReportConfig, run_report, write_report
from semmix.report.runs import Predictions, Run, load_run, load_runs
from semmix.report.tables import Estimate, Row, aggregate, render

__all__ = [
    "Estimate",
    "Gallery",
    "Predictions",
    "ReportConfig",
    "Row",
    "Run",
    "aggregate",
    "load_run",
    "load_runs",
    "open_gallery",
    "render",
    "run_report",
    "write_report",
]
