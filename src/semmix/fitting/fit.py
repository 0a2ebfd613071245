"""`fit`: from images to a calibrated classifier and a report, one stage after the other."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.annotation import annotate
from semmix.core.device import pick_device
from semmix.core.errors import SemmixError
from semmix.core.progress import say, tell
from semmix.data import Dataset
from semmix.deploy import how_to_predict, load_model
from semmix.deploy.model import Model, Picture, Prediction
from semmix.diffusion import Generator
from semmix.fitting.own_images import plan_own_images
from semmix.fitting.planning import Quality
from semmix.fitting.prepare import finding_lines, warning_lines
from semmix.fitting.recipes import FitConfig, is_own, recipe_of, with_given
from semmix.fitting.ship import best_run, closing_words, ship
from semmix.mixing.draw import mix
from semmix.mixing.plan import MixPlan, all_pairs, partner_pairs
from semmix.mixing.store import MixSets
from semmix.networks.encoders.pretrained import ClassifierEncoder
from semmix.report import aggregate, open_gallery, results_table, write_report
from semmix.report.table import terminal_width
from semmix.runs import Run
from semmix.training.classifier import train
from semmix.training.generator import train_generator
from semmix.training.mixed import MixedSource, load_mixed


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
    for option in ("minutes", "quality"):
        if option in given:
            fix = f"leave it out, or set the stages: semmix fit {images} --help"
            raise SemmixError(f"--{option} plans for images of your own", images, fix)
    return walk(config)


def walk(config: FitConfig, data: Dataset | None = None) -> Fitted:
    """Do every stage of the path on `data`, by default the images that the settings name."""
    mixes = config.mixes
    data = data or config.data.load()
    counts = ", ".join(f"{len(split)} {name}" for name, split in data.splits.items())
    say(f"{data.name}: {data.num_classes} classes, {counts} images")

    # A plain network reads the mixed images back: like the generator, it knows the training split
    # alone. It is also the first run of cross-entropy.
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
    if config.partners is None:
        pairs = all_pairs(data.num_classes)
    else:
        logits, labels = torch.from_numpy(plain.val.logits), torch.from_numpy(plain.val.labels)
        pairs = partner_pairs(logits, labels, config.partners)
    plan = MixPlan(
        num_classes=data.num_classes,
        num_sets=config.sets_per_pair * len(pairs),
        pairs=pairs,
        sets_per_shard=config.sets_per_shard,
    )
    return mix(generator, plan, config.sampler, config.out / "mixsets")
