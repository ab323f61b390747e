"""The lab's clock: runs up to `scale` times as fast as the real one, the same in all of its processes.

Everything that the lab writes carries its time. It stands still while the lab or the process that follows it (the engine's
core) does not get to run: on a busy machine a drill takes longer, and no heartbeat is missed for it. Periods and timeouts
are lab seconds; what is really computed takes as long as its processor time.
"""

import asyncio
import contextlib
import datetime
import math
import mmap
import os
import struct
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

SECOND = struct.Struct("=d")
TOLD, FOLLOWED = 0, SECOND.size
"""Where in the shared page the lab second stands, and the one that the follower has seen."""
TICK_S, MOST_TICK_S = 0.01, 0.03
"""Real seconds between two ticks, and how many of them count at most."""
LAG_S = 0.4
"""Lab seconds that the follower may be behind."""
PATIENCE_S = 5.0
"""Real seconds after which the clock goes on without a follower that does not follow."""

T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """`page`: a small file that all processes map. `epoch_s`: what the lab's calendar says at second 0."""

    scale: float
    epoch_s: float
    page: Path
    shared: mmap.mmap

    @classmethod
    def begin(cls, scale: float, epoch_s: float, page: Path) -> "Clock":
        """A new one, at second 0, followed by nobody."""
        page.write_bytes(SECOND.pack(0.0) + SECOND.pack(math.inf))
        return cls.of(f"{scale!r}:{epoch_s!r}:{page}")

    @classmethod
    def of(cls, text: str) -> "Clock":
        """From the text that a parent process hands over."""
        scale, epoch_s, page = text.split(":", 2)
        with Path(page).open("r+b") as file:
            return cls(float(scale), float(epoch_s), Path(page), mmap.mmap(file.fileno(), 2 * SECOND.size))

    def __str__(self) -> str:
        return f"{self.scale!r}:{self.epoch_s!r}:{self.page}"

    @property
    def now_s(self) -> float:
        """Lab seconds since the start."""
        return float(SECOND.unpack_from(self.shared, TOLD)[0])

    def follow(self, most_s: float = math.inf) -> None:
        """Said by the follower, again and again: it has seen what time it is; `most_s`: it is not further than that."""
        SECOND.pack_into(self.shared, FOLLOWED, min(self.now_s, most_s))

    def expect(self, seconds: float) -> None:
        """Somebody will follow: the clock goes on for so many lab seconds, then stands still until it does."""
        SECOND.pack_into(self.shared, FOLLOWED, self.now_s + seconds)

    def leave(self) -> None:
        """There is no follower any more: said by it, or by whoever ends it."""
        SECOND.pack_into(self.shared, FOLLOWED, math.inf)

    async def tick(self) -> None:
        """Makes the time go on; one task of one process."""
        last_s = held_s = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            real_s = time.monotonic()
            near = self.now_s - float(SECOND.unpack_from(self.shared, FOLLOWED)[0]) <= LAG_S
            if near or real_s - held_s > PATIENCE_S:
                SECOND.pack_into(self.shared, TOLD, self.now_s + min(real_s - last_s, MOST_TICK_S) * self.scale)
                held_s = real_s if near else held_s
            last_s = real_s

    def at(self, second: float) -> datetime.datetime:
        """A lab second as a date, UTC."""
        return datetime.datetime.fromtimestamp(self.epoch_s + second, datetime.UTC)

    def stamp(self) -> str:
        """Now, with milliseconds."""
        moment = self.at(self.now_s)
        return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"

    def pause_until(self, second: float) -> None:
        """For threads."""
        while (left_s := second - self.now_s) > 0:
            time.sleep(max(0.002, min(0.05, left_s / self.scale)))

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.now_s + seconds)

    async def sleep_until(self, second: float) -> None:
        while (left_s := second - self.now_s) > 0:
            await asyncio.sleep(max(0.002, left_s / self.scale))

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives. Raises TimeoutError, and cancels it, after so many lab seconds."""
        task, patience = asyncio.ensure_future(work), asyncio.ensure_future(self.sleep(seconds))
        try:
            await asyncio.wait({task, patience}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            patience.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


@dataclass(frozen=True)
class Log:
    """A log file that several processes may write; each line stands there whole at once."""

    path: Path
    clock: Clock

    def line(self, text: str) -> None:
        """A line as it is."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def say(self, text: str) -> None:
        """A line with the time before it."""
        self.line(f"{self.clock.stamp()} {text}")
