"""Draw the picture at the top of the README: mixed sets of CIFAR-10, and what they do to confidences.

semmix mix zoo:cifar10 --sets 12 --pairs cat,dog automobile,truck airplane,ship deer,horse --out runs/readme/mixsets
semmix annotate cifar10 --mixsets runs/readme/mixsets --encoder classifier:zoo:cifar10 --scale 5 \
    --out runs/readme/annotation
python tools/draw_readme.py runs/readme/mixsets runs/readme/annotation docs/images/csm-cifar10.png
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import semmix
from semmix.report.charts import Series

SETS = (4, 5, 6, 7)
"""The sets that are shown, one in a row."""
MEMBERS = (0, 1, 2, 3, 4, 5, 6, 7)
RUNS = {"cross-entropy": "cifar10-resnet18-ce-7dc53d7d", "CSM": "cifar10-resnet18-csm-9d3c6777"}
"""The runs of the table in the README, three seeds each."""
GREY, BLUE = "#57616b", "#0072b2"


def draw_sets(figure, store: semmix.MixSets, annotation: semmix.Annotation, class_names) -> None:
    """Draw mixed sets as rows, with the requested and the annotated lambda under every image."""
    images, pairs = store.read_all(), store.pairs()
    lams = ((-0.05, GREY, store.lam_requested()), (-0.23, BLUE, annotation.lam()))
    axes = figure.subplots(len(SETS), len(MEMBERS), squeeze=False)
    for row, n in zip(axes, SETS, strict=True):
        last, first = (class_names[k] for k in pairs[n])
        row[0].set_ylabel(f"{first}\nto\n{last}", rotation=0, ha="right", va="center", labelpad=8)
        for axis, k in zip(row, MEMBERS, strict=True):
            axis.imshow(images[n, k].permute(1, 2, 0), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            for y, colour, lam in lams:
                text = f"{lam[n, k]:.0%}".replace("%", " %")
                axis.text(0.5, y, text, transform=axis.transAxes, ha="center", va="top", size=8, color=colour)
    figure.suptitle("mixed sets: how much of the last class was requested (grey), is shown (blue)", size=10)


def draw_reliability(figure, results: Path) -> None:
    """Draw how often predictions of each confidence are right, over all seeds of each method."""
    for axis, (name, run) in zip(figure.subplots(len(RUNS), 1, sharex=True), RUNS.items(), strict=True):
        tests = tuple(semmix.Run.open(folder).before for folder in sorted(results.glob(f"{run}-s?")))
        semmix.ReliabilityDisplay(Series(name, tests)).plot(ax=axis)
        axis.title.set_size(10)
        axis.set_xlabel("confidence" if name == "CSM" else "")


def main(mixsets: str, annotation: str, out: str) -> None:
    """Draw the picture from a store of mixed sets, its annotation and the kept runs."""
    results = Path(__file__).parents[1] / "results"
    store = semmix.MixSets.open(mixsets)
    class_names = semmix.Run.open(next(results.glob(f"{RUNS['CSM']}-s0"))).class_names
    figure = Figure(figsize=(10, 4.9), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(7.2, 2.8))
    draw_sets(left, store, semmix.Annotation.open(annotation, store), class_names)
    draw_reliability(right, results)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
