"""`semmix mix`: draw mixed sets from a generator; `semmix verify`: check them."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from tyro.conf import OmitArgPrefixes, Positional

from semmix.core.errors import require
from semmix.core.progress import say
from semmix.diffusion import load_generator
from semmix.diffusion.sampling import MixConfig, check_knows_classes
from semmix.mixing.draw import mix
from semmix.mixing.plan import MixPlan, confusable_pairs, fair_pairs, lambda_grid
from semmix.mixing.store import MixSets
from semmix.runs import Run


@dataclass(frozen=True, kw_only=True)
class MixCommand:
    """Draw mixed sets."""

    generator: Positional[str]
    """Folder of a generator, or zoo:NAME."""
    out: Path = Path("mixsets")
    """Folder of the store."""
    sets: int = 1000
    """Sets in all; they cycle through the pairs. With fewer sets than pairs of classes, pairs are
    taken so that all classes come equally often, to within two."""
    pairs: tuple[str, ...] = ()
    """Pairs of classes to mix, as numbers i:j; all of them by default."""
    confusable_by: Path | None = None
    """Take the pairs that this run confuses most on validation images, the worst first."""
    num_pairs: int | None = None
    """With confusable_by: how many pairs; all by default."""
    members: int = 8
    """Images in a set: requested lambda from 0 to 1 in equal steps."""
    beta: float | None = None
    """Draw the interior lambdas from Beta(beta, beta) instead."""
    seed: int = 0
    """Seed of the sets' noise."""
    sets_per_shard: int = 1024
    """Sets in one file."""
    sampler: OmitArgPrefixes[MixConfig] = field(default_factory=MixConfig)
    """The solver."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def run(self) -> None:
        """Draw the sets that are missing."""
        generator = load_generator(self.generator, self.device)
        check_knows_classes(generator, 2)
        plan = MixPlan(
            num_classes=generator.num_classes,
            num_sets=self.sets,
            pairs=chosen_pairs(self, generator.num_classes),
            lams=lambda_grid(self.members),
            beta=self.beta,
            seed=self.seed,
            sets_per_shard=self.sets_per_shard,
        )
        mix(generator, plan, self.sampler, self.out)
        say(f"mixed sets in {self.out}; next: semmix annotate")


def chosen_pairs(command: MixCommand, num_classes: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs the command names, or those its run confuses, or all."""
    one, seen = not (command.confusable_by and command.pairs), " ".join(command.pairs)
    require(one, "pairs are listed or found, not both", seen, "leave out --pairs or --confusable-by")
    if command.confusable_by:
        val = Run.open(command.confusable_by).val
        logits, labels = torch.from_numpy(val.logits), torch.from_numpy(val.labels)
        seen = f"{logits.shape[1]} in {command.confusable_by}, {num_classes} of the generator"
        same = logits.shape[1] == num_classes
        require(same, "the run knows other classes", seen, "name a run on the same data set")
        places = labels * num_classes + logits.argmax(1)  # [K, K] of true and predicted class
        confusion = torch.bincount(places, minlength=num_classes**2).view(num_classes, num_classes)
        return confusable_pairs(confusion, command.num_pairs)
    fix = "name the run with --confusable-by, or list the pairs with --pairs"
    require(command.num_pairs is None, "num_pairs counts what a run confuses", command.num_pairs, fix)
    return tuple(map(_parse_pair, command.pairs)) or fair_pairs(num_classes, command.sets)


def _parse_pair(text: str) -> tuple[int, int]:
    i, _, j = text.partition(":")
    require(i.isdecimal() and j.isdecimal(), "a pair is written i:j", repr(text), "as in 3:5")
    return int(i), int(j)


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """Check a store of mixed sets."""

    mixsets: Positional[Path]
    """Folder of the store."""

    def run(self) -> int:
        """Say what is wrong with the store; return 1 if anything is."""
        store = MixSets.open(self.mixsets)
        problems, num = store.verify(), store.plan.num_shards
        say("\n".join([*problems, f"{num - len(problems)} of {num} shards are sound"]))
        return 1 if problems else 0
