"""Readers of model folders in the format of the diffusers library.

    diffusers:FOLDER   unet/, scheduler/                        UNet2DModel with a label table
    dit:FOLDER         transformer/, vae/, scheduler/           DiT
    sd:FOLDER          unet/, vae/, text_encoder/, tokenizer/, scheduler/   Stable Diffusion

Only safetensors are read, and only from the folder: nothing is downloaded, no pickle is opened.
"""

# The library is optional and exports its names lazily.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semmix.core.errors import explaining, require, unknown_name
from semmix.core.extras import install_command
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
