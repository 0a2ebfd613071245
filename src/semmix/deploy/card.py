"""The model card: what a stranger must know before acting on the model's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semmix.calibration import METRICS, USUAL
from semmix.core.files import write_bytes
from semmix.deploy.rules import OOD_PERCENT
from semmix.report.charts import Series
from semmix.report.plots import reliability_figure
from semmix.runs import Run

CARD = "README.md"
DIAGRAM = "reliability.png"

RUN_ONNX = """```python
import json
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

facts = json.load(open("model.json"))
session = onnxruntime.InferenceSession("model.onnx")

# Images are prepared as for training: upright, 16-bit grey in 8 bits, on white, scaled and cropped.
image = Image.open("image.png")
image.draft(None, ({twice}, {twice}))  # lets a JPEG decoder skip detail
image = ImageOps.exif_transpose(image)
if image.mode.startswith("I"):
    image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
if "A" in image.mode or "transparency" in image.info:
    white = Image.new("RGBA", image.size, "white")
    image = Image.alpha_composite(white, image.convert("RGBA"))
image = ImageOps.fit(image.convert("RGB"), ({size}, {size}), Image.Resampling.BICUBIC)
pixels = np.asarray(image.convert("{mode}"))

images = pixels.reshape(1, {size}, {size}, {channels}).transpose(0, 3, 1, 2)  # any batch size
probabilities, logits, ood_score = session.run(None, {{"images": np.ascontiguousarray(images)}})
print(facts["class_names"][probabilities[0].argmax()], probabilities[0].max())
```"""


def write_card(facts: dict[str, Any], run: Run, out: Path) -> None:
    """Write README.md and the reliability diagram beside it."""
    series = [Series("as trained", (run.before,)), Series("as shipped", (run.after,))]
    reliability_figure(series, out / DIAGRAM)
    write_bytes(out / CARD, ("\n".join(_lines(facts)) + "\n").encode())


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    yield from _heading(facts)
    yield from ("", "## How good it is", "", *_metrics(facts))
    yield from ("", "## How it was made", "", *_training(facts))
    yield from ("", "## Intended use and limits", "", *_limits(facts))
    yield from ("", "## How to run it", "", *_usage(facts))


def _heading(facts: dict[str, Any]) -> Iterator[str]:
    channels, height, width = facts["image_shape"]
    names, training = facts["class_names"], facts["training"]
    colour = "colour" if channels == 3 else "grey"
    yield f"# {training['classifier']} for {training['dataset']}"
    yield ""
    how_true = "the probabilities are calibrated"
    if not facts["temperature_is_fitted"]:
        how_true = "probabilities as trained, which nothing could calibrate"
    yield (
        f"Sorts {colour} images of {height} x {width} pixels into {len(names)} classes and says "
        f"how sure it is: {how_true}."
    )
    yield ""
    yield f"Classes: {', '.join(f'`{name}`' for name in names)}."


def _metrics(facts: dict[str, Any]) -> Iterator[str]:
    yield f"On {facts['num_test_images']:,} test images, with 95 % bootstrap intervals:"
    yield ""
    yield from ("| metric | value | interval |", "| --- | ---: | --- |")
    for metric in USUAL:
        value, low, high = (metric.show(v) for v in facts["metrics"][metric.name].values())
        yield f"| {metric.title} | {value} | {low} to {high} |"
    yield ""
    if facts["temperature_is_fitted"]:
        yield (
            f"The temperature is {facts['temperature']:.3f}; without it the ECE would be "
            f"{100 * facts['ece_before_temperature']:.2f} %."
        )
    else:
        yield (
            "No validation image was wrong: the temperature could not be fitted, and how far to "
            "trust a confidence is not known. More, or harder, validation images would tell."
        )
    yield ""
    yield f"![accuracy against confidence, as trained and as shipped]({DIAGRAM})"
    yield ""
    yield "Prediction sets, which name as many classes as it takes to hold the true one:"
    yield ""
    yield from ("| promised | held the truth | classes in a set |", "| ---: | --- | --- |")
    for percent, measured in facts["prediction_sets"].items():
        held, low, high = (METRICS["coverage"].show(v) for v in measured["coverage"].values())
        num, fewest, most = (f"{v:.2f}" for v in measured["num_classes"].values())
        yield f"| {percent} % | {held} % ({low} to {high}) | {num} ({fewest} to {most}) |"


def _training(facts: dict[str, Any]) -> Iterator[str]:
    training = facts["training"]
    options = "".join(f", {name} = {value}" for name, value in training["options"].items())
    yield f"- Method `{training['method']}`{options}; {training['epochs']} epochs."
    if training["init"]:
        yield f"- Started from a network with the digest `{training['init']}`."
    yield f"- Command: `{training['command']}`"
    for split, value in facts["data"].items():
        yield f"- Digest of the {split} images: `{value}`"
    yield "- Temperature and all thresholds come from the validation images alone."
    yield f"- Made with semmix {facts['semmix']}."


def _limits(facts: dict[str, Any]) -> Iterator[str]:
    yield (
        "For images like those it was trained on: same source, same classes, same proportions. "
        "Confidences, prediction sets and the figures above hold for such images only; measure "
        "again (`semmix evaluate`) when the source changes."
    )
    yield ""
    yield (
        "- A prediction set holds the true class as often as promised on average over images, not "
        "for each class or each kind of image."
    )
    if facts["ood_threshold"] is None:
        yield "- There were too few validation images to warn of strange ones."
    else:
        yield (
            f"- An image is called strange if its energy exceeds {facts['ood_threshold']:.4g}: "
            f"so do {100 - OOD_PERCENT} in a hundred ordinary images. The score looks at the "
            "logits only; a strange image that resembles a class to the network raises no warning."
        )
    yield "- No image is outside all classes for this model: it always names one of them."
    if facts["training"]["leak"]:
        yield (
            "- What made its mixed sets (generator, encoder or annotation) may have seen images it "
            "is judged on: the figures above are too good."
        )
    yield "- Not examined: fairness between groups of people, attacks, corrupted images."


def _usage(facts: dict[str, Any]) -> Iterator[str]:
    channels, size, _ = facts["image_shape"]
    trust = " --trust-code" if facts["runs_code"] else ""
    yield f"With semmix: `semmix predict . IMAGES{trust}`, or `semmix serve .{trust}`."
    if trust:
        yield "The network is code of the model's maker, which then runs: do so if you trust them."
    if facts["opset"]:
        mode = "RGB" if channels == 3 else "L"
        yield f"\nWithout it (ONNX opset {facts['opset']}):\n"
        yield RUN_ONNX.format(mode=mode, size=size, twice=2 * size, channels=channels)
    yield ""
    yield (
        "`model.pt2` is the same program for `torch.export.load`. Both take uint8 pixels "
        f"`[N, {channels}, {size}, {size}]` and return probabilities, logits (before the "
        "temperature) and the strangeness score; normalisation and temperature are inside. They "
        f"were compared with PyTorch: the largest difference is "
        f"{facts['largest_difference']:.1g}."
    )
