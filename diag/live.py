"""The patient as a collector sees it: one process tree, one window of time, what was found so far."""

import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tick:
    """One beat of the sampling window; a collector is resumed at each."""

    number: int
    sample: int | None
    """Number of the stack sample due at this beat, or None between samples."""
    last: bool
    share: float = 0.0
    """How much of the window is over, 0 to 1."""


class Locals(enum.StrEnum):
    """Which local variables are read."""

    KEYS = "keys"
    ALL = "all"
    OFF = "off"


@dataclass(frozen=True)
class Options:
    """What the person asked for."""

    window_s: float = 5.0
    samples: int = 5
    locals: Locals = Locals.KEYS
    allow_pause: bool = False
    native: bool = False
    redis_urls: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    ports: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()
    log_bytes: int = 8 << 20
    bearer: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Patient:
    """A live process tree under observation, or several.

    `pids` are alive at the start, root first, in parent-before-child order. `seen(table)` gives the rows that
    collectors run so far have gathered for that table (as dicts, parsed from the redacted artefacts). `others`: further
    processes that were asked for, and the root of each.
    """

    target_pid: int
    root_pid: int
    pids: Sequence[int]
    options: Options
    seen: Callable[[str], Sequence[Mapping[str, object]]]
    others: Mapping[int, int] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[int, ...]:
        """All processes that were asked for."""
        return (self.target_pid, *self.others)

    @property
    def roots(self) -> tuple[int, ...]:
        """The roots of all trees."""
        return tuple(dict.fromkeys((self.root_pid, *self.others.values())))


Collecting = Generator[None, Tick, None]
"""A collector at work: `tick = yield` gives way until the next beat of the window."""


def until_window_end() -> Generator[None, Tick, Tick]:
    """`yield from until_window_end()`: sleep through the window, wake at its last beat."""
    while True:
        tick = yield
        if tick.last:
            return tick
