"""Networks trained at discrete times (DDPM) as generators, read from folders in the format of the diffusers library.

    diffusers:FOLDER   unet/, scheduler/                        UNet2DModel with a label table
    dit:FOLDER         transformer/, vae/, scheduler/           DiT
    sd:FOLDER          unet/, vae/, text_encoder/, tokenizer/, scheduler/   Stable Diffusion

Such a network sees sqrt(a_t) clean + sqrt(1 - a_t) noise, with a_t = `alphas_cumprod`. Divided by sqrt(a_t) that is
clean + sigma noise with sigma = sqrt(1 / a_t - 1): the same in our terms, and all our solvers serve.

Only safetensors are read, and only from the folder: nothing is downloaded, no pickle is opened.
"""

# The library is optional and exports its names lazily.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from semmix.core.errors import explaining, require, unknown_name
from semmix.core.extras import install_command
from semmix.core.files import digest, digest_file, read_json
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


SETTINGS = "semmix.json"
READ_SUFFIXES = {".safetensors", ".json", ".txt"}


def load_adapter(spec: str, device: torch.device, **settings: Any) -> DiscreteGenerator:
    """Return the generator `kind:FOLDER`, set up by the folder's `semmix.json`.

    `settings` (fields of `AdapterConfig`) override the file.
    """
    kind, _, path = spec.partition(":")
    if kind not in _KINDS:
        raise unknown_name("adapter", kind, _KINDS)
    missing = [name for name in ("diffusers", "transformers") if find_spec(name) is None]
    what = f"generators called {kind}:FOLDER need {missing}"
    require(not missing, what, "not installed", install_command("diffusers"))
    load, parts = _KINDS[kind]
    folder = Path(path)
    missing = [part for part in parts if not (folder / part).is_dir()]
    fix = "give the folder that save_pretrained of the diffusers pipeline wrote"
    require(not missing, f"{folder} is no such model", f"no {', '.join(missing)}", fix)
    stored = folder / SETTINGS
    config = AdapterConfig.from_json(read_json(stored)) if stored.exists() else AdapterConfig()
    config = replace(config, **settings)
    # its settings and every file that is read name the generator
    paths = sorted(p for part in parts for p in (folder / part).iterdir())
    files = {str(path.relative_to(folder)): digest_file(path) for path in paths if path.suffix in READ_SUFFIXES}
    shared = {"name": f"{kind}:{folder.resolve().name}", "times": read_times(folder).to(device), "config": config}
    return load(folder, device, {**shared, "digest": digest({"settings": asdict(config), "files": files})})


class LabelNetwork(nn.Module):
    """A network with tables of labels, the attribute `name` of each of `owners`, told class weights."""

    def __init__(self, network: Any, owners: list[Any], name: str):
        super().__init__()
        self.network = network
        for owner in owners:
            setattr(owner, name, MixedEmbedding(getattr(owner, name).weight))
        self.num_rows = len(getattr(owners[0], name).weight)  # the classes and, where it knows that, no class

    def forward(self, x: Tensor, times: Tensor, row_weights: Tensor) -> Tensor:
        """Return the prediction [N, C or 2 C, H, W]."""
        return self.network(x, times, class_labels=row_weights, return_dict=False)[0]


class PromptUNet(nn.Module):
    """Stable Diffusion's network, told weights over prompts."""

    def __init__(self, unet: Any, prompt_embeddings: Tensor):
        super().__init__()
        self.unet = unet
        self.prompts = MixedEmbedding(prompt_embeddings)  # [R, tokens, D]

    def forward(self, x: Tensor, times: Tensor, row_weights: Tensor) -> Tensor:
        """Return the prediction [N, C, H, W]."""
        return self.unet(x, times, self.prompts(row_weights), return_dict=False)[0]


def read_times(folder: Path) -> DiscreteTimes:
    """Return the noise levels and the prediction type that the folder's scheduler states."""
    from diffusers import DDPMScheduler

    settings = read_json(folder / "scheduler" / "scheduler_config.json")
    fix = "only discrete-time schedulers with a beta_schedule can be used"
    require("beta_schedule" in settings, "this scheduler has no betas", settings.get("_class_name"), fix)
    names = ["num_train_timesteps", "beta_start", "beta_end", "beta_schedule"]
    names += ["trained_betas", "rescale_betas_zero_snr"]
    fix = "use a scheduler that diffusers' DDPMScheduler knows"
    with explaining("an unknown beta_schedule", fix, NotImplementedError, seen=settings["beta_schedule"]):
        scheduler = DDPMScheduler(**{name: settings[name] for name in names if name in settings})
    return DiscreteTimes(scheduler.alphas_cumprod, settings.get("prediction_type", "epsilon"))


def _load_unet(folder: Path, device: torch.device, shared: dict[str, Any]) -> DiscreteGenerator:
    from diffusers import UNet2DModel

    unet = _load_part(UNet2DModel, folder, "unet", device)
    kind = unet.config.time_embedding_type
    fix = "only networks with positional embeddings of discrete times can be used"
    require(kind == "positional", "unknown time embedding", kind, fix)
    has_table = isinstance(unet.class_embedding, nn.Embedding)
    require(has_table, "this network has no label table", folder, "use a UNet2DModel trained with num_class_embeds")
    network = LabelNetwork(unet, [unet], "class_embedding")
    classes = _count_classes(shared, network.num_rows, network.num_rows)
    parts = {**shared, "network": network, "num_rows": network.num_rows, "num_classes": classes}
    return DiscreteGenerator(**parts, image_shape=_sample_shape(unet))


def _load_dit(folder: Path, device: torch.device, shared: dict[str, Any]) -> LatentGenerator:
    from diffusers import DiTTransformer2DModel

    transformer = _load_part(DiTTransformer2DModel, folder, "transformer", device)
    embedders = [block.norm1.emb.class_embedder for block in transformer.transformer_blocks]
    network = LabelNetwork(transformer, embedders, "embedding_table")  # every block has its own
    num_classes = _count_classes(shared, transformer.config.num_embeds_ada_norm, network.num_rows)
    parts = {**shared, "network": network, "num_rows": network.num_rows, "num_classes": num_classes}
    return _latent_generator(folder, device, parts, _sample_shape(transformer))


def _load_stable_diffusion(folder: Path, device: torch.device, shared: dict[str, Any]) -> LatentGenerator:
    from diffusers import UNet2DConditionModel

    prompts = shared["config"].prompts
    fix = f'write {{"prompts": ["a photo of a cat", ...]}}, one per class, to {folder / SETTINGS}'
    require(len(prompts) >= 2, "Stable Diffusion needs a prompt for each class", prompts, fix)
    unet = _load_part(UNet2DConditionModel, folder, "unet", device)
    fix = "use Stable Diffusion 1 or 2; SDXL takes more than one text encoder"
    require(not unet.config.addition_embed_type, "this network wants more than prompts", folder, fix)
    network = PromptUNet(unet, embed_prompts(folder, [*prompts, ""], device))  # the empty prompt means no class
    parts = {**shared, "network": network, "num_rows": len(prompts) + 1, "num_classes": len(prompts)}
    return _latent_generator(folder, device, parts, _sample_shape(unet))


@torch.no_grad()
def embed_prompts(folder: Path, prompts: list[str], device: torch.device) -> Tensor:
    """Return the text encoder's last states for each prompt, [R, tokens, D]."""
    from transformers import CLIPTextModel, CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
    encoder = _load_part(CLIPTextModel, folder, "text_encoder", device)
    length = encoder.config.max_position_embeddings
    tokens = tokenizer(prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    return encoder(tokens.input_ids.to(device))[0]


def _latent_generator(
    folder: Path, device: torch.device, parts: dict[str, Any], latent_shape: tuple[int, int, int]
) -> LatentGenerator:
    from diffusers import AutoencoderKL

    vae = _load_part(AutoencoderKL, folder, "vae", device)
    zoom = 2 ** (len(vae.config.block_out_channels) - 1)
    _, height, width = latent_shape
    image_shape = (vae.config.out_channels, height * zoom, width * zoom)
    return LatentGenerator(**parts, image_shape=image_shape, latent_shape=latent_shape, vae=vae)


def _load_part(model: Any, folder: Path, part: str, device: torch.device) -> Any:
    """Return one network of the folder in float32, ready to predict."""
    fix = "the folder must hold config.json and weights as safetensors"
    with explaining(f"cannot read {folder / part}", fix, OSError, ValueError):
        network = model.from_pretrained(folder / part, use_safetensors=True, local_files_only=True)
    return network.float().to(device).eval().requires_grad_(False)


def _sample_shape(network: Any) -> tuple[int, int, int]:
    size = network.config.sample_size
    # networks that fit any size may leave it open
    fix = 'write the height of its images, or latents, to its config.json: "sample_size": 32'
    require(size, "this network does not say how large its images are", size, fix)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return network.config.in_channels, height, width


def _count_classes(shared: dict[str, Any], default: int, num_rows: int) -> int:
    num_classes = shared["config"].num_classes or default
    fix = "num_classes is the number of rows, or one less if the last means no class"
    fits, seen = num_classes in (num_rows, num_rows - 1), f"{num_classes} classes, {num_rows} rows"
    require(fits, "the label table does not fit the classes", seen, fix)
    return num_classes


# kind -> its loader, and the sub-folders it reads
_KINDS: dict[str, tuple[Callable[..., DiscreteGenerator], tuple[str, ...]]] = {
    "diffusers": (_load_unet, ("unet", "scheduler")),
    "dit": (_load_dit, ("transformer", "vae", "scheduler")),
    "sd": (_load_stable_diffusion, ("unet", "vae", "text_encoder", "tokenizer", "scheduler")),
}
