"""A plan for a person's own images: what is trained and for how long, and why, in plain words.

The cost model is a sum: every image that passes through a network costs the seconds measured for it
(`speed.py`). A classifier passes each real image once an epoch, and two mixed ones with it under
CSM; a set is eight images, each drawn in so many evaluations of the generator. At most two fifths
of the time go to the classifiers, the rest to the generator and the sets it draws.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from semmix.core.errors import SemmixError
from semmix.training.speed import Speed

Quality = Literal["draft", "good", "best"]


@dataclass(frozen=True)
class Ambition:
    """What a quality means."""

    minutes: float
    """Time, unless the person gives another."""
    seeds: int
    """Trainings of each method: several show what is chance."""
    epochs: int
    """Passes over the images at most."""


AMBITIONS: dict[str, Ambition] = {
    "draft": Ambition(minutes=5, seeds=1, epochs=60),
    "good": Ambition(minutes=30, seeds=3, epochs=150),
    "best": Ambition(minutes=180, seeds=5, epochs=200),
}
SIZES = (32, 64, 128)
RESERVE = 0.15
"""Part of the time kept for reading, evaluating and writing."""
CLASSIFIERS_SHARE = 0.4
SETS_SHARE = 0.25
"""Of what the classifiers leave; the generator's training gets the rest."""
MIN_TRAIN, MIN_PER_CLASS = 250, 10
"""Images a generator needs, in all and on average for each class; from fewer it learns copies."""
MIN_SEEN, MIN_SEEN_PER_CLASS = 20_000, 2_000
"""A generator that has seen fewer images, in all or of each class, draws nothing one could
recognise."""
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
class Facts:
    """What a plan depends on."""

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
    def batch_size(self) -> int:
        """Real images in a step: few images still make some steps an epoch."""
        return 128 if self.num_train >= 4000 else 64 if self.num_train >= 1000 else 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be done; `generator`, `sampler` and `train` hold settings of those stages."""

    methods: list[str]
    seeds: int
    sets_per_pair: int
    partners: int | None
    even_out: bool
    generator: dict[str, Any]
    sampler: dict[str, Any]
    train: dict[str, Any]
    minutes: dict[str, float]
    """Expected, by stage."""
    words: list[str]
    """The plan as the person is told it."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self)


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
        if asked not in SIZES:
            seen, fix = asked, "choose --size 32, 64 or 128, or leave it out"
            raise SemmixError("a plan is made for other sizes", seen, fix)
        return asked
    if not on_gpu or usual_side <= 48:
        return 32
    return 128 if quality == "best" and usual_side > 96 else 64


def time_given(quality: Quality, minutes: float | None) -> float:
    """Return the minutes a plan has: those asked for, or the quality's own."""
    if minutes is None:
        return AMBITIONS[quality].minutes
    if not 0 < minutes < math.inf:
        raise SemmixError("a plan needs time", f"{minutes:g} minutes", "give --minutes 5 or more")
    return minutes


def make_plan(facts: Facts, speed: Speed, quality: Quality, minutes: float | None) -> Plan:
    """Return what fits into `minutes` (or into the quality's own time) on this device."""
    ambition, minutes = AMBITIONS[quality], time_given(quality, minutes)
    network = candidates(facts.size, facts.on_gpu, quality)[1]

    def mixing(minutes: float) -> Plan | None:
        if not facts.can_generate:
            return None
        return mixing_plan(facts, speed, ambition, _usable_seconds(minutes), network)

    plan = mixing(minutes)
    if plan is None:
        enough = next(filter(mixing, TIMES), None)
        plan = plain_plan(facts, speed, ambition, _usable_seconds(minutes), network)
        stages = [_why_plain(facts, minutes, enough)]
    else:
        stages = _mixing_lines(plan, facts)
    return replace(plan, words=_words(plan, facts, quality, minutes, stages))


def _usable_seconds(minutes: float) -> float:
    return 60 * minutes * (1 - RESERVE)


def plain_plan(facts: Facts, speed: Speed, ambition: Ambition, seconds: float, network: str) -> Plan:
    """Return the plan without a generator: cross-entropy, then a temperature.

    Who asks for `--methods ce csm` all the same gets the least that could be of use.
    """
    train, seeds, spent = _classifiers(facts, speed, ambition, seconds, passes=1)
    partners, sets_per_pair = _pairs(facts.num_classes, max(300, 2 * facts.num_classes))
    return Plan(
        methods=["ce"],
        seeds=seeds,
        sets_per_pair=sets_per_pair,
        partners=partners,
        even_out=_is_uneven(facts),
        generator={**_generator(facts, network, facts.min_seen), "num_images": facts.min_seen},
        sampler=_sampler(facts),
        train=train,
        minutes={"classifiers": spent / 60},
        words=[],
    )


def mixing_plan(facts: Facts, speed: Speed, ambition: Ambition, seconds: float, network: str) -> Plan | None:
    """Return the plan with a generator, or None where there is no time to teach one."""
    # Each epoch of cross-entropy passes an image once, one of CSM three times.
    train, seeds, spent = _classifiers(facts, speed, ambition, CLASSIFIERS_SHARE * seconds, 4)
    left = seconds - spent
    sampler = _sampler(facts)
    set_seconds = MEMBERS * sampler["num_steps"] * speed.drawing
    num_sets = _num_sets(facts, SETS_SHARE * left / set_seconds)
    left -= num_sets * set_seconds
    seen = left / speed.generator
    if seen < facts.min_seen:
        return None
    partners, sets_per_pair = _pairs(facts.num_classes, num_sets)
    length = {"minutes": left / 60} if facts.on_gpu else {"num_images": round(seen)}
    return Plan(
        methods=["ce", "csm"],
        seeds=seeds,
        sets_per_pair=sets_per_pair,
        partners=partners,
        even_out=_is_uneven(facts),
        generator={**_generator(facts, network, seen), **length},
        sampler=sampler,
        train=train,
        minutes={"generator": left / 60, "sets": num_sets * set_seconds / 60, "classifiers": spent / 60},
        words=[],
    )


def _generator(facts: Facts, network: str, seen: float) -> dict[str, Any]:
    return {"network": network, "num_grids": 1, "batch_size": _generator_batch(facts, seen), "flip": facts.may_mirror}


def _sampler(facts: Facts) -> dict[str, Any]:
    return {"num_steps": 18 if facts.on_gpu else 10}


def _is_uneven(facts: Facts) -> bool:
    return max(facts.class_counts) >= UNEVEN * min(facts.class_counts)


def _classifiers(
    facts: Facts, speed: Speed, ambition: Ambition, seconds: float, passes: int
) -> tuple[dict[str, Any], int, float]:
    """Return how classifiers are trained, how often, and the seconds that takes.

    The largest network that can see the images often enough, with as many seeds as then fit.
    """

    def possible_epochs(name: str, seeds: int) -> float:
        return seconds / (seeds * passes * facts.num_train * speed.classifiers[name])

    steps = facts.num_train / facts.batch_size
    wanted = min(max(GOOD_EPOCHS, GOOD_STEPS / steps), ambition.epochs)
    choices = [(n, seeds) for n in speed.classifiers for seeds in range(ambition.seeds, 0, -1)]
    fitting = (choice for choice in choices if possible_epochs(*choice) >= wanted)
    name, seeds = next(fitting, choices[-1])
    epochs = int(min(max(possible_epochs(name, seeds), MIN_EPOCHS), ambition.epochs))
    spent = epochs * seeds * passes * facts.num_train * speed.classifiers[name]
    train = {
        "classifier": name,
        "epochs": epochs,
        "batch_size": facts.batch_size,
        "lr": round(0.1 * math.sqrt(facts.batch_size / 128), 3),
        "schedule": "cosine",
        "pad": facts.size // 8,
        "flip": facts.may_mirror,
    }
    return train, seeds, spent


def _generator_batch(facts: Facts, seen: float) -> int:
    """Return the images in a step of a generator that will see `seen` of them in all."""
    if facts.on_gpu:
        return 512
    return min(64, max(16, 2 ** int(math.log2(seen / GENERATOR_STEPS))))


def _num_sets(facts: Facts, affordable: float) -> int:
    """Return how many sets to draw: about one for each image, and two for each class at least."""
    fitting = MAX_BYTES // (MEMBERS * 3 * facts.size**2)
    wanted = min(max(facts.num_train, 300), MAX_SETS, fitting)
    return max(2 * facts.num_classes, min(int(affordable), wanted))


def _pairs(num_classes: int, num_sets: int) -> tuple[int | None, int]:
    """Return how many partners each class is mixed with (None: all), and the sets of a pair.

    There are two sets for each class at least.
    """
    num_pairs = num_classes * (num_classes - 1) // 2
    if num_classes <= ALL_PAIRS and num_pairs <= num_sets:
        return None, num_sets // num_pairs
    partners = min(num_sets // num_classes, MAX_PARTNERS)
    return partners, num_sets // (num_classes * partners)


def _words(plan: Plan, facts: Facts, quality: Quality, minutes: float, stages: list[str]) -> list[str]:
    """Return the plan for people who know neither diffusion nor calibration."""
    total = sum(plan.minutes.values()) / (1 - RESERVE)
    device = "GPU" if facts.on_gpu else "CPU"
    lines = [f"plan ({quality}, on this {device}): about {_time(total)} in all", *stages]
    if facts.num_val < MIN_VAL:
        lines.append(
            f"only {facts.num_val} images to calibrate on ({MIN_VAL} are wanted): read the confidences as rough"
        )
    if total > 1.2 * minutes:
        lines.append(f"that is longer than {minutes:g} minutes: so many images need the time")
    return lines


def _mixing_lines(plan: Plan, facts: Facts) -> list[str]:
    minutes, train = plan.minutes, plan.train
    pairs = (
        "all pairs of classes"
        if plan.partners is None
        else (f"each class and the {plan.partners} it is confused with most")
    )
    rare = ", rare classes more often" if plan.even_out else ""
    times = "once" if plan.seeds == 1 else f"{plan.seeds} times, to tell skill from luck"
    return [
        f"a generator learns to draw your classes{rare}: {_time(minutes['generator'])}",
        f"it draws images between classes, {pairs}: {_time(minutes['sets'])}",
        f"a classifier ({train['classifier']}, {train['epochs']} passes over {facts.num_train:,} "
        f"images of {facts.size} x {facts.size}) learns without and with them, {times}: "
        f"{_time(minutes['classifiers'])}",
        "then a temperature is fitted, and a report and a model are written",
    ]


def _why_plain(facts: Facts, minutes: float, enough: float | None) -> str:
    why = f"in {minutes:g} minutes a generator would learn nothing useful here"
    if enough:
        why += f" (--minutes {enough} would do)"
    if not facts.can_generate:
        why = (
            f"{facts.num_train:,} images to learn from in {facts.num_classes} classes are too few "
            f"to teach a generator ({MIN_TRAIN}, and {MIN_PER_CLASS} a class, are wanted)"
        )
    return (
        f"{why}: a plain classifier is trained, and its confidence corrected by a temperature "
        "(--methods ce csm teaches one all the same, and takes longer)"
    )


def _time(minutes: float) -> str:
    return f"{max(1, round(minutes))} min" if minutes < 100 else f"{minutes / 60:.1f} hours"
