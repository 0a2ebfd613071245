"""A plan for a person's own images: what is trained and for how long, and why, in plain words.

The cost model is a sum: every image that passes through a network costs the seconds measured for it
(`speed.py`). A classifier passes each real image once an epoch, and two mixed ones with it under
CSM; a set is eight images, each drawn in so many evaluations of the generator. At most two fifths
of the time go to the classifiers, the rest to the generator and the sets it draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from semmix.core.errors import require
from semmix.diffusion.sampling import MixConfig
from semmix.training.classifier import TrainConfig
from semmix.training.generator import GeneratorConfig
from semmix.training.speed import Speed

Quality = Literal["draft", "good", "best"]

MINUTES: dict[str, float] = {"draft": 5, "good": 30, "best": 180}
"""Time for each quality, unless the user gives another."""
MAX_SEEDS = {"draft": 1, "good": 3, "best": 5}
"""Trainings of each method at most: several show what is chance."""
MAX_EPOCHS = {"draft": 60, "good": 150, "best": 200}
"""Passes over the images at most."""
SIZES = (32, 64, 128)
RESERVE = 0.15
"""Part of the time kept for reading, evaluating and writing."""
CLASSIFIERS_SHARE = 0.4
SETS_SHARE = 0.25
"""Of what the classifiers leave; the generator's training gets the rest."""
MIN_TRAIN, MIN_PER_CLASS = 250, 10
"""Images a generator needs, in all and on average for each class; from fewer it learns copies."""
MIN_SEEN, MIN_SEEN_PER_CLASS = 20_000, 2_000
"""A generator that has seen fewer images, in all or of each class, draws nothing one could recognise."""
GENERATOR_STEPS = 2_000
"""Steps are worth more than images at once: a short training takes smaller batches for them."""
MIN_VAL = 50
"""Images a temperature wants to be fitted on."""
TIMES = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720)
"""Minutes a person may be told to give."""
GOOD_EPOCHS, GOOD_STEPS, MIN_EPOCHS = 30, 1000, 5
"""A classifier is trained for so long at least, if that is possible at all."""
MEMBERS = 8
MAX_SETS = 25_000
"""200,000 images: on CIFAR-10 fewer calibrated worse (docs/results.md)."""
MAX_BYTES = 2 * 2**30
"""What the pixels of all sets may take, as training holds them in memory."""
ALL_PAIRS = 20
"""Up to so many classes, all pairs are mixed."""
MAX_PARTNERS = 8
UNEVEN = 3.0
"""Largest class over smallest from which rare classes are shown to the generator more often."""


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """What a plan depends on: the images and the device."""

    num_train: int
    num_val: int
    class_counts: list[int]
    """Training images of each class."""
    size: int
    may_mirror: bool
    on_gpu: bool

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_counts)

    @property
    def can_generate(self) -> bool:
        """Whether there are enough images to teach a generator."""
        return self.num_train >= max(MIN_TRAIN, MIN_PER_CLASS * self.num_classes)

    @property
    def min_seen(self) -> int:
        """Images a generator must see to be of use."""
        return max(MIN_SEEN, MIN_SEEN_PER_CLASS * self.num_classes)

    @property
    def num_steps(self) -> int:
        """Steps in which a mixed set is drawn."""
        return 18 if self.on_gpu else 10

    @property
    def batch_size(self) -> int:
        """Real images in a step: even few images make some steps an epoch."""
        return 128 if self.num_train >= 4000 else 64 if self.num_train >= 1000 else 32


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What `fit` will do, and the plan in words."""

    methods: tuple[str, ...]
    seeds: int
    sets_per_pair: int
    partners: int | None
    even_out: bool
    generator: GeneratorConfig
    sampler: MixConfig
    train: TrainConfig
    minutes: dict[str, float]
    """Expected, by stage."""
    words: list[str] = field(default_factory=list)
    """The plan as the user is told it."""

    @property
    def settings(self) -> dict[str, Any]:
        """Those settings of `fit` that the plan decides, by name."""
        return {name: value for name, value in vars(self).items() if name not in ("minutes", "words")}

    @staticmethod
    def from_json(values: dict[str, Any]) -> FitPlan:
        """Return the plan that `asdict` wrote; one by semmix 0.1 holds only some settings of a stage."""
        stages = {"generator": GeneratorConfig, "sampler": MixConfig, "train": TrainConfig}
        read = {}
        for stage, config in stages.items():  # JSON made lists of tuples
            as_set = {name: tuple(v) if isinstance(v, list) else v for name, v in values[stage].items()}
            read[stage] = config(**as_set)
        return FitPlan(**{**values, "methods": tuple(values["methods"]), **read})


def candidates(size: int, on_gpu: bool, quality: Quality) -> tuple[list[str], str]:
    """Return the classifiers to choose from, the largest first, and the generator's network."""
    if not on_gpu:
        return ["resnet32", "small"], f"cpu{size}"
    large = ["resnet50"] if quality == "best" else []
    return [*large, "resnet18"], f"compact{size}"


def choose_size(asked: int | None, usual_side: int, on_gpu: bool, quality: Quality) -> int:
    """Return the height and width at which images are learned.

    >>> choose_size(None, 480, on_gpu=False, quality="good")
    32
    """
    if asked is not None:
        require(asked in SIZES, "a plan is made for other sizes", asked, "choose --size 32, 64 or 128, or leave it out")
        return asked
    if not on_gpu or usual_side <= 48:
        return 32
    return 128 if quality == "best" and usual_side > 96 else 64


def time_given(quality: Quality, minutes: float | None) -> float:
    """Return the minutes a plan has: those asked for, or the quality's own."""
    if minutes is None:
        return MINUTES[quality]
    require(0 < minutes < math.inf, "a plan needs time", f"{minutes:g} minutes", "give --minutes 5 or more")
    return minutes


def make_plan(inputs: PlanInputs, speed: Speed, quality: Quality, minutes: float | None) -> FitPlan:
    """Return what fits into `minutes` (or into the quality's own time) on this device."""
    minutes = time_given(quality, minutes)
    if plan := _mixing_plan(inputs, speed, quality, minutes):
        stages = _mixing_lines(plan, inputs)
    else:
        # Cross-entropy, then a temperature; who asks for a generator all the same gets the least of use.
        train, seeds, spent = _classifiers(inputs, speed, quality, 60 * minutes * (1 - RESERVE), passes=1)
        num_sets, seen = max(300, 2 * inputs.num_classes), inputs.min_seen
        rest = {"methods": ("ce",), "seeds": seeds, "train": train, "minutes": {"classifiers": spent / 60}}
        plan = _plan(inputs, quality, num_sets, seen, {"num_images": seen}, rest)
        enough = next((time for time in TIMES if _mixing_plan(inputs, speed, quality, time)), None)
        stages = [_why_plain(inputs, minutes, enough)]
    return replace(plan, words=_words(plan, inputs, quality, minutes, stages))


def _mixing_plan(inputs: PlanInputs, speed: Speed, quality: Quality, minutes: float) -> FitPlan | None:
    """Return the plan with a generator, or None where there are too few images or too little time to teach one."""
    seconds = 60 * minutes * (1 - RESERVE)
    # Each epoch of cross-entropy passes an image once, one of CSM three times.
    train, seeds, spent = _classifiers(inputs, speed, quality, CLASSIFIERS_SHARE * seconds, passes=4)
    left = seconds - spent
    set_seconds = MEMBERS * inputs.num_steps * speed.drawing
    num_sets = _num_sets(inputs, SETS_SHARE * left / set_seconds)
    left -= num_sets * set_seconds
    seen = left / speed.generator
    if not inputs.can_generate or seen < inputs.min_seen:
        return None
    length = {"minutes": left / 60} if inputs.on_gpu else {"num_images": round(seen)}
    minutes_of = {"generator": left / 60, "sets": num_sets * set_seconds / 60, "classifiers": spent / 60}
    rest = {"methods": ("ce", "csm"), "seeds": seeds, "train": train, "minutes": minutes_of}
    return _plan(inputs, quality, num_sets, seen, length, rest)


def _plan(
    inputs: PlanInputs, quality: Quality, num_sets: int, seen: float, length: dict[str, Any], rest: dict[str, Any]
) -> FitPlan:
    """Return the plan; the generator sees `seen` images in all, and `length` says so in its own settings."""
    partners, sets_per_pair = _pairs(inputs.num_classes, num_sets)
    network = candidates(inputs.size, inputs.on_gpu, quality)[1]
    batch_size = 512 if inputs.on_gpu else min(64, max(16, 2 ** int(math.log2(seen / GENERATOR_STEPS))))
    return FitPlan(
        **rest,
        sets_per_pair=sets_per_pair,
        partners=partners,
        even_out=max(inputs.class_counts) >= UNEVEN * min(inputs.class_counts),
        generator=GeneratorConfig(
            network=network, num_grids=1, batch_size=batch_size, flip=inputs.may_mirror, **length
        ),
        sampler=MixConfig(num_steps=inputs.num_steps),
    )


def _classifiers(
    inputs: PlanInputs, speed: Speed, quality: Quality, seconds: float, passes: int
) -> tuple[TrainConfig, int, float]:
    """Return how classifiers are trained, how often, and the seconds that takes.

    The largest network that can see the images often enough, with as many seeds as then fit.
    """

    def seconds_of(name: str, seeds: int, epochs: float) -> float:
        return epochs * seeds * passes * inputs.num_train * speed.classifiers[name]

    wanted = min(max(GOOD_EPOCHS, GOOD_STEPS / (inputs.num_train / inputs.batch_size)), MAX_EPOCHS[quality])
    choices = [(name, seeds) for name in speed.classifiers for seeds in range(MAX_SEEDS[quality], 0, -1)]
    fitting = (choice for choice in choices if seconds / seconds_of(*choice, 1) >= wanted)
    name, seeds = next(fitting, choices[-1])
    epochs = int(min(max(seconds / seconds_of(name, seeds, 1), MIN_EPOCHS), MAX_EPOCHS[quality]))
    train = TrainConfig(
        classifier=name,
        epochs=epochs,
        batch_size=inputs.batch_size,
        lr=round(0.1 * math.sqrt(inputs.batch_size / 128), 3),
        schedule="cosine",
        pad=inputs.size // 8,
        flip=inputs.may_mirror,
    )
    return train, seeds, seconds_of(name, seeds, epochs)


def _num_sets(inputs: PlanInputs, affordable: float) -> int:
    """Return how many sets to draw: about one for each image, and two for each class at least."""
    fitting = MAX_BYTES // (MEMBERS * 3 * inputs.size**2)
    wanted = min(max(inputs.num_train, 300), MAX_SETS, fitting)
    return max(2 * inputs.num_classes, min(int(affordable), wanted))


def _pairs(num_classes: int, num_sets: int) -> tuple[int | None, int]:
    """Return how many partners each class is mixed with (None: all), and the sets of a pair; two for each class."""
    num_pairs = num_classes * (num_classes - 1) // 2
    if num_classes <= ALL_PAIRS and num_pairs <= num_sets:
        return None, num_sets // num_pairs
    partners = min(num_sets // num_classes, MAX_PARTNERS)
    return partners, num_sets // (num_classes * partners)


def _words(plan: FitPlan, inputs: PlanInputs, quality: Quality, minutes: float, stages: list[str]) -> list[str]:
    """Return the plan for people who know neither diffusion nor calibration."""
    total = sum(plan.minutes.values()) / (1 - RESERVE)
    device = "GPU" if inputs.on_gpu else "CPU"
    lines = [f"plan ({quality}, on this {device}): about {_time(total)} in all", *stages]
    if inputs.num_val < MIN_VAL:
        few = f"only {inputs.num_val} images to calibrate on ({MIN_VAL} are wanted)"
        lines.append(f"{few}: read the confidences as rough")
    if total > 1.2 * minutes:
        lines.append(f"that is longer than {minutes:g} minutes: so many images need the time")
    return lines


def _mixing_lines(plan: FitPlan, inputs: PlanInputs) -> list[str]:
    minutes, train, partners = plan.minutes, plan.train, plan.partners
    pairs = f"each class and the {partners} it is confused with most" if partners else "all pairs of classes"
    rare = ", rare classes more often" if plan.even_out else ""
    times = "once" if plan.seeds == 1 else f"{plan.seeds} times, to tell skill from luck"
    what = f"{train.epochs} passes over {inputs.num_train:,} images of {inputs.size} x {inputs.size}"
    learns = f"a classifier ({train.classifier}, {what}) learns without and with them"
    return [
        f"a generator learns to draw your classes{rare}: {_time(minutes['generator'])}",
        f"it draws images between classes, {pairs}: {_time(minutes['sets'])}",
        f"{learns}, {times}: {_time(minutes['classifiers'])}",
        "then a temperature is fitted, and a report and a model are written",
    ]


def _why_plain(inputs: PlanInputs, minutes: float, enough: float | None) -> str:
    why = f"in {minutes:g} minutes a generator would learn nothing useful here"
    hint = f"--minutes {enough} would do" if enough else ""
    if not inputs.can_generate:
        few = f"{inputs.num_train:,} images to learn from in {inputs.num_classes} classes"
        why = f"{few} are too few to teach a generator"
        hint = f"{MIN_TRAIN}, and {MIN_PER_CLASS} a class, are wanted"
    instead = "a plain classifier is trained, and its confidence corrected by a temperature"
    all_the_same = "--methods ce csm teaches one all the same, and takes longer"
    return f"{why}{f' ({hint})' if hint else ''}: {instead} ({all_the_same})"


def _time(minutes: float) -> str:
    return f"{max(1, round(minutes))} min" if minutes < 100 else f"{minutes / 60:.1f} hours"
