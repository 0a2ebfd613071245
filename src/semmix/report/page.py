"""What every page has in common: templates, style, script, and a policy that forbids all else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from semmix import __version__
from semmix.calibration import Interval, Metric
from semmix.core.files import write_bytes
from semmix.report.breakdown import ClassLine, PairLine, class_lines, pair_lines
from semmix.report.charts import COVERAGES, Series, confidence_chart, reliability_chart, risk_chart
from semmix.report.svg import series_style, tag

TEMPLATES = Path(__file__).parent / "templates"
SHOWN_COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Card:
    """One reliability diagram with its histogram."""

    series: Series
    reliability: Markup
    histogram: Markup
    view: str
    """`before` or `after`: which position of the switch shows it; empty for both."""
    note: str


@dataclass(frozen=True)
class Risks:
    """Risk-coverage curves and the numbers read off them."""

    names: list[str]
    chart: Markup
    coverages: Sequence[float]
    values: list[list[float]]
    """Risk at each of `coverages`, then the area under the curve."""


@dataclass(frozen=True)
class Breakdown:
    """Classes and confused pairs of one series."""

    name: str
    classes: list[ClassLine]
    left_out: int
    pairs: list[PairLine]


def make_card(series: Series, k: int, view: str = "", note: str = "") -> Card:
    """Return the card of series number `k`."""
    return Card(series, reliability_chart(series, k), confidence_chart(series, k), view, note)


def make_risks(series: Sequence[Series]) -> Risks:
    """Return the risk-coverage part of a page."""
    values = [[*_read_off(s), s.aurc] for s in series]
    return Risks([s.name for s in series], risk_chart(series), SHOWN_COVERAGES, values)


def _read_off(series: Series) -> list[float]:
    return [float(series.risk[abs(COVERAGES - c).argmin()]) for c in SHOWN_COVERAGES]


def make_breakdown(series: Series, class_names: Sequence[str]) -> Breakdown:
    """Return the drill-down part of a page for one series."""
    classes = class_lines(series, class_names)
    left_out = len(class_names) - len(classes)
    return Breakdown(series.name, classes, left_out, pair_lines(series, class_names))


def write_page(template: str, out: Path, **context: Any) -> Path:
    """Fill a template and write it as one file; return its path."""
    style, script = (_read(name) for name in ("style.css", "script.js"))
    page = _environment().get_template(template)
    text = page.render(
        version=__version__, style=Markup(style), script=Markup(script), policy=_policy(style, script), **context
    )
    write_bytes(Path(out), text.encode())
    return Path(out)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.globals.update(mark=_mark, series_style=series_style, signed=_signed, swatch=_swatch)
    return environment


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a content security policy: this style, this script, pictures inside the file."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _signed(value: float) -> str:
    """Return a difference in points, such as `+3.1`; a dash where there is none."""
    return f"{100 * value:+.1f}".replace("-", "−") if value == value else "–"


def _swatch(k: int) -> Markup:
    return tag("span", class_=f"swatch {series_style(k)}", aria_hidden="true")


def _mark(metric: Metric, change: Interval) -> Markup:
    """Return whether a change is for the better, as a sign and a word for screen readers."""
    if not change.has_interval:
        return _sign("?", "one pair: no interval", "")
    if not change.excludes_zero:
        return _sign("=", "no clear difference", "")
    better = (change.value > 0) == metric.higher_is_better
    return _sign("▲", "better", "better") if better else _sign("▼", "worse", "worse")


def _sign(symbol: str, word: str, style: str) -> Markup:
    seen = tag("span", symbol, aria_hidden="true")
    return tag("span", seen, tag("span", word, class_="hidden"), class_=style, title=word)
