"""Networks that a library loads: CLIP and DINO by transformers, any network by timm, any ONNX file by onnxruntime."""

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.core.errors import SemmixError, explaining, require
from semmix.core.extras import import_extra
from semmix.core.files import digest, digest_file, digest_tensors, read_json
from semmix.networks.encoders.pretrained import Preprocess, PretrainedEncoder, wrap_network

RESAMPLE = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers for its filters."""
UNUSED = "pooler."
"""Weights that DINO's files may lack: the class token does not pass through them."""
EXAMPLE = '{"size": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}'
"""How images are prepared for an ONNX file."""


def load_clip(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the projected image features of a CLIP model."""
    model_class = "CLIPVisionModelWithProjection"
    return _load_transformer(f"clip:{what}", model_class, lambda outputs: outputs.image_embeds, device)


def load_dino(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the class token of a DINO model (DINO, DINOv2, DINOv3)."""
    return _load_transformer(f"dino:{what}", "AutoModel", lambda outputs: outputs.last_hidden_state[:, 0], device)


def _load_transformer(
    name: str, model_class: str, features: Callable[[Any], Tensor], device: torch.device
) -> PretrainedEncoder:
    """Return a network of transformers, with what becomes its features of its outputs."""
    what = name.partition(":")[2]
    transformers = import_extra("transformers", "clip", "clip:NAME, like dino:NAME,")
    processors = import_extra("transformers.image_processing_base", "clip", "clip:NAME, like dino:NAME,")
    fix = "name a model of this kind on the hub, or a folder with its files; without a network: classifier:RUN"
    # Its readers raise nearly every type on files of another kind.
    with explaining("transformers cannot load this encoder", fix, Exception, seen=what):
        settings, _ = processors.ImageProcessingMixin.get_image_processor_dict(what)
        # Files in half precision are computed in float32 too, and rounded on a GPU alone.
        load = getattr(transformers, model_class).from_pretrained
        network, info = load(what, dtype=torch.float32, output_loading_info=True)
    missing = set(info["missing_keys"])
    needed = sorted(name for name in missing if not name.startswith(UNUSED))
    seen = f"{what} lacks {len(needed)}, such as {''.join(needed[:1])}"
    fix = "use clip: for CLIP with its projection, dino: for DINO, or get the whole model"
    require(not needed, "weights of this encoder are missing", seen, fix)
    # The library drew what is missing at random; left in, the digest would never repeat.
    weights = {name: value for name, value in network.state_dict().items() if name not in missing}
    network, digest_of_weights = network.to(device).eval(), digest_tensors(weights)

    def embed(pixels: Tensor) -> Tensor:
        return features(network(pixel_values=pixels))

    return PretrainedEncoder(name, embed, read_settings(settings), digest_of_weights, device)


def read_settings(settings: dict[str, Any]) -> Preprocess:
    """Return the preprocessing that a preprocessor_config.json describes."""
    crop = settings.get("crop_size") if settings.get("do_center_crop", True) else None
    done = all(settings.get(step, True) for step in ("do_resize", "do_rescale", "do_normalize"))
    fix = "use a model whose images are resized (bilinear or bicubic) and normalised"
    require(done and settings.get("resample") in RESAMPLE, "this preprocessing is not understood", settings, fix)
    fix = "its preprocessor_config.json must name size, image_mean and image_std"
    with explaining("this preprocessing is not understood", fix, KeyError, TypeError, seen=settings):
        size, resample = _read_size(settings["size"], keep_aspect=crop is not None), RESAMPLE[settings["resample"]]
        edges = None if crop is None else _read_size(crop, keep_aspect=True)
        crop = (edges, edges) if isinstance(edges, int) else edges
        mean, std = tuple(settings["image_mean"]), tuple(settings["image_std"])
        return Preprocess(size=size, crop=crop, mean=mean, std=std, resample=resample)


def _read_size(size: Any, keep_aspect: bool) -> int | tuple[int, int]:
    """Return the shorter edge, or height and width; a lone number may mean either."""
    if isinstance(size, int):
        return size if keep_aspect else (size, size)
    return size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])


def load_timm(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the pooled features of a timm network: a name, or `local-dir:FOLDER`."""
    timm = import_extra("timm", "timm", "timm:NAME")
    fix = "see timm.list_models(pretrained=True); a download needs the network"
    with explaining("timm cannot load this network", fix, OSError, RuntimeError, ValueError, seen=what):
        network = timm.create_model(what, pretrained=True, num_classes=0)
    options = timm.data.resolve_model_data_config(network)
    (height, width), mean, std = options["input_size"][1:], tuple(options["mean"]), tuple(options["std"])
    size, resample = int(min(height, width) / options["crop_pct"]), options["interpolation"]
    preprocess = Preprocess(size=size, crop=(height, width), mean=mean, std=std, resample=resample)
    return wrap_network(f"timm:{what}", network, preprocess, device)


def load_onnx(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the first output of the network in file `what`, for images prepared as the JSON file beside it says."""
    path = Path(what)
    onnxruntime = import_extra("onnxruntime", "onnx", "onnx:FILE")
    wanted = ["CUDAExecutionProvider"] * (device.type == "cuda") + ["CPUExecutionProvider"]
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    with explaining(f"cannot read {path}", "name an ONNX file", Exception):  # onnxruntime's errors share no class
        session = onnxruntime.InferenceSession(str(path), providers=providers)
    preprocess = _read_options(path.with_suffix(".json"))
    # Exporters put large weights into files named like the model, model.onnx.data.
    files = sorted(path.parent.glob(f"{glob.escape(path.name)}*"))
    weights = digest([digest_file(file) for file in files])
    return PretrainedEncoder(f"onnx:{what}", OnnxNetwork(session, device), preprocess, weights, device)


class OnnxNetwork:
    """An onnxruntime session as a function of a tensor."""

    def __init__(self, session: Any, device: torch.device):
        self.session, self.device = session, device
        entry = session.get_inputs()[0]
        self.input, self.shape, batch = entry.name, entry.shape, entry.shape[0]
        self.fixed_batch = batch if isinstance(batch, int) else None

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the first output; a network made for a fixed batch gets the last one filled up."""
        batches = [self._run(batch) for batch in pixels.split(self.fixed_batch or len(pixels))]
        return torch.cat(batches)[: len(pixels)].to(self.device)

    def _run(self, pixels: Tensor) -> Tensor:
        missing = (self.fixed_batch or len(pixels)) - len(pixels)
        padded = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        try:
            outputs = self.session.run(None, {self.input: padded.cpu().numpy()})
        except Exception as error:  # onnxruntime's errors share no class
            height, width = pixels.shape[2:]
            seen = f"{height} x {width} pixels, where it takes {self.shape}: {error}"
            fix = "name the size it takes in the JSON file beside it, [height, width] or a crop"
            raise SemmixError("the ONNX network cannot read these images", seen, fix) from error
        return torch.from_numpy(outputs[0])


def _read_options(path: Path) -> Preprocess:
    """Return the preprocessing a JSON file describes by the names of `Preprocess`."""
    require(path.exists(), "how to prepare images is not known", f"no {path}", f"write {EXAMPLE}")
    written: Any = read_json(path)
    try:
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
        return Preprocess(**settings)
    except SemmixError as error:
        raise SemmixError(f"{path}: {error.what}", error.seen, error.fix) from error
    except (AttributeError, TypeError) as error:
        raise SemmixError(f"{path} is not understood", error, f"write {EXAMPLE}") from error
