"""Learning rates as functions of how far the run has come."""

import math

from semmix.core.errors import unknown_name


def learning_rate(schedule: str, peak: float, done: float) -> float:
    """Return the rate when the fraction `done` of the run is behind.

    `multistep` divides by ten at 40 % and 60 % (epochs 80 and 120 of 200, as published); `cosine`
    falls from the peak to zero; both are known to all methods alike.

    >>> learning_rate("multistep", 0.1, 0.5)
    0.01
    """
    if schedule == "multistep":
        return peak / 10 ** ((done >= 0.4) + (done >= 0.6))
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    raise unknown_name("schedule", schedule, SCHEDULES)


SCHEDULES = ("multistep", "cosine")
