"""What every page has in common: templates, style, script, and a policy that forbids all else."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from semmix import __version__
from semmix.calibration import Interval, Metric
from semmix.core.files import write_bytes
from semmix.report.breakdown import class_lines, pair_lines
from semmix.report.charts import confidence_chart, reliability_chart, risk_chart
from semmix.report.svg import COLOURS, HATCH, INK, MUTED, series_style, tag

TEMPLATES = Path(__file__).parent / "templates"
SHOWN_COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


def render_page(template: str, out: Path, **context: Any) -> Path:
    """Fill a template and write it as one file; return its path."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.filters["two_digits"] = lambda values: [f"{value:.2f}" for value in values]
    drawings = (class_lines, confidence_chart, pair_lines, reliability_chart, risk_chart, series_style)
    environment.globals.update({function.__name__: function for function in drawings})
    environment.globals.update(coverages=SHOWN_COVERAGES, mark=mark, signed=signed)
    environment.globals["swatch"] = lambda k: tag("span", class_=f"swatch {series_style(k)}", aria_hidden="true")
    colours = {"ink": INK, "muted": MUTED, "hatch": HATCH, **{f"c{k}": colour for k, colour in enumerate(COLOURS)}}
    light = f":root {{ {' '.join(f'--{name}: {colour};' for name, colour in colours.items())} }}\n"
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    style = light + style
    # This style, this script, pictures inside the file; nothing else.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    fixed = {"version": __version__, "style": Markup(style), "script": Markup(script), "policy": policy}
    write_bytes(Path(out), environment.get_template(template).render(**fixed, **context).encode())
    return Path(out)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def signed(value: float) -> str:
    """Return a difference in points, such as `+3.1`; a dash where there is none."""
    return f"{100 * value:+.1f}".replace("-", "−") if value == value else "–"


def mark(metric: Metric, change: Interval) -> Markup:
    """Return whether a change is for the better, as a sign and a word for screen readers."""
    if not change.has_interval:
        symbol, word, style = "?", "one pair: no interval", ""
    elif not change.excludes_zero:
        symbol, word, style = "=", "no clear difference", ""
    else:
        word = style = "better" if (change.value > 0) == metric.higher_is_better else "worse"
        symbol = "▲" if word == "better" else "▼"
    seen = tag("span", symbol, aria_hidden="true")
    return tag("span", seen, tag("span", word, class_="hidden"), class_=style, title=word)
