"""What every stack-dumping tool has in common: dumps of threads of frames -> rows of stack_frames and stack_locals.

Frames are leaf first. A thread id above 4194304 is a pthread id (faulthandler, py-spy on old Pythons): it tells
threads apart but joins with nothing in /proc.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diag.model import Row
from diag.parts import PARTS

ENTRIES = frozenset((
    "<module>", "_bootstrap", "__bootstrap", "_main", "spawn_main", "_run_module_as_main", "_shutdown", "_exit_function",
    "_run_exitfuncs",
))
"""Functions that Python itself calls first in a thread: below them a stack is whole."""

_NATIVE_FILE = re.compile(r"\.so(\.[\d.]+)?$|\.(c|cc|cpp|cxx|h|hh|hpp|cu|cuh|S|rs|inc)$|^(\[vdso\]|\?\?)$")
_PYTHON_FILE = re.compile(r"\.(py|pyc|pyx|pxi|ipynb)$|^<.*>$")


@dataclass(frozen=True, slots=True)
class Local:
    """A local variable: its value as the tool printed it and, when it is a string, the text itself."""

    var: str
    printed: str
    text: str | None
    cut: bool
    is_arg: bool
    source: str


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; `name` as printed, `line` None where the tool does not know it. Threads that stand at the same place share theirs."""

    name: str
    file: str
    line: int | None
    native: bool
    source: str
    locals: tuple[Local, ...] = ()


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread; None where the tool does not say."""

    tid: int | None
    name: str | None
    frames: tuple[Frame, ...]
    active: bool | None = None
    owns_gil: bool | None = None
    torn: bool = False
    """Known to be a torn read."""
    elsewhere: tuple[tuple[int, Frame], ...] = ()
    """(depth, frame) whose locals were read in another dump of the same sample, where this stack looked different."""
    source: str = ""
    """What the sources of its frames and locals go on from: of a format with keys, its own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a dump is missing: kind (`denied`, `ended`, `stopped`, …), what happened, what to do."""

    kind: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


@dataclass(frozen=True, slots=True)
class Dump:
    """All threads of one process at one moment, or the reason why there are none."""

    pid: int | None
    tool: str
    threads: tuple[Thread, ...]
    source: str
    failure: Failure | None = None
    locals_read: bool = False
    sample: int | None = None
    ts: datetime.datetime | None = None
    started_at: datetime.datetime | None = None
    structured: bool = False
    """JSON: knows more than the text form of the same moment."""
    title: str | None = None
    """Command line or title of the process, where the tool prints it."""
    ppid: int | None = None
    checked: bool = False
    """The dumping side took care of torn reads: what it did not mark is whole."""
    order: tuple[object, ...] = field(default=(), compare=False)
    """Where it stands among dumps without sample numbers."""

    @property
    def line(self) -> int:
        """Line of its file at which it begins; 0 = it has no lines."""
        number = self.source.rpartition(":")[2]
        return int(number) if number.isdecimal() else 0


def func_of(name: str, native: bool) -> str:
    """Last dotted part of a qualified name: `Condition.wait` and `wait` are the same function."""
    return name if native else name.rpartition(".")[2] or name


def is_native(name: str, file: str, line: int | None) -> bool:
    """Is a frame that was printed as `name (file:line)` one of a shared object?"""
    if _PYTHON_FILE.search(file):
        return False
    return line is None or name.startswith("0x") or _NATIVE_FILE.search(file) is not None


def outermost(thread: Thread) -> tuple[str, str] | None:
    """(function, file) of the outermost Python frame; None when there is none."""
    frame = next((frame for frame in reversed(thread.frames) if not frame.native), None)
    return None if frame is None else (func_of(frame.name, False), frame.file)


def numbered(dumps: Sequence[Dump]) -> list[Dump]:
    """Give dumps without one their sample number: per process from 0, in order of time where all have one, else in the order in which they were found.

    The same dump in two files (a log and what somebody copied out of it) counts once. A text and a JSON dump with the same `order` are one sample: frames of the JSON, locals of the text.
    """
    known = [dump for dump in dumps if dump.sample is not None]
    groups: dict[int | None, dict[tuple[object, ...], list[Dump]]] = {}
    for dump in sorted((dump for dump in dumps if dump.sample is None), key=lambda dump: _sortable(dump.order)):
        groups.setdefault(dump.pid, {}).setdefault(dump.order, []).append(dump)
    for same in groups.values():
        known += [replace(dump, sample=number) for number, dump in enumerate(_in_time([_merged(found) for found in same.values()]))]
    return known


def _in_time(dumps: Sequence[Dump]) -> list[Dump]:
    """Dumps of one process, each moment once."""
    times = [dump.ts for dump in dumps if dump.ts is not None]
    ordered = sorted(dumps, key=lambda dump: dump.ts or datetime.datetime.min) if len(times) == len(dumps) else list(dumps)
    looks: set[tuple[object, ...]] = set()
    found = []
    for dump in ordered:
        if dump.ts is not None:
            look = (dump.ts, *((thread.tid, thread.name, *((frame.name, frame.file, frame.line) for frame in thread.frames)) for thread in dump.threads))
            if look in looks:
                continue
            looks.add(look)
        found.append(dump)
    return found


def rows(dumps: Sequence[Dump]) -> Iterator[Row]:
    """Numbered dumps -> rows of stack_frames, one a stack with a part a frame (`diag/parts.py`), and of stack_locals."""
    outer = {id(thread.frames): thread for dump in dumps for thread in dump.threads}
    outermost_of = {frames: outermost(thread) for frames, thread in outer.items()}  # `dumps` keep the frames, and so their numbers
    entries = _entries(dumps, outermost_of)
    known: dict[int, tuple[dict[str, object], ...]] = {}
    for dump in dumps:
        for thread in dump.threads:
            whole = _is_whole(dump, thread, outermost_of[id(thread.frames)], entries)
            if thread.frames:
                parts = known.get(id(thread.frames))
                if parts is None:
                    parts = known[id(thread.frames)] = tuple(_part(depth, frame) for depth, frame in enumerate(thread.frames))
                state = _of_thread(dump, thread)
                state |= {"active": thread.active, "owns_gil": thread.owns_gil, "tool": dump.tool, "whole": whole, "source": thread.source, PARTS: parts}
                yield "stack_frames", state
            for depth, frame in (*enumerate(thread.frames), *thread.elsewhere):
                for local in frame.locals:
                    yield "stack_locals", {**_of_thread(dump, thread), **_of_frame(frame, depth), **_of_local(local), "source": thread.source + local.source}


def _of_thread(dump: Dump, thread: Thread) -> dict[str, object]:
    return {
        "sample": dump.sample, "ts": dump.ts, "pid": dump.pid, "started_at": dump.started_at, "tid": thread.tid, "thread": thread.name,
    }  # fmt: skip


def _part(depth: int, frame: Frame) -> dict[str, object]:
    return {**_of_frame(frame, depth), "qualname": frame.name, "native": frame.native, "source": frame.source}


def _of_frame(frame: Frame, depth: int) -> dict[str, object]:
    return {"depth": depth, "func": func_of(frame.name, frame.native), "file": frame.file, "line": frame.line}


def _of_local(local: Local) -> dict[str, object]:
    return {
        "var": local.var, "repr": local.printed if local.text is None else local.text, "is_arg": local.is_arg,
        "cut": local.cut, "is_text": local.text is not None,
    }


def _merged(found: Sequence[Dump]) -> Dump:
    """Dumps of one sample -> one: of two forms the one with stacks, of two with stacks the structured one."""
    with_stacks = [dump for dump in found if dump.threads]
    if len(with_stacks) < 2:
        return with_stacks[0] if with_stacks else found[0]
    best = next((dump for dump in with_stacks if dump.structured), with_stacks[0])
    giver = next((dump for dump in with_stacks if dump is not best and dump.locals_read), None)
    return best if giver is None or best.locals_read else _with_locals(best, giver)


def _with_locals(dump: Dump, giver: Dump) -> Dump:
    """Hang the locals of `giver` on the same frames, counted from the thread's entry, of `dump`."""
    theirs = {thread.tid: thread for thread in giver.threads}
    threads = [_thread_with_locals(thread, theirs[thread.tid]) if thread.tid in theirs else thread for thread in dump.threads]
    return replace(dump, threads=tuple(threads), locals_read=True)


def _thread_with_locals(mine: Thread, theirs: Thread) -> Thread:
    frames, elsewhere = _with_sources(mine), []
    for depth, frame in enumerate(_with_sources(theirs)):
        if not frame.locals:
            continue
        here = len(frames) - (len(theirs.frames) - depth)
        if here >= 0 and (frames[here].name, frames[here].file) == (frame.name, frame.file):
            frames[here] = replace(frames[here], locals=frame.locals)
        else:
            elsewhere.append((depth, frame))
    return replace(mine, frames=tuple(frames), elsewhere=tuple(elsewhere), source="")


def _with_sources(thread: Thread) -> list[Frame]:
    """Its frames with the whole of their sources."""
    if not thread.source:
        return list(thread.frames)
    return [
        replace(frame, source=thread.source + frame.source, locals=tuple(replace(local, source=thread.source + local.source) for local in frame.locals))
        for frame in thread.frames
    ]


_Key = tuple[int | None, int | None]
_Entry = tuple[str, str] | None


def _entries(dumps: Iterable[Dump], outermost_of: Mapping[int, _Entry]) -> Mapping[_Key, Mapping[_Entry, int]]:
    """Thread -> how often each outermost frame was seen."""
    found: dict[_Key, dict[_Entry, int]] = {}
    for dump in dumps:
        for thread in dump.threads:
            seen, entry = found.setdefault((dump.pid, thread.tid), {}), outermost_of[id(thread.frames)]
            seen[entry] = seen.get(entry, 0) + 1
    return found


def _is_whole(dump: Dump, thread: Thread, entry: _Entry, entries: Mapping[_Key, Mapping[_Entry, int]]) -> bool | None:
    """Does the stack reach down to the thread's entry? None when there is nothing to tell it by."""
    if thread.torn:
        return False
    if dump.checked or dump.tool == "gdb" or (entry is not None and entry[0] in ENTRIES):
        return True
    if entry is None:
        return None
    seen = entries[(dump.pid, thread.tid)]
    if any(other is not None and other[0] in ENTRIES for other in seen):
        return False
    return True if seen[entry] > 1 else None


def _sortable(order: tuple[object, ...]) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, part, "") if isinstance(part, int) else (1, 0, str(part)) for part in order)
