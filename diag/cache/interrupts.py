"""Ctrl-C as a wish that is looked at between two steps; a second one is no wish any more."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def wished() -> Iterator[threading.Event]:
    """Set by the first SIGINT; the second raises KeyboardInterrupt at once. Outside the main thread signals stay as they are."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
