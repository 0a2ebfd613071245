"""What every page has in common (templates, style, script, a policy against all else), and the page on predictions."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from semmix import __version__
from semmix.calibration import USUAL, Interval, Metric, interval
from semmix.core.files import write_bytes
from semmix.report import charts
from semmix.report.charts import NUM_BINS, Series, verdict
from semmix.report.rows import percent
from semmix.report.svg import COLOURS, HATCH, INK, MUTED, series_style, tag
from semmix.runs import Predictions

TEMPLATES = Path(__file__).parent / "templates"
SHOWN_COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


def render_page(template: str, out: Path, **context: Any) -> Path:
    """Fill a template and write it as one file; return its path."""
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.filters["two_digits"] = lambda values: [f"{value:.2f}" for value in values]
    drawings = ("class_lines", "confidence_chart", "pair_lines", "reliability_chart", "risk_chart", "series_style")
    environment.globals.update({name: getattr(charts, name) for name in drawings})
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


def draw_evaluation(
    predictions: Mapping[str, Predictions],
    out: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    num_images: int | None = None,
    bins: int = NUM_BINS,
    level: float = 0.95,
    measured: Mapping[str, Mapping[str, Interval]] | None = None,
    human: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML file that compares `predictions` by name; return its path.

    Args:
        predictions: The same images under each name, as they came first: `{"as given": ..., "temperature": ...}`.
        out: The file to write.
        title: Heading of the page.
        class_names: Names of the classes; numbers by default.
        notes: Sentences to show under the heading, such as how the calibrators were fitted.
        num_images: Images that `measured` counts, where `predictions` are but some of them.
        bins: Bins of the binned metrics and of the diagrams.
        level: Level of the intervals in the table.
        measured: What is known already of the predictions by name: value and interval of metrics,
            and of the mean `confidence`. The rest is measured here.
        human: Agreement with people, as `semmix evaluate --human` writes it.
    """
    series = [Series(name, (member,), bins) for name, member in predictions.items()]
    first, known, lines = series[0].members[0], measured or {}, []
    for each in series:
        there, (member,) = known.get(each.name, {}), each.members
        measure = partial(interval, probs=member.probs, labels=member.labels, level=level)
        lines.append({m.name: there.get(m.name) or measure(m.with_bins(bins)) for m in USUAL})
    mean = known.get(series[0].name, {}).get("confidence")
    confidence, ece = mean.value if mean else series[0].mean("confidence"), lines[0]["ece"]
    headline = (
        f"This classifier is {verdict(confidence, lines[0]['acc'].value)}. Its ECE is {percent(ece.value)}, "
        f"interval {percent(ece.low)} to {percent(ece.high)}."
    )
    shown = {"title": title, "headline": headline, "bins": bins, "level": level, "notes": notes, "human": human}
    shown |= {"metrics": USUAL, "lines": lines, "series": series, "num_images": num_images or len(first.labels)}
    names = class_names or [str(k) for k in range(first.probs.shape[1])]
    return render_page("evaluation.html", out, **shown, class_names=names)
