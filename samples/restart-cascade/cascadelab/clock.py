"""The lab's clock: runs `scale` times as fast as the real one, the same in all of its processes.

Everything that the lab writes carries its time, so that its logs read like hours. Periods, timeouts and load times are
lab seconds; whoever waits, waits `real_s` of them.
"""

import asyncio
import datetime
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Clock:
    """`began_s`: the monotonic second of the start (one for all processes of a machine); `epoch_s`: what the lab's calendar says then."""

    scale: float
    began_s: float
    epoch_s: float

    @classmethod
    def of(cls, text: str) -> "Clock":
        """From the text that a parent process hands over."""
        return cls(*(float(part) for part in text.split(":")))

    def __str__(self) -> str:
        return f"{self.scale!r}:{self.began_s!r}:{self.epoch_s!r}"

    @property
    def now_s(self) -> float:
        """Lab seconds since the start."""
        return (time.monotonic() - self.began_s) * self.scale

    def real_s(self, seconds: float) -> float:
        return seconds / self.scale

    def at(self, second: float) -> datetime.datetime:
        """A lab second as a date, UTC."""
        return datetime.datetime.fromtimestamp(self.epoch_s + second, datetime.UTC)

    def stamp(self) -> str:
        """Now, as Python's logging and supervisord write it."""
        return stamp_of(self.at(self.now_s))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, self.real_s(seconds)))

    async def sleep_until(self, second: float) -> None:
        await self.sleep(second - self.now_s)


def stamp_of(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"


@dataclass(frozen=True)
class Log:
    """A log file; each line stands there whole at once."""

    path: Path
    clock: Clock

    def line(self, text: str) -> None:
        """A line as it is."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def say(self, text: str) -> None:
        """A line with the time before it."""
        self.line(f"{self.clock.stamp()} {text}")
