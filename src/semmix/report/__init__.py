"""Figures, tables and the HTML report: what the runs say, for people to look at."""

from semmix.report.evaluation import write_evaluation
from semmix.report.gallery import Gallery, open_gallery
from semmix.report.html import ReportConfig, run_report, write_report
from semmix.report.ood import predict_ood
from semmix.report.rows import Row, aggregate
from semmix.runs import Predictions, Run

__all__ = [
    "Gallery",
    "Predictions",
    "ReportConfig",
    "Row",
    "Run",
    "aggregate",
    "open_gallery",
    "predict_ood",
    "run_report",
    "write_evaluation",
    "write_report",
]
