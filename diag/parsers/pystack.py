"""Dumps of pystack: the outermost frame comes first, the other way round than everywhere else.

    Traceback for thread 15156 (python) [Has the GIL] (most recent call last):
        (C) File "./nptl/pthread_create.c", line 442, in start_thread (/usr/lib/x86_64-linux-gnu/libc.so.6)
        (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
            self._bootstrap_inner()
          Arguments:
            self: <Thread at 0x7f1707003590>

The name in parentheses is the kernel's (comm), not Python's.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from diag.parsers.log_prefix import without_prefix
from diag.parsers.stack_dumps import Dump, Failure, Frame, Local, Thread

TOOL = "pystack"

THREAD = re.compile(r"^\s*Traceback for thread (\d{1,10})(?: \((.*?)\))? \[(.*)\] \(most recent call last\):\s*$")
FRAME = re.compile(r'^\s*\((Python|C|Cython|C\+\+)\) File "(.*)", line (\d{1,9}|\?), in (.+?)(?: \((/[^()]*|[^() ]+\.so[^() ]*)\))?\s*$')
LOCALS = re.compile(r"^\s*(Arguments|Locals):\s*$")
LOCAL = re.compile(r"^\s*(\.?\w+): (.*)$")
STRING = re.compile(r'^b?"(.*)"(\.\.\.)?$', re.DOTALL)
FAILED = re.compile(r"^\s*💀 (.+?) 💀\s*$")
_MAIN = frozenset(("<module>", "_run_module_as_main", "_shutdown"))


@dataclass
class _Open:
    """A thread whose frames are still being read, outermost first."""

    id: int
    flags: str
    frames: list[Frame] = field(default_factory=list)


def from_text(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> list[Dump]:
    """Numbered lines -> dumps. Without `pid` it is the id of the thread that runs the main program."""
    dumps: list[tuple[str, list[_Open]]] = []
    failures: list[Dump] = []
    is_arg: bool | None = None
    for number, raw in lines:
        line = without_prefix(raw)
        if (match := THREAD.match(line)) is not None:
            thread = _Open(int(match[1]), match[3])
            if not dumps or any(thread.id == other.id for other in dumps[-1][1]):
                dumps.append((source(number), []))
            dumps[-1][1].append(thread)
            is_arg = None
        elif (match := FAILED.match(line)) is not None:
            failures.append(Dump(pid, TOOL, (), source(number), _failure(match[1])))
        elif dumps:
            is_arg = _read(line, dumps[-1][1][-1], source(number), is_arg)
    return [_finished(threads, place, pid) for place, threads in dumps] + failures


def stack_lines(lines: Iterable[str]) -> Iterator[bool]:
    """For each line that is not blank: is it part of a dump? Source lines shown below a frame count too."""
    below = False
    for line in map(without_prefix, lines):
        if line.strip():
            known = any(pattern.match(line) for pattern in (THREAD, FRAME, LOCALS, FAILED))
            yield known or (below and line.startswith(" "))
            below = known or (below and line.startswith(" "))


def _read(line: str, thread: _Open, source: str, is_arg: bool | None) -> bool | None:
    """One line below a thread; returns whether locals that follow are arguments, None outside of locals."""
    if (match := FRAME.match(line)) is not None:
        native = match[1] != "Python"
        place = int(match[3]) if match[3].isdecimal() and match[3] != "0" else None
        file = match[2] if match[2] not in ("", "???") else match[5] or "???"
        thread.frames.append(Frame(match[4], file, place, native, source))
        return None
    if thread.frames and (match := LOCALS.match(line)) is not None:
        return match[1] == "Arguments"
    if is_arg is not None and (match := LOCAL.match(line)) is not None:
        last = thread.frames[-1]
        thread.frames[-1] = replace(last, locals=(*last.locals, _local(match[1], match[2].rstrip(), is_arg, source)))
        return is_arg
    return None if line.strip() else is_arg


def _local(var: str, printed: str, is_arg: bool, source: str) -> Local:
    """Bytes are shown like strings; a string that was cut has dots behind its closing quote."""
    match = STRING.match(printed)
    return Local(var, printed, match[1] if match else None, bool(match and match[2]), is_arg, source)


def _finished(threads: list[_Open], source: str, pid: int | None) -> Dump:
    if pid is None:
        main = [thread.id for thread in threads if _runs_main(thread)]
        pid = main[0] if len(main) == 1 else None
    found = tuple(
        Thread(thread.id, None, tuple(reversed(thread.frames)), owns_gil=_owns_gil(thread.flags)) for thread in threads
    )
    locals_read = any(frame.locals for thread in threads for frame in thread.frames)
    return Dump(pid, TOOL, found, source, locals_read=locals_read)


def _runs_main(thread: _Open) -> bool:
    first = next((frame for frame in thread.frames if not frame.native), None)
    return first is not None and first.name in _MAIN


def _owns_gil(flags: str) -> bool | None:
    return True if "Has the GIL" in flags else False if "Waiting for the GIL" in flags else None


def _failure(words: str) -> Failure:
    lowered = words.lower()
    if "not permitted" in lowered or "permission" in lowered:
        return Failure("denied", f"pystack may not read the process: {words}", "run it as root, or with CAP_SYS_PTRACE")
    if "task" in lowered or "no such" in lowered:
        return Failure("ended", f"pystack found no such process: {words}", "look for the pid of the new process")
    return Failure("unknown", f"pystack failed: {words}", "dump with py-spy dump --json --nonblocking --pid PID")
