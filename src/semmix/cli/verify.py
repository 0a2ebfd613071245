"""`semmix verify`: check every shard of a store of mixed sets."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from semmix.core.progress import say
from semmix.mixing.store import MixSets


@dataclass(frozen=True, kw_only=True)
class VerifyCommand:
    """Check a store of mixed sets."""

    mixsets: Positional[Path]
    """Folder of the store."""

    def run(self) -> int:
        """Say what is wrong with the store; return 1 if anything is."""
        store = MixSets.open(self.mixsets)
        problems = store.verify()
        for problem in problems:
            say(problem)
        say(f"{store.plan.num_shards - len(problems)} of {store.plan.num_shards} shards are sound")
        return 1 if problems else 0
