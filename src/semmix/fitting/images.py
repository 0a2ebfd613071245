"""Other images than the demo's: a recipe for named data sets on one GPU, a plan for one's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from shlex import quote

import torch

from semmix.core.artifact import begin_artifact
from semmix.core.device import pick_device
from semmix.core.errors import SemmixError
from semmix.core.progress import say, tell
from semmix.data.config import DatasetConfig
from semmix.data.listing import name_of
from semmix.diffusion.sampling import MixConfig
from semmix.fitting.fit import FitConfig
from semmix.fitting.planning import Facts, Plan, candidates, choose_size, make_plan, time_given
from semmix.fitting.prepare import IMAGES, Prepared, finding_lines, prepare, usual_side
from semmix.methods import method_class
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig
from semmix.training.speed import measure_speed

PLAN = "plan.json"


def images(dataset: str) -> FitConfig:
    """Return the recipe for `dataset`: 25 minutes of generator, then the published training."""
    return FitConfig(
        data=DatasetConfig(dataset=dataset),
        generator=GeneratorConfig(network="compact32", minutes=25, flip=True),
        sets_per_pair=100,
    )


def own_images(source: str) -> FitConfig:
    """Return what is known of one's own images before anybody has looked at them."""
    out = Path("runs") / name_of(Path(source))
    return FitConfig(data=DatasetConfig(dataset=source), out=out)


def planned(asked: FitConfig) -> FitConfig:
    """Return the recipe for one's own images: look at them, say what was found, make a plan.

    The finding is kept as data.json, the plan as plan.json; who goes on later gets the same plan.
    """
    _check_before_any_work(asked)
    device = pick_device(asked.runtime.device)
    on_gpu = device.type == "cuda"
    size = choose_size(asked.data.size, usual_side(asked.data), on_gpu, asked.quality)
    ready = prepare(asked.data, size, asked.out)
    tell("what was found:", finding_lines(ready.findings))

    inputs = {
        "quality": asked.quality,
        "minutes": asked.minutes,
        "device": device.type,
        "train": ready.dataset.train.digest,
    }
    artifact = begin_artifact(asked.out, PLAN, "plan", inputs, keeps_parts=False)
    if not artifact.finished:
        artifact.finish(plan=plan_for(ready, asked, device).to_json())
    plan = Plan(**artifact.manifest["plan"])
    tell(plan.words[0], plan.words[1:])
    say(f"everything is kept in {asked.out}; stop with Ctrl-C, the same command goes on")
    return _recipe(plan, asked)


def _check_before_any_work(asked: FitConfig) -> None:
    """Raise the error for what can be seen to be a mistake without looking at an image."""
    for name in asked.methods:
        method_class(name)
    time_given(asked.quality, asked.minutes)
    _refuse_fewer(asked.data)
    _refuse_inside(Path(asked.data.dataset), asked.out)


def _refuse_fewer(data: DatasetConfig) -> None:
    """Raise the error for options that thin out images: the plan is made for all there are."""
    options = {"--train-size": data.train_size, "--imbalance": data.imbalance}
    given = " ".join(f"{name} {value:g}" for name, value in options.items() if value is not None)
    if given:
        fix = "leave it out, and give a folder or a table of those images that are to be used"
        raise SemmixError("a plan is made for all of your images", given, fix)


def _refuse_inside(source: Path, out: Path) -> None:
    """Raise the error for results among the images: the next run would learn from them.

    What lies in a hidden folder is no image to it.
    """
    folder, place = source.resolve(), (out / IMAGES).resolve()
    inside = source.is_dir() and place.is_relative_to(folder)
    if inside and not any(part.startswith(".") for part in place.relative_to(folder).parts):
        good = os.path.relpath(folder.parent / "runs" / name_of(source))
        fix = f"choose a folder beside the images: --out {quote(good)}"
        raise SemmixError("results would lie among the images", out, fix)


def plan_for(ready: Prepared, asked: FitConfig, device: torch.device) -> Plan:
    """Return the plan for these images on this device, after a short measurement."""
    data, on_gpu = ready.dataset, device.type == "cuda"
    facts = Facts(
        num_train=len(data.train),
        num_val=len(data.val),
        class_counts=data.train.class_counts(data.num_classes),
        size=data.image_shape[1],
        may_mirror=ready.findings["quick_check"]["may_mirror"],
        on_gpu=on_gpu,
    )
    networks = candidates(facts.size, on_gpu, asked.quality)
    speed = measure_speed(data.image_shape, data.num_classes, *networks, device)
    return make_plan(facts, speed, asked.quality, asked.minutes)


def _recipe(plan: Plan, asked: FitConfig) -> FitConfig:
    return replace(
        asked,
        methods=tuple(plan.methods),
        seeds=plan.seeds,
        sets_per_pair=plan.sets_per_pair,
        partners=plan.partners,
        even_out=plan.even_out,
        generator=GeneratorConfig(**plan.generator),
        sampler=MixConfig(**plan.sampler),
        train=TrainConfig(**plan.train),
    )
