"""Own images before `fit` trains on them: looked at, made ready, and a plan made that fits them."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Any

from semmix.core.artifact import begin_artifact
from semmix.core.device import pick_device
from semmix.core.errors import SemmixError
from semmix.core.progress import say, tell
from semmix.data import Dataset
from semmix.data.listing import name_of
from semmix.fitting.planning import FitPlan, PlanInputs, candidates, choose_size, make_plan, time_given
from semmix.fitting.prepare import IMAGES, finding_lines, prepare, usual_side
from semmix.fitting.recipes import FitConfig, with_given
from semmix.methods import method_class
from semmix.training.speed import measure_speed

PLAN = "plan.json"


def plan_own_images(asked: FitConfig, given: Mapping[str, Any]) -> tuple[FitConfig, Dataset, dict[str, Any]]:
    """Return the settings to follow, the images made ready, and what was found (`finding_lines` says it in words).

    The finding is kept as data.json and the plan as plan.json, so that whoever goes on later follows the
    same plan. What the user gave (`given`) takes precedence over the plan.
    """
    for name in asked.methods:
        method_class(name)
    time_given(asked.quality, asked.minutes)
    thinned = {"--train-size": asked.data.train_size, "--imbalance": asked.data.imbalance}
    if seen := " ".join(f"{name} {value:g}" for name, value in thinned.items() if value is not None):
        fix = "leave it out, and give a folder or a table of those images that are to be used"
        raise SemmixError("a plan is made for all of your images", seen, fix)
    refuse_inside(Path(asked.data.dataset), asked.out)

    device = pick_device(asked.runtime.device)
    on_gpu = device.type == "cuda"
    size = choose_size(asked.data.size, usual_side(asked.data), on_gpu, asked.quality)
    data, findings = prepare(asked.data, size, asked.out)
    tell("what was found:", finding_lines(findings))

    inputs = {"quality": asked.quality, "minutes": asked.minutes, "device": device.type, "train": data.train.digest}
    artifact = begin_artifact(asked.out, PLAN, "plan", inputs, keeps_parts=False)
    if not artifact.finished:
        needs = PlanInputs(
            num_train=len(data.train),
            num_val=len(data.val),
            class_counts=data.train.class_counts(data.num_classes),
            size=data.image_shape[1],
            may_mirror=findings["quick_check"]["may_mirror"],
            on_gpu=on_gpu,
        )
        networks = candidates(needs.size, on_gpu, asked.quality)
        speed = measure_speed(data.image_shape, data.num_classes, *networks, device)
        artifact.finish(plan=asdict(make_plan(needs, speed, asked.quality, asked.minutes)))
    plan = FitPlan.from_json(artifact.manifest["plan"])
    tell(plan.words[0], plan.words[1:])
    say(f"everything is kept in {asked.out}; stop with Ctrl-C, the same command goes on")
    return with_given(replace(asked, **plan.settings), given), data, findings


def refuse_inside(source: Path, out: Path) -> None:
    """Raise the error for results among the images, unless in a hidden folder: the next run would learn from them."""
    folder, place = source.resolve(), (out / IMAGES).resolve()
    inside = source.is_dir() and place.is_relative_to(folder)
    if inside and not any(part.startswith(".") for part in place.relative_to(folder).parts):
        good = os.path.relpath(folder.parent / "runs" / name_of(source))
        fix = f"choose a folder beside the images: --out {quote(good)}"
        raise SemmixError("results would lie among the images", out, fix)
