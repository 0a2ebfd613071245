"""The model card: what a stranger must know before relying on the model's predictions."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from semmix.calibration import METRICS, USUAL
from semmix.core.files import write_bytes
from semmix.deploy.rules import OOD_PERCENT
from semmix.report.charts import Series
from semmix.report.plots import reliability_figure
from semmix.report.table import Table
from semmix.runs import Run

CARD = "README.md"
DIAGRAM = "reliability.png"


def write_card(facts: dict[str, Any], run: Run, out: Path) -> None:
    """Write README.md and the reliability diagram beside it."""
    reliability_figure([Series("as trained", (run.before,)), Series("as shipped", (run.after,))], out / DIAGRAM)
    measured = []
    for metric in USUAL:
        value, low, high = map(metric.show, facts["metrics"][metric.name].values())
        measured.append([metric.title, value, f"{low} to {high}"])
    sets = []
    for percent, found in facts["prediction_sets"].items():
        held, low, high = map(METRICS["coverage"].show, found["coverage"].values())
        num, fewest, most = (f"{value:.2f}" for value in found["num_classes"].values())
        sets.append([f"{percent} %", f"{held} % ({low} to {high})", f"{num} ({fewest} to {most})"])
    tables = {
        "metrics_table": Table(["metric", "value", "interval"], measured, "lrl").markdown(),
        "sets_table": Table(["promised", "held the truth", "classes in a set"], sets, "rll").markdown(),
    }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("card.md").read_text(encoding="utf-8"))
    text = template.render(**facts, **tables, diagram=DIAGRAM, ood_percent=OOD_PERCENT)
    write_bytes(out / CARD, f"{text}\n".encode())
