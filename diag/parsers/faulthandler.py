"""Dumps of Python's own faulthandler: no state, no thread name, ids are pthread ids.

    Timeout (0:05:00)!
    Thread 0x00007fb818edb6c0 (most recent call first):
      File "/usr/local/lib/python3.11/threading.py", line 327 in wait
      File "/srv/app.py", line 5 in <module>

Python 3.14 puts the thread's name in brackets behind the id.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from diag.parsers.log_prefix import without_prefix
from diag.parsers.stack_dumps import Dump, Frame, Thread

TOOL = "faulthandler"

THREAD = re.compile(r"^\s*(?:Current thread|Thread) (0x0*[0-9a-fA-F]{1,15})(?: \[(.*)\])? \(most recent call first\):\s*$")
FRAME = re.compile(r'^\s*File "(.*)", line (\d{1,9}|\?\?\?) in (\S.*?)\s*$')
STARTS = re.compile(r"^\s*(Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!|Fatal Python error: |Stack \(most recent call first\):)")
TRUNCATED = re.compile(r"^\s+\.\.\.\s*$")


@dataclass
class _Open:
    """A thread whose frames are still being read."""

    id: int | None
    name: str | None
    frames: list[Frame] = field(default_factory=list)
    torn: bool = False


def from_text(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> list[Dump]:
    """Numbered lines -> one dump per time-out, crash or request; `pid` where the file name tells it."""
    dumps: list[tuple[str, list[_Open]]] = []
    fresh = True
    for number, raw in lines:
        line = without_prefix(raw)
        if (start := STARTS.match(line)) is not None:
            fresh = True
        if (thread := _opened(line)) is not None:
            if fresh or not dumps or any(thread.id == other.id for other in dumps[-1][1]):
                dumps.append((source(number), []))
            dumps[-1][1].append(thread)
            fresh = False
        elif dumps and dumps[-1][1] and start is None:
            _read_frame(line, dumps[-1][1][-1], source(number))
    return [Dump(pid, TOOL, tuple(_finished(thread) for thread in threads), place) for place, threads in dumps]


def stack_lines(lines: Iterable[str]) -> Iterator[bool]:
    """For each line that is not blank: is it part of a dump?"""
    for line in map(without_prefix, lines):
        if line.strip():
            yield any(pattern.match(line) for pattern in (THREAD, FRAME, STARTS, TRUNCATED))


def _opened(line: str) -> _Open | None:
    match = THREAD.match(line)
    if match is not None:
        return _Open(int(match[1], 16), match[2])
    return _Open(None, None) if line.strip() == "Stack (most recent call first):" else None


def _read_frame(line: str, thread: _Open, source: str) -> None:
    match = FRAME.match(line)
    if match is not None:
        place = None if match[2] == "???" else int(match[2])
        thread.frames.append(Frame(match[3], match[1], place, False, source))
    elif TRUNCATED.match(line):
        thread.torn = True  # faulthandler stops after 100 frames


def _finished(thread: _Open) -> Thread:
    return Thread(thread.id, thread.name, tuple(thread.frames), torn=thread.torn)
