"""A run's curves in TensorBoard, where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semmix.core.device import rank_and_world

TrackRow = Callable[[dict[str, Any]], None]


@contextmanager
def tensorboard(folder: Path, nimg: int) -> Iterator[TrackRow]:
    """Yield a function that shows a row of stats over images seen, or does nothing without it.

    Of several processes only the first shows anything. What an interrupted run showed after `nimg`
    images is forgotten; it will come again.
    """
    writer_class = _writer_class()
    if writer_class is None or rank_and_world()[0] != 0:
        yield lambda row: None
        return
    with writer_class(str(folder), purge_step=nimg + 1) as writer:

        def track(row: dict[str, Any]) -> None:
            for name in row.keys() - {"epoch", "nimg"}:
                writer.add_scalar(name, row[name], row["nimg"])
            writer.flush()

        yield track


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter
