"""What recovery reads and gives, one record a row. Times are naive UTC, spans are seconds; None = not known."""

import datetime
from dataclasses import dataclass, field

from diag.restarts.records import Event, Line

Time = datetime.datetime
__all__ = ["Event", "Life", "Line", "Request", "Sample", "Stage", "Start", "Time"]


@dataclass(frozen=True)
class Request:
    """A row of http_events whose line has its own time."""

    ts: Time
    method: str
    path: str
    status: int | None
    source: str
    seconds: float | None = None
    first_byte_s: float | None = None
    queued: int | None = None
    proxied: bool = False
    queue_s: float | None = None
    ended: str | None = None


@dataclass(frozen=True)
class Sample:
    """A row of metrics that has a time and a value."""

    ts: Time
    name: str
    labels: str
    value: float
    source: str


@dataclass(frozen=True)
class Life:
    """A row of `restarts`: one end and start of a service."""

    source: str
    unit: str | None = None
    killed_at: Time | None = None
    died_at: Time | None = None
    stopped_at: Time | None = None
    restarted_at: Time | None = None
    ready_at: Time | None = None
    initiator: str | None = None
    how: str = "unknown"
    lost_requests: int | None = None
    detail: str = ""

    @property
    def ended_at(self) -> Time | None:
        """First moment that belongs to this end, or start where no end is told."""
        known = [moment for moment in (self.killed_at, self.died_at, self.stopped_at, self.restarted_at) if moment is not None]
        return min(known) if known else self.ready_at


@dataclass
class Start:
    """The lines of one start of an engine, from its first to that by which it was ready."""

    lines: list[Line] = field(default_factory=list)
    ready: Line | None = None
    api: Line | None = None

    @property
    def first(self) -> Line:
        return self.lines[0]


@dataclass(frozen=True)
class Stage:
    """One stage. `basis`: stated (the engine says how long) | lines (between two lines) | events | mixed; None = not seen, `why` says why."""

    stage: str
    ts: Time | None
    seconds: float | None
    basis: str | None
    source: str
    why: str = ""
