"""`semmix choose`: below which confidence to ask a person, from what errors and questions cost.

A prediction costs nothing if right and `cost_wrong` if wrong; a question costs `cost_ask`, and the person is
taken to be right. The threshold is chosen on validation images and judged on test images.
"""

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
from semmix.core.errors import SemmixError, require
from semmix.core.files import write_json
from semmix.core.progress import say
from semmix.deploy.rules import estimate, estimate_mean
from semmix.evaluation import EvaluateConfig, load_samples
from semmix.report.table import Table

FEW_ERRORS = 5
"""With fewer wrong validation predictions above the threshold, chance has chosen it."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What mistakes and questions cost, in any one unit."""

    wrong: float
    ask: float

    def __post_init__(self) -> None:
        usable = 0 < self.wrong < math.inf and 0 < self.ask < math.inf
        require(usable, "costs are positive numbers", f"wrong {self.wrong:g}, ask {self.ask:g}", "as in 10 and 1")


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Find when to ask a person."""

    source: Positional[Path]
    """A finished run, or any file of logits or probabilities that semmix evaluate reads."""
    cost_wrong: float
    """What a wrong prediction costs."""
    cost_ask: float
    """What asking a person costs, in the same unit; the person is taken to be right."""
    val: Path | None = None
    """File of the validation part, where the source does not hold it."""
    out: Path | None = None
    """JSON file for all figures."""


@dataclass(frozen=True)
class Policy:
    """What accepting predictions from a confidence on does on test images, each figure with its interval."""

    name: str
    threshold: float
    """Predictions are accepted from this confidence on; infinite if never."""
    coverage: Interval
    """Share of images whose prediction is accepted."""
    error: Interval
    """Share of wrong ones among them."""
    cost: Interval
    """Cost per image."""
    saving: Interval
    """Cost per image that it saves against always accepting or always asking, the cheaper one."""

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON values, which know neither NaN nor infinity."""
        threshold = None if math.isinf(self.threshold) else self.threshold
        figures = {name: getattr(self, name).to_json() for name in ("coverage", "error", "cost", "saving")}
        return {"name": self.name, "threshold": threshold, **figures}


def choose_command(command: Choose) -> None:
    """Choose on validation, judge on test, say both in words."""
    costs = Costs(wrong=command.cost_wrong, ask=command.cost_ask)
    val, test, notes = _read(command)
    policies = judge_policies(test, costs, best_threshold(val, costs))
    show = partial(show_threshold, np.concatenate([val.confidence, test.confidence]))
    cells = [
        [p.name, show(p.threshold), _show(p.coverage, 100), _show(p.error, 100), _show(p.cost, 1)] for p in policies
    ]
    table = Table(["on test", "accept from", "accepted %", "wrong %", "cost per image"], cells)
    for line in [*notes, "", table.text(), *_words(policies, costs, val, show)]:
        say(line)
    if command.out:
        write_json(command.out, {"costs": asdict(costs), "policies": [policy.to_json() for policy in policies]})
        say(f"figures in {command.out}")


def best_threshold(val: TopLabel, costs: Costs) -> float:
    """Return the confidence from which accepting costs least; infinite if always asking does.

    The least cost over all shares of accepted predictions, the most confident first; it lies halfway between the
    last confidence accepted and the next one, so that rounding moves no image.
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
    """Return the chosen threshold, the one for calibrated confidences, and the two without any."""
    ideal = max(1 - costs.ask / costs.wrong, 0.0)  # where the expected error costs as much as a question
    named = {"as chosen": threshold, "if calibrated": ideal, "always accept": 0.0, "always ask": math.inf}
    return [judge(test, costs, name, value) for name, value in named.items()]


def judge(test: TopLabel, costs: Costs, name: str, threshold: float) -> Policy:
    """Return what accepting from `threshold` on does on test images."""
    accepted = (test.confidence >= threshold).astype(np.float64)
    wrong = 1.0 - test.correct
    cost = np.where(accepted > 0, costs.wrong * wrong, costs.ask)
    simple = min(costs.wrong * wrong, np.full_like(wrong, costs.ask), key=np.mean)

    def error(counts: np.ndarray) -> float:
        num = float(counts @ accepted)
        return float(counts @ (accepted * wrong)) / num if num else math.nan

    shares = estimate_mean(accepted, most=1.0), estimate(error, len(accepted), most=1.0)
    return Policy(name, threshold, *shares, cost=estimate_mean(cost), saving=estimate_mean(simple - cost))


def show_threshold(confidence: np.ndarray, threshold: float) -> str:
    """Return the threshold in as few digits, four or more, as accept the same images.

    Those of the given confidences, and one more confident than all: no threshold below 1 is shown as 1.
    """
    if math.isinf(threshold):
        return "never"
    seen = np.append(confidence, np.nextafter(1.0, 0.0))
    accepted = seen >= threshold
    texts = (f"{threshold:.{digits}f}" for digits in range(4, 17))
    same = (text for text in texts if np.array_equal(seen >= float(text), accepted))
    return next(same, repr(threshold))


def _read(command: Choose) -> tuple[TopLabel, TopLabel, list[str]]:
    """Return validation and test part after the temperature fitted on validation, and what to say of them."""
    test, val, notes, warnings = load_samples(EvaluateConfig(path=command.source, val=command.val))
    if val is None:
        fix = "name a finished run, or pass --val FILE"
        raise SemmixError("a threshold is chosen on validation images", "none found", fix)
    every = slice(None)
    val_logits = val.logits(every)
    scaler = TemperatureScaler().fit(val_logits, val.labels)
    tops = [top_label(scaler.transform(s.logits(every)), s.labels) for s in (val, test)]
    fitted = f"temperature {scaler.temperature:.3f}, fitted on validation"
    if none_wrong(val_logits, val.labels):
        fitted = "no validation prediction was wrong: the temperature could not be fitted"
    return tops[0], tops[1], [*notes, fitted, *(f"warning: {warning}" for warning in warnings)]


def _show(value: Interval, scale: float) -> str:
    if math.isnan(value.value):
        return "–"
    digits = 2 if scale == 100 else 4
    middle, low, high = (f"{scale * number:.{digits}f}" for number in (value.value, value.low, value.high))
    return f"{middle} [{low}, {high}]"


def _words(policies: list[Policy], costs: Costs, val: TopLabel, show: Callable[[float], str]) -> Iterator[str]:
    chosen, ideal, always, _ = policies
    yield f"Chosen on {len(val.confidence):,} validation images; brackets are 95 % bootstrap intervals on test."
    if math.isinf(chosen.threshold):
        yield "At these costs, always asking is cheapest: no confidence is high enough to accept a prediction."
        return
    if chosen.threshold == 0:
        yield "At these costs, always accepting is cheapest: a question costs more than it saves."
        if ideal.threshold == 0:  # no question is worth its cost, however low the confidence
            return
    else:
        level = show(chosen.threshold)
        yield f"Accept predictions from confidence {level} on: semmix predict MODEL IMAGES --abstain {level}"
        shares = (100 * share.value for share in (chosen.coverage, chosen.error, always.error))
        yield "It accepts {:.1f} % of the predictions, of which {:.2f} % are wrong; of all, {:.2f} % are.".format(
            *shares
        )
        numbers = f"{_show(chosen.saving, 1)} per image against the better of always accepting and always asking"
        if chosen.saving.low <= 0 <= chosen.saving.high:
            yield f"Whether it saves anything is not clear: {numbers}."
        else:
            yield f"It saves {numbers}{'' if chosen.saving.low > 0 else ', that is, it loses'}."
        yield (
            f"Were the confidences perfectly calibrated, the threshold would be 1 - {costs.ask:g}/"
            f"{costs.wrong:g} = {show(ideal.threshold)}: the closer, the better calibrated."
        )
    num_wrong = int((1 - val.correct)[val.confidence >= chosen.threshold].sum())
    if num_wrong < FEW_ERRORS:
        few = f"only {num_wrong}" if num_wrong else "none"
        safer = f"{show(ideal.threshold)} is safer, " if ideal.threshold > chosen.threshold else ""
        yield (
            f"warning: {few} of the validation predictions from there on were wrong, too few to choose "
            f"by; {safer}more validation images are better"
        )
