"""py-spy dumps, text and JSON, 0.3.x to 0.4.x: alone, of many processes, within container logs, or failed.

    Process 30339: VLLM::EngineCore
    Python v3.11.7 (/usr/local/bin/python3.11)

    Thread 30339 (idle): "MainThread"
        Condition.wait (threading.py:327)
            Arguments:
                timeout: None
        <module> (serve.py:8)

Names are bare (`wait`) before 0.4.3 and on Pythons before 3.11. Ids are pthread ids in hex on those Pythons with
--nonblocking. The text says `idle` for a thread that sleeps while it holds the GIL; only the JSON knows better.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from diag.errors import Garbled
from diag.model import Artefact
from diag.parsers.key_texts import text_of, was_cut
from diag.parsers.log_prefix import without_prefix
from diag.parsers.pyspy_errors import classify, without_backtrace
from diag.parsers.stack_dumps import ENTRIES, Dump, Frame, Local, Thread, is_native, outermost

TOOL = "py-spy"

PROCESS = re.compile(r"^\s*Process (\d{1,10}): (.*)$")
PYTHON = re.compile(r"^\s*Python v(\S+) \(.*\)\s*$")
PARENT = re.compile(r"^\s*Parent Process (\d{1,10}): ")
BY_WATCHDOG = re.compile(r"py-?spy dump\b.*?(?:for PID|--pid|-p)\s+(\d{1,10})\b", re.IGNORECASE)
THREAD = re.compile(r'^\s*Thread (0x[0-9A-Fa-f]{1,15}|\d{1,18})(?: \((idle|active|active\+gil)\))?(?:: "(.*)")?\s*$')
ERROR = re.compile(r"^\s*(Error: |Permission Denied: Try running|thread '.*' panicked at)")
UNINDENTED = re.compile(r"^\S+ \([^()]+(:\d+|\.py|\.so[.\d]*)\)\s*$")
LOCALS = re.compile(r"^\s*(Arguments|Locals):\s*$")
LOCAL = re.compile(r"^\s*(\.?\w+): (.*)$")


Count = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class JsonLocal(msgspec.Struct, omit_defaults=True):
    """A local variable; `repr` is missing where py-spy could not read it."""

    name: str
    arg: bool = False
    repr: str | None = None


class JsonFrame(msgspec.Struct, omit_defaults=True):
    """A frame; `module` is the shared object of a native one."""

    name: str = ""
    filename: str = ""
    short_filename: str | None = None
    module: str | None = None
    line: Count = 0
    locals: list[JsonLocal] | None = None


class _JsonHead(msgspec.Struct, omit_defaults=True):
    thread_id: Count
    pid: Count | None = None
    thread_name: str | None = None
    os_thread_id: Count | None = None
    active: bool | None = None
    owns_gil: bool | None = None
    torn: bool = False


class JsonThread(_JsonHead, omit_defaults=True):
    """A thread as py-spy's JSON has it, and what llmdiag adds when it takes the dump itself."""

    frames: list[JsonFrame] = []


class RawThread(_JsonHead, omit_defaults=True):
    """The same, its frames not decoded yet: most threads are seen where they were before."""

    frames: msgspec.Raw = msgspec.Raw(b"[]")


def decode(data: bytes, where: str) -> list[JsonThread]:
    """JSON output of py-spy. Raises Garbled."""
    try:
        return msgspec.json.decode(data, type=list[JsonThread])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_dump(where, error) from error


def _no_dump(where: str, error: Exception) -> Garbled:
    return Garbled(f"{where} is not a dump of py-spy: {error}", hint="dump again: py-spy dump --json --nonblocking --pid PID")


def from_json(threads: Iterable[JsonThread], source: Callable[[str], str]) -> tuple[Thread, ...]:
    """Decoded threads; `source` turns a place such as `threads/0` into that of a thread."""
    return tuple(_json_thread(source(f"threads/{number}"), thread, _json_frames(thread.frames)) for number, thread in enumerate(threads))


class Stacks:
    """Stacks that were decoded already: of a process that hangs, nine of ten are."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[tuple[Frame, ...], bool]] = {}

    def threads(self, threads: Iterable[RawThread], source: Callable[[str], str]) -> tuple[tuple[Thread, ...], bool]:
        """As `from_json`, and whether locals were read. Raises msgspec.DecodeError, RecursionError."""
        found, has_locals = [], False
        for number, thread in enumerate(threads):
            frames, has = self._frames(bytes(thread.frames))
            found.append(_json_thread(source(f"threads/{number}"), thread, frames))
            has_locals = has_locals or has
        return tuple(found), has_locals

    def _frames(self, raw: bytes) -> tuple[tuple[Frame, ...], bool]:
        found = self._known.get(raw)
        if found is None:
            decoded = msgspec.json.decode(raw, type=list[JsonFrame])
            found = self._known[raw] = _json_frames(decoded), any(frame.locals is not None for frame in decoded)
        return found


def read(artefact: Artefact, stacks: Stacks) -> tuple[int | None, tuple[Thread, ...], bool]:
    """A file of py-spy's JSON -> the process that it says it is of, its threads, and whether locals were read. Raises Garbled."""
    try:
        raw = msgspec.json.decode(artefact.bytes(), type=list[RawThread])
        threads, has_locals = stacks.threads(raw, artefact.key)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_dump(artefact.path, error) from error
    return next((thread.pid for thread in raw if thread.pid is not None), None), threads, has_locals


def from_text(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> list[Dump]:
    """Numbered lines -> the dumps among them; `pid` is used where the text names none."""
    reader = Reader(source)
    for number, line in lines:
        reader.line(number, without_prefix(line))
    return reader.finished(pid)


def frame_in(line: str) -> tuple[str, str, int | None] | None:
    """`name (file:line)` or `name (file)` -> (name, file, line); None when it is no frame."""
    name, bracket, place = line.strip().rpartition(" (")
    if not bracket or not name or len(place) < 2 or not place.endswith(")"):
        return None
    file, colon, number = place[:-1].rpartition(":")
    return (name, file, int(number)) if colon and file and number.isdecimal() and len(number) < 10 else (name, place[:-1], None)


def looks_like_json(head: str) -> bool:
    """Does a file that starts like this hold a JSON dump of py-spy?"""
    return head.lstrip().startswith("[") and '"frames"' in head and '"owns_gil"' in head and '"thread_id"' in head


def stack_lines(lines: Iterable[str]) -> Iterator[bool]:
    """For each line that is not blank: is it part of a dump in py-spy's text form?"""
    inside = in_error = False
    for line in map(without_prefix, lines):
        if not line.strip():
            continue
        starts = any(pattern.match(line) for pattern in (PROCESS, PYTHON, PARENT, THREAD)) or BY_WATCHDOG.search(line) is not None
        in_error = ERROR.match(line) is not None or (in_error and not starts)
        within = inside and (frame_in(line) is not None or LOCALS.match(line) is not None or LOCAL.match(line) is not None)
        inside = within or THREAD.match(line) is not None
        yield starts or within or in_error


def _json_thread(source: str, thread: _JsonHead, frames: tuple[Frame, ...]) -> Thread:
    tid = thread.os_thread_id
    if tid is None:
        tid = thread.pid if thread.thread_name == "MainThread" and thread.pid is not None else thread.thread_id
    return Thread(tid, thread.thread_name, frames, thread.active, thread.owns_gil, thread.torn, source=source)


def _json_frames(frames: Iterable[JsonFrame]) -> tuple[Frame, ...]:
    return tuple(_json_frame(f"/frames/{depth}", frame) for depth, frame in enumerate(frames))


def _json_frame(place: str, frame: JsonFrame) -> Frame:
    found = tuple(
        _local(local.name, local.repr, local.arg, f"{place}/locals/{local.name}") for local in frame.locals or () if local.repr is not None
    )
    return Frame(frame.name, frame.short_filename or frame.filename, frame.line or None, frame.module is not None, place, found)


def _local(var: str, printed: str, is_arg: bool, source: str) -> Local:
    return Local(var, printed, text_of(printed), was_cut(printed), is_arg, source)


@dataclass
class _OpenThread:
    """A thread whose frames are still being read."""

    id: int
    is_pthread: bool
    name: str | None
    state: str | None
    frames: list[Frame] = field(default_factory=list)


@dataclass
class _OpenDump:
    """A dump whose threads are still being read."""

    pid: int | None
    source: str
    title: str | None
    ppid: int | None = None
    threads: list[_OpenThread] = field(default_factory=list)
    error: list[str] = field(default_factory=list)
    locals_read: bool = False


@dataclass
class Reader:
    """Reads lines one by one; everything that is no part of a dump ends the current thread and is passed over."""

    source: Callable[[int], str]
    dumps: list[_OpenDump] = field(default_factory=list)
    thread: _OpenThread | None = None
    is_arg: bool | None = None
    in_error: bool = False
    announced: int | None = None

    def finished(self, pid: int | None = None) -> list[Dump]:
        """What was found; `pid` is used where the text names none."""
        return [_finished(open_dump, pid) for open_dump in self.dumps if open_dump.threads or open_dump.error]

    def line(self, number: int, line: str) -> None:
        if not line.strip():
            return
        if (match := PROCESS.match(line)) is not None:
            self._open(int(match[1]), number, match[2].strip())
        elif PYTHON.match(line) or line.startswith("-" * 20):
            self.thread, self.in_error = None, False
        elif (match := PARENT.match(line)) is not None:
            self.thread, self.in_error = None, False
            if self.dumps:
                self.dumps[-1].ppid = int(match[1])
        elif (match := THREAD.match(line)) is not None:
            self._open_thread(match, number)
        elif ERROR.match(line):
            self._open_error(line, number)
        elif self.in_error:
            self.dumps[-1].error.append(line)
        elif self.thread is None or not self._inside(line, number, self.thread):
            self.thread = None
            if (match := BY_WATCHDOG.search(line)) is not None:
                self.announced = int(match[1])

    def _open(self, pid: int | None, number: int, title: str | None = None) -> _OpenDump:
        self.dumps.append(_OpenDump(pid, self.source(number), title))
        self.thread, self.is_arg, self.in_error, self.announced = None, None, False, None
        return self.dumps[-1]

    def _open_thread(self, match: re.Match[str], number: int) -> None:
        thread = _OpenThread(int(match[1], 0), match[1].startswith("0x"), match[3], match[2])
        dump = self.dumps[-1] if self.dumps else None
        known = dump is not None and any(other.id == thread.id for other in dump.threads)
        if dump is None or known or dump.error or self.announced is not None:
            dump = self._open(self.announced, number)
        dump.threads.append(thread)
        self.thread, self.is_arg, self.in_error = thread, None, False

    def _open_error(self, line: str, number: int) -> None:
        dump = self.dumps[-1] if self.dumps else None
        if dump is None or dump.threads or dump.error:
            dump = self._open(self.announced, number)
        dump.error.append(line)
        self.thread, self.in_error = None, True

    def _inside(self, line: str, number: int, thread: _OpenThread) -> bool:
        """A frame, or a local variable of the last frame."""
        if thread.frames and (match := LOCALS.match(line)) is not None:
            self.is_arg = match[1] == "Arguments"
            self.dumps[-1].locals_read = True
            return True
        if self.is_arg is not None and (match := LOCAL.match(line)) is not None:
            last = thread.frames[-1]
            local = _local(match[1], match[2].rstrip(), self.is_arg, self.source(number))
            thread.frames[-1] = Frame(last.name, last.file, last.line, last.native, last.source, (*last.locals, local))
            return True
        found = frame_in(line)
        if found is None or (not line[0].isspace() and not UNINDENTED.match(line)):
            return False
        name, file, place = found
        thread.frames.append(Frame(name, file, place, is_native(name, file, place), self.source(number)))
        self.is_arg = None
        return True


def _finished(dump: _OpenDump, fallback: int | None) -> Dump:
    pid = dump.pid if dump.pid is not None else fallback
    pid = _main_thread(dump) if pid is None else pid
    threads = tuple(_finished_thread(thread, pid) for thread in dump.threads)
    failure = classify("\n".join(without_backtrace(dump.error))) if dump.error and not threads else None
    return Dump(pid, TOOL, threads, dump.source, failure, dump.locals_read, title=dump.title, ppid=dump.ppid)


def _finished_thread(thread: _OpenThread, pid: int | None) -> Thread:
    tid = pid if thread.is_pthread and thread.name == "MainThread" and pid is not None else thread.id
    active = None if thread.state is None else thread.state != "idle"
    # `idle` does not rule out that the thread holds the GIL: only `active+gil` says something
    owns_gil = True if thread.state == "active+gil" else None if thread.state in (None, "idle") else False
    return Thread(tid, thread.name, tuple(thread.frames), active, owns_gil)


def _main_thread(dump: _OpenDump) -> int | None:
    """The pid of a dump that names none: its main thread's id, by name, else by what it runs."""
    real = [thread for thread in dump.threads if not thread.is_pthread]
    named = [thread.id for thread in real if thread.name == "MainThread"]
    by_entry = [thread.id for thread in real if (outermost(Thread(0, None, tuple(thread.frames))) or ("", ""))[0] in ENTRIES - _OF_THREADS]
    found = named or by_entry
    return found[0] if len(found) == 1 else None


_OF_THREADS = frozenset(("_bootstrap", "__bootstrap"))
