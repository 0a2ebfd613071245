"""`fit`: from images to a calibrated classifier and a report, stage by stage; which one is shipped, and why."""

import html
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semmix.annotation import annotate
from semmix.calibration.metrics import log_losses
from semmix.core.device import pick_device
from semmix.core.errors import require
from semmix.core.files import read_json
from semmix.core.progress import harmless, say, tell
from semmix.data import Dataset
from semmix.deploy import can_write_onnx, export_model, how_to_predict, load_model
from semmix.deploy.model import MANIFEST, Model, Picture, Prediction
from semmix.diffusion import Generator
from semmix.fitting.own_images import finding_lines, plan_own_images, warning_lines
from semmix.fitting.planning import Quality
from semmix.fitting.recipes import FitConfig, is_own, recipe_of, with_given
from semmix.mixing.draw import mix
from semmix.mixing.plan import MixPlan, all_pairs, partner_pairs
from semmix.mixing.store import MixSets
from semmix.networks.encoders.pretrained import ClassifierEncoder
from semmix.networks.saved import load_classifier
from semmix.report import aggregate, open_gallery, results_table, write_report
from semmix.report.rows import METHOD_NAMES, percent
from semmix.report.table import terminal_width
from semmix.runs import Predictions, Run
from semmix.training.classifier import train
from semmix.training.generator import train_generator
from semmix.training.mixed import MixedSource, load_mixed

HIGH, LOW = 0.9, 0.6
"""Confidences from which, and below which, accuracy is told apart."""


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """What came of `fit`: a calibrated model, a report, and the runs behind them.

    Example:
        >>> fitted = semmix.fit("photos")  # doctest: +SKIP
        >>> fitted.predict(["new.jpg"])[0].class_name  # doctest: +SKIP
        'cat'
    """

    folder: Path
    """Folder of everything."""
    report: Path
    """The report, an HTML page."""
    runs: tuple[Run, ...]
    """Every trained classifier."""
    best: Run
    """The run that became the model."""
    summary: tuple[str, ...]
    """Why this run was chosen, and what its confidence is worth on the test images."""
    findings: tuple[str, ...] = ()
    """What was found in your own images."""
    warnings: tuple[str, ...] = ()
    """Those findings that need your attention, such as labels that look wrong."""
    device: str = "auto"
    """Where the model computes."""

    @cached_property
    def model(self) -> Model:
        """The calibrated model, as `semmix.load_model` returns it."""
        return load_model(self.folder / "model", self.device, trust_code=True)

    def predict(self, images: Tensor | Picture | Sequence[Picture]) -> list[Prediction]:
        """Return the model's prediction for each image; see `Model.predict`."""
        return self.model.predict(images)

    def __repr__(self) -> str:
        return f"Fitted({str(self.folder)!r}: {len(self.runs)} runs, model from {self.best!r})"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in (*self.summary, *self.warnings))
        table = results_table(aggregate(self.runs, self.runs[0].method)).html()
        return f"{table}<ul>{lines}</ul><p>{html.escape(str(self.report))}</p>"


def fit(
    images: str | Path = "digits",
    out: str | Path | None = None,
    *,
    minutes: float | None = None,
    quality: Quality | None = None,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    device: str | None = None,
    **settings: Any,
) -> Fitted:
    """Train calibrated classifiers on images, choose one, and write a report and a model.

    Own images are looked at first; then a plan is made that fits the time. Finished stages are not done
    again, so the same call goes on after a stop.

    Args:
        images: A folder with one folder for each class, a .csv or .jsonl file of paths and labels, or the
            name of a data set, such as `digits` (the demo).
        out: Folder of everything; by default `runs/` and the name of the images.
        minutes: How long all of it may take, for own images; by default what the quality says.
        quality: For own images: `draft` (5 minutes), `good` (30, the default) or `best` (180).
        methods: Methods to compare, the baseline first; by default cross-entropy and CSM where there is time.
        seeds: Trainings of each method.
        device: `auto`, `cpu` or `cuda`.
        **settings: Any other setting of `FitConfig`; for a stage a mapping, as in `train={"epochs": 30}`.

    Returns:
        The model, the report, the runs, and what was found.

    Raises:
        SemmixError: If the images cannot be learned from, or a setting is unusable.

    Example:
        >>> fitted = fit("photos", minutes=30)  # doctest: +SKIP
        >>> fitted.report  # doctest: +SKIP
        PosixPath('runs/photos/report.html')
    """
    named = {"out": out and Path(out), "minutes": minutes, "quality": quality, "seeds": seeds}
    named |= {"methods": methods and tuple(methods)}
    stages = {"data": {"dataset": str(images)}, "runtime": {"device": device} if device else {}}
    given = {
        **settings,
        **{name: value for name, value in named.items() if value is not None},
        **{name: {**settings.get(name, {}), **values} for name, values in stages.items()},
    }
    config = with_given(recipe_of(str(images)), given)
    if is_own(str(images)):
        config, data, findings = plan_own_images(config, given)
        fitted = walk(config, data)
        found, warnings = finding_lines(findings), warning_lines(findings)
        return replace(fitted, findings=tuple(found), warnings=tuple(warnings))
    fix = f"leave it out, or set the stages: semmix fit {images} --help"
    for option in ("minutes", "quality"):
        require(option not in given, f"--{option} plans for images of your own", images, fix)
    return walk(config)


def walk(config: FitConfig, data: Dataset | None = None) -> Fitted:
    """Do every stage of the path on `data`, by default the images that the settings name."""
    mixes = config.mixes
    data = data or config.data.load()
    counts = ", ".join(f"{len(split)} {name}" for name, split in data.splits.items())
    say(f"{data.name}: {data.num_classes} classes, {counts} images")

    # A plain network, also the first run of cross-entropy, reads the mixed images back: like the generator, it
    # knows the training split alone.
    trained: dict[tuple[str, int], Run] = {}
    source = gallery = None
    if mixes:
        trained["ce", 0] = plain = train_run(config, data, "ce", 0)
        store = mix_pairs(config, data, learn_to_draw(config, data), plain)
        encoder = ClassifierEncoder(str(plain.folder), pick_device(config.runtime.device))
        out = config.out / "annotation"
        annotation = annotate(store, encoder, data, out, config.scale)
        source, gallery = load_mixed(store, annotation), open_gallery(store, annotation)
    asked = [(method, seed) for method in config.methods for seed in range(config.seeds)]
    for method, seed in asked:
        if (method, seed) not in trained:
            trained[method, seed] = train_run(config, data, method, seed, source)

    runs, baseline = [trained[key] for key in asked], config.methods[0]
    rows = aggregate(runs, baseline)
    out, title = config.out / "report.html", f"semmix on {data.name}"
    report = write_report(rows, out, title=title, class_names=data.class_names, gallery=gallery, baseline=baseline)
    say(results_table(rows).text(terminal_width()))
    best, why = best_run(runs)
    model, summary = ship(best, config.out / "model"), closing_words(best, why)
    tell("what came of it:", summary)
    say(f"report: {report}")
    say(f"use it: {how_to_predict(model)}")
    return Fitted(config.out, report, tuple(runs), best, tuple(summary), device=config.runtime.device)


def learn_to_draw(config: FitConfig, data: Dataset) -> Generator:
    """Train the generator on the training split and return it."""
    settings = replace(config.generator, even_out=config.even_out or config.generator.even_out)
    return train_generator(data, settings, config.out / "generator", config.runtime)


def train_run(config: FitConfig, data: Dataset, method: str, seed: int, source: MixedSource | None = None) -> Run:
    """Train one method with one seed."""
    settings = replace(config.train, method=method, seed=seed)
    return train(data, settings, config.out / "runs" / f"{method}-{seed}", source, config.runtime)


def mix_pairs(config: FitConfig, data: Dataset, generator: Generator, plain: Run) -> MixSets:
    """Draw the mixed sets: of all pairs, or of those that the run `plain` confuses most."""
    pairs = all_pairs(data.num_classes)
    if config.partners is not None:
        logits, labels = torch.from_numpy(plain.val.logits), torch.from_numpy(plain.val.labels)
        pairs = partner_pairs(logits, labels, config.partners)
    num = config.sets_per_pair * len(pairs)
    plan = MixPlan(num_classes=data.num_classes, num_sets=num, pairs=pairs, sets_per_shard=config.sets_per_shard)
    return mix(generator, plan, config.sampler, config.out / "mixsets")


def best_run(runs: Sequence[Run]) -> tuple[Run, str]:
    """Return the run to ship, and why: of the method that fits validation images best, the best.

    Fit is the NLL after temperature scaling; the test images have no say, so they stay a test. The
    first run's method, the plain one, gives way only to one that fits better beyond chance: what
    cannot be shown to help may do harm.
    """
    by_method: dict[str, dict[Run, np.ndarray]] = defaultdict(dict)
    for run in runs:
        by_method[run.method][run] = log_losses(run.val.probs(run.temperature), run.val.labels)
    losses = {name: np.mean(list(found.values()), axis=0) for name, found in by_method.items()}
    plain, ranked = next(iter(losses)), sorted(losses, key=lambda name: losses[name].mean())
    clear = (name for name in ranked if is_clear(losses[plain] - losses[name]))
    best, why = next(clear, plain), "the best on the validation images"
    if best != ranked[0]:
        why = "on the validation images no other is better beyond chance"
    elif len(runs) == 1:
        why = "the only one trained"
    return min(by_method[best], key=lambda run: by_method[best][run].mean()), why


def is_clear(gains: np.ndarray) -> bool:
    """Return whether the mean gain of images is more than its standard error."""
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def ship(run: Run, out: Path) -> Path:
    """Write the run as a model folder; a model of another run there gives way to it.

    So does one made when ONNX could not be written and now can, or the other way round.
    """
    onnx = can_write_onnx()
    if (out / MANIFEST).exists():
        made_from = read_json(out / MANIFEST).get("inputs", {})
        if (made_from.get("weights"), made_from.get("onnx")) != (load_classifier(run.folder)[1], onnx):
            for path in sorted(out.iterdir(), key=lambda path: path.name == MANIFEST):  # last what tells that it is one
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return export_model(run, out, onnx=onnx)


def closing_words(run: Run, why: str) -> list[str]:
    """Return why this model is shipped, and what its confidence is worth on the test images."""
    lines = [f"the model is {METHOD_NAMES.get(run.method, run.method)}, seed {run.seed}: {why}"]
    if not run.temperature_is_fitted:
        why = "no validation image was wrong: the temperature could not be fitted, and its confidence is as trained"
        lines.append(f"{why}; more, or harder, images would tell what it is worth")
    return [*lines, *worth(run.after, run.class_names)]


def worth(predictions: Predictions, class_names: Sequence[str]) -> list[str]:
    """Return in plain words how far predictions and their confidence can be trusted."""
    confidence, correct = predictions.confidence, predictions.correct
    num, accuracy = len(correct), float(correct.mean())
    mean = f"on {num:,} test images its mean confidence is {percent(confidence.mean())}"
    lines = [f"{mean}, and it is right on {percent(accuracy)}"]
    counts = np.bincount(predictions.labels, minlength=len(class_names))
    frequent = int(counts.argmax())
    always = counts[frequent] / num
    if accuracy - always <= 2 * np.sqrt(accuracy * (1 - accuracy) / num):  # within two standard errors
        guess = f"always saying {harmless(class_names[frequent])} would be right on {percent(always)}"
        lines.append(f"{guess}: do not rely on it, give it more images or more time")
    parts = {f"at least {HIGH:.0%}": confidence >= HIGH, f"below {LOW:.0%}": confidence < LOW}
    for when, chosen in parts.items():
        if chosen.any():
            right = percent(correct[chosen].mean())
            lines.append(f"where its confidence is {when} ({chosen.sum():,} images), it is right on {right}")
        else:
            lines.append(f"its confidence is never {when}")
    return lines
