"""Own images before `fit` trains on them: read, checked, split and kept, a finding in plain words, and a plan.

OUT/data.json   what was found, and which file is in which split
OUT/images/     the images as they are learned from, also by `semmix train OUT/images --method ce`
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

from torch import Tensor

from semmix.core.artifact import begin_artifact
from semmix.core.device import pick_device
from semmix.core.errors import require, short_name, some_of
from semmix.core.files import digest, printable
from semmix.core.progress import harmless, say, tell
from semmix.data import Dataset, load_dataset
from semmix.data.config import DatasetConfig
from semmix.data.dataset import Parts
from semmix.data.decoding import SUFFIXES, BadImageError, read_stored_size
from semmix.data.duplicates import Duplicates, find_duplicates
from semmix.data.image_folder import Gathered, across_parts, as_dataset, divide, gather, unusable_files
from semmix.data.library import save_parts
from semmix.data.listing import FolderReport, Problem, list_files, name_of
from semmix.fitting.planning import FitPlan, PlanInputs, candidates, choose_size, make_plan, time_given
from semmix.fitting.recipes import FitConfig, with_given
from semmix.fitting.suspects import SecondOpinion, second_opinion
from semmix.methods import method_class
from semmix.training.speed import measure_speed

DATA = "data.json"
IMAGES = "images"
PLAN = "plan.json"
NUM_SAMPLED = 200
"""Headers looked at to learn how large the images are."""
LISTED = 1000
"""At most so many of a kind are written to data.json."""
SHOWN = 3
"""And so many shown on the terminal."""
MANY_CLASSES = 12
FEW_IMAGES = 10
"""A class with fewer images to learn from is called rare."""
_some = partial(some_of, most=SHOWN)


def plan_own_images(asked: FitConfig, given: Mapping[str, Any]) -> tuple[FitConfig, Dataset, dict[str, Any]]:
    """Return the settings to follow, the images made ready, and what was found (`finding_lines` says it in words).

    The finding is kept as data.json and the plan as plan.json, so that whoever goes on later follows the
    same plan. What the user gave (`given`) takes precedence over the plan.
    """
    for name in asked.methods:
        method_class(name)
    time_given(asked.quality, asked.minutes)
    thinned = {"--train-size": asked.data.train_size, "--imbalance": asked.data.imbalance}
    seen = " ".join(f"{name} {value:g}" for name, value in thinned.items() if value is not None)
    fix = "leave it out, and give a folder or a table of those images that are to be used"
    require(not seen, "a plan is made for all of your images", seen, fix)
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
    if source.is_dir() and place.is_relative_to(folder):
        hidden = any(part.startswith(".") for part in place.relative_to(folder).parts)
        good = quote(os.path.relpath(folder.parent / "runs" / name_of(source)))
        fix = f"choose a folder beside the images: --out {good}"
        require(hidden, "results would lie among the images", out, fix)


def usual_side(config: DatasetConfig) -> int:
    """Return the median of the images' shorter sides, by the headers of some of them."""
    files = list_files(FolderReport(Path(config.dataset)))
    sides = []
    for file in files[:: max(1, len(files) // NUM_SAMPLED)]:
        with contextlib.suppress(BadImageError):  # it is named when the images are read
            sides.append(min(read_stored_size(file.path)))
    return int(median(sides)) if sides else 0


def prepare(config: DatasetConfig, size: int, out: Path) -> tuple[Dataset, dict[str, Any]]:
    """Return the images scaled to `size`, split and kept under `out`, and what was found; read once and not again.

    A folder that has changed since is refused: what was learned from it would not match.
    """
    source = Path(config.dataset)
    files = list_files(FolderReport(source))
    inputs = {
        "source": printable(source),
        # changes when a file comes, goes or is written again
        "files": digest([[file.part, file.class_name, file.name, *_stamp(file.path)] for file in files]),
        "size": size,
        "protocol": config.protocol,
        "split_seed": config.split_seed,
    }
    artifact = begin_artifact(out, DATA, "data", inputs, keeps_parts=False)
    if not artifact.finished:
        found = gather(source, size, config.strict)
        fix = "give two class folders at least, each with images of one kind"
        require(len(found.class_names) > 1, "a classifier needs two classes", ", ".join(found.class_names), fix)
        copies = find_duplicates(found.images)
        rows = divide(found, copies, config.protocol, config.split_seed)
        dataset = as_dataset(found, rows)
        say("checking labels")
        num_classes = len(found.class_names)
        opinion = second_opinion(found.images, copies.near, num_classes)
        # How one trains may not hang on test labels: this is asked of the training images alone.
        learned = second_opinion(dataset.train, copies.near[rows["train"]], num_classes)
        save_parts(IMAGES, Parts(dict(dataset.splits), dataset.class_names), dataset.name, out)
        artifact.finish(
            findings=describe(found, copies, rows, opinion, learned.may_mirror),
            files={part: [found.files[row].name for row in rows[part].tolist()] for part in rows},
        )
    findings = artifact.manifest["findings"]
    if config.strict and findings["num_unusable"]:  # read before, when that was allowed
        skipped = [Problem(**bad) for bad in findings["unusable"]]
        raise unusable_files(skipped, findings["num_unusable"])
    return load_dataset(out / IMAGES), findings


def describe(
    found: Gathered, copies: Duplicates, rows: dict[str, Tensor], opinion: SecondOpinion, may_mirror: bool
) -> dict[str, Any]:
    """Return the finding as plain JSON values."""
    names, classes = [file.name for file in found.files], found.class_names
    near = copies.sets(copies.near)
    return {
        "num_images": len(names),
        "channels": found.images.images.shape[1],
        "class_counts": dict(zip(classes, found.images.class_counts(len(classes)), strict=True)),
        "splits": {part: dict(Counter(found.files[row].class_name for row in rows[part].tolist())) for part in rows},
        "stored_sizes": [[*size, num] for size, num in found.report.sizes.most_common(LISTED)],
        "unusable": [vars(problem) for problem in found.report.skipped[:LISTED]],
        "num_unusable": len(found.report.skipped),
        "num_ignored": len(found.report.ignored),
        "exact_copies": _named(copies.sets(copies.exact), names),
        "near_copies": _named(near, names),
        "num_near_copies": sum(map(len, near)) - len(near),
        "in_two_classes": _named(copies.across([file.class_name for file in found.files]), names),
        "across_parts": _named(across_parts(found, copies), names),
        "quick_check": {"num_images": opinion.num_images, "accuracy": opinion.accuracy, "may_mirror": may_mirror},
        "suspects": [
            {
                "file": names[suspect.row],
                "label": classes[suspect.label],
                "looks_like": classes[suspect.looks_like],
                "probability": round(suspect.probability, 3),
            }
            for suspect in opinion.suspects[:LISTED]
        ],
    }


def finding_lines(findings: dict[str, Any]) -> list[str]:
    """Return what was found, for people who know neither diffusion nor calibration."""
    counts, splits = findings["class_counts"], findings["splits"]
    train, val, test = (sum(splits[part].values()) for part in ("train", "val", "test"))
    colour = "grey" if findings["channels"] == 1 else "colour"
    lines = [
        f"{findings['num_images']:,} images in {len(counts)} classes: {_show_counts(counts)}",
        f"{_show_sizes(findings['stored_sizes'])}, {colour}",
        f"{train:,} to learn from, {val:,} to calibrate on, {test:,} to test on",
    ]
    return [*map(harmless, lines), *warning_lines(findings)]


def warning_lines(findings: dict[str, Any]) -> list[str]:
    """Return what of it a user should look into: rare classes, unusable files, copies, doubtful labels."""
    lines = [*_rare_classes(findings["class_counts"], findings["splits"]), *_unusable(findings)]
    return list(map(harmless, [*lines, *_copies(findings), *_suspects(findings)]))


def _rare_classes(counts: dict[str, int], splits: dict[str, dict[str, int]]) -> Iterator[str]:
    if rare := [name for name in counts if splits["train"].get(name, 0) < FEW_IMAGES]:
        yield f"rare: {_some(rare)} have fewer than {FEW_IMAGES} images to learn from; expect little of them"
    if untested := [name for name in counts if not splits["test"].get(name)]:
        yield f"untested: {_some(untested)} have too few images to be tested at all"


def _unusable(findings: dict[str, Any]) -> Iterator[str]:
    if findings["num_unusable"]:
        named = [f"{bad['path']} ({bad['kind']})" for bad in findings["unusable"]]
        yield f"{findings['num_unusable']} files cannot be used and are left out: {_some(named)}"
    if findings["num_ignored"]:
        yield (
            f"{findings['num_ignored']} other files or folders are no images that can be read "
            f"({', '.join(SUFFIXES)}), empty or in no part, and are ignored: semmix data check names them"
        )


def _copies(findings: dict[str, Any]) -> Iterator[str]:
    if findings["num_near_copies"]:
        example = " = ".join(findings["near_copies"][0][:2])
        yield f"{findings['num_near_copies']} images are copies of others, exactly or nearly, such as {example}"
    if findings["across_parts"]:
        yield (
            f"{len(findings['across_parts'])} images are in several of your own parts, so the "
            f"test flatters: {_some([' = '.join(names[:2]) for names in findings['across_parts']])}"
        )
    elif findings["num_near_copies"]:
        yield "copies stay on one side of the split, so that the test stays honest"
    if findings["in_two_classes"]:
        shown = [" = ".join(names[:2]) for names in findings["in_two_classes"]]
        yield f"the same image in two classes, mend these labels: {_some(shown)}"


def _suspects(findings: dict[str, Any]) -> Iterator[str]:
    quick, suspects = findings["quick_check"], findings["suspects"]
    if suspects:
        shown = [f"{s['file']} looks like {s['looks_like']}" for s in suspects]
        count = f"{len(suspects):,}" if len(suspects) < LISTED else f"at least {LISTED:,}"
        yield (
            f"{count} labels deserve a second look: {_some(shown)} "
            f"(by a quick check, itself right on {quick['accuracy']:.0%})"
        )
    if not quick["may_mirror"]:
        yield "mirrored images would show something else here, so none are mirrored"


def _stamp(path: Path) -> list[int]:
    try:
        status = path.stat()
    except (OSError, ValueError):  # named as unreadable when the images are read
        return []
    return [status.st_size, status.st_mtime_ns]


def _named(sets: list[list[int]], names: list[str]) -> list[list[str]]:
    return [[names[row] for row in rows[:LISTED]] for rows in sets[:LISTED]]


def _show_counts(counts: dict[str, int]) -> str:
    if len(counts) <= MANY_CLASSES:
        return ", ".join(f"{name} {num:,}" for name, num in counts.items())
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    (most, high), (least, low) = ordered[0], ordered[-1]
    if low == high:
        return f"{low:,} of each"
    return f"from {low:,} ({short_name(least)}) to {high:,} ({short_name(most)})"


def _show_sizes(sizes: list[list[int]]) -> str:
    width, height, num = sizes[0]
    if len(sizes) == 1:
        return f"{width} x {height} pixels"
    return f"{len(sizes)} sizes, most often {width} x {height} pixels ({num:,} images)"
