"""Figures, tables and the HTML report: what the runs say, for people to look at."""

from semmix.report.evaluation import write_evaluation
from semmix.report.foreign import predict_foreign
from semmix.report.gallery import Gallery, open_gallery
from semmix.report.html import ReportConfig, run_report, write_report
from semmix.report.tables import Row, aggregate
from semmix.runs import Predictions, Run, load_run

__all__ = [
    "Gallery",
    "Predictions",
    "ReportConfig",
    "Row",
    "Run",
    "aggregate",
    "load_run",
    "open_gallery",
    "predict_foreign",
    "run_report",
    "write_evaluation",
    "write_report",
]
