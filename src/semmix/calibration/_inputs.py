"""What the metrics accept: probabilities and labels, arrays or tensors, checked block by block."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semmix.core.errors import SemmixError, require

Array = NDArray[Any]
Rows = Array | Tensor
T = TypeVar("T")

BLOCK_ELEMENTS = 1 << 19
"""Entries looked at together, few enough to stay in the cache while they are."""

NEGATIVE_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3
HALF_SUM_TOLERANCE = 2e-2
"""How far a row may be from summing to one; half-precision rows of many classes drift further."""


def check_samples(probs: Any, labels: Any, ignore_index: int | None = None) -> tuple[Rows, Array]:
    """Return probabilities `[N, K]` and labels: classes `[N]` or target distributions `[N, K]`.

    The probabilities' values are checked later, by `prob_blocks`, while they are used.
    """
    probs = as_probs(probs)
    labels = as_labels(labels, probs.shape, ignore_index)
    if ignore_index is None or labels.ndim == 2:
        return probs, labels
    keep = labels != ignore_index
    return probs[torch.from_numpy(keep) if isinstance(probs, Tensor) else keep], labels[keep]


def as_probs(probs: Any) -> Rows:
    """Return probabilities `[N, K]`; a vector is the probability of class 1 of two."""
    probs = as_rows(probs, "probs")
    if probs.ndim == 1:
        probs = torch.stack([1 - probs, probs], -1) if isinstance(probs, Tensor) else np.stack([1 - probs, probs], -1)
    return _check_two_dimensional(probs, "probs")


def as_labels(labels: Any, shape: Sequence[int], ignore_index: int | None = None) -> Array:
    """Return class indices `[N]` (int64) or targets `[N, K]` (float64) that fit `shape` (N, K)."""
    num_rows, num_classes = shape
    labels = as_numpy(as_rows(labels, "labels"))
    if len(labels) != num_rows:
        seen = f"{num_rows} rows of predictions, {len(labels)} labels"
        raise SemmixError("predictions and labels differ in length", seen, "pass one label per row")
    if labels.shape == (num_rows, num_classes):
        for _ in prob_blocks(targets := labels.astype(np.float64), "soft labels"):
            pass
        return targets
    fix = f"pass class indices [N] or target distributions [N, {num_classes}]"
    require(labels.ndim == 1, "labels have the wrong shape", f"shape {labels.shape}", fix)
    if labels.dtype.kind == "f":
        check_finite(labels, "labels")
        if (broken := labels[labels != np.rint(labels)]).size:
            fix = "pass whole numbers, or distributions [N, K]"
            raise SemmixError("labels must be class indices", broken[:3].tolist(), fix)
    classes = labels.astype(np.int64)
    used = classes if ignore_index is None else classes[classes != ignore_index]
    if len(used) == 0:
        raise SemmixError("every sample is ignored", f"all {num_rows} labels are {ignore_index}", "check ignore_index")
    low, high = int(used.min()), int(used.max())
    if low < 0 or high >= num_classes:
        fix = f"classes go from 0 to {num_classes - 1}"
        if low == 1 and high == num_classes:
            fix = "they seem to start at 1: pass labels - 1"
        elif low < 0:
            fix += f"; ignore_index={low} skips that label"
        else:
            fix += "; predictions need a column for every class"
        raise SemmixError("labels are out of range", f"from {low} to {high}", fix)
    return classes


def as_logits(logits: Any) -> Array:
    """Return finite logits `[N, K]` in float64; a vector is the log-odds of class 1 of two."""
    logits = as_float64(as_rows(logits, "logits"))
    if logits.ndim == 1:
        logits = np.stack([np.zeros_like(logits), logits], -1)
    check_finite(_check_two_dimensional(logits, "logits"), "logits")
    return logits


def least_positive(probs: Array) -> float:
    """Return the least probability but zero: what is written as zero lies somewhere below."""
    return float(np.min(probs, initial=1.0, where=probs > 0))


def as_vector(values: Any, name: str) -> Array:
    """Return finite numbers `[N]` as a float64 array."""
    vector = as_finite(values, name)
    require(vector.ndim == 1, f"{name} must be a vector", f"shape {vector.shape}", "pass one number per sample")
    return vector


def as_finite(values: Any, name: str) -> Array:
    """Return finite numbers with at least one row as a float64 array."""
    array = as_float64(as_rows(values, name))
    check_finite(array, name)
    return array


def as_rows(values: Any, name: str) -> Rows:
    """Return real numbers as a NumPy array or a detached tensor with at least one row."""
    if isinstance(values, Tensor):
        values = values.detach()
    else:
        try:
            values = np.asarray(values)
        except (ValueError, TypeError) as error:
            raise SemmixError(f"{name} must be rectangular", error, "pass an array [N, K]") from error
        fix = "pass numbers; map class names to 0..K-1 first"
        require(values.dtype.kind in "fiubc", f"{name} must hold numbers", f"dtype {values.dtype}", fix)
    if values.is_complex() if isinstance(values, Tensor) else np.iscomplexobj(values):
        raise SemmixError(f"{name} must be real", values.dtype, "pass the real part")
    if values.ndim == 0:
        raise SemmixError(f"{name} must be an array", values.item(), "pass one row per sample")
    require(len(values) != 0, f"{name} must not be empty", f"shape {tuple(values.shape)}", "pass at least one sample")
    # Torch subtracts no booleans.
    return values.int() if values.dtype == torch.bool else values


def as_numpy(values: Rows) -> Array:
    """Return the values as a NumPy array on the CPU (bfloat16, unknown to NumPy, as float32)."""
    if not isinstance(values, Tensor):
        return values
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()


def as_float64(values: Rows) -> Array:
    """Return the values as a float64 NumPy array."""
    return as_numpy(values).astype(np.float64, copy=False)


def prob_blocks(probs: Rows, name: str = "probs") -> Iterator[tuple[slice, Array]]:
    """Yield blocks of checked rows as float32 or float64 arrays, with where they stand."""
    for where in row_blocks(*probs.shape):
        yield where, _checked(probs, where, name)


def map_blocks(work: Callable[[slice, Array], T], probs: Rows) -> list[T]:
    """Return `work(where, rows)` of every block of checked rows, several at a time if many."""
    if probs.shape[0] * probs.shape[1] < 8 * BLOCK_ELEMENTS:
        return [work(where, rows) for where, rows in prob_blocks(probs)]
    # NumPy lets other threads run while it computes.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(lambda where: work(where, _checked(probs, where)), row_blocks(*probs.shape)))


def row_blocks(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Yield slices that cover all rows, about `BLOCK_ELEMENTS` entries at a time."""
    step = max(1, BLOCK_ELEMENTS // num_columns)
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))


def as_block(rows: Rows) -> Array:
    """Return a float32 or float64 array that shares memory with `rows` where it can."""
    array = as_numpy(rows)
    wide = array.dtype if array.dtype in (np.float32, np.float64) else np.float64
    return array.astype(np.float32 if array.dtype == np.float16 else wide, copy=False)


def _checked(probs: Rows, where: slice, name: str = "probs") -> Array:
    half = probs.dtype in (torch.float16, torch.bfloat16, np.float16)
    tolerance = HALF_SUM_TOLERANCE if half else SUM_TOLERANCE
    block = as_block(probs[where])
    # NaN and infinity reach the row sum, so that comparing sums finds them too.
    sums = np.einsum("nk->n", block)
    if (np.abs(sums - 1) <= tolerance).all() and float(block.min()) >= -NEGATIVE_TOLERANCE:
        return block
    check_finite(block, name, where.start)
    low, high = float(block.min()), float(block.max())
    if low < -NEGATIVE_TOLERANCE or high > 1 + HALF_SUM_TOLERANCE:
        fix = "these look like logits: pass softmax(logits)"
        raise SemmixError(f"{name} must lie in [0, 1]", f"values from {low:.4g} to {high:.4g}", fix)
    row = int(np.abs(sums - 1).argmax())
    fix = "pass softmax outputs over all classes, or a vector [N] for one sigmoid output"
    seen = f"row {where.start + row} sums to {float(sums[row]):.6g}"
    raise SemmixError(f"every row of {name} must sum to one", seen, fix)


def check_finite(values: Array, name: str, first_row: int = 0) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = first_row + int(np.argwhere(~finite)[0][0])
        seen = f"{int((~finite).sum())} entries, the first in row {row}"
        fix = "drop these samples, or find out why the model produced them"
        raise SemmixError(f"{name} hold NaN or infinity", seen, fix)


def _check_two_dimensional(values: Any, name: str) -> Any:
    if values.ndim != 2 or values.shape[1] == 0:
        fix = "pass [N, K], classes last; for images use x.movedim(1, -1).reshape(-1, K)"
        raise SemmixError(f"{name} have the wrong shape", f"shape {tuple(values.shape)}", fix)
    return values
