"""Discrete-time networks as generators: the change of variables, mixing, guidance."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from semmix.core.errors import SemmixError
from semmix.diffusion.adapters import AdapterConfig, DiscreteGenerator, DiscreteTimes, LatentGenerator, MixedEmbedding
from semmix.mixing.store import MixSets

ALPHAS = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
CENTRES = torch.tensor([-0.5, 0.1, 0.6, 0.0])  # three classes, and no class
SPREAD = 0.3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Gaussians(nn.Module):
    """The exact network for classes that are normal around their centre, by any prediction."""

    def __init__(self, prediction):
        super().__init__()
        self.times = DiscreteTimes(ALPHAS, prediction)
        self.centres = nn.Parameter(CENTRES)
        self.calls = 0

    def forward(self, x, times, row_weights):
        self.calls += 1
        s = self.sigma_at(times).reshape(-1, 1, 1, 1)
        alpha = (1 + s**2).rsqrt()
        noisy = x / alpha
        centre = (row_weights @ self.centres).reshape(-1, 1, 1, 1)
        clean = centre + SPREAD**2 / (SPREAD**2 + s**2) * (noisy - centre)
        noise = (noisy - clean) / s
        answers = {"epsilon": noise, "v_prediction": alpha * noise - s * alpha * clean, "sample": clean}
        return answers[self.times.prediction]

    def sigma_at(self, times):
        lower = times.floor().long().clamp(max=998)
        table = self.times.log_sigmas
        return torch.lerp(table[lower], table[lower + 1], times - lower).exp()


def gaussians(prediction="epsilon", **settings):
    network = Gaussians(prediction)
    config = AdapterConfig(**settings)
    return DiscreteGenerator("toy", network, network.times, (1, 2, 2), 3, 4, "digest", config)


def exact(x, sigma, centre):
    s, c = sigma.reshape(-1, 1, 1, 1), centre.reshape(-1, 1, 1, 1)
    return c + SPREAD**2 / (SPREAD**2 + s**2) * (x - c)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_every_prediction_type_becomes_the_posterior_mean(prediction):
    generator = gaussians(prediction)
    sigma = torch.tensor([0.011, 0.3, 1.7, 20.0, 150.0])
    x = 0.2 + sigma.reshape(-1, 1, 1, 1) * torch.randn(5, 1, 2, 2)
    weights = torch.tensor([[1, 0, 0], [0, 1, 0], [0.3, 0.7, 0], [0, 0.5, 0.5], [0, 0, 1]])
    clean = generator.denoise(x, sigma, weights)
    torch.testing.assert_close(clean, exact(x, sigma, weights @ CENTRES[:3]), atol=1e-4, rtol=1e-4)


def test_times_are_interpolated_in_log_sigma():
    times = DiscreteTimes(ALPHAS, "epsilon")
    sigmas = (1 / ALPHAS - 1).sqrt()
    torch.testing.assert_close(times.time_of(sigmas), torch.arange(1000.0), atol=2e-2, rtol=0)
    between = (sigmas[10] * sigmas[11]).sqrt().reshape(1)
    assert times.time_of(between).item() == pytest.approx(10.5, abs=1e-3)
    ends = times.time_of(torch.tensor([1e-9, 1e9]))
    assert ends.tolist() == [0, 999]
    assert times.range == pytest.approx((sigmas[0].item(), sigmas[-1].item()), rel=1e-3)


def test_noise_above_the_models_own_is_scaled_down_to_it():
    generator = gaussians()
    top = generator.sigma_range[1]
    x = torch.randn(1, 1, 2, 2)
    weights = torch.eye(3)[:1]
    above = generator.denoise(1e5 * x, torch.tensor([1e5]), weights)
    at_top = generator.denoise(top * x, torch.tensor([top]), weights)
    torch.testing.assert_close(above, at_top, atol=1e-3, rtol=1e-3)


def test_a_schedule_that_ends_in_pure_noise_has_finite_levels():
    times = DiscreteTimes(torch.tensor([0.9, 0.5, 0.0]), "v_prediction")
    assert times.log_sigmas.isfinite().all()
    assert times.range[1] == pytest.approx(2.0**12, rel=1e-3)


def test_a_predicted_variance_is_dropped():
    generator = gaussians()
    network = generator.network

    class WithVariance(nn.Module):
        def forward(self, x, times, row_weights):
            noise = network(x, times, row_weights)
            return torch.cat([noise, torch.full_like(noise, 9.0)], dim=1)

    x, sigma, weights = torch.randn(2, 1, 2, 2), torch.ones(2), torch.eye(3)[:2]
    with_variance = generator.times.denoise(WithVariance(), x, sigma, torch.eye(4)[:2])
    assert torch.equal(with_variance, generator.denoise(x, sigma, weights))


def test_mixing_outputs_is_linear_and_costs_one_evaluation_per_class():
    generator = gaussians(mixing="outputs")
    x, sigma = torch.randn(3, 1, 2, 2), torch.ones(3)
    ends = torch.stack([generator.denoise(x, sigma, torch.eye(3)[[k] * 3]) for k in range(3)])
    weights = torch.tensor([[0.25, 0, 0.75], [1, 0, 0], [0.2, 0.5, 0.3]])
    generator.network.calls = 0
    mixed = generator.denoise(x, sigma, weights)
    assert generator.network.calls == 3  # as many as the row with most classes has
    torch.testing.assert_close(mixed, torch.einsum("nk,knchw->nchw", weights, ends))
    assert torch.equal(mixed[1], ends[0, 1])
    generator.network.calls = 0
    generator.denoise(x, sigma, weights[:1].expand(3, 3))
    assert generator.network.calls == 2


def test_mixing_conditions_costs_one_evaluation():
    generator = gaussians()
    generator.denoise(torch.randn(2, 1, 2, 2), torch.ones(2), torch.full((2, 3), 1 / 3))
    assert generator.network.calls == 1


@pytest.mark.parametrize("mixing", ["conditions", "outputs"])
def test_guidance_leads_away_from_no_class(mixing):
    x, sigma = torch.randn(2, 1, 2, 2), torch.ones(2)
    weights = torch.tensor([[0.25, 0, 0.75], [0, 1, 0]])
    plain = gaussians(mixing=mixing).denoise(x, sigma, weights)
    guided = gaussians(mixing=mixing, guidance=3.0).denoise(x, sigma, weights)
    no_class = exact(x, sigma, CENTRES[3].expand(2))
    torch.testing.assert_close(guided, no_class + 3 * (plain - no_class), atol=1e-4, rtol=1e-4)


class PlainVAE:
    """Latents are its images, scaled and shifted."""

    config = SimpleNamespace(scaling_factor=0.5, shift_factor=0.3)

    def decode(self, latents):
        return SimpleNamespace(sample=latents)


def test_latents_are_scaled_back_and_shifted_before_they_are_decoded():
    network, shape = Gaussians("epsilon"), (1, 2, 2)
    generator = LatentGenerator(
        "toy", network, network.times, shape, 3, 4, "digest", AdapterConfig(), shape, PlainVAE()
    )
    latents = torch.randn(18, *shape)
    torch.testing.assert_close(generator.decode(latents), 2 * latents + 0.3)


def test_one_hot_weights_are_the_table_row_to_the_bit():
    table = torch.randn(7, 5, 3)
    embed = MixedEmbedding(table)
    assert torch.equal(embed(torch.eye(7)), table)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(embed(torch.eye(7)), table)
    weights = torch.rand(4, 7).softmax(1)
    torch.testing.assert_close(embed(weights), torch.einsum("nr,rtd->ntd", weights, table))


def test_user_mistakes_are_explained():
    with pytest.raises(SemmixError, match="prediction type"):
        DiscreteTimes(ALPHAS, "flow")
    with pytest.raises(SemmixError, match="did you mean 'outputs'"):
        AdapterConfig(mixing="output")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SemmixError, match="guidance"):
        AdapterConfig(guidance=-1)
    assert AdapterConfig(guidance=0).guidance == 0
    with pytest.raises(SemmixError, match="did you mean 'prompts'"):
        AdapterConfig.from_json({"prompt": ["a cat"]})
    for value in ([], {"prompts": "a cat"}):
        with pytest.raises(SemmixError, match="a list of prompts"):
            AdapterConfig.from_json(value)
    with pytest.raises(SemmixError, match="write a number"):
        AdapterConfig.from_json({"guidance": "2"})
    network = Gaussians("epsilon")
    with pytest.raises(SemmixError, match="row for no class"):
        DiscreteGenerator("toy", network, network.times, (1, 2, 2), 4, 4, "digest", AdapterConfig(guidance=2))


def test_the_example_of_an_own_generator_makes_sets(tmp_path, monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "own_generator.py"
    monkeypatch.setattr("sys.argv", [str(example), str(tmp_path / "sets")])
    runpy.run_path(str(example), run_name="__main__")
    assert "45 sets of 8; the first goes from 1 to 0" in capsys.readouterr().out
    store = MixSets.open(tmp_path / "sets")
    for n in range(store.num_sets):
        members = store.read_set(n).float()  # [8, C, H, W]
        way = (members[-1] - members[0]).flatten()
        along = ((members - members[0]).flatten(1) @ way) / (way @ way)
        torch.testing.assert_close(along, torch.linspace(0, 1, 8), atol=0.1, rtol=0)
