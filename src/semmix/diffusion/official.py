"""The official EDM and EDM2 checkpoints: read without running what is stored in them, and convert.

Such a `.pkl` holds a dictionary whose entry `ema` is the network. Every module is a record of
`torch_utils.persistence` (the source text that the official loader executes, the class name and
the attributes); every tensor names a storage, which is again a small file of pickles and raw bytes.
All of it goes through `pickles.py`, which can build data and nothing else.

The official weights are licensed CC BY-NC-SA 4.0: not for commercial use.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError
from semmix.core.files import digest_file
from semmix.diffusion.edm import EDMConfig
from semmix.diffusion.edm2 import EDM2Config, fold_magnitudes
from semmix.diffusion.pickles import BoundedFile, Name, Record, RefusedPickleError, read_pickle
from semmix.diffusion.stored import MANIFEST, build_denoiser, save_generator

PERSISTENT = "torch_utils.persistence._reconstruct_persistent_obj"
PERSISTENCE_VERSION = 6
MAX_DEPTH, MAX_DIMS = 16, 8
MAX_ENTRIES = 20_000
"""Tensors and modules of a network, which has some hundreds; shared modules count every time."""
MAX_SETTING = 65536
DICTIONARIES = {"collections.OrderedDict", "dnnlib.util.EasyDict"}
NETWORK_NAMES = frozenset(
    {
        PERSISTENT,
        *DICTIONARIES,
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor_v2",
        "torch.storage._load_from_bytes",
        "torch.nn.modules.container.ModuleDict",
        # attributes we never need, but which the files mention
        "numpy.dtype",
        "numpy.ndarray",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
    }
)
STORAGE_TYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.DoubleStorage": torch.float64,
}
STORAGE_MAGIC, STORAGE_VERSION = 0x1950A86A20F9469CFC6C, 1001


@dataclass(frozen=True)
class OfficialNetwork:
    """What a checkpoint says about its network."""

    class_name: str  # the outermost class: EDMPrecond, Precond (EDM2),
    settings: dict[str, Any]  # the arguments it was built with
    tensors: dict[str, Tensor]  # parameters and buffers by their official names
    encoder: str | None  # EDM2: the class that turns images into what the network sees


def convert_checkpoint(path: str | Path, out: str | Path) -> Path:
    """Return the folder `out` with the generator of an official `.pkl`."""
    path, out = Path(path), Path(out)
    network = read_official(path)
    weights = network.tensors
    config = _config_of(network)
    if isinstance(config, EDM2Config):
        weights = fold_magnitudes({k: v for k, v in weights.items() if not k.startswith("logvar_")})
    _check_shapes(config, weights, path)
    artifact = begin_artifact(out, MANIFEST, "generator", {"checkpoint": digest_file(path)})
    if not artifact.finished:
        details = {"source": path.name, "licence": "CC BY-NC-SA 4.0, not for commercial use"}
        save_generator(artifact, config, weights, trained_on=None, **details)
    return out


def read_official(path: Path) -> OfficialNetwork:
    """Return the network in an official `.pkl`; nothing stored in the file is executed."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            return _network_of(read_pickle(BoundedFile(file, size), NETWORK_NAMES), size)
    except RefusedPickleError as error:
        fix = "only the official EDM and EDM2 network pickles can be read; download it again?"
        raise SemmixError(f"{path} is refused", error, fix) from error
    except OSError as error:
        raise SemmixError(f"cannot read {path}", error, "check the path") from error


def _network_of(root: Any, size: int) -> OfficialNetwork:
    root = _plain_dict(root)
    class_name, attributes = _persistent(_get(root, "ema"))
    if attributes.get("_init_args"):
        raise RefusedPickleError("its network was built with unnamed arguments")
    encoder = _persistent(root["encoder"])[0] if root.get("encoder") is not None else None
    settings = _plain_dict(_get(attributes, "_init_kwargs"))
    tensors = _Tensors(limit=size).of(_get(root, "ema"))
    return OfficialNetwork(class_name, settings, tensors, encoder)


class _Tensors:
    """Collects tensors, and refuses when what is named over and over is more than a network has."""

    def __init__(self, limit: int):
        self.left, self.entries_left = limit, MAX_ENTRIES

    def of(self, module: Any, prefix: str = "", depth: int = 0) -> dict[str, Tensor]:
        """Return the parameters and buffers of a module and of those within it."""
        if depth > MAX_DEPTH:
            raise RefusedPickleError("its modules are nested too deeply")
        attributes = _attributes(module)
        parameters, buffers, children = (
            _plain_dict(attributes.get(kind, {})) for kind in ("_parameters", "_buffers", "_modules")
        )
        self.entries_left -= len(parameters) + len(buffers) + len(children)
        if self.entries_left < 0:
            raise RefusedPickleError("it names more tensors and modules than a network has")
        found = {}
        for name, value in (*parameters.items(), *buffers.items()):
            if value is not None:
                found[prefix + str(name)] = self._tensor(value)
        for name, child in children.items():
            if child is not None:
                found.update(self.of(child, f"{prefix}{name}.", depth + 1))
        return found

    def _tensor(self, value: Any) -> Tensor:
        if _is_call(value, "torch._utils._rebuild_parameter"):
            value = value.args[0] if value.args else None
        if not _is_call(value, "torch._utils._rebuild_tensor_v2") or len(value.args) < 4:
            raise RefusedPickleError("a parameter is not a tensor")
        storage, offset, shape, stride = value.args[:4]
        if not _is_call(storage, "torch.storage._load_from_bytes") or len(storage.args) != 1:
            raise RefusedPickleError("a tensor has no storage")
        data = storage.args[0]
        if not isinstance(data, bytes):
            raise RefusedPickleError("a storage is not made of bytes")
        self.left -= len(data)
        if self.left < 0:
            raise RefusedPickleError("its tensors claim more than the file holds")
        return _view(read_storage(data), offset, shape, stride)


def read_storage(data: bytes) -> Tensor:
    """Return the one storage in a legacy `torch.save` file, as a flat tensor."""
    file = BoundedFile(io.BytesIO(data), len(data))
    magic, version, system, what, keys = (read_pickle(file, STORAGE_TYPES) for _ in range(5))
    if (magic, version) != (STORAGE_MAGIC, STORAGE_VERSION):
        raise RefusedPickleError("a storage has another format")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise RefusedPickleError("a storage comes from a big-endian machine")
    dtype, key, count = _storage_identity(what)
    if keys != [key]:
        raise RefusedPickleError("a storage is not alone in its file")
    (stored,) = struct.unpack("<q", file.read(8))
    if stored != count:
        raise RefusedPickleError(f"a storage claims {count} numbers and holds {stored}")
    raw = file.read(count * dtype.itemsize)
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def _storage_identity(what: Any) -> tuple[torch.dtype, str, int]:
    """Return type, key and number of elements from a storage's persistent id."""
    identity = what.args[0] if _is_call(what, "persistent id") else None
    if not isinstance(identity, tuple) or len(identity) != 6:
        raise RefusedPickleError("a storage does not say what it is")
    kind, storage_type, key, _, count, view = identity
    plain = isinstance(storage_type, Name) and isinstance(key, str) and isinstance(count, int)
    if kind != "storage" or not plain or view is not None:
        raise RefusedPickleError("a storage is described in an unknown way")
    return STORAGE_TYPES[storage_type.name], key, count


def _view(storage: Tensor, offset: Any, shape: Any, stride: Any) -> Tensor:
    """Return the part of a storage that a tensor shows, after checking that it lies within."""
    if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(shape) > MAX_DIMS:
        raise RefusedPickleError("a tensor has a strange shape")
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or not all(type(n) is int and abs(n) < 2**62 for n in numbers):
        raise RefusedPickleError("a tensor has a strange shape")
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    if min(numbers) < 0 or prod(shape) > len(storage) or (prod(shape) and last >= len(storage)):
        raise RefusedPickleError("a tensor claims more than its storage holds")
    return storage.as_strided(shape, stride, offset).contiguous()


def _is_call(value: Any, what: str) -> bool:
    return isinstance(value, Record) and value.what == what


def _persistent(value: Any) -> tuple[str, dict[str, Any]]:
    """Return class name and attributes of a persistence record."""
    if not _is_call(value, PERSISTENT) or len(value.args) != 1:
        raise RefusedPickleError("it does not hold a network where one is expected")
    meta = _plain_dict(value.args[0])
    if meta.get("type") != "class" or meta.get("version") != PERSISTENCE_VERSION:
        seen = meta.get("version") if isinstance(meta.get("version"), int) else "none"
        raise RefusedPickleError(f"its records have another format (version {seen})")
    if not isinstance(meta.get("class_name"), str):
        raise RefusedPickleError("a record has no class name")
    return meta["class_name"], _plain_dict(meta.get("state"))


def _attributes(module: Any) -> dict[str, Any]:
    if _is_call(module, "torch.nn.modules.container.ModuleDict"):
        return _plain_dict(module.state)
    return _persistent(module)[1]


def _plain_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Record) and value.what in DICTIONARIES:
        value = value.items
    if not isinstance(value, dict):
        raise RefusedPickleError(f"it holds a {type(value).__name__} where a dictionary is expected")
    return value


def _get(values: dict[str, Any], key: str) -> Any:
    if key not in values:
        raise RefusedPickleError(f"it has no entry {key!r}")
    return values[key]


# ---- from the official arguments to ours

COMMON = {
    "img_resolution": "resolution",
    "img_channels": "channels",
    "label_dim": "num_classes",
    "sigma_data": "sigma_data",
    "model_channels": "model_channels",
    "channel_mult": "channel_mult",
    "num_blocks": "num_blocks",
    "attn_resolutions": "attn_resolutions",
    "dropout": "dropout",
    "channel_mult_noise": "channel_mult_noise",
    "channel_mult_emb": "channel_mult_emb",
}
EDM_NAMES = {
    **COMMON,
    "model_type": "architecture",
    "augment_dim": "augment_dim",
    "resample_filter": "resample_filter",
    "embedding_type": "embedding",
    "encoder_type": "encoder",
}
EDM2_NAMES = {
    **COMMON,
    **{name: name for name in ("label_balance", "concat_balance", "res_balance", "attn_balance")},
    "clip_act": "clip_act",
    "channels_per_head": "channels_per_head",
}
# Arguments without a say in what the network computes when sampling, in float32.
WITHOUT_EFFECT = {"use_fp16", "sigma_min", "sigma_max", "label_dropout", "logvar_channels"}
# The official classes' own defaults, where ours differ.
DEFAULTS: dict[str, dict[str, Any]] = {
    "SongUNet": {"channel_mult": (1, 2, 2, 2)},
    "DhariwalUNet": {
        "model_channels": 192,
        "channel_mult": (1, 2, 3, 4),
        "num_blocks": 3,
        "attn_resolutions": (32, 16, 8),
    },
}


def _config_of(network: OfficialNetwork) -> EDMConfig | EDM2Config:
    """Return our configuration for the arguments of the official class."""
    try:
        return _translated(network)
    except TypeError as error:
        fix = "the file is damaged or was changed"
        raise SemmixError("its arguments do not describe a network", error, fix) from error


def _translated(network: OfficialNetwork) -> EDMConfig | EDM2Config:
    settings = dict(network.settings)
    if network.class_name == "EDMPrecond":
        if settings.pop("decoder_type", "standard") != "standard":
            raise SemmixError("unknown decoder", "skip", "only decoder_type=standard is supported")
        settings.setdefault("model_type", "DhariwalUNet")
        defaults = DEFAULTS.get(str(settings["model_type"]), {})
        return EDMConfig.from_json({**defaults, **_renamed(settings, EDM_NAMES)})
    if network.class_name == "Precond":
        if network.encoder not in (None, "StandardRGBEncoder"):
            fix = "only EDM2 networks that work on pixels (img64) can be converted"
            raise SemmixError("this network works on latents", network.encoder, fix)
        return EDM2Config.from_json(_renamed(settings, EDM2_NAMES))
    fix = "networks with EDM's own preconditioning are supported: EDMPrecond, and Precond of EDM2"
    raise SemmixError("unknown network class", network.class_name[:100], fix)


def _renamed(settings: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the settings under our names, without those that have no effect."""
    settings = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    for name, value in settings.items():
        if name not in names or not _is_setting(value):
            fix = "this network uses a feature that is not supported"
            raise SemmixError("unknown network argument", str(name)[:100], fix)
    return {names[name]: value for name, value in settings.items()}


def _is_setting(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= MAX_DEPTH and all(type(item) is int and item > 0 for item in value)
    if isinstance(value, int):
        return 0 <= value <= MAX_SETTING
    return value is None or isinstance(value, float | str)


def _check_shapes(config: EDMConfig | EDM2Config, weights: dict[str, Tensor], path: Path) -> None:
    expected = _expected_shapes(config, limit=len(weights))
    seen = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(k for k in {*expected, *seen} if expected.get(k) != seen.get(k))
    if wrong:
        first = f"{wrong[0]} is {seen.get(wrong[0])}, expected {expected.get(wrong[0])}"
        fix = f"{len(wrong)} entries differ from the network its arguments describe"
        raise SemmixError(f"the tensors in {path.name} do not fit", first, fix)


def _expected_shapes(config: EDMConfig | EDM2Config, limit: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the network's tensors, of which there are about `limit`."""
    try:
        if config.num_blocks > limit:
            raise ValueError(f"{config.num_blocks} blocks")
        with torch.device("meta"):
            network = build_denoiser(config)
        return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        fix = "the file is damaged or was changed"
        raise SemmixError("its arguments do not describe a network", error, fix) from error
