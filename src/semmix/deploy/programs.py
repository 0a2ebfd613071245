"""The shipped network, from raw pixels to calibrated probabilities, and the programs that run it without semmix."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from semmix.core.errors import SemmixError, require
from semmix.core.files import whole_file, write_bytes
from semmix.networks import Classifier

ONNX_OPSET = 18
TOLERANCE = 1e-4
BATCH_SIZES = (1, 2, 7)

Shape = tuple[int, int, int]
Program = Callable[[Tensor], Sequence[Tensor]]
OUTPUTS = ("probabilities", "logits", "ood_score")


class CalibratedNetwork(nn.Module):
    """A classifier with its normalisation before it and its temperature behind it."""

    temperature: Tensor

    def __init__(self, network: Classifier, temperature: float):
        super().__init__()
        self.network = network
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `OUTPUTS` of uint8 images `[N, C, H, W]`.

        The probabilities `[N, K]` are calibrated; the logits `[N, K]` are as trained, before the
        temperature; the score `[N]` is their energy, higher for images unlike the training data.
        """
        logits = self.network(images)
        return (logits / self.temperature).softmax(1), logits, -logits.logsumexp(1)


def write_programs(network: CalibratedNetwork, shape: Shape, out: Path, onnx: bool) -> float:
    """Write `model.pt2`, and `model.onnx` if wanted; return their largest difference to PyTorch."""
    example, dims = torch.zeros(2, *shape, dtype=torch.uint8), ({0: torch.export.Dim.AUTO},)  # for any batch size
    with _quiet():
        try:
            exported = torch.export.export(network, (example,), dynamic_shapes=dims)
        except Exception as error:  # a user's network may hold anything
            fix = "its forward must not branch on pixels; predict and serve also take the run itself"
            raise SemmixError("the network cannot become a program", _first_line(error), fix) from error
        buffer = io.BytesIO()
        torch.export.save(exported, buffer)
        write_bytes(out / "model.pt2", buffer.getvalue())
        program: Program = torch.export.load(out / "model.pt2").module()
    difference = check_program("model.pt2", program, network, shape)
    if onnx:
        with _quiet():
            names = {"input_names": ["images"], "output_names": list(OUTPUTS), "dynamic_shapes": ({0: "batch"},)}
            graph = torch.onnx.export(exported, **names, opset_version=ONNX_OPSET, dynamo=True, verbose=False)
            assert graph is not None
            with whole_file(out / "model.onnx") as temporary:
                graph.save(str(temporary), external_data=False)
        program = open_onnx(out / "model.onnx")
        difference = max(difference, check_program("model.onnx", program, network, shape))
    return difference


def can_write_onnx() -> bool:
    """Return whether the packages of the extra `onnx` are installed."""
    return all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))


def open_onnx(path: Path) -> Program:
    """Return the ONNX file as a function of a tensor, run by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: [*map(torch.from_numpy, session.run(OUTPUTS, {"images": images.numpy()}))]


@torch.no_grad()
def check_program(name: str, program: Program, network: CalibratedNetwork, shape: Shape) -> float:
    """Return the program's largest difference to the network; a difference too large is an error.

    Logits and scores may be large, so theirs are measured against their size where it exceeds 1.
    """
    worst = 0.0
    for images in trial_images(shape):
        try:
            found = program(images)
        except Exception as error:  # programs check their inputs by errors of many types
            what = f"{name} cannot run a batch of {len(images)}"
            fix = "the network's forward must take batches of any size"
            raise SemmixError(what, _first_line(error), fix) from error
        for output, seen, wanted in zip(OUTPUTS, found, network(images), strict=True):
            gap = float(((seen - wanted).abs() / wanted.abs().clamp(min=1)).max())
            fix = f"it must agree to {TOLERANCE:g}: do not ship it; export again or report this"
            what, where = f"{name} disagrees with PyTorch on {output}", f"{gap:.2g} for a batch of {len(images)}"
            require(gap <= TOLERANCE, what, where, fix)  # NaN is a difference too
            worst = max(worst, gap)
    return worst


def trial_images(shape: Shape) -> Iterator[Tensor]:
    """Yield batches of noise and of extremes: black, white, stripes and single bright pixels."""
    random = np.random.default_rng(0)
    for size in BATCH_SIZES:
        yield torch.from_numpy(random.integers(0, 256, (size, *shape), dtype=np.uint8))
        yield torch.from_numpy(255 * random.integers(0, 2, (size, *shape), dtype=np.uint8))
    extremes = torch.zeros(4, *shape, dtype=torch.uint8)
    extremes[1] = extremes[2, ..., ::2] = extremes[3, :, 0, 0] = 255
    yield extremes


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own warnings to themselves: users can do nothing about them."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
