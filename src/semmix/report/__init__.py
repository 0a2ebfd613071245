"""Figures, tables and the HTML report: what the runs say, for people to look at."""

from semmix.report.detection import predict_ood
from semmix.report.gallery import Gallery, open_gallery
from semmix.report.rendering import draw_evaluation
from semmix.report.rows import aggregate, results_table
from semmix.report.runs_page import ReportConfig, run_report, write_report
from semmix.runs import Predictions

__all__ = ["Gallery", "Predictions", "ReportConfig", "aggregate", "draw_evaluation", "open_gallery", "predict_ood"]
__all__ += ["results_table", "run_report", "write_report"]
