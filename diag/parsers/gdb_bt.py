"""Backtraces of gdb: `thread apply all bt`, and `py-bt` or `py-bt-full` of CPython's gdb extension.

    Thread 2 (Thread 0x7fabb5adc6c0 (LWP 15403) "python"):
    #0  0x00007f17077af1e3 in PyObject_Malloc (size=32) at Objects/obmalloc.c:706
    ...
    Thread 2 (Thread 0x7fabb5adc6c0 (LWP 15403) "python"):
    Traceback (most recent call first):
      File "/srv/app.py", line 3, in fetch
        zlib.crc32(data)

Where a file has both for a thread, the Python stack is taken. The name in quotes is the kernel's (comm).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from diag.parsers.log_prefix import without_prefix
from diag.parsers.stack_dumps import Dump, Frame, Thread

TOOL = "gdb"

THREAD = re.compile(r"^\s*Thread (\d{1,9}) \((?:Thread (0x[0-9a-f]+) )?\(?(?:LWP|process) (\d{1,10})\)?.*\):\s*$")
ATTACHED = re.compile(r"(?:\[Inferior \d+ \(process |^Attaching to (?:program: .*, )?process )(\d{1,10})\b")
NATIVE = re.compile(
    r"^#(\d+)\s+(?:0x[0-9a-f]+ in )?(.+?) \(.*?\)?(?: (at|from) (\S.*?))?\s*$|^#(\d+)\s+(<signal handler called>)\s*$"
)
PYTHON = re.compile(r'^\s+File "(.*)", line (\d{1,9}), in (.+?)\s*$')
PYTHON_FULL = re.compile(r"^#\d+\s+Frame 0x[0-9a-f]+, for file (.*?), line (\d{1,9}), in (\S+) \(")
TRACEBACK = re.compile(r"^\s*Traceback \(most recent call first\):\s*$")
GREETING = re.compile(r"^(GNU gdb|\[New (LWP|Thread)|\[Thread debugging|Using host libthread_db|Reading symbols|Attaching to|\[Current thread)")
_MAIN_THREAD = 1


Who = tuple[int | None, int | None]
"""gdb's number of a thread and its LWP; (None, None) where there is no header."""


@dataclass
class _Trace:
    """One backtrace of one thread: Python frames or native ones."""

    who: Who
    native: bool
    source: str
    frames: list[Frame] = field(default_factory=list)


def from_text(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> list[Dump]:
    """Numbered lines -> dumps; the pid is what gdb said it attached to, else the id of its first thread."""
    traces: list[_Trace] = []
    who: Who = (None, None)
    fresh = True
    for number, raw in lines:
        line = without_prefix(raw)
        if (match := ATTACHED.search(line)) is not None:
            pid = int(match[1])
        elif (match := THREAD.match(line)) is not None:
            who, fresh = (int(match[1]), int(match[3])), True
        elif TRACEBACK.match(line):
            fresh = True
        elif (frame := _python(line, source(number)) or _native(line, source(number))) is not None:
            if fresh or line.startswith("#0 ") or traces[-1].native != frame.native:
                traces.append(_Trace(who, frame.native, source(number)))
            traces[-1].frames.append(frame)
            fresh = False
    return [_dump(stop, pid) for stop in _stops(traces)]


def stack_lines(lines: Iterable[str]) -> Iterator[bool]:
    """For each line that is not blank: is it part of a backtrace?"""
    patterns = (THREAD, NATIVE, PYTHON, PYTHON_FULL, TRACEBACK, GREETING)
    for line in map(without_prefix, lines):
        if line.strip():
            yield any(pattern.match(line) for pattern in patterns) or ATTACHED.search(line) is not None


def _stops(traces: Iterable[_Trace]) -> list[list[_Trace]]:
    """Backtraces of one stop of the process belong together: the same kind of the same thread again is a new stop."""
    stops: list[list[_Trace]] = []
    seen: set[tuple[Who, bool]] = set()
    for trace in traces:
        if not stops or (trace.who, trace.native) in seen:
            stops.append([])
            seen = set()
        stops[-1].append(trace)
        seen.add((trace.who, trace.native))
    return stops


def _python(line: str, source: str) -> Frame | None:
    match = PYTHON.match(line) or PYTHON_FULL.match(line)
    return None if match is None else Frame(match[3], match[1], int(match[2]), False, source)


def _native(line: str, source: str) -> Frame | None:
    match = NATIVE.match(line)
    if match is None:
        return None
    if match[6]:
        return Frame(match[6], "", None, True, source)
    file, _, place = (match[4] or "").rpartition(":") if match[3] == "at" else (match[4] or "", "", "")
    return Frame(match[2], file, int(place) if place.isdecimal() and len(place) < 10 else None, True, source)


def _dump(stop: list[_Trace], pid: int | None) -> Dump:
    if pid is None:
        pid = next((trace.who[1] for trace in stop if trace.who[0] == _MAIN_THREAD), None)
    chosen: dict[Who, _Trace] = {}
    for trace in stop:
        if trace.who not in chosen or not trace.native:
            chosen[trace.who] = trace
    # a backtrace without a header is the selected thread's: the main one, unless somebody chose another
    threads = tuple(Thread(pid if who[1] is None else who[1], None, tuple(trace.frames)) for who, trace in chosen.items())
    return Dump(pid, TOOL, threads, stop[0].source)
