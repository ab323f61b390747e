"""Error lines of a capture -> what happened, each once, in episodes: which came first, and what was only said of it. Pure.

    10:00:00 worker 0-3  CUDA error: an illegal memory access       specific, first of the episode; 4 lines of 4 writers
    10:00:01 engine_core EngineCore encountered a fatal error       wrapper
    10:00:02 api_server  EngineDeadError                            wrapper

A line that is written when something has lasted a minute (or ten) is dated back by that time before lines are compared.
"""

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diag.signatures.known_errors import Told

Time = datetime.datetime
GAP_S = 330.0
"""An error this long after the one before belongs to another episode: a call gives up after 300 s."""
MASKED = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")
RANK = re.compile(r"(?i)\b(?:global )?rank[ :=]*(\d{1,5})\b|\bWorker_?(?:\w+_)?TP(\d{1,4})")


@dataclass(frozen=True)
class Line:
    """An error line as it stands in the evidence; `life` numbers the starts of its log."""

    file: str
    number: int
    ts: Time | None
    pid: int | None
    role: str | None
    event: str | None
    message: str
    source: str
    told: Told
    life: int = 0
    phase: str | None = None
    """startup | serving | shutdown; None = the log does not say."""

    @property
    def onset(self) -> Time | None:
        return None if self.ts is None else self.ts - datetime.timedelta(seconds=self.told.delay_s)

    @property
    def kind(self) -> str:
        """Class of the line: what is written after somebody asked for the end is of the shutdown."""
        return "shutdown" if self.phase == "shutdown" and self.told.known.kind != "request" else self.told.known.kind


@dataclass
class Error:
    """One error, told once or often."""

    line: Line
    n: int = 1
    writers: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    last: Time | None = None
    first: bool = False
    episode: int = 0

    def add(self, line: Line) -> None:
        if line.pid is not None:
            self.writers.add(line.pid)
        self.ranks |= {int(one or two) for one, two in RANK.findall(line.message)}
        self.last = line.ts if self.last is None or (line.ts is not None and line.ts > self.last) else self.last


def errors(lines: Iterable[Line]) -> list[Error]:
    """Lines of one capture -> errors in the order of their onsets, each with its episode; one of the specific ones is the first of it."""
    ordered = sorted(lines, key=lambda line: (line.onset or datetime.datetime.min, line.file, line.number))
    found: list[Error] = []
    number, before = -1, None
    for episode in _episodes(ordered):
        merged = _merged(episode)
        number += 1
        for item in merged:
            item.episode = number
        before = next((item for item in merged if item.line.kind == "specific"), None)
        if before is not None:
            before.first = True
        found += merged
    return found


def _episodes(ordered: Sequence[Line]) -> list[list[Line]]:
    """Lines that belong together: near in time, and in one log of one life."""
    episodes: list[list[Line]] = []
    last: Time | None = None
    for line in ordered:
        current = episodes[-1] if episodes else None
        late = last is not None and line.onset is not None and (line.onset - last).total_seconds() > GAP_S
        reborn = current is not None and any(other.file == line.file and other.life != line.life for other in current)
        ending = current is not None and (line.kind == "shutdown") != (current[-1].kind == "shutdown")
        if current is None or late or reborn or ending:
            episodes.append([line])
            last = line.ts
        else:
            current.append(line)
            last = line.ts if last is None or (line.ts is not None and line.ts > last) else last
    return episodes


def _merged(lines: Sequence[Line]) -> list[Error]:
    """What several ranks, or the same one again and again, wrote is one error."""
    found: dict[tuple[str, str, str | None], Error] = {}
    for line in lines:
        key = (line.told.known.id, line.kind, MASKED.sub("#", line.message)[:200] if line.told.known.id in ("exception", "other") else line.role)
        if key in found:
            found[key].n += 1
        else:
            found[key] = Error(line)
        found[key].add(line)
    return list(found.values())
