"""Snapshots of one process with one fact changed: what the kernel says of it, how its threads wait, who waits at its port."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from edits import Files, change_lines, named

READ_0, READ_1 = "-0.jsonl", "-1.jsonl"


def _kernel_says(text: str) -> Callable[[Files], None]:
    """One line in the kernel's log, of the process that ended."""

    def change(files: Files) -> None:
        (name,) = named(files, "/host/dmesg.txt")
        files[name] = f"2026-11-30T10:14:45,204113+00:00 {text}\n"

    return change


def _each(kind: str, **values: Any) -> Callable[[Files], None]:
    """Threads of the last read; a function makes its value of the old one."""

    def of(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, **{name: value(line[name]) if callable(value) else value for name, value in values.items()}} if _is(kind, line) else line

    return lambda files: change_lines(files, f"/threads/tasks{READ_1}", of)


def _is(kind: str, line: dict[str, Any]) -> bool:
    return bool(line.get("futex")) if kind == "waits for a mutex" else "tid" in line


def woken_often(files: Files) -> None:
    """Both threads wait for a tenth of a second at a time, and ask again: pthread_mutex_timedlock in a loop."""
    _each("waits for a mutex", switches=lambda old: [old[0] + 53, old[1]])(files)


def slept_between(files: Files) -> None:
    """It slept for most of the time between the two reads: it matches one short text after another."""
    _each("any", ticks=lambda old: [old[0] - 150, old[1]], sched=lambda old: [old[0] - 1_500_000_000, old[1] - 3_300_000_000, old[2]])(files)


def waiting(first: int, last: int) -> Callable[[Files], None]:
    """So many connections wait to be accepted at the first and at the last read."""

    def change(files: Files) -> None:
        for read, count in ((READ_0, first), (READ_1, last)):
            change_lines(files, f"/sockets/sockets{read}", lambda line, count=count: {**line, "recv_q": count} if line.get("state") == "LISTEN" else line)

    return change


def answer_unread(files: Files) -> None:
    """An answer of its cache server has come in, and it does not read it."""
    for name in named(files, "/sockets/sockets-"):
        listening = next(json.loads(line) for line in files[name].splitlines() if '"LISTEN"' in line)
        row = {**listening, "state": "ESTABLISHED", "fd": 6, "inode": 2074901, "lport": 51234, "raddr": "10.0.0.5", "rport": 6379, "recv_q": 1448, "send_q": 0}
        row.pop("own_q", None)
        files[name] += json.dumps(row, separators=(",", ":")) + "\n"


EDITS: Mapping[str, tuple[str, Callable[[Files], None]]] = {
    "process-ended/segfault": ("process-ended/incident", _kernel_says("python[29383]: segfault at 0 ip 00007f1c0a2b3c4d sp 00007ffd1e2f3a40 error 4 in libc.so.6[7f1c0a1d0000+155000]")),
    "process-ended/hung-before": ("process-ended/incident", _kernel_says("INFO: task python:29383 blocked for more than 120 seconds.")),
    "lock-cycle/timed-waits": ("lock-cycle/incident", woken_often),
    "regex-backtracking/slept-between": ("regex-backtracking/incident", slept_between),
    "service-silent/backlog": ("service-silent/incident", waiting(2, 5)),
    "service-silent/backlog-shrinks": ("service-silent/incident", waiting(5, 2)),
    "service-silent/answer-unread": ("service-silent/incident", answer_unread),
}
"""Sample -> the one that it is made of, and its change."""
