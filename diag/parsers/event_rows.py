"""One event of a unit on its way to host_events, and what is said about the file it comes from. Pure values."""

import datetime
import re
from dataclasses import dataclass, field

from diag.model import Row

DETAIL_CHARS = 1_000
SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "IOT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12,
    "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23,
    "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29, "POLL": 29, "PWR": 30, "SYS": 31,
}  # fmt: skip
"""Linux numbers by name without SIG."""
SPAN = re.compile(r"(\d+(?:\.\d+)?) ?(usec|us|msec|msecs|ms|seconds|second|secs|sec|s|minutes|minute|mins|min|m|hours|hour|hr|h|days|day|d|weeks|week|w)")
SPAN_S = {
    "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "m": 60.0,
    "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0,
    "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip


@dataclass
class Event:
    """One row of host_events before it is one: attribution may still change it. Times are naive UTC."""

    source: str
    kind: str
    detail: str
    ts: datetime.datetime | None = None
    unit: str | None = None
    initiator: str | None = None
    pid: int | None = None
    code: int | None = None
    """Exit code as a shell gives it (128 + signal), signal of a `killing`, HTTP status of a failed probe."""

    def row(self, origin: str) -> Row:
        """The row, `origin` being the kind of journal."""
        return "host_events", {
            "ts": self.ts, "origin": origin, "kind": self.kind, "unit": self.unit, "initiator": self.initiator, "pid": self.pid,
            "code": self.code, "detail": self.detail[:DETAIL_CHARS], "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True)
class Watchdog:
    """The rule by which somebody decides that a service is dead. Seconds; None = not said."""

    source: str
    initiator: str
    what: str
    period_s: float | None = None
    timeout_s: float | None = None
    strikes: int | None = None
    unit: str | None = None
    delay_s: float | None = None

    def row(self) -> Row:
        return "watchdog_rules", {
            "initiator": self.initiator, "period_s": self.period_s, "timeout_s": self.timeout_s, "strikes": self.strikes, "what": self.what,
            "unit": self.unit, "delay_s": self.delay_s, "source": self.source,
        }  # fmt: skip


@dataclass
class Said:
    """What a parser has to say about a file beside its rows: lines read, and what had to be assumed or is missing."""

    lines: int = 0
    first: datetime.datetime | None = None
    last: datetime.datetime | None = None
    notes: list[str] = field(default_factory=list)

    def seen(self, ts: datetime.datetime | None) -> None:
        """A time that the file holds."""
        if ts is not None:
            self.first = ts if self.first is None else min(self.first, ts)
            self.last = ts if self.last is None else max(self.last, ts)

    def note(self, text: str | None) -> None:
        if text is not None and text not in self.notes:
            self.notes.append(text)


def span_s(text: str) -> float | None:
    """`3min`, `1min 30s`, `2m5s`, `10 secs` -> seconds; None = none of these."""
    found = SPAN.findall(text)
    if not found or SPAN.sub("", text).strip(" ,"):
        return None
    return sum(float(number) * SPAN_S[unit] for number, unit in found)


def signal_of(name: str) -> int | None:
    """`SIGKILL`, `KILL` or `9` -> 9."""
    return int(name) if name.isdecimal() else SIGNALS.get(name.upper().removeprefix("SIG"))

