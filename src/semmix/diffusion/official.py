"""The official EDM and EDM2 checkpoints: read without running what is stored in them, and convert.

Such a `.pkl` holds a dictionary whose entry `ema` is the network. Every module is a record of `torch_utils.persistence`
(the source text that the official loader executes, the class name and the attributes); every tensor names a storage,
a small file of pickles and raw bytes. All of it goes through `pickles.py`, which can build data and nothing else.

The official weights are licensed CC BY-NC-SA 4.0: not for commercial use.
"""

import io
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError, explaining, require
from semmix.core.files import digest_file
from semmix.diffusion.edm import ADM, EDMConfig
from semmix.diffusion.edm2 import EDM2Config, fold_magnitudes
from semmix.diffusion.pickles import BoundedFile, Name, Record, RefusedPickleError, insist, read_pickle
from semmix.diffusion.stored import MANIFEST, build_denoiser, save_generator

PERSISTENT = "torch_utils.persistence._reconstruct_persistent_obj"
PERSISTENCE_VERSION = 6
MAX_DEPTH, MAX_DIMS = 16, 8
MAX_ENTRIES = 20_000  # tensors and modules of a network, which has some hundreds; shared modules count every time
MAX_SETTING = 65536
DICTIONARIES = {"collections.OrderedDict", "dnnlib.util.EasyDict"}
NETWORK_NAMES = {PERSISTENT, *DICTIONARIES, "torch.nn.modules.container.ModuleDict", "torch.storage._load_from_bytes"}
NETWORK_NAMES |= {"torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v2"}
# attributes we never need, but which the files mention
NETWORK_NAMES |= {"numpy.dtype", "numpy.ndarray", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"}
NETWORK_NAMES |= {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
STORAGE_TYPES = {"torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16}
STORAGE_TYPES |= {"torch.BFloat16Storage": torch.bfloat16, "torch.DoubleStorage": torch.float64}
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
    weights, config = network.tensors, _config_of(network)
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
    fix = "only the official EDM and EDM2 network pickles can be read; download it again?"
    refused = explaining(f"{path} is refused", fix, RefusedPickleError)
    with refused, explaining(f"cannot read {path}", "check the path", OSError), open(path, "rb") as file:
        size = path.stat().st_size
        return _network_of(read_pickle(BoundedFile(file, size), NETWORK_NAMES), size)


def _network_of(root: Any, size: int) -> OfficialNetwork:
    root = _plain_dict(root)
    class_name, attributes = _persistent(_get(root, "ema"))
    insist(not attributes.get("_init_args"), "its network was built with unnamed arguments")
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
        insist(depth <= MAX_DEPTH, "its modules are nested too deeply")
        is_dict = _is_call(module, "torch.nn.modules.container.ModuleDict")
        attributes = _plain_dict(module.state) if is_dict else _persistent(module)[1]
        kinds = "_parameters", "_buffers", "_modules"
        parameters, buffers, children = (_plain_dict(attributes.get(kind, {})) for kind in kinds)
        self.entries_left -= len(parameters) + len(buffers) + len(children)
        insist(self.entries_left >= 0, "it names more tensors and modules than a network has")
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
        is_tensor = _is_call(value, "torch._utils._rebuild_tensor_v2") and len(value.args) >= 4
        insist(is_tensor, "a parameter is not a tensor")
        storage, offset, shape, stride = value.args[:4]
        is_storage = _is_call(storage, "torch.storage._load_from_bytes") and len(storage.args) == 1
        insist(is_storage, "a tensor has no storage")
        data = storage.args[0]
        insist(isinstance(data, bytes), "a storage is not made of bytes")
        self.left -= len(data)
        insist(self.left >= 0, "its tensors claim more than the file holds")
        return _view(read_storage(data), offset, shape, stride)


def read_storage(data: bytes) -> Tensor:
    """Return the one storage in a legacy `torch.save` file, as a flat tensor."""
    file = BoundedFile(io.BytesIO(data), len(data))
    magic, version, system, what, keys = (read_pickle(file, STORAGE_TYPES) for _ in range(5))
    insist((magic, version) == (STORAGE_MAGIC, STORAGE_VERSION), "a storage has another format")
    is_little = isinstance(system, dict) and system.get("little_endian") is True
    insist(is_little, "a storage comes from a big-endian machine")
    identity: Any = what.args[0] if _is_call(what, "persistent id") else ()
    insist(isinstance(identity, tuple) and len(identity) == 6, "a storage does not say what it is")
    kind, storage_type, key, _, count, view = identity
    plain = isinstance(storage_type, Name) and isinstance(key, str) and isinstance(count, int)
    insist(kind == "storage" and plain and view is None, "a storage is described in an unknown way")
    dtype = STORAGE_TYPES[storage_type.name]
    insist(keys == [key], "a storage is not alone in its file")
    (stored,) = struct.unpack("<q", file.read(8))
    insist(stored == count, f"a storage claims {count} numbers and holds {stored}")
    raw = file.read(count * dtype.itemsize)
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def _view(storage: Tensor, offset: Any, shape: Any, stride: Any) -> Tensor:
    """Return the part of a storage that a tensor shows, after checking that it lies within."""
    are_tuples = isinstance(shape, tuple) and isinstance(stride, tuple) and len(stride) == len(shape) <= MAX_DIMS
    numbers = (offset, *shape, *stride) if are_tuples else ()
    whole = all(type(n) is int and abs(n) < 2**62 for n in numbers)
    insist(are_tuples and whole, "a tensor has a strange shape")
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    fits = min(numbers) >= 0 and prod(shape) <= len(storage) and (not prod(shape) or last < len(storage))
    insist(fits, "a tensor claims more than its storage holds")
    return storage.as_strided(shape, stride, offset).contiguous()


def _is_call(value: Any, what: str) -> bool:
    return isinstance(value, Record) and value.what == what


def _persistent(value: Any) -> tuple[str, dict[str, Any]]:
    """Return class name and attributes of a persistence record."""
    is_record = _is_call(value, PERSISTENT) and len(value.args) == 1
    insist(is_record, "it does not hold a network where one is expected")
    meta = _plain_dict(value.args[0])
    version = meta.get("version") if isinstance(meta.get("version"), int) else "none"
    is_known = meta.get("type") == "class" and version == PERSISTENCE_VERSION
    insist(is_known, f"its records have another format (version {version})")
    insist(isinstance(meta.get("class_name"), str), "a record has no class name")
    return meta["class_name"], _plain_dict(meta.get("state"))


def _plain_dict(value: Any) -> dict[str, Any]:
    found: Any = value.items if isinstance(value, Record) and value.what in DICTIONARIES else value
    insist(isinstance(found, dict), f"it holds a {type(found).__name__} where a dictionary is expected")
    return found


def _get(values: dict[str, Any], key: str) -> Any:
    insist(key in values, f"it has no entry {key!r}")
    return values[key]


# ---- from the official arguments to ours

SAME = "sigma_data model_channels channel_mult num_blocks attn_resolutions dropout channel_mult_noise channel_mult_emb"
COMMON = {"img_resolution": "resolution", "img_channels": "channels", "label_dim": "num_classes"}
COMMON |= {name: name for name in SAME.split()}
EDM_NAMES = {**COMMON, "model_type": "architecture", "embedding_type": "embedding", "encoder_type": "encoder"}
EDM_NAMES |= {"augment_dim": "augment_dim", "resample_filter": "resample_filter"}
EDM2 = "label_balance concat_balance res_balance attn_balance clip_act channels_per_head"
EDM2_NAMES = {**COMMON, **{name: name for name in EDM2.split()}}
# Arguments without a say in what the network computes when sampling, in float32.
WITHOUT_EFFECT = {"use_fp16", "sigma_min", "sigma_max", "label_dropout", "logvar_channels"}
# The official classes' own defaults, where ours differ.
DEFAULTS: dict[str, dict[str, Any]] = {
    "SongUNet": {"channel_mult": (1, 2, 2, 2)},
    "DhariwalUNet": {**ADM, "model_channels": 192, "channel_mult": (1, 2, 3, 4), "num_blocks": 3},
}
NO_NETWORK = "its arguments do not describe a network", "the file is damaged or was changed"


@explaining(*NO_NETWORK, TypeError)
def _config_of(network: OfficialNetwork) -> EDMConfig | EDM2Config:
    """Return our configuration for the arguments of the official class."""
    settings = dict(network.settings)
    if network.class_name == "EDMPrecond":
        is_standard = settings.pop("decoder_type", "standard") == "standard"
        require(is_standard, "unknown decoder", "skip", "only decoder_type=standard is supported")
        settings.setdefault("model_type", "DhariwalUNet")
        defaults = DEFAULTS.get(str(settings["model_type"]), {})
        return EDMConfig.from_json({**defaults, **_renamed(settings, EDM_NAMES)})
    if network.class_name == "Precond":
        fix = "only EDM2 networks that work on pixels (img64) can be converted"
        on_pixels = network.encoder in (None, "StandardRGBEncoder")
        require(on_pixels, "this network works on latents", network.encoder, fix)
        return EDM2Config.from_json(_renamed(settings, EDM2_NAMES))
    fix = "networks with EDM's own preconditioning are supported: EDMPrecond, and Precond of EDM2"
    raise SemmixError("unknown network class", network.class_name[:100], fix)


def _renamed(settings: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the settings under our names, without those that have no effect."""
    settings = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    for name, value in settings.items():
        fix = "this network uses a feature that is not supported"
        require(name in names and _is_setting(value), "unknown network argument", str(name)[:100], fix)
    return {names[name]: value for name, value in settings.items()}


def _is_setting(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= MAX_DEPTH and all(type(item) is int and item > 0 for item in value)
    if isinstance(value, int):
        return 0 <= value <= MAX_SETTING
    return value is None or isinstance(value, float | str)


def _check_shapes(config: EDMConfig | EDM2Config, weights: dict[str, Tensor], path: Path) -> None:
    with explaining(*NO_NETWORK, TypeError, ValueError, LookupError, ArithmeticError, RuntimeError):
        if config.num_blocks > len(weights):
            raise ValueError(f"{config.num_blocks} blocks")
        with torch.device("meta"):
            network = build_denoiser(config)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    seen = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(k for k in {*expected, *seen} if expected.get(k) != seen.get(k))
    first = "".join(f"{k} is {seen.get(k)}, expected {expected.get(k)}" for k in wrong[:1])
    fix = f"{len(wrong)} entries differ from the network its arguments describe"
    require(not wrong, f"the tensors in {path.name} do not fit", first, fix)
