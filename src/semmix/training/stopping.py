"""Ctrl-C, answered between two steps: there a run can be saved whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_between_steps(world_size: int = 1) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed.

    The loop asks after every step, saves a checkpoint and raises KeyboardInterrupt; one pressed
    after the last question is raised at the end. A second Ctrl-C stops at once.

    Several processes are never told at the same step: one that finished its own would wait for
    others that are gone. There Ctrl-C stops at once, as it does where somebody else handles it.
    """
    if world_size > 1 or not _is_ours():
        yield lambda: False
        return
    pressed = threading.Event()

    def remember(*_) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, remember)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed.is_set():
        raise KeyboardInterrupt


def _is_ours() -> bool:
    """Whether Ctrl-C does here what Python makes of it; only the main thread may change that."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
