"""Mixed sets for the eye: one sprite per set, and requested against annotated lambda."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from semmix.annotation import Annotation
from semmix.core.errors import SemmixError
from semmix.mixing.store import MixSets
from semmix.report.svg import Frame, round_ticks, series_style, spread

MAX_SPRITE_BYTES = 3_000_000
"""Pixels a report carries; base64 makes a third more of it."""
MAX_SIDE = 96
"""Larger images are shown smaller."""
MAX_DOTS = 600
"""Images drawn as dots in the lambda chart."""
MAX_LINES = 12
"""Sets drawn as thin lines in the chart of one pair."""


@dataclass(frozen=True)
class Gallery:
    """Mixed sets to show: images of the first M, lambdas of all S (M may be less than S)."""

    images: Any  # uint8 [M, L, C, H, W]
    pairs: Any  # [S, 2]: (i, j); lam = 1 is class i
    lam_requested: Any  # [S, L]
    lam: Any  # [S, L], annotated

    def __post_init__(self) -> None:
        for name in ("images", "pairs", "lam_requested", "lam"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        num_sets, size = self.lam.shape
        if not (
            self.images.ndim == 5
            and len(self.images) <= num_sets
            and self.images.shape[1] == size
            and self.pairs.shape == (num_sets, 2)
            and self.lam_requested.shape == (num_sets, size)
        ):
            arrays = (self.images, self.pairs, self.lam_requested, self.lam)
            seen = ", ".join(str(array.shape) for array in arrays)
            fix = "pass images [M, L, C, H, W], pairs [S, 2], lambdas [S, L], with M <= S"
            raise SemmixError("the gallery's shapes disagree", seen, fix)

    @property
    def distinct_pairs(self) -> list[tuple[int, int]]:
        """Every pair (i, j) once, in order."""
        return [(int(i), int(j)) for i, j in np.unique(self.pairs, axis=0)]


def open_gallery(mixsets: MixSets | str | Path, annotation: Annotation | str | Path, num_sets: int = 45) -> Gallery:
    """Return the first `num_sets` sets of a store, open or in a folder, with the lambdas of all of them."""
    store = mixsets if isinstance(mixsets, MixSets) else MixSets.open(mixsets)
    annotation = annotation if isinstance(annotation, Annotation) else Annotation.open(annotation, store)
    num_sets = min(num_sets, store.num_sets)
    return Gallery(
        images=np.stack([store.read_set(n).numpy() for n in range(num_sets)]),
        pairs=store.pairs(),
        lam_requested=store.lam_requested(),
        lam=annotation.lam(),
    )


def sprites(gallery: Gallery) -> list[str]:
    """Return a data URI per set, its members side by side, as many as the report may carry."""
    uris, size = [], 0
    for members in gallery.images:
        data = _png(members)
        size += len(data)
        if size > MAX_SPRITE_BYTES:
            break
        uris.append("data:image/png;base64," + base64.b64encode(data).decode())
    return uris


def _png(members: np.ndarray) -> bytes:
    image = strip_image(members)
    if members.shape[-1] > MAX_SIDE:
        size = (MAX_SIDE * len(members), MAX_SIDE * members.shape[-2] // members.shape[-1])
        image = image.resize(size)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def strip_image(members: np.ndarray) -> Image.Image:
    """Return uint8 [L, C, H, W] as one picture, members side by side."""
    strip = np.concatenate(list(members), axis=2).transpose(1, 2, 0)  # [H, L * W, C]
    return Image.fromarray(strip[..., 0] if strip.shape[2] == 1 else strip)


def lambda_chart(gallery: Gallery) -> Markup:
    """Return annotated against requested lambda: dots are images, the line is the mean.

    The band holds the middle 80 % of the sets at each place in a set.
    """
    frame = _lambda_frame()
    requested, lam = gallery.lam_requested.ravel(), gallery.lam.ravel()
    at, mean = gallery.lam_requested.mean(0), gallery.lam.mean(0)
    low, high = np.quantile(gallery.lam, (0.1, 0.9), axis=0)
    return frame.drawing(
        f"Annotated against requested lambda over {len(gallery.lam)} sets. The mean annotation "
        f"goes from {mean[0]:.2f} to {mean[-1]:.2f}.",
        _lambda_axes(frame),
        *(frame.dot(requested[k], lam[k], "speck", radius=1.6) for k in spread(len(lam), MAX_DOTS)),
        frame.line([*at, *at[::-1]], [*low, *high[::-1]], f"band {series_style(1)}"),
        frame.segment((0, 0), (1, 1), "honest"),
        frame.line(at, mean, f"line {series_style(1)}"),
    )


def pair_chart(gallery: Gallery, pair: tuple[int, int], name: str) -> Markup:
    """Return annotated against requested lambda of the sets of one pair, and their mean."""
    chosen = (gallery.pairs == pair).all(1)
    requested, lam = gallery.lam_requested[chosen], gallery.lam[chosen]
    frame = _lambda_frame(width=200, height=170)
    thin = f"line thin {series_style(1)}"
    return frame.drawing(
        f"{name}: annotated lambda from {lam[:, 0].mean():.2f} to {lam[:, -1].mean():.2f}.",
        _lambda_axes(frame, num=2),
        *(frame.line(requested[n], lam[n], thin) for n in spread(len(lam), MAX_LINES)),
        frame.segment((0, 0), (1, 1), "honest"),
        frame.line(requested.mean(0), lam.mean(0), f"line {series_style(1)}"),
    )


def _lambda_frame(**size: float) -> Frame:
    return Frame((0, 1), (0, 1), **{"height": 330, **size})


def _lambda_axes(frame: Frame, num: int = 5) -> Markup:
    ticks = round_ticks(0, 1, num=num)
    return frame.axes("λ requested", "λ annotated", ticks, ticks)
