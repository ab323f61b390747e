"""Saved lists of threads -> plain values: `threads1.txt` with `t1` beside it, and `top -H -b`.

    30339 30339 VLLM::EngineCor R 1609 144 futex_do_wait

has pid, tid, name, state, user and system CPU in ticks of 10 ms, and the kernel function the thread sleeps in; `t1`
holds the time of the read in epoch seconds. `top` prints one block an iteration:

    top - 02:41:10 up 3 days,  1 user,  load average: 4.10, 3.90, 3.80
    Threads: 212 total,   3 running, 209 sleeping,   0 stopped,   0 zombie
        PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
      30339 root      20   0   12.3g 594196  93000 R  99.0   3.6   0:17.53 VLLM::EngineCor
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

TICKS_PER_S = 100
TASK = re.compile(r"(\d+) (\d+) (.*) ([RSDTtZXIKWP]) (\d+) (\d+)(?: (\S*))?\s*")
TIME_NAME = re.compile(r"t(\d+)(?:\.txt)?")
EPOCH = re.compile(r"\d{9,10}(?:\.\d+)?")
NUMBER_IN_NAME = re.compile(r"(\d+)\D*$")


class Task(NamedTuple):
    """One line of a list; what it does not say is None. `read` counts the iterations of `top` from 0."""

    line: int
    pid: int | None
    tid: int
    name: str
    state: str
    user_s: float | None = None
    sys_s: float | None = None
    wchan: str | None = None
    cpu_pct: float | None = None
    read: int = 0


def is_tasks(head: str) -> bool:
    """A list as in `threads1.txt`: every line is one thread."""
    lines = head.splitlines()[:6]
    return bool(lines) and all(TASK.fullmatch(line) for line in lines)


def is_time(name: str, head: str) -> bool:
    """A file like `t1` that holds nothing but epoch seconds."""
    return bool(TIME_NAME.fullmatch(name) and EPOCH.fullmatch(head.strip()))


def is_top(head: str) -> bool:
    lines = head.splitlines()
    return any(line.startswith("top - ") for line in lines) and any(_columns(line) for line in lines)


def shows_threads(lines: Iterable[tuple[int, str]]) -> bool:
    """Was top asked for threads (`-H`)? Else its rows are whole processes."""
    return any(line.lstrip().startswith("Threads:") for _, line in lines)


def number(name: str) -> str:
    """`threads2.txt` -> `2`: pairs a list with its time file."""
    found = NUMBER_IN_NAME.search(name)
    return found.group(1) if found else ""


def tasks(lines: Iterable[tuple[int, str]]) -> Iterator[Task]:
    """Numbered lines of a `threads1.txt`; lines that are none are left out."""
    for line, text in lines:
        found = TASK.fullmatch(text)
        if found is not None:
            pid, tid, name, state, user, system, wchan = found.groups()
            yield Task(line, int(pid), int(tid), name, state, int(user) / TICKS_PER_S, int(system) / TICKS_PER_S, wchan or None)


def top(lines: Iterable[tuple[int, str]]) -> Iterator[Task]:
    """Numbered lines of `top -H -b`. `pid` is known only where the list has a TGID column."""
    columns: list[str] = []
    read = -1
    for line, text in lines:
        if text.startswith("top - "):
            read += 1
            columns = []
        elif found := _columns(text):
            columns = found
        elif columns and (cells := _cells(columns, text)) is not None:
            yield Task(
                line, int(cells["TGID"]) if cells.get("TGID", "").isdecimal() else None, int(cells["PID"]),
                cells["COMMAND"], cells["S"], cpu_pct=_percent(cells.get("%CPU")), read=max(0, read),
            )


def _columns(line: str) -> list[str]:
    names = line.split()
    return names if {"PID", "S", "%CPU", "COMMAND"} <= set(names) and names[-1] == "COMMAND" else []


def _cells(columns: list[str], line: str) -> Mapping[str, str] | None:
    cells = line.split(None, len(columns) - 1)
    if len(cells) != len(columns):
        return None
    found = dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    return found if found["PID"].isdecimal() and len(found["S"]) == 1 else None


def _percent(text: str | None) -> float | None:
    """`99.0`, in some locales `99,0`."""
    try:
        return None if text is None else float(text.replace(",", "."))
    except ValueError:
        return None
