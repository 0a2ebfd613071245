"""Deterministic solvers of the probability-flow equation dx/dsigma = (x - D(x; sigma)) / sigma.

A solver takes `denoise(x, sigma) -> D`, the start `x` (noise times the first sigma) and falling
noise levels that end in 0, and returns the image. Pure functions: the same input, the same output.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from torch import Tensor

from semmix.core.errors import unknown_name

Denoise = Callable[[Tensor, float], Tensor]
Solver = Callable[[Denoise, Tensor, list[float]], Tensor]


def karras_sigmas(num_steps: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> list[float]:
    """Return `num_steps` noise levels from `sigma_max` to `sigma_min`, then 0.

    References: Karras et al. 2022, https://arxiv.org/abs/2206.00364, equation 5.

    >>> [round(s, 3) for s in karras_sigmas(3)]
    [80.0, 2.515, 0.002, 0.0]
    """
    top, bottom = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    ramp = [i / max(num_steps - 1, 1) for i in range(num_steps)]
    return [(top + t * (bottom - top)) ** rho for t in ramp] + [0.0]


def heun(denoise: Denoise, x: Tensor, sigmas: list[float]) -> Tensor:
    """Return the image by Heun's second-order method, 2 n - 1 evaluations for n levels.

    References: Karras et al. 2022, algorithm 1 (EDM's sampler without churn).
    """
    for sigma, lower in pairwise(sigmas):
        slope = (x - denoise(x, sigma)) / sigma
        euler = x + (lower - sigma) * slope
        if lower > 0:
            slope = (slope + (euler - denoise(euler, lower)) / lower) / 2
            euler = x + (lower - sigma) * slope
        x = euler
    return x


def dpmpp_2m(denoise: Denoise, x: Tensor, sigmas: list[float]) -> Tensor:
    """Return the image by DPM-Solver++(2M), one evaluation per level.

    References: Lu et al. 2022, https://arxiv.org/abs/2211.01095, algorithm 2, for alpha = 1.
    """
    before, width_before = None, 0.0
    for sigma, lower in pairwise(sigmas):
        clean = denoise(x, sigma)
        if lower == 0:
            return clean  # the step to zero noise is of first order
        width = math.log(sigma / lower)  # the step in log-SNR
        ahead = clean
        if before is not None:  # extrapolate D to the middle of the step
            ahead = clean + (clean - before) * (width / (2 * width_before))
        x = (lower / sigma) * x - math.expm1(-width) * ahead
        before, width_before = clean, width
    return x


def adams(denoise: Denoise, x: Tensor, sigmas: list[float]) -> Tensor:
    """Return the image by a multistep predictor and corrector, one evaluation per level.

    In the time t = -ln sigma the equation is dx/dt = D - x. D is a polynomial through its last
    three values (Adams-Bashforth), and the rest is integrated exactly. Each new value first
    corrects the step that led to it (Adams-Moulton, four values), at no further evaluation.

    References: Zhao et al. 2023 (UniPC), https://arxiv.org/abs/2302.04867, for the idea.
    """
    known: list[tuple[float, Tensor]] = []  # sigma and D, the latest first
    start = x
    for sigma, lower in pairwise(sigmas):
        clean = denoise(x, sigma)
        if lower == 0:
            return clean
        if known:
            x = _adams_step(start, known[0][0], sigma, [(sigma, clean), *known])
        known = [(sigma, clean), *known][:3]
        start = x
        x = _adams_step(start, sigma, lower, known)
    return x


def _adams_step(x: Tensor, sigma: float, lower: float, known: list[tuple[float, Tensor]]) -> Tensor:
    times = [math.log(sigma / other) for other, _ in known]
    weights = adams_weights(times, math.log(sigma / lower))
    moved = sum(weight * clean for weight, (_, clean) in zip(weights, known, strict=True))
    return (lower / sigma) * x + moved


def adams_weights(times: list[float], width: float) -> list[float]:
    """Return the weights of the values D(t_i) in a step of `width`.

    Their sum is the integral of exp(u - width) D(u) for u from 0 to `width`, exactly so for every
    polynomial D through as many values.

    >>> adams_weights([0.0], math.log(2.0))
    [0.5]
    """
    moments = [-math.expm1(-width)]  # the integrals for D(u) = 1, u, u^2, ...
    for order in range(1, len(times)):
        moments.append(width**order - order * moments[-1])
    return np.linalg.solve(np.vander(times, increasing=True).T, moments).tolist()


SOLVERS: dict[str, Solver] = {"heun": heun, "dpmpp_2m": dpmpp_2m, "adams": adams}


def solver(name: str) -> Solver:
    """Return the solver called `name`."""
    if name not in SOLVERS:
        raise unknown_name("solver", name, SOLVERS)
    return SOLVERS[name]
