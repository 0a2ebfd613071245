"""Official checkpoints: read by structure, never executed; bad ones are refused."""

import io
import math
import os
import pickle
import pickletools
import random
import struct
import sys
import types

import numpy as np
import pytest
import torch

from semmix.core.errors import SemmixError
from semmix.diffusion import load_generator
from semmix.diffusion.edm import Step
from semmix.diffusion.edm2 import EDM2Block, EDM2Config, EDM2Denoiser, mp_cat
from semmix.diffusion.official import NETWORK_NAMES, convert_checkpoint, read_official
from semmix.diffusion.pickles import BoundedFile, RefusedPickleError, read_pickle

VP_SETTINGS = {
    "img_resolution": 8,
    "img_channels": 3,
    "label_dim": 5,
    "use_fp16": False,
    "model_type": "SongUNet",
    "embedding_type": "positional",
    "encoder_type": "standard",
    "decoder_type": "standard",
    "channel_mult_noise": 1,
    "resample_filter": [1, 1],
    "model_channels": 16,
    "channel_mult": [1, 2],
    "augment_dim": 9,
    "dropout": 0.13,
    "num_blocks": 2,
    "attn_resolutions": [4],
    "sigma_max": float("inf"),
}
VE_SETTINGS = {
    "img_resolution": 16,
    "img_channels": 3,
    "label_dim": 5,
    "model_type": "SongUNet",
    "embedding_type": "fourier",
    "encoder_type": "residual",
    "channel_mult_noise": 2,
    "resample_filter": [1, 3, 3, 1],
    "model_channels": 16,
    "channel_mult": [1, 2, 2],
    "num_blocks": 1,
    "attn_resolutions": [8],
}
ADM_SETTINGS = {
    "img_resolution": 8,
    "img_channels": 3,
    "label_dim": 5,
    "use_fp16": True,
    "model_channels": 64,
    "channel_mult": [1, 2],
    "num_blocks": 1,
    "attn_resolutions": [4],
}
EDM2_SETTINGS = {
    "img_resolution": 8,
    "img_channels": 3,
    "label_dim": 5,
    "model_channels": 64,
    "channel_mult": [1, 2],
    "num_blocks": 1,
    "attn_resolutions": [4],
    "use_fp16": True,
    "dropout": 0.1,
}

# ---- pickles made the official way: every module reduces to a record of its source and attributes


@pytest.fixture(autouse=True)
def official_modules(monkeypatch):
    """Modules of the names that official pickles mention; pickle looks them up when writing."""
    persistence = types.ModuleType("torch_utils.persistence")
    util = types.ModuleType("dnnlib.util")

    def _reconstruct_persistent_obj(meta):
        raise AssertionError("never called by a safe reader")

    class EasyDict(dict):
        pass

    _reconstruct_persistent_obj.__module__ = "torch_utils.persistence"
    _reconstruct_persistent_obj.__qualname__ = "_reconstruct_persistent_obj"
    EasyDict.__module__, EasyDict.__qualname__ = "dnnlib.util", "EasyDict"
    persistence._reconstruct_persistent_obj = _reconstruct_persistent_obj
    util.EasyDict = EasyDict
    for name, module in {
        "torch_utils": types.ModuleType("torch_utils"),
        "torch_utils.persistence": persistence,
        "dnnlib": types.ModuleType("dnnlib"),
        "dnnlib.util": util,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)


class Persistent(torch.nn.Module):
    """A module that pickles like one decorated with `persistent_class`."""

    def __init__(self, class_name="Module", version=6, **attributes):
        super().__init__()
        self.__dict__.update(attributes)
        self.__dict__["record"] = {"type": "class", "version": version, "class_name": class_name}

    def __reduce__(self):
        state = {name: value for name, value in self.__dict__.items() if name != "record"}
        meta = {**self.record, "module_src": "raise SystemExit", "state": state}
        return sys.modules["torch_utils.persistence"]._reconstruct_persistent_obj, (meta,), None


def module_tree(tensors, parameters, **top):
    """Official-looking modules that hold `tensors` under their dotted names."""
    root = Persistent(_init_args=(), **top)
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                child = torch.nn.ModuleDict() if part in ("enc", "dec") else Persistent()
                child.__dict__["skip_scale"] = np.sqrt(0.5)  # as the official blocks have
                module.add_module(part, child)
            module = module._modules[part]
        if name in parameters:
            module.register_parameter(last, torch.nn.Parameter(tensor.clone()))
        else:
            module.register_buffer(last, tensor.clone())
    return root


def official_pickle(network, class_name, settings, **more):
    parameters = {name for name, _ in network.named_parameters()}
    top = {"class_name": class_name, "_init_kwargs": settings}
    ema = module_tree(network.state_dict(), parameters, **top)
    return pickle.dumps({"ema": ema, "dataset_kwargs": {"path": "x"}, **more}, protocol=4)


@pytest.fixture
def write(tmp_path):
    def save(data):
        path = tmp_path / "network.pkl"
        path.write_bytes(data)
        return path

    return save


# ---- good files

INPUTS = (
    torch.linspace(-2, 2, 3 * 3 * 16 * 16).reshape(3, 3, 16, 16).sin(),
    torch.tensor([0.01, 0.7, 5.0]),
    torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.3, 0, 0.7, 0], [0, 0, 0, 0, 1]]),
)


@pytest.mark.parametrize(("kind", "settings"), [("vp", VP_SETTINGS), ("ve", VE_SETTINGS), ("adm", ADM_SETTINGS)])
def test_edm_pickle_converts_and_equals_the_plain_twin(
    kind, settings, write, tmp_path, small_networks, lively, twin_denoise
):
    network = lively(small_networks[kind])
    path = write(official_pickle(network, "EDMPrecond", settings))
    official = read_official(path)
    assert official.class_name == "EDMPrecond"
    expected = network.state_dict()
    assert set(official.tensors) == set(expected)
    assert all(torch.equal(official.tensors[name], expected[name]) for name in expected)

    generator = load_generator(convert_checkpoint(path, tmp_path / "out"), "cpu")
    assert generator.trained_on is None
    size = settings["img_resolution"]
    x, sigma, labels = INPUTS[0][:, :, :size, :size], *INPUTS[1:]
    plain = twin_denoise(
        official.tensors, x, sigma, labels, adm=kind == "adm", taps=tuple(settings.get("resample_filter", (1, 1)))
    )
    ours = generator.denoise(x, sigma, labels)
    torch.testing.assert_close(ours.double(), plain, rtol=1e-5, atol=1e-5)


# every setting that says how parts are weighed, each with a value of its own
EDM2_WEIGHED = {
    "label_balance": 0.45,
    "concat_balance": 0.35,
    "res_balance": 0.25,
    "attn_balance": 0.15,
    "clip_act": 1.5,
    "channels_per_head": 32,
    "sigma_data": 0.6,
}


def twin_edm2(
    state,
    x,
    sigma,
    labels,
    label_balance=0.5,
    concat_balance=0.5,
    res_balance=0.3,
    attn_balance=0.3,
    clip_act=256,
    channels_per_head=64,
    sigma_data=0.5,
):
    """EDM2's denoiser in float64, from raw weights, by explicit sums."""
    per_head, variance = channels_per_head, sigma_data**2
    state = {name.removeprefix("unet."): t.double() for name, t in state.items()}
    x, sigma, labels = x.double(), sigma.double(), labels.double()

    def unit(y, dims):
        count = math.prod(y.shape[d] for d in dims)
        return y / (1e-4 + (y**2).sum(dims, keepdim=True).sqrt() / count**0.5)

    def layer(name, y, gain=1.0):
        w = state[f"{name}.weight"]
        w = unit(w, tuple(range(1, w.ndim))) * gain / w[0].numel() ** 0.5
        return y @ w.T if w.ndim == 2 else torch.conv2d(y, w, padding=w.shape[-1] // 2)

    def silu(y):
        return y / (1 + torch.exp(-y)) / 0.596

    def blend(a, b, t):
        return ((1 - t) * a + t * b) / ((1 - t) ** 2 + t**2) ** 0.5

    def block(name, y, emb):
        if name.endswith("_down"):
            y = (y[..., ::2, ::2] + y[..., 1::2, ::2] + y[..., ::2, 1::2] + y[..., 1::2, 1::2]) / 4
        if name.endswith("_up"):
            y = y.repeat_interleave(2, 2).repeat_interleave(2, 3)
        has_skip = f"{name}.conv_skip.weight" in state
        if name.startswith("enc"):
            y = unit(layer(f"{name}.conv_skip", y) if has_skip else y, (1,))
        z = layer(f"{name}.conv_res0", silu(y))
        scale = layer(f"{name}.emb_linear", emb, state[f"{name}.emb_gain"]) + 1
        z = layer(f"{name}.conv_res1", silu(z * scale[:, :, None, None]))
        if name.startswith("dec") and has_skip:
            y = layer(f"{name}.conv_skip", y)
        y = blend(y, z, res_balance)
        if f"{name}.attn_qkv.weight" in state:
            n, c, h, w = y.shape
            heads = c // per_head
            qkv = unit(layer(f"{name}.attn_qkv", y).reshape(n, heads, per_head, 3, h * w), (2,))
            q, k, v = qkv[:, :, :, 0], qkv[:, :, :, 1], qkv[:, :, :, 2]
            a = torch.softmax(torch.einsum("nhcq,nhck->nhqk", q, k) / per_head**0.5, dim=3)
            mixed = torch.einsum("nhqk,nhck->nhcq", a, v).reshape(n, c, h, w)
            y = blend(y, layer(f"{name}.attn_proj", mixed), attn_balance)
        return y.clamp(-clip_act, clip_act)

    s = sigma[:, None, None, None]
    angles = (sigma.log() / 4)[:, None] * state["emb_fourier.freqs"] + state["emb_fourier.phases"]
    emb = layer("emb_noise", angles.cos() * 2**0.5)
    by_label = layer("emb_label", labels * labels.shape[1] ** 0.5)
    emb = silu(blend(emb, by_label, label_balance))
    y = x / (s**2 + variance).sqrt()
    y, skips = torch.cat([y, torch.ones_like(y[:, :1])], 1), []
    for name in dict.fromkeys(".".join(k.split(".")[:2]) for k in state if k.startswith("enc.")):
        y = layer(name, y) if name.endswith("_conv") else block(name, y, emb)
        skips.append(y)
    for name in dict.fromkeys(".".join(k.split(".")[:2]) for k in state if k.startswith("dec.")):
        if "_block" in name:
            b = skips.pop()
            na, nb = y.shape[1], b.shape[1]
            t = concat_balance
            c = ((na + nb) / ((1 - t) ** 2 + t**2)) ** 0.5
            y = torch.cat([y * c * (1 - t) / na**0.5, b * c * t / nb**0.5], 1)
        y = block(name, y, emb)
    raw = layer("out_conv", y, state["out_gain"])
    total = s**2 + variance
    return variance / total * x + s * sigma_data / total.sqrt() * raw


def edm2_network():
    torch.manual_seed(0)
    settings = {"resolution": 8, "channels": 3, "num_classes": 5, "model_channels": 64}
    config = EDM2Config(**settings, channel_mult=(1, 2), num_blocks=1, attn_resolutions=(4,))
    network = EDM2Denoiser(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    network.add_module("logvar_linear", torch.nn.Linear(128, 1, bias=False))
    return network.half()  # as the official files store it


@pytest.mark.parametrize("weighed", [{}, EDM2_WEIGHED])
def test_edm2_pickle_converts_and_equals_the_plain_twin(weighed, write, tmp_path):
    network, settings = edm2_network(), {**EDM2_SETTINGS, **weighed}
    encoder = Persistent(class_name="StandardRGBEncoder")
    easy = sys.modules["dnnlib.util"].EasyDict
    data = official_pickle(network, "Precond", settings, encoder=encoder)
    assert b"EasyDict" not in data
    ema = module_tree(
        network.state_dict(), {n for n, _ in network.named_parameters()}, class_name="Precond", _init_kwargs=settings
    )
    encoder.__dict__["scale"] = np.ones(3)  # an array, which the reader must step over
    path = write(pickle.dumps(easy(ema=ema, encoder=encoder), protocol=4))
    generator = load_generator(convert_checkpoint(path, tmp_path / "out"), "cpu")
    x, sigma, labels = INPUTS[0][:, :, :8, :8], *INPUTS[1:]
    plain = twin_edm2(network.state_dict(), x, sigma, labels, **weighed)
    ours = generator.denoise(x, sigma, labels)
    assert (plain - x).abs().max() > 0.1
    torch.testing.assert_close(ours.double(), plain, rtol=1e-5, atol=1e-5)


def test_edm2_concatenates_by_shares_of_the_magnitude():
    """Of both parts as one, the mean square stays one; that of each is in its share's square."""
    a, b = torch.ones(1, 2, 1, 1), torch.ones(1, 6, 1, 1)
    whole = mp_cat(a, b, 0.3)
    assert whole.square().mean() == pytest.approx(1)
    squares = [part.square().sum().item() for part in (whole[:, :2], whole[:, 2:])]
    assert squares[0] / squares[1] == pytest.approx((0.7 / 0.3) ** 2)


def test_edm2_has_the_official_number_of_entries():
    config = EDM2Config(resolution=64, channels=3, num_classes=1000, model_channels=64)
    with torch.device("meta"):
        entries = EDM2Denoiser(config).state_dict()
    assert len(entries) == 203 - 3  # the uncertainty head is left out
    attending = {tuple(name.split(".")[1:3]) for name in entries if "qkv" in name}
    assert attending == {
        ("dec", "8x8_in0"),
        *(("enc", f"{size}x{size}_block{k}") for size in (16, 8) for k in range(3)),
        *(("dec", f"{size}x{size}_block{k}") for size in (16, 8) for k in range(4)),
    }


def test_what_an_edm2_file_does_not_tell_is_as_in_the_official_class():
    config = EDM2Config(resolution=64, channels=3, num_classes=1000)
    assert (config.model_channels, config.channel_mult, config.num_blocks) == (192, (1, 2, 3, 4), 3)
    assert (config.attn_resolutions, config.channels_per_head, config.clip_act) == ((16, 8), 64, 256)
    assert (config.channel_mult_noise, config.channel_mult_emb, config.sigma_data) == (None, None, 0.5)
    balances = config.label_balance, config.concat_balance, config.res_balance, config.attn_balance
    assert balances == (0.5, 0.5, 0.3, 0.3)


@pytest.mark.parametrize("limit", [0.5, None])
def test_edm2_limits_activations(limit):
    torch.manual_seed(0)
    config = EDM2Config(resolution=4, channels=3, num_classes=5, clip_act=limit)
    block = EDM2Block(Step("block0", 8, 8, 4), 16, config, decoder=True, attention=False)
    with torch.no_grad():
        largest = block(torch.randn(2, 8, 4, 4), torch.randn(2, 16)).abs().max().item()
    assert largest == 0.5 if limit else largest > 0.5


def test_edm2s_published_size():
    """EDM2-S of ImageNet-64 has 280 million weights."""
    config = EDM2Config(resolution=64, channels=3, num_classes=1000, model_channels=192)
    with torch.device("meta"):
        network = EDM2Denoiser(config)
    assert round(sum(weight.numel() for weight in network.parameters()) / 1e6) == 280


def test_conversion_records_source_and_licence(write, tmp_path, small_networks, lively):
    path = write(official_pickle(lively(small_networks["vp"]), "EDMPrecond", VP_SETTINGS))
    out = convert_checkpoint(path, tmp_path / "out")
    before = (out / "weights.safetensors").read_bytes()
    assert convert_checkpoint(path, out) == out  # once more: nothing to do
    assert (out / "weights.safetensors").read_bytes() == before
    assert '"licence": "CC BY-NC-SA 4.0' in (out / "generator.json").read_text()


def test_tensors_are_read_in_every_type_and_layout(write):
    whole = torch.arange(12.0).reshape(3, 4) / 3
    tensors = {
        "float16": whole.half(),
        "brain16": whole.bfloat16(),
        "float64": whole.double(),
        "part": whole[1:, 1:3],
        "turned": whole.T,
        "one": whole[2, 1],
        "none": torch.zeros(0),
    }
    root = Persistent(class_name="EDMPrecond", _init_args=(), _init_kwargs={})
    for name, tensor in tensors.items():
        root.register_buffer(name, tensor)
    read = read_official(write(pickle.dumps({"ema": root}, protocol=4))).tensors
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name


# ---- bad files


class Evil:
    """Pickles to a call of a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def network_with(value, **changes):
    """A network pickle whose only tensor is replaced by `value`."""
    root = Persistent(class_name="EDMPrecond", _init_args=(), _init_kwargs={}, **changes)
    root.__dict__["_buffers"] = {"weight": value}
    return pickle.dumps({"ema": root}, protocol=4)


def storage_bytes(tensor):
    """The legacy file of a tensor's storage, as it stands in the official pickles."""
    operations = pickletools.genops(pickle.dumps(tensor, protocol=4))
    return max((arg for op, arg, _ in operations if "BINBYTES" in op.name), key=len)


def tensor_of(storage, offset=0, shape=(2,), stride=(1,)):
    load = Evil(torch.storage._load_from_bytes, storage)
    return Evil(torch._utils._rebuild_tensor_v2, load, offset, shape, stride, False, {})


def refused(path, match):
    with pytest.raises(SemmixError, match=match) as caught:
        read_official(path)
    assert str(path) in str(caught.value)


def test_direct_call_is_refused(write, tmp_path):
    marker = tmp_path / "ran"
    attack = Evil(os.system, f"touch {marker}")
    for data in (
        pickle.dumps(attack),
        pickle.dumps({"ema": attack}),
        network_with(attack),
        pickle.dumps({"ema": 1, "x": Evil(eval, f"open({str(marker)!r}, 'w')")}),
    ):
        refused(write(data), "which no network needs")
    assert not marker.exists()


def test_call_within_a_storage_is_refused(write, tmp_path):
    marker = tmp_path / "ran"
    payload = pickle.dumps(Evil(os.system, f"touch {marker}"), protocol=2)
    good = storage_bytes(torch.ones(2))
    for storage in (payload, good[:40] + payload + good[40:], payload + good):
        refused(write(network_with(tensor_of(storage))), "refused")
    assert not marker.exists()


def test_chain_of_calls_is_refused(write):
    chain = Evil(torch.storage._load_from_bytes, b"")
    inner = pickle.dumps(chain, protocol=4)[:-1]
    # the result of an allowed call is itself called: getattr-style escapes start like this
    refused(write(inner + b")R."), "result of another call")
    refused(write(b"\x80\x04cos\nsystem\n\x8c\x02ls\x85R."), "os.system")
    refused(write(b"\x80\x02(S'ls'\nios\nsystem\n."), "instruction|damaged")
    refused(write(b"\x80\x02(cos\nsystem\nS'ls'\no."), "os.system|instruction")
    refused(write(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93."), "builtins.eval")
    refused(write(b"\x80\x02\x82\x01."), "instruction|damaged")


def test_huge_claims_are_refused_without_the_memory(write):
    refused(write(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"abc."), "bytes where 4 are left")
    refused(write(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc."), "are left")
    refused(write(b"\x80\x04B" + struct.pack("<I", 0xFFFFFFFF) + b"abc."), "are left")
    refused(write(b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"."), "dictionary|damaged")
    # a memo slot of number two milliards makes other machines allocate as many
    refused(write(b"\x80\x04Nr" + struct.pack("<I", 2**31 - 1) + b"."), "dictionary")
    refused(write(b"\x80\x04" + b"}" * 2_100_000 + b"."), "more than 2,000,000 instructions")
    good = storage_bytes(torch.ones(2))
    for shape, stride, offset in [
        ((1 << 40,), (0,), 0),
        ((1 << 40,), (1,), 0),
        ((2,), (1,), 1),
        ((2,), (-1,), 1),
        ((1,) * 20, (1,) * 20, 0),
        ((2, 2), (0, 1), 0),
        ((2,), (1, 1), 0),
        ((1 << 70,), (1,), 0),
        ((2.0,), (1,), 0),
        ([2], (1,), 0),
    ]:
        data = network_with(tensor_of(good, offset, shape, stride))
        refused(write(data), "claims more|strange shape")
    count = good.rindex(struct.pack("<q", 2))
    larger = good[:count] + struct.pack("<q", 1 << 50) + good[count + 8 :]
    refused(write(network_with(tensor_of(larger))), "claims 2 numbers")
    again = Evil(torch.storage._load_from_bytes, storage_bytes(torch.ones(2000)))
    view = Evil(torch._utils._rebuild_tensor_v2, again, 0, (2000,), (1,), False, {})
    root = Persistent(class_name="EDMPrecond", _init_args=(), _init_kwargs={})
    root.__dict__["_buffers"] = {f"b{k}": view for k in range(50)}
    refused(write(pickle.dumps({"ema": root}, protocol=4)), "more than the file holds")


def test_truncated_file_is_refused_everywhere(write, small_networks, lively):
    data = official_pickle(lively(small_networks["vp"]), "EDMPrecond", VP_SETTINGS)
    for end in [0, 1, 2, *range(11, len(data) - 1, len(data) // 60), len(data) - 1]:
        refused(write(data[:end]), "refused")


def test_other_versions_are_refused(write):
    root = Persistent(class_name="EDMPrecond", version=7)
    refused(write(pickle.dumps({"ema": root}, protocol=4)), "version 7")
    good = storage_bytes(torch.ones(2))
    other = good.replace(struct.pack("<H", 1001), struct.pack("<H", 1002), 1)
    assert other != good
    refused(write(network_with(tensor_of(other))), "another format")
    big_endian = good.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89")
    assert big_endian != good
    refused(write(network_with(tensor_of(big_endian))), "big-endian")


def storage_file(kind="storage", keys=("a",), count=2, view=None):
    """A legacy file of the numbers 1 and 2, written by hand."""
    file, what = io.BytesIO(), object()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(value, file, protocol=2)
    pickler = pickle.Pickler(file, protocol=2)
    identity = (kind, torch.FloatStorage, "a", "cpu", count, view)
    pickler.persistent_id = lambda value: identity if value is what else None
    pickler.dump(what)
    pickle.dump(list(keys), file, protocol=2)
    return file.getvalue() + struct.pack("<q2f", 2, 1.0, 2.0)


def test_storages_are_read_only_if_all_of_their_description_is_known(write):
    network = read_official(write(network_with(tensor_of(storage_file()))))
    assert network.tensors["weight"].tolist() == [1.0, 2.0]
    for change, match in [
        ({"kind": "module"}, "unknown way"),
        ({"view": ("b", 1, 1)}, "unknown way"),  # a part of it is meant
        ({"count": "2"}, "unknown way"),
        ({"count": 1}, "claims 1 numbers and holds 2"),
        ({"keys": ("a", "b")}, "not alone"),
        ({"keys": ("b",)}, "not alone"),
    ]:
        refused(write(network_with(tensor_of(storage_file(**change)))), match)


def test_unnamed_arguments_are_refused(write):
    root = Persistent(class_name="EDMPrecond", _init_args=(8,), _init_kwargs=VP_SETTINGS)
    refused(write(pickle.dumps({"ema": root}, protocol=4)), "unnamed arguments")


def test_modules_nested_without_end_are_refused(write):
    root = Persistent(class_name="EDMPrecond", _init_args=(), _init_kwargs={})
    module = root
    for _ in range(40):
        module.add_module("x", Persistent())
        module = module._modules["x"]
    refused(write(pickle.dumps({"ema": root}, protocol=4)), "nested too deeply")


@pytest.mark.parametrize(("levels", "empty_buffers"), [(12, 0), (2, 2000)])
def test_modules_shared_over_and_over_are_refused(write, levels, empty_buffers):
    """A few kilobytes can name one module millions of times, or what it holds."""
    root = Persistent(_buffers=dict.fromkeys(map(str, range(empty_buffers))))
    for _ in range(levels):
        root = Persistent(_modules=dict.fromkeys("abcd", root))
    root.__dict__.update(_init_args=(), _init_kwargs={})
    refused(write(pickle.dumps({"ema": root}, protocol=4)), "more tensors and modules than")


def test_deeply_nested_data_is_refused_or_read(write):
    deep = b")" + b"\x85" * 50_000  # a tuple in a tuple in a tuple ...
    refused(write(b"\x80\x04}" + deep + b"Ns."), "unknown way")  # as a key: hashing would overflow
    refused(write(b"\x80\x04\x8f(" + deep + b"\x90."), "names and numbers")
    refused(write(b"\x80\x04" + deep + b"."), "tuple where a dictionary")
    meta = b"}\x8c\x04type" + deep + b"s"
    name = b"\x8c\x17torch_utils.persistence\x8c\x1b_reconstruct_persistent_obj\x93"
    refused(write(b"\x80\x04}\x8c\x03ema" + name + meta + b"\x85Rs."), "another format")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_blocks": 60_000}, "describe a network"),
        ({"model_channels": 1 << 40}, "unknown network argument"),
        ({"model_channels": "wide"}, "describe a network"),
        ({"channel_mult": [1] * 60}, "unknown network argument"),
        ({"channel_mult": [0, 1]}, "unknown network argument"),
        ({"channel_mult": []}, "describe a network"),
        ({"model_type": "VisionTransformer"}, "architecture"),
        ({"encoder_type": "skip"}, "encoder"),
        ({"decoder_type": "skip"}, "decoder"),
        ({"new_feature": 1}, "new_feature"),
        ({"model_channels": 32}, "do not fit"),
    ],
)
def test_unfit_arguments_are_refused(change, match, write, tmp_path, small_networks, lively):
    settings = {**VP_SETTINGS, **change}
    path = write(official_pickle(lively(small_networks["vp"]), "EDMPrecond", settings))
    with pytest.raises(SemmixError, match=match):
        convert_checkpoint(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_networks_are_named(write, tmp_path, small_networks, lively):
    path = write(official_pickle(lively(small_networks["vp"]), "VPPrecond", VP_SETTINGS))
    with pytest.raises(SemmixError, match="VPPrecond"):
        convert_checkpoint(path, tmp_path / "out")
    latent = Persistent(class_name="StabilityVAEEncoder")
    path = write(official_pickle(edm2_network(), "Precond", EDM2_SETTINGS, encoder=latent))
    with pytest.raises(SemmixError, match="latents"):
        convert_checkpoint(path, tmp_path / "out")
    with pytest.raises(SemmixError, match="check the path"):
        convert_checkpoint(tmp_path / "nothing.pkl", tmp_path / "out")


# ---- fuzzing: whatever the bytes, data or a refusal comes out, and nothing else


def small_pickle():
    root = Persistent(class_name="EDMPrecond", _init_args=(), _init_kwargs=VP_SETTINGS)
    root.register_parameter("weight", torch.nn.Parameter(torch.ones(2, 3)))
    root.add_module("enc", torch.nn.ModuleDict({"conv": Persistent(scale=np.float64(2))}))
    return pickle.dumps({"ema": root}, protocol=4)


def test_changed_bytes_never_escape(write):
    good, chance = small_pickle(), random.Random(0)
    read_official(write(good))
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(chance.choice([1, 1, 2, 8])):
            at = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randrange(1, 9)]
            else:
                data[at:at] = data[chance.randrange(len(data)) :][: chance.randrange(1, 30)]
        try:
            read_official(write(bytes(data)))
            outcomes["read"] += 1
        except SemmixError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500
    assert outcomes["read"] > 50  # a changed weight is still a weight


def test_random_programs_never_escape():
    chance = random.Random(1)
    codes = [op.code.encode("latin1") for op in pickletools.opcodes]
    snippets = [
        *codes,
        b"\x8c\x01a",
        b"K\x07",
        b"\x8c\x02os\x8c\x06system\x93",
        b"cos\nsystem\n",
        b"ccollections\nOrderedDict\n",
        b"\x8c\x0bcollections\x8c\x0bOrderedDict\x93",
        b")R",
        b"}",
    ]
    for _ in range(20_000):
        data = b"\x80\x04" + b"".join(chance.choices(snippets, k=chance.randrange(1, 25))) + b"."
        file = BoundedFile(io.BytesIO(data), len(data))
        try:
            read_pickle(file, NETWORK_NAMES)
        except RefusedPickleError:
            continue
