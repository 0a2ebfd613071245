"""Readers of model folders in the format of the diffusers library.

    diffusers:FOLDER   unet/, scheduler/                        UNet2DModel with a label table
    dit:FOLDER         transformer/, vae/, scheduler/           DiT
    sd:FOLDER          unet/, vae/, text_encoder/, tokenizer/, scheduler/   Stable Diffusion

Only safetensors are read, and only from the folder: nothing is downloaded, no pickle is opened.
"""

# The library is optional and exports its names lazily.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semmix.core.errors import SemmixError, unknown_name
from semmix.core.files import digest, digest_file, read_json
from semmix.diffusion.adapters import AdapterConfig, DiscreteGenerator, DiscreteTimes, LatentGenerator, MixedEmbedding

SETTINGS = "semmix.json"
READ_SUFFIXES = {".safetensors", ".json", ".txt"}


def load_adapter(spec: str, device: torch.device, **settings: Any) -> DiscreteGenerator:
    """Return the generator `kind:FOLDER`, set up by the folder's `semmix.json`.

    `settings` (fields of `AdapterConfig`) override the file.
    """
    kind, _, path = spec.partition(":")
    if kind not in _KINDS:
        raise unknown_name("adapter", kind, _KINDS)
    _check_installed(kind)
    load, parts = _KINDS[kind]
    folder = Path(path)
    _check_parts(folder, parts)
    config = replace(_read_settings(folder), **settings)
    shared = {
        "name": f"{kind}:{folder.resolve().name}",
        "times": read_times(folder).to(device),
        "digest": _digest_parts(folder, parts, config),
        "config": config,
    }
    return load(folder, device, config, shared)


class TableUNet(nn.Module):
    """UNet2DModel, told class weights."""

    def __init__(self, unet: Any):
        super().__init__()
        self.unet = unet
        unet.class_embedding = MixedEmbedding(unet.class_embedding.weight)

    def forward(self, x: Tensor, times: Tensor, row_weights: Tensor) -> Tensor:
        """Return the prediction [N, C, H, W]."""
        return self.unet(x, times, class_labels=row_weights, return_dict=False)[0]


class TableDiT(nn.Module):
    """DiT, told class weights; every block has a label table of its own."""

    def __init__(self, transformer: Any):
        super().__init__()
        self.transformer = transformer
        for block in transformer.transformer_blocks:
            embedder = block.norm1.emb.class_embedder
            embedder.embedding_table = MixedEmbedding(embedder.embedding_table.weight)

    @property
    def num_rows(self) -> int:
        """Rows of the label tables: the classes, and one for no class."""
        embedder = self.transformer.transformer_blocks[0].norm1.emb.class_embedder
        return len(embedder.embedding_table.weight)

    def forward(self, x: Tensor, times: Tensor, row_weights: Tensor) -> Tensor:
        """Return the prediction [N, C or 2 C, H, W]."""
        return self.transformer(x, times, class_labels=row_weights, return_dict=False)[0]


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
    if "beta_schedule" not in settings:
        fix = "only discrete-time schedulers with a beta_schedule can be used"
        raise SemmixError("this scheduler has no betas", settings.get("_class_name"), fix)
    names = (
        "num_train_timesteps",
        "beta_start",
        "beta_end",
        "beta_schedule",
        "trained_betas",
        "rescale_betas_zero_snr",
    )
    try:
        scheduler = DDPMScheduler(**{name: settings[name] for name in names if name in settings})
    except NotImplementedError as error:
        fix = "use a scheduler that diffusers' DDPMScheduler knows"
        raise SemmixError("an unknown beta_schedule", settings["beta_schedule"], fix) from error
    return DiscreteTimes(scheduler.alphas_cumprod, settings.get("prediction_type", "epsilon"))


def _load_unet(folder: Path, device: torch.device, config: AdapterConfig, shared: dict[str, Any]) -> DiscreteGenerator:
    from diffusers import UNet2DModel

    unet = _load_part(UNet2DModel, folder, "unet", device)
    if unet.config.time_embedding_type != "positional":
        fix = "only networks with positional embeddings of discrete times can be used"
        raise SemmixError("unknown time embedding", unet.config.time_embedding_type, fix)
    if not isinstance(unet.class_embedding, nn.Embedding):
        fix = "use a UNet2DModel trained with num_class_embeds"
        raise SemmixError("this network has no label table", folder, fix)
    num_rows = unet.class_embedding.num_embeddings
    return DiscreteGenerator(
        **shared,
        network=TableUNet(unet),
        image_shape=_sample_shape(unet),
        num_classes=_count_classes(config.num_classes or num_rows, num_rows),
        num_rows=num_rows,
    )


def _load_dit(folder: Path, device: torch.device, config: AdapterConfig, shared: dict[str, Any]) -> LatentGenerator:
    from diffusers import DiTTransformer2DModel

    transformer = _load_part(DiTTransformer2DModel, folder, "transformer", device)
    network = TableDiT(transformer)
    classes = config.num_classes or transformer.config.num_embeds_ada_norm
    return _latent_generator(
        folder,
        device,
        {**shared, "network": network, "num_rows": network.num_rows},
        _count_classes(classes, network.num_rows),
        _sample_shape(transformer),
    )


def _load_stable_diffusion(
    folder: Path, device: torch.device, config: AdapterConfig, shared: dict[str, Any]
) -> LatentGenerator:
    from diffusers import UNet2DConditionModel

    if len(config.prompts) < 2:
        fix = f'write {{"prompts": ["a photo of a cat", ...]}}, one per class, to {folder / SETTINGS}'
        raise SemmixError("Stable Diffusion needs a prompt for each class", config.prompts, fix)
    unet = _load_part(UNet2DConditionModel, folder, "unet", device)
    if unet.config.addition_embed_type:
        fix = "use Stable Diffusion 1 or 2; SDXL takes more than one text encoder"
        raise SemmixError("this network wants more than prompts", folder, fix)
    prompts = [*config.prompts, ""]  # the empty prompt means no class
    network = PromptUNet(unet, embed_prompts(folder, prompts, device))
    return _latent_generator(
        folder,
        device,
        {**shared, "network": network, "num_rows": len(prompts)},
        len(config.prompts),
        _sample_shape(unet),
    )


@torch.no_grad()
def embed_prompts(folder: Path, prompts: list[str], device: torch.device) -> Tensor:
    """Return the text encoder's last states for each prompt, [R, tokens, D]."""
    from transformers import CLIPTextModel, CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
    encoder = _load_part(CLIPTextModel, folder, "text_encoder", device)
    tokens = tokenizer(
        prompts,
        padding="max_length",
        max_length=encoder.config.max_position_embeddings,
        truncation=True,
        return_tensors="pt",
    )
    return encoder(tokens.input_ids.to(device))[0]


def _latent_generator(
    folder: Path, device: torch.device, parts: dict[str, Any], num_classes: int, latent_shape: tuple[int, int, int]
) -> LatentGenerator:
    from diffusers import AutoencoderKL

    vae = _load_part(AutoencoderKL, folder, "vae", device)
    zoom = 2 ** (len(vae.config.block_out_channels) - 1)
    _, height, width = latent_shape
    return LatentGenerator(
        **parts,
        num_classes=num_classes,
        image_shape=(vae.config.out_channels, height * zoom, width * zoom),
        latent_shape=latent_shape,
        vae=vae,
    )


def _load_part(model: Any, folder: Path, part: str, device: torch.device) -> Any:
    """Return one network of the folder in float32, ready to predict."""
    try:
        network = model.from_pretrained(folder / part, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError) as error:
        fix = "the folder must hold config.json and weights as safetensors"
        raise SemmixError(f"cannot read {folder / part}", error, fix) from error
    return network.float().to(device).eval().requires_grad_(False)


def _sample_shape(network: Any) -> tuple[int, int, int]:
    size = network.config.sample_size
    if not size:  # networks that fit any size may leave it open
        fix = 'write the height of its images, or latents, to its config.json: "sample_size": 32'
        raise SemmixError("this network does not say how large its images are", size, fix)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return network.config.in_channels, height, width


def _count_classes(num_classes: int, num_rows: int) -> int:
    if num_classes not in (num_rows, num_rows - 1):
        seen = f"{num_classes} classes, {num_rows} rows"
        fix = "num_classes is the number of rows, or one less if the last means no class"
        raise SemmixError("the label table does not fit the classes", seen, fix)
    return num_classes


def _check_installed(kind: str) -> None:
    if missing := [name for name in ("diffusers", "transformers") if find_spec(name) is None]:
        fix = "pip install 'semmix[diffusers]'"
        raise SemmixError(f"generators called {kind}:FOLDER need {missing}", "not installed", fix)


def _check_parts(folder: Path, parts: tuple[str, ...]) -> None:
    if missing := [part for part in parts if not (folder / part).is_dir()]:
        fix = "give the folder that save_pretrained of the diffusers pipeline wrote"
        raise SemmixError(f"{folder} is no such model", f"no {', '.join(missing)}", fix)


def _read_settings(folder: Path) -> AdapterConfig:
    path = folder / SETTINGS
    return AdapterConfig.from_json(read_json(path)) if path.exists() else AdapterConfig()


def _digest_parts(folder: Path, parts: tuple[str, ...], config: AdapterConfig) -> str:
    """Return what names the generator: its settings and every file that is read."""
    paths = sorted(p for part in parts for p in (folder / part).iterdir())
    files = {str(path.relative_to(folder)): digest_file(path) for path in paths if path.suffix in READ_SUFFIXES}
    return digest({"settings": asdict(config), "files": files})


_Loader = Callable[[Path, torch.device, AdapterConfig, dict[str, Any]], DiscreteGenerator]

# kind -> its loader, and the sub-folders it reads
_KINDS: dict[str, tuple[_Loader, tuple[str, ...]]] = {
    "diffusers": (_load_unet, ("unet", "scheduler")),
    "dit": (_load_dit, ("transformer", "vae", "scheduler")),
    "sd": (_load_stable_diffusion, ("unet", "vae", "text_encoder", "tokenizer", "scheduler")),
}
