"""Mixed sets for the eye: one sprite per set, and requested against annotated lambda."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from semmix.annotation import Annotation
from semmix.core.errors import require
from semmix.mixing.store import MixSets
from semmix.report.svg import Frame, round_ticks, series_style, spread

MAX_SPRITE_BYTES = 3_000_000  # pixels a report carries; base64 makes a third more of it
MAX_SIDE = 96  # larger images are shown smaller
MAX_DOTS = 600  # images drawn as dots in the lambda chart
MAX_LINES = 12  # sets drawn as thin lines in the chart of one pair
AXES = ("λ requested", "λ annotated")


@dataclass(frozen=True)
class Gallery:
    """Mixed sets to show: images of the first M, lambdas of all S (M may be less than S)."""

    images: Any  # uint8 [M, L, C, H, W]
    pairs: Any  # [S, 2]: (i, j); lam = 1 is class i
    lam_requested: Any  # [S, L]
    lam: Any = None  # [S, L], annotated; None where nothing is annotated yet

    def __post_init__(self) -> None:
        arrays = {name: np.asarray(value) for name, value in vars(self).items() if value is not None}
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        num_sets, size = self.lam_requested.shape
        images_fit = self.images.ndim == 5 and len(self.images) <= num_sets and self.images.shape[1] == size
        lams_fit = self.lam is None or self.lam.shape == (num_sets, size)
        fits = images_fit and lams_fit and self.pairs.shape == (num_sets, 2)
        seen = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        fix = "pass images [M, L, C, H, W], pairs [S, 2], lambdas [S, L], with M <= S"
        require(fits, "the gallery's shapes disagree", seen, fix)

    @property
    def distinct_pairs(self) -> list[tuple[int, int]]:
        """Every pair (i, j) once, in order."""
        return [(int(i), int(j)) for i, j in np.unique(self.pairs, axis=0)]


def open_gallery(
    mixsets: MixSets | str | Path, annotation: Annotation | str | Path | None = None, num_sets: int = 45
) -> Gallery:
    """Return the first `num_sets` sets of a store, with the lambdas of all of them.

    Args:
        mixsets: The store, or its folder.
        annotation: Its annotation, or the folder; without one the gallery shows requested lambdas alone.
        num_sets: How many sets to show.
    """
    store = mixsets if isinstance(mixsets, MixSets) else MixSets.open(mixsets)
    if annotation is not None and not isinstance(annotation, Annotation):
        annotation = Annotation.open(annotation, store)
    images = np.stack([store.read_set(n).numpy() for n in range(min(num_sets, store.num_sets))])
    lam = None if annotation is None else annotation.lam()
    return Gallery(images, store.pairs(), store.lam_requested(), lam)


def sprites(gallery: Gallery) -> list[str]:
    """Return a data URI per set, its members side by side, as many as the report may carry."""
    uris, size = [], 0
    for members in gallery.images:
        image, file = strip_image(members), io.BytesIO()
        if members.shape[-1] > MAX_SIDE:
            image = image.resize((MAX_SIDE * len(members), MAX_SIDE * members.shape[-2] // members.shape[-1]))
        image.save(file, "PNG", optimize=True)
        data = file.getvalue()
        size += len(data)
        if size > MAX_SPRITE_BYTES:
            break
        uris.append("data:image/png;base64," + base64.b64encode(data).decode())
    return uris


def strip_image(members: np.ndarray) -> Image.Image:
    """Return uint8 [L, C, H, W] as one picture, members side by side."""
    strip = np.concatenate(list(members), axis=2).transpose(1, 2, 0)  # [H, L * W, C]
    return Image.fromarray(strip[..., 0] if strip.shape[2] == 1 else strip)


def lambda_chart(gallery: Gallery) -> Markup:
    """Return annotated against requested lambda: dots are images, the line is the mean.

    The band holds the middle 80 % of the sets at each place in a set.
    """
    frame = Frame((0, 1), (0, 1), height=330)
    requested, lam = gallery.lam_requested.ravel(), gallery.lam.ravel()
    at, mean = gallery.lam_requested.mean(0), gallery.lam.mean(0)
    low, high = np.quantile(gallery.lam, (0.1, 0.9), axis=0)
    return frame.drawing(
        f"Annotated against requested lambda over {len(gallery.lam)} sets. The mean annotation "
        f"goes from {mean[0]:.2f} to {mean[-1]:.2f}.",
        frame.axes(*AXES, round_ticks(0, 1), round_ticks(0, 1)),
        *(frame.dot(requested[k], lam[k], "speck", radius=1.6) for k in spread(len(lam), MAX_DOTS)),
        frame.line([*at, *at[::-1]], [*low, *high[::-1]], f"band {series_style(1)}"),
        frame.segment((0, 0), (1, 1), "diagonal"),
        frame.line(at, mean, f"line {series_style(1)}"),
    )


def pair_chart(gallery: Gallery, pair: tuple[int, int], name: str) -> Markup:
    """Return annotated against requested lambda of the sets of one pair, and their mean."""
    chosen = (gallery.pairs == pair).all(1)
    requested, lam = gallery.lam_requested[chosen], gallery.lam[chosen]
    frame = Frame((0, 1), (0, 1), width=200, height=170)
    ticks = round_ticks(0, 1, num=2)
    return frame.drawing(
        f"{name}: annotated lambda from {lam[:, 0].mean():.2f} to {lam[:, -1].mean():.2f}.",
        frame.axes(*AXES, ticks, ticks),
        *(frame.line(requested[n], lam[n], f"line thin {series_style(1)}") for n in spread(len(lam), MAX_LINES)),
        frame.segment((0, 0), (1, 1), "diagonal"),
        frame.line(requested.mean(0), lam.mean(0), f"line {series_style(1)}"),
    )
