"""`semmix choose`: below which confidence to ask a person, from what errors and questions cost.

An answer costs nothing if right and `cost_wrong` if wrong; a question costs `cost_ask`, and is
answered rightly. The threshold is chosen on validation images and judged on test images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import Positional

from semmix.calibration import Interval, TemperatureScaler, TopLabel, top_label
from semmix.calibration.scaling import none_wrong
from semmix.core.errors import SemmixError
from semmix.core.files import write_json
from semmix.core.progress import say
from semmix.deploy.rules import estimate, estimate_mean
from semmix.evaluation import EvaluateConfig, load_samples

Show = Callable[[float], str]

FEW_ERRORS = 5
"""With fewer wrong validation answers above the threshold, chance has chosen it."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What mistakes and questions cost, in any one unit."""

    wrong: float
    ask: float

    def __post_init__(self) -> None:
        if not (0 < self.wrong < math.inf and 0 < self.ask < math.inf):
            seen = f"wrong {self.wrong:g}, ask {self.ask:g}"
            raise SemmixError("costs are positive numbers", seen, "as in 10 and 1")


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Find when to ask a person."""

    source: Positional[Path]
    """A finished run, or any file of logits or probabilities that semmix evaluate reads."""
    cost_wrong: float
    """What a wrong answer costs."""
    cost_ask: float
    """What asking a person costs, in the same unit; the person is taken to be right."""
    val: Path | None = None
    """File of the validation part, where the source does not hold it."""
    out: Path | None = None
    """JSON file for all figures."""


@dataclass(frozen=True)
class Policy:
    """What answering from a confidence on does on test images, each figure with its interval."""

    name: str
    threshold: float
    """Answered from this confidence on; infinite if never."""
    coverage: Interval
    """Share of images answered."""
    error: Interval
    """Share of wrong ones among the answers."""
    cost: Interval
    """Cost per image."""
    saving: Interval
    """Cost per image that it saves against always answering or always asking, the cheaper one."""


def choose_command(command: Choose) -> None:
    """Choose on validation, judge on test, say both in words."""
    costs = Costs(wrong=command.cost_wrong, ask=command.cost_ask)
    val, test, notes = _read(command)
    threshold = best_threshold(val, costs)
    policies = judge_policies(test, costs, threshold)
    show = partial(show_threshold, np.concatenate([val.confidence, test.confidence]))
    for line in [*notes, "", *_table(policies, show), "", *_words(policies, costs, val, show)]:
        say(line)
    if command.out:
        write_json(command.out, {"costs": asdict(costs), "policies": list(map(_json, policies))})
        say(f"figures in {command.out}")


def best_threshold(val: TopLabel, costs: Costs) -> float:
    """Return the confidence from which answering costs least; infinite if asking always does.

    The least cost over all shares of images answered, surest first; it lies halfway between the
    last confidence answered and the next one, so that rounding moves no image.
    """
    coverage, risk = val.risk_coverage()
    levels = np.unique(val.confidence)[::-1]  # the confidences at which the curve has its points
    mean_costs = costs.wrong * coverage * risk + costs.ask * (1 - coverage)
    best = int(np.argmin(mean_costs))
    if mean_costs[best] > costs.ask:
        return math.inf
    below = levels[best + 1] if best + 1 < len(levels) else 0.0
    return float((levels[best] + below) / 2) if below else 0.0


def judge_policies(test: TopLabel, costs: Costs, threshold: float) -> list[Policy]:
    """Return the chosen threshold, the one for honest confidences, and the two without any."""
    honest = max(1 - costs.ask / costs.wrong, 0.0)  # where the expected error costs as a question
    named = {"as chosen": threshold, "if honest": honest, "always answer": 0.0, "always ask": math.inf}
    return [judge(test, costs, name, value) for name, value in named.items()]


def judge(test: TopLabel, costs: Costs, name: str, threshold: float) -> Policy:
    """Return what answering from `threshold` on does on test images."""
    answered = (test.confidence >= threshold).astype(np.float64)
    wrong = 1.0 - test.correct
    cost = np.where(answered > 0, costs.wrong * wrong, costs.ask)
    simple = min(costs.wrong * wrong, np.full_like(wrong, costs.ask), key=np.mean)

    def error(counts: np.ndarray) -> float:
        num = float(counts @ answered)
        return float(counts @ (answered * wrong)) / num if num else math.nan

    return Policy(
        name,
        threshold,
        coverage=estimate_mean(answered, most=1.0),
        error=estimate(error, len(answered), most=1.0),
        cost=estimate_mean(cost),
        saving=estimate_mean(simple - cost),
    )


def show_threshold(confidence: np.ndarray, threshold: float) -> str:
    """Return the threshold in as few digits, four or more, as answer the same images.

    Those of the given confidences, and one surer than all: no threshold below 1 is shown as 1.
    """
    if math.isinf(threshold):
        return "never"
    seen = np.append(confidence, np.nextafter(1.0, 0.0))
    answered = seen >= threshold
    texts = (f"{threshold:.{digits}f}" for digits in range(4, 17))
    same = (text for text in texts if np.array_equal(seen >= float(text), answered))
    return next(same, repr(threshold))


def _read(command: Choose) -> tuple[TopLabel, TopLabel, list[str]]:
    """Return validation and test after the temperature, and what was read."""
    config = EvaluateConfig(path=command.source, val=command.val)
    test, val, notes, warnings = load_samples(config)
    if val is None:
        fix = "name a finished run, or pass --val FILE"
        raise SemmixError("a threshold is chosen on validation images", "none found", fix)
    every = slice(None)
    val_logits = val.logits(every)
    scaler = TemperatureScaler().fit(val_logits, val.labels)
    tops = [top_label(scaler.transform(s.logits(every)), s.labels) for s in (val, test)]
    if none_wrong(val_logits, val.labels):
        notes.append("no validation answer was wrong: the temperature could not be fitted")
    else:
        notes.append(f"temperature {scaler.temperature:.3f}, fitted on validation")
    return tops[0], tops[1], [*notes, *(f"warning: {warning}" for warning in warnings)]


def _table(policies: list[Policy], show: Show) -> Iterator[str]:
    yield f"{'on test':15} {'answer from':>11}  {'answered %':24} {'wrong %':22} cost per image"
    for policy in policies:
        shares = f"{_show(policy.coverage, 100):24} {_show(policy.error, 100):22}"
        level = show(policy.threshold)
        yield f"{policy.name:15} {level:>11}  {shares} {_show(policy.cost, 1)}"


def _show(value: Interval, scale: float) -> str:
    if math.isnan(value.value):
        return "–"
    digits = 2 if scale == 100 else 4
    middle, low, high = (f"{scale * number:.{digits}f}" for number in (value.value, value.low, value.high))
    return f"{middle} [{low}, {high}]"


def _words(policies: list[Policy], costs: Costs, val: TopLabel, show: Show) -> Iterator[str]:
    chosen, honest, always, _ = policies
    safer = f"{show(honest.threshold)} is safer, " if honest.threshold > chosen.threshold else ""
    num_val = len(val.confidence)
    yield f"Chosen on {num_val:,} validation images; brackets are 95 % bootstrap intervals on test."
    if math.isinf(chosen.threshold):
        yield "At these costs, asking always is cheapest: no confidence is high enough to answer."
        return
    if chosen.threshold == 0:
        yield "At these costs, answering always is cheapest: a question costs more than it saves."
        if honest.threshold > 0:  # else no question is worth its cost, however unsure the answer
            yield from _doubt(val, chosen.threshold, safer)
        return
    level = show(chosen.threshold)
    yield f"Answer from confidence {level} on: semmix predict MODEL IMAGES --abstain {level}"
    yield (
        f"It answers {100 * chosen.coverage.value:.1f} % of the images and is wrong in "
        f"{100 * chosen.error.value:.2f} % of its answers; answering always would be wrong in "
        f"{100 * always.error.value:.2f} %."
    )
    yield _saving(chosen)
    yield (
        f"Were the confidences perfectly honest, the threshold would be 1 - {costs.ask:g}/"
        f"{costs.wrong:g} = {show(honest.threshold)}: the closer, the better calibrated."
    )
    yield from _doubt(val, chosen.threshold, safer)


def _saving(chosen: Policy) -> str:
    saving = chosen.saving
    numbers = f"{_show(saving, 1)} per image against the better of answering and asking always"
    if saving.low <= 0 <= saving.high:
        return f"Whether it saves anything is not sure: {numbers}."
    return f"It saves {numbers}{'' if saving.low > 0 else ', that is, it loses'}."


def _doubt(val: TopLabel, threshold: float, safer: str) -> Iterator[str]:
    """Yield a warning where so few validation answers were wrong that chance chose."""
    num_wrong = int((1 - val.correct)[val.confidence >= threshold].sum())
    if num_wrong < FEW_ERRORS:
        few = f"only {num_wrong}" if num_wrong else "none"
        yield (
            f"warning: {few} of the validation answers from there on were wrong, too few to choose "
            f"by; {safer}more validation images are better"
        )


def _json(policy: Policy) -> dict[str, Any]:
    """Return the policy as JSON values, which know neither NaN nor infinity."""
    threshold = None if math.isinf(policy.threshold) else policy.threshold
    figures = ("coverage", "error", "cost", "saving")
    return {"name": policy.name, "threshold": threshold, **{name: getattr(policy, name).to_json() for name in figures}}
