"""Solvers on toys whose denoiser is known."""

import numpy as np
import pytest
import torch

from semmix.core.errors import SemmixError
from semmix.diffusion.solvers import adams, adams_weights, dpmpp_2m, heun, karras_sigmas, solver

CENTRE, SPREAD = 0.4, 0.3


def gaussian(x, sigma):
    """The denoiser of N(CENTRE, SPREAD^2)."""
    return CENTRE + SPREAD**2 / (SPREAD**2 + sigma**2) * (x - CENTRE)


def gaussian_solution(x, sigma_max):
    return CENTRE + (x - CENTRE) * SPREAD / (SPREAD**2 + sigma_max**2) ** 0.5


def mixture(num_centres=64, dim=192):
    """The denoiser of a mixture of narrow Gaussians, as hard as images: paths must choose."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(num_centres, dim, generator=random, dtype=torch.float64) / 2
    width = 0.05

    def denoise(x, sigma):
        total = sigma**2 + width**2
        share = torch.softmax(-torch.cdist(x, centres).square() / (2 * total), dim=1)
        nearest = share @ centres
        return nearest + width**2 / total * (x - nearest)

    start = torch.randn(32, dim, generator=random, dtype=torch.float64)
    return denoise, start


def counted(denoise):
    def call(x, sigma):
        call.evaluations += 1
        return denoise(x, sigma)

    call.evaluations = 0
    return call


def test_karras_schedule_golden_values():
    # EDM's equation 5 with its defaults and 18 steps
    sigmas = karras_sigmas(18)
    assert len(sigmas) == 19
    assert sigmas[-1] == 0
    golden = [80.0, 57.5860, 40.7856, 28.3746, 19.3525, 12.9101, 8.4009, 5.3152]
    assert sigmas[:8] == pytest.approx(golden, abs=5e-5)
    assert sigmas[17] == pytest.approx(0.002)


def test_one_noise_level_is_allowed():
    assert karras_sigmas(1) == pytest.approx([80.0, 0.0])
    assert karras_sigmas(2) == pytest.approx([80.0, 0.002, 0.0])


@pytest.mark.parametrize("solve", [heun, dpmpp_2m])
def test_error_falls_with_the_square_of_the_step(solve):
    x = torch.linspace(-160, 160, 9, dtype=torch.float64)
    errors = []
    for num_steps in (40, 80, 160):
        # a tiny last level, so that the first-order step to zero does not show
        sigmas = karras_sigmas(num_steps, sigma_min=1e-7)
        errors.append((solve(gaussian, x, sigmas) - gaussian_solution(x, 80.0)).abs().max())
    ratios = [errors[0] / errors[1], errors[1] / errors[2]]
    assert all(3.3 < ratio < 5 for ratio in ratios), ratios


def test_error_of_adams_falls_with_the_third_power_of_the_step():
    x = torch.linspace(-160, 160, 9, dtype=torch.float64)
    errors = []
    for num_steps in (40, 80, 160):
        sigmas = karras_sigmas(num_steps, sigma_min=1e-7, rho=12.0)
        errors.append((adams(gaussian, x, sigmas) - gaussian_solution(x, 80.0)).abs().max())
    assert errors[0] / errors[1] > 7
    assert errors[1] / errors[2] > 7


def test_adams_weights_integrate_polynomials():
    """Against sums over a fine grid."""
    times, width = [0.0, -0.3, -0.8, 0.5], 0.5
    u = torch.linspace(0, width, 100_001, dtype=torch.float64)
    weights = adams_weights(times, width)
    for order in range(4):
        integral = torch.trapezoid((u - width).exp() * u**order, u)
        assert sum(w * t**order for w, t in zip(weights, times, strict=True)) == pytest.approx(
            float(integral), rel=1e-6
        )


def slow_adams(denoise, x, sigmas):
    """Polynomials by Lagrange, integrals by sums over a fine grid."""

    def integrate(x, start, end, points):
        u = start + (end - start) * (np.arange(20_000) + 0.5) / 20_000
        answer = np.zeros_like(u)
        for k, (t, clean) in enumerate(points):
            others = [other for n, (other, _) in enumerate(points) if n != k]
            answer += clean * np.prod([(u - other) / (t - other) for other in others], axis=0)
        return np.exp(start - end) * x + (end - start) * np.mean(np.exp(u - end) * answer)

    times, points, starts = [-np.log(sigma) for sigma in sigmas[:-1]], [], []
    for k, t in enumerate(times):
        points.append((t, denoise(x, sigmas[k])))
        if k:
            x = integrate(starts[-1], times[k - 1], t, points[-4:])
        if k + 1 == len(times):
            return points[-1][1]
        starts.append(x)
        x = integrate(x, t, times[k + 1], points[-3:])


def test_adams_predicts_by_three_values_and_corrects_by_four():
    sigmas = karras_sigmas(7, sigma_min=0.05, sigma_max=5.0)
    for x in (-4.0, 3.0):
        ours = adams(gaussian, torch.tensor(x, dtype=torch.float64), sigmas)
        assert float(ours) == pytest.approx(slow_adams(gaussian, x, sigmas), abs=1e-7)


def test_adams_needs_one_evaluation_per_level_and_comes_closer_than_dpmpp():
    denoise, start = mixture()
    x = 80 * start
    reference = heun(denoise, x, karras_sigmas(2000))
    once = counted(denoise)
    ours = adams(once, x, karras_sigmas(18, sigma_min=0.01, rho=12.0))
    assert once.evaluations == 18
    theirs = dpmpp_2m(denoise, x, karras_sigmas(18))
    assert (ours - reference).square().mean() < (theirs - reference).square().mean()


def test_dpmpp_at_18_evaluations_is_as_close_as_heun_at_27():
    denoise, start = mixture()
    x = 80 * start
    reference = heun(denoise, x, karras_sigmas(2000))
    two_stage, multistep = counted(denoise), counted(denoise)
    by_heun = heun(two_stage, x, karras_sigmas(14))
    by_dpmpp = dpmpp_2m(multistep, x, karras_sigmas(18))
    assert (two_stage.evaluations, multistep.evaluations) == (27, 18)
    rms = [(image - reference).square().mean().sqrt() for image in (by_heun, by_dpmpp)]
    assert rms[1] <= rms[0], rms


@pytest.mark.parametrize("solve", [heun, dpmpp_2m, adams])
def test_more_steps_come_closer(solve):
    denoise, start = mixture()
    x = 80 * start
    reference = heun(denoise, x, karras_sigmas(500))
    errors = [(solve(denoise, x, karras_sigmas(n)) - reference).square().mean().sqrt() for n in (10, 20, 40, 80)]
    assert errors == sorted(errors, reverse=True)


def test_misspelt_solver_gets_a_hint():
    with pytest.raises(SemmixError, match="did you mean 'dpmpp_2m'"):
        solver("dpmpp2m")
