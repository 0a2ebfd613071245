"""Networks trained at discrete times (DDPM) as generators: `diffusers:`, `dit:` and `sd:` folders.

Such a network sees sqrt(a_t) clean + sqrt(1 - a_t) noise, with a_t = `alphas_cumprod`. Divided by
sqrt(a_t) that is clean + sigma noise with sigma = sqrt(1 / a_t - 1): the same in our terms, and all
our solvers serve. The folders are read by `adapters_diffusers`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from semmix.core.errors import require, unknown_name
from semmix.diffusion import describe_generator

PREDICTIONS = ("epsilon", "v_prediction", "sample")
SMALLEST_ALPHA = 2.0**-24  # schedules that end in pure noise have 0, an infinite sigma
DECODE_BATCH = 16  # images a VAE decodes at once: it needs far more memory than the denoiser


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """What the files of a model of others do not tell; `semmix.json` in its folder."""

    prompts: tuple[str, ...] = ()  # Stable Diffusion's prompt for each class
    mixing: Literal["conditions", "outputs"] = "conditions"  # mix embeddings, or outputs (one evaluation per class)
    guidance: float = 1.0  # classifier-free guidance with the mixed label; 1 is none. It bends lambda, so it is off
    num_classes: int | None = None  # rows of the label table that are classes; a row beyond them means no class
    trained_on: str | None = None  # digest of the split the model learned from, where known

    def __post_init__(self) -> None:
        if self.mixing not in ("conditions", "outputs"):
            raise unknown_name("mixing", self.mixing, ("conditions", "outputs"))
        usable = isinstance(self.guidance, int | float) and self.guidance >= 0
        require(usable, "guidance must not be negative", repr(self.guidance), "write a number; 1 is no guidance")

    @classmethod
    def from_json(cls, value: Any) -> AdapterConfig:
        """Return the configuration in the JSON object `value`."""
        fix = 'write an object, with a list of prompts: {"prompts": ["a cat", "a dog"]}'
        is_object = isinstance(value, dict) and isinstance(value.get("prompts", []), list)
        require(is_object, "adapter settings have another form", value, fix)
        known = {field.name for field in fields(cls)}
        if unknown := set(value) - known:
            raise unknown_name("adapter setting", min(unknown), known)
        return cls(**{**value, "prompts": tuple(value.get("prompts", ()))})


class DiscreteTimes(nn.Module):
    """The noise levels of a discrete-time model, and what its network predicts."""

    log_sigmas: Tensor

    def __init__(self, alphas_cumprod: Tensor, prediction: str):
        super().__init__()
        if prediction not in PREDICTIONS:
            raise unknown_name("prediction type", prediction, PREDICTIONS)
        self.prediction = prediction
        alphas = alphas_cumprod.double().clamp(min=SMALLEST_ALPHA)
        self.register_buffer("log_sigmas", ((1 / alphas - 1).log() / 2).float())  # [T], rising
        self.range = (float(self.log_sigmas[0].exp()), float(self.log_sigmas[-1].exp()))

    def time_of(self, sigma: Tensor) -> Tensor:
        """Return the time of each noise level [N], linear in log sigma between whole times."""
        level = sigma.log()
        above = torch.searchsorted(self.log_sigmas, level).clamp(1, len(self.log_sigmas) - 1)
        lower, upper = self.log_sigmas[above - 1], self.log_sigmas[above]
        return above - 1 + ((level - lower) / (upper - lower)).clamp(0, 1)

    def denoise(self, network: nn.Module, x: Tensor, sigma: Tensor, row_weights: Tensor) -> Tensor:
        """Return the clean images [N, C, H, W] that the network's output amounts to.

        A level above the model's own is scaled down to it: there x is all but pure noise.
        """
        level = sigma.clamp(max=self.range[1])
        x = x * _over_images(level / sigma)
        s = _over_images(level)
        scale = (1 + s**2).rsqrt()  # sqrt(a_t)
        raw = network(x * scale, self.time_of(level), row_weights).to(x.dtype)
        raw = raw[:, : x.shape[1]]  # some also predict a variance
        if self.prediction == "epsilon":
            return x - s * raw
        if self.prediction == "v_prediction":  # v = sqrt(a_t) noise - sqrt(1 - a_t) clean
            return scale**2 * x - s * scale * raw
        return raw


@dataclass(repr=False)
class DiscreteGenerator:
    """A discrete-time network as a `Generator`.

    `network(x, times, row_weights)` takes weights [N, R] over what it can be told: its classes and,
    where it was trained with dropped labels, one row more that means no class.
    """

    name: str
    network: nn.Module
    times: DiscreteTimes
    image_shape: tuple[int, int, int]
    num_classes: int
    num_rows: int
    digest: str
    config: AdapterConfig

    def __post_init__(self) -> None:
        fix = "leave guidance at 1, or set num_classes if the last row means no class"
        can = self.config.guidance == 1 or self.num_rows > self.num_classes
        require(can, "guidance needs a row for no class", self.name, fix)

    def __repr__(self) -> str:
        return describe_generator(self, type(self.network).__name__)

    @property
    def trained_on(self) -> str | None:
        """Digest of the split it learned from, where known."""
        return self.config.trained_on

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return next(self.network.parameters()).device

    @property
    def sigma_range(self) -> tuple[float, float]:
        """The lowest and highest noise level the network was trained at."""
        return self.times.range

    def denoise(self, x: Tensor, sigma: Tensor, class_weights: Tensor) -> Tensor:
        """Return E[clean image | x, class weights], [N, C, H, W]."""
        row_weights = nn.functional.pad(class_weights, (0, self.num_rows - self.num_classes))
        by = self._mixed_outputs if self.config.mixing == "outputs" else self._denoise_rows
        clean = by(x, sigma, row_weights)
        if self.config.guidance == 1:
            return clean
        no_class = torch.zeros_like(row_weights)
        no_class[:, -1] = 1
        return torch.lerp(self._denoise_rows(x, sigma, no_class), clean, self.config.guidance)

    def _denoise_rows(self, x: Tensor, sigma: Tensor, row_weights: Tensor) -> Tensor:
        return self.times.denoise(self.network, x, sigma, row_weights)

    def _mixed_outputs(self, x: Tensor, sigma: Tensor, row_weights: Tensor) -> Tensor:
        """Return sum_k w_k D(x; sigma, class k), with as many evaluations as classes are mixed."""
        num_mixed = int((row_weights > 0).sum(1).max())
        weights, rows = row_weights.topk(num_mixed)  # [N, num_mixed]
        mixed = torch.zeros_like(x)
        for weight, row in zip(weights.unbind(1), rows.unbind(1), strict=True):
            one_hot = nn.functional.one_hot(row, self.num_rows).to(row_weights.dtype)
            mixed = mixed + _over_images(weight) * self._denoise_rows(x, sigma, one_hot)
        return mixed


@dataclass(repr=False)
class LatentGenerator(DiscreteGenerator):
    """A discrete-time network whose images are the latents of a VAE."""

    latent_shape: tuple[int, int, int]
    vae: Any

    def decode(self, latents: Tensor) -> Tensor:
        """Return the images in [-1, 1], [N, C, H, W]."""
        config = self.vae.config
        latents = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0)
        return torch.cat([self.vae.decode(part).sample for part in latents.split(DECODE_BATCH)])


class MixedEmbedding(nn.Module):
    """A table of embeddings that takes weights [N, R] instead of integers: their weighted mean.

    A one-hot row gives its embedding exactly, also where the rest runs in bfloat16.
    """

    def __init__(self, table: Tensor):
        super().__init__()
        self.weight = nn.Parameter(table.detach(), requires_grad=False)  # [R, ...]

    def forward(self, row_weights: Tensor) -> Tensor:
        """Return embeddings [N, ...]."""
        with torch.autocast(row_weights.device.type, enabled=False):
            return torch.tensordot(row_weights.to(self.weight.dtype), self.weight, dims=1)


def _over_images(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)
