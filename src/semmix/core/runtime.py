"""Where and how a stage runs; nothing here changes what comes out, so nothing here names a result."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where a stage runs and how often it saves its state.

    The number of jobs is not here: only `semmix table` runs several things at a time.
    """

    device: str = "auto"
    """auto, cpu or cuda."""
    checkpoint_seconds: float = 30.0
    """Time between checkpoints."""
