"""A few SVG shapes: charts as text, escaped by construction, coloured by the page's style sheet."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

COLOURS = ("#3b4249", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours, told apart with every kind of colour vision: those of series on a light ground, in
pages (classes `.s0` to `.s6`) and in figures. More series than colours differ by dashes as well."""
INK, MUTED, HATCH = "#1c2126", "#57616b", "#8a939c"
"""Text and intervals, axes, the gap between accuracy and confidence."""
MAX_POINTS = 200  # points kept of one line: more cannot be seen, and the file must stay small
Ticks = Sequence[tuple[float, str]]
PERCENT_TICKS: Ticks = [(k / 4, f"{25 * k}") for k in range(5)]  # ticks of an axis from 0 to 1 that is read in per cent


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element; children and attribute values are escaped unless already markup.

    A trailing underscore in an attribute's name is dropped, other underscores become hyphens.

    >>> str(tag("text", "a < b", class_="tick", x=1.50))
    '<text class="tick" x="1.5">a &lt; b</text>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{pairs}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Return the parts one after another, each escaped unless already markup."""
    return Markup("").join(map(escape, parts))


def _short(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


@dataclass(frozen=True)
class Frame:
    """A plot area: where data coordinates lie on the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: float = 360
    height: float = 250
    left: float = 44
    right: float = 14
    top: float = 10
    bottom: float = 40

    def x(self, value: float) -> float:
        """The horizontal place of a value."""
        low, high = self.x_range
        return float(self.left + (value - low) / (high - low) * (self.width - self.left - self.right))

    def y(self, value: float) -> float:
        """The vertical place of a value; larger values lie higher."""
        low, high = self.y_range
        inner = self.height - self.top - self.bottom
        return float(self.height - self.bottom - (value - low) / (high - low) * inner)

    def line(self, xs: Iterable[float], ys: Iterable[float], style: str) -> Markup:
        """Return a line through the points; points that are not finite are left out."""
        places = [(x, y) for x, y in zip(xs, ys, strict=True) if np.isfinite(x) and np.isfinite(y)]
        kept = (places[k] for k in spread(len(places), MAX_POINTS))
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in kept)
        return tag("polyline", points=points, class_=style)

    def segment(self, start: tuple[float, float], end: tuple[float, float], style: str) -> Markup:
        """Return a straight line between two points."""
        (x1, y1), (x2, y2) = start, end
        return tag("line", x1=self.x(x1), y1=self.y(y1), x2=self.x(x2), y2=self.y(y2), class_=style)

    def bar(self, x_range: tuple[float, float], y_range: tuple[float, float], style: str) -> Markup:
        """Return a rectangle; its two heights may come in any order."""
        left, right = (self.x(x) for x in x_range)
        top, bottom = sorted(self.y(y) for y in y_range)
        return tag("rect", x=left, y=top, width=right - left, height=bottom - top, class_=style)

    def dot(self, x: float, y: float, style: str, radius: float = 4) -> Markup:
        """Return a circle."""
        return tag("circle", cx=self.x(x), cy=self.y(y), r=radius, class_=style)

    def axes(self, x_name: str, y_name: str, x_ticks: Ticks = (), y_ticks: Ticks = ()) -> Markup:
        """Return grid lines, tick labels and the names of the axes."""
        parts, (left, right), (bottom, top) = [], self.x_range, self.y_range
        for value, label in x_ticks:
            text = tag("text", label, x=self.x(value), y=self.height - self.bottom + 15, class_="middle")
            parts += [self.segment((value, bottom), (value, top), "grid"), text]
        for value, label in y_ticks:
            text = tag("text", label, x=self.left - 6, y=self.y(value) + 4, class_="end")
            parts += [self.segment((left, value), (right, value), "grid"), text]
        turned = f"translate(11 {self.y((bottom + top) / 2):.1f}) rotate(-90)"
        x_place = {"x": self.x((left + right) / 2), "y": self.height - 5}
        names = [tag("text", x_name, **x_place, class_="name middle")]
        return join([*parts, *names, tag("text", y_name, transform=turned, class_="name middle")])

    def drawing(self, description: str, *children: object) -> Markup:
        """Return the finished picture, described for those who do not see it."""
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", *children, viewBox=box, role="img", aria_label=description)


def series_style(k: int) -> str:
    """Return the style classes of series `k`: a colour, and dashes once colours repeat."""
    return f"s{k % len(COLOURS)} d{k // len(COLOURS) % 3}"


def round_ticks(low: float, high: float, factor: float = 1, num: int = 5) -> Ticks:
    """Return about `num` round values between `low` and `high`, labelled after `factor`.

    >>> round_ticks(0, 0.1, factor=100, num=2)
    [(0.0, '0'), (0.05, '5'), (0.1, '10')]
    """
    low, high = low * factor, high * factor
    power = 10.0 ** math.floor(math.log10((high - low) / num))
    step = next(power * m for m in (1, 2, 5, 10) if power * m * num >= (high - low) * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [round(k * step, 10) for k in range(first, last + 1)]
    return [(value / factor, f"{value:g}") for value in values]


def spread(num: int, most: int) -> list[int]:
    """Return at most `most` indices below `num`, evenly spread, both ends among them."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(int)).tolist()
