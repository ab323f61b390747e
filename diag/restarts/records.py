"""What the evidence says, one record a row: events of units, lines of engine logs, restarts. Times are naive UTC."""

import datetime
from dataclasses import dataclass, field

Time = datetime.datetime
FIRST, LAST = Time(2, 1, 1), Time(9998, 12, 31)
"""Within what a table of evidence takes."""


def later(moment: Time, seconds: float) -> Time:
    """A moment so many seconds on; negative = before. What leaves the calendar (a period of 1e300 s) ends at its edge."""
    try:
        return min(max(moment + datetime.timedelta(seconds=seconds), FIRST), LAST)
    except OverflowError:
        return LAST if seconds > 0 else FIRST


def between_s(first: Time, second: Time) -> float:
    """Seconds from the first moment to the second."""
    return (second - first).total_seconds()


@dataclass(frozen=True)
class Event:
    """A row of host_events that has a time."""

    ts: Time
    kind: str
    origin: str
    source: str
    unit: str | None = None
    initiator: str | None = None
    pid: int | None = None
    code: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Line:
    """A row of log_events that has a time and is a known event."""

    ts: Time
    event: str
    message: str
    source: str
    file: str = ""
    number: int = 0
    pid: int | None = None
    role: str | None = None


@dataclass(frozen=True)
class WatchRule:
    """By which rule somebody decides that a service is dead. Seconds; None = not known."""

    initiator: str
    what: str
    source: str
    period_s: float | None = None
    timeout_s: float | None = None
    strikes: int | None = None
    unit: str | None = None
    delay_s: float | None = None


@dataclass
class Restart:
    """One end and start of one service. None = not seen."""

    unit: str | None
    source: str
    started_at: Time | None = None
    """When the life that ended here had begun."""
    died_at: Time | None = None
    """First sign that it died by itself."""
    killed_at: Time | None = None
    """First signal, or request to stop, from outside."""
    stopped_at: Time | None = None
    restarted_at: Time | None = None
    ready_at: Time | None = None
    pid: int | None = None
    code: int | None = None
    initiator: str | None = None
    """Who ended it; of a death, who started it again."""
    who: str | None = None
    """watchdog | person | rollout | supervisor | kernel"""
    how: str = "unknown"
    """external | self | auto | unknown"""
    detail: str = ""
    events: list[Event] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def down_at(self) -> Time | None:
        """First sign of its end."""
        known = [moment for moment in (self.killed_at, self.died_at, self.stopped_at) if moment is not None]
        return min(known) if known else self.restarted_at

    def until(self, end: Time | None) -> tuple[Time, Time] | None:
        """From the first sign of its end until it was ready, `end` where it never was; None = not known."""
        begin, last = self.down_at, self.ready_at if self.ready_at is not None else end
        return None if begin is None or last is None else (begin, last)
