"""The page on an annotation: how good its labels are, in numbers and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from semmix.annotation import LABEL_SCHEMES, Annotation, diagnose
from semmix.calibration import kl_divergence, nll, total_variation
from semmix.core.files import write_json
from semmix.mixing.store import MixSets
from semmix.networks.predicting import predict_logits
from semmix.networks.saved import load_classifier
from semmix.report.gallery import Gallery, lambda_chart, sprites
from semmix.report.rendering import render_page
from semmix.report.rows import percent
from semmix.report.svg import Frame, round_ticks, series_style, spread

MEASURES = {"total_variation": total_variation, "cross_entropy": nll, "kl_divergence": kl_divergence}
NUM_SHOWN = 10  # sets on the contact sheet
NUM_ODD_SHOWN = 5  # sets shown of those offered for exclusion
MAX_PAIRS = 500  # pairs in the table: CIFAR-100 has 4,950


def write_diagnosis(annotation: Annotation, out: Path, class_names: Sequence[str], judge: Tensor | None = None) -> Path:
    """Write diagnosis.json and diagnosis.html into folder `out`; return the page's path.

    Args:
        judge: Probabilities [S, L, K] that a classifier which never saw the sets gives the images.
    """
    found = {**diagnose(annotation), "agreement": {} if judge is None else agreement(annotation, judge)}
    write_json(Path(out) / "diagnosis.json", {**found, "class_names": list(class_names)})
    num_sets = annotation.store.num_sets
    pairs = sorted(found["pairs"], key=lambda row: -row["odd"])
    return render_page(
        "diagnosis.html",
        Path(out) / "diagnosis.html",
        title=f"Annotation by {found['encoder']['kind']}",
        headline=headline(found),
        found=found,
        class_names=class_names,
        pairs=pairs[:MAX_PAIRS],
        pairs_left_out=len(pairs[MAX_PAIRS:]),
        lambda_chart=lambda_chart(_gallery(annotation, [])),
        scale_chart=curve_chart(found["scale"], "gap", "chosen"),
        softmax_chart=curve_chart(found["scale"], "softmax_nll", "softmax"),
        sheet=_strips(annotation, spread(num_sets, NUM_SHOWN), class_names),
        odd_sheet=_strips(annotation, found["odd_sets"][:NUM_ODD_SHOWN], class_names),
    )


def agreement(annotation: Annotation, judge: Tensor) -> dict[str, dict[str, float]]:
    """Return how well a judge's probabilities [S, L, K] agree with the labels of every scheme."""
    found = {}
    for scheme in LABEL_SCHEMES:
        labels = annotation.soft_labels(scheme).flatten(0, 1)
        found[scheme] = {name: measure(judge.flatten(0, 1), labels) for name, measure in MEASURES.items()}
    return found


def judge_images(store: MixSets, run: str | Path, device: torch.device) -> Tensor:
    """Return the probabilities a trained classifier gives every image, float32 [S, L, K]."""
    network, images = load_classifier(run)[0].to(device), store.read_all()
    logits = predict_logits(network, images.flatten(0, 1), batch_size=1024).cpu()
    return logits.softmax(-1).unflatten(0, images.shape[:2])


def headline(found: dict[str, Any]) -> str:
    """Return what the diagnosis says, in one sentence."""
    third, monotone = found["third_class_share"], percent(found["monotone_share"], 0)
    middle = f"; {percent(third, 0)} of the middle images show a third class" if third else ""
    return f"In {monotone} of the sets, the image shows more of a class the more of it was requested{middle}."


CURVES = {"gap": "mean label of ends less accuracy", "softmax_nll": "validation NLL"}


def curve_chart(scale: dict[str, Any], curve: str, chosen: str) -> Markup:
    """Return what a scale is chosen by at each candidate, the one in use marked."""
    scales, losses = np.log2(scale["candidates"]), np.array(scale[curve])
    top = 1.05 * max(losses[0], losses.min() + 0.1)  # what is far worse is cut off
    shown = np.where(losses <= top, losses, np.nan)
    low = float(losses.min())
    frame = Frame((scales[0], scales[-1]), (low - 0.05 * (top - low), top), height=230)
    ticks = [(np.log2(s), f"{s:g}") for s in (0.5, 1, 2, 4, 8, 16, 32, 64)]
    at = np.log2(scale[chosen])
    return frame.drawing(
        f"{CURVES[curve]} against the scale; the scale in use is {scale[chosen]:.2f}.",
        frame.axes("scale s", CURVES[curve], ticks, round_ticks(*frame.y_range)),
        frame.line(scales, shown, f"line {series_style(1)}"),
        frame.segment((at, frame.y_range[0]), (at, frame.y_range[1]), "mark dashed"),
    )


def _gallery(annotation: Annotation, sets: Sequence[int]) -> Gallery:
    """Return the lambdas of all sets, `sets` first, and the images of these alone."""
    store, order = annotation.store, [*sets, *sorted(set(range(annotation.store.num_sets)) - set(sets))]
    shape = (len(sets), store.plan.set_size, *store.image_shape)
    images = np.array([store.read_set(n).numpy() for n in sets], np.uint8).reshape(shape)
    return Gallery(images, store.pairs()[order], store.lam_requested()[order], annotation.lam()[order])


def _strips(annotation: Annotation, sets: Sequence[int], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of the contact sheet: a picture and both lambdas under every image."""
    gallery, strips = _gallery(annotation, sets), []
    for row, (n, picture) in enumerate(zip(sets, sprites(gallery), strict=False)):
        names = [class_names[c] for c in gallery.pairs[row][::-1]]
        lams = list(zip(gallery.lam_requested[row], gallery.lam[row], strict=True))
        strips.append({"number": n, "picture": picture, "names": names, "lams": lams})
    return strips
