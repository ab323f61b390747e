"""Ctrl-C (and other signals, where a command says so) as a wish that is looked at between two steps; a second one is no wish any more."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol


class Stop(Protocol):
    """Something that may be asked to stop, and can be waited with."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class Wish:
    """Like an Event, without a lock: a signal that comes while one is held would wait for itself for ever."""

    def __init__(self) -> None:
        self._asked = False
        self._hears, self._says = os.pipe()
        os.set_blocking(self._says, False)

    def set(self) -> None:
        self._asked = True
        with suppress(OSError):  # full: it has been said often enough
            os.write(self._says, b"!")

    def is_set(self) -> bool:
        return self._asked

    def wait(self, timeout: float) -> bool:
        """True as soon as it is wished, False when the seconds are over."""
        select.select([self._hears], [], [], max(0.0, timeout))
        return self._asked

    def close(self) -> None:
        os.close(self._hears)
        os.close(self._says)


@contextmanager
def wished(*others: signal.Signals) -> Iterator[Stop]:
    """Set by the first SIGINT, or one of `others`; the second raises KeyboardInterrupt at once. Outside the main thread signals stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield threading.Event()
        return
    stop = Wish()

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, *others)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
