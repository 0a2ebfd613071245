"""Any image encoder as an ONNX file, with a JSON file beside it that says what it expects."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semmix.core.errors import SemmixError
from semmix.core.extras import import_extra
from semmix.core.files import digest, digest_file, read_json
from semmix.networks.encoders.preprocess import Preprocess
from semmix.networks.encoders.pretrained import PretrainedEncoder

EXAMPLE = '{"size": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}'


def load_onnx(what: str, device: torch.device) -> PretrainedEncoder:
    """Return the first output of the network in file `what`."""
    path = Path(what)
    session = _open_session(path, device)
    preprocess = read_options(path.with_suffix(".json"))
    # Exporters put large weights into files named like the model, model.onnx.data.
    files = sorted(path.parent.glob(f"{glob.escape(path.name)}*"))
    weights = digest([digest_file(file) for file in files])
    network = OnnxNetwork(session, device)
    return PretrainedEncoder(f"onnx:{what}", network, preprocess, weights, device)


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


def read_options(path: Path) -> Preprocess:
    """Return the preprocessing a JSON file describes by the names of `Preprocess`."""
    if not path.exists():
        raise SemmixError("how to prepare images is not known", f"no {path}", f"write {EXAMPLE}")
    written: Any = read_json(path)
    try:
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
        return Preprocess(**settings)
    except SemmixError as error:
        raise SemmixError(f"{path}: {error.what}", error.seen, error.fix) from error
    except (AttributeError, TypeError) as error:
        raise SemmixError(f"{path} is not understood", error, f"write {EXAMPLE}") from error


def _open_session(path: Path, device: torch.device) -> Any:
    onnxruntime = import_extra("onnxruntime", "onnx", "onnx:FILE")
    wanted = ["CUDAExecutionProvider"] * (device.type == "cuda") + ["CPUExecutionProvider"]
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    try:
        return onnxruntime.InferenceSession(str(path), providers=providers)
    except Exception as error:  # onnxruntime's errors share no class
        raise SemmixError(f"cannot read {path}", error, "name an ONNX file") from error
