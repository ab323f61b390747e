"""Recordings of strace: what each thread asked of the kernel, how often and for how long.

    15479 07:11:27.534767 munmap(0x7f1bc57ba000, 16384 <unfinished ...>
    15478 07:11:27.534850 <... futex resumed>) = -1 EAGAIN (Resource temporarily unavailable) <0.000027>

and the summary of `strace -c`:

    % time     seconds  usecs/call     calls    errors syscall
     93.75    0.000015          15         1         1 restart_syscall
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from diag.model import Row
from diag.tables import Table, table

SYSCALL_COUNTS = table(
    "syscall_counts",
    "System calls recorded by strace",
    "pid BIGINT: process id as the host sees it; NULL = the recording does not say",
    "started_at TIMESTAMP: start of the process; identity is (host, pid, started_at); NULL = the pid is not known",
    "tid BIGINT: thread id as the host sees it; NULL = the summary is of all threads, or only one thread was recorded",
    "syscall VARCHAR: name",
    "calls BIGINT: how often it was called",
    "errors BIGINT: how often it failed",
    "seconds DOUBLE: time spent in it; NULL = it was recorded without -T",
)

SUMMARY = re.compile(r"^% time\s+seconds\s+usecs/call\s+calls\s+errors\s+syscall\s*$")
SUMMARY_ROW = re.compile(r"^\s*[\d.]+\s+(\d{1,12}\.\d+)\s+(?:\d+\s+)?(\d{1,15})(?:\s+(\d{1,15}))?\s+([a-z_]\w*)\s*$")
ATTACHED = re.compile(r"^strace: Process (\d{1,10}) attached(?: with \d+ threads)?\s*$")
CALL = re.compile(
    r"^(?:\[pid\s+(?P<pid>\d{1,10})\]\s|(?P<tid>\d{1,10})\s+)?(?:(?:\d\d:\d\d:\d\d|\d+)(?:\.\d+)?\s+){0,2}"
    r"(?:(?P<name>[a-z_]\w*)\(|<\.\.\. (?P<resumed>[a-z_]\w*) resumed>)(?P<rest>.*)$"
)
RESULT = re.compile(r"\)\s+= (?P<value>-?\d+|0x[0-9a-f]+|\?)(?P<errno> E[A-Z0-9]+| ERESTART\w*)?.*?(?:<(?P<seconds>\d{1,9}\.\d{1,9})>)?\s*$")
EVENT = re.compile(r"^(?:\[pid\s+\d+\]\s|\d+\s+)?(?:[\d:.]+\s+)?(?:---|\+\+\+) .* (?:---|\+\+\+)\s*$")


@dataclass
class _Count:
    """One system call of one thread."""

    source: str
    calls: int = 0
    errors: int = 0
    seconds: float | None = None


def rows(lines: Iterable[tuple[int, str]], source: Callable[[int], str], pid: int | None = None) -> Iterator[Row]:
    """Numbered lines -> rows of syscall_counts."""
    counts: dict[tuple[int | None, str], _Count] = {}
    in_summary = False
    for number, line in lines:
        if SUMMARY.match(line):
            in_summary = True
        elif in_summary and (match := SUMMARY_ROW.match(line)) is not None:
            if match[4] != "total":
                seconds, calls, errors = float(match[1]), int(match[2]), int(match[3] or 0)
                yield "syscall_counts", _row(pid, None, match[4], _Count(source(number), calls, errors, seconds))
        elif (match := ATTACHED.match(line)) is not None:
            pid = int(match[1]) if pid is None else pid
        elif (match := CALL.match(line)) is not None:
            _count(counts, match, source(number))
    for (tid, name), count in counts.items():
        yield "syscall_counts", _row(pid, tid, name, count)


def trace_lines(lines: Iterable[str]) -> Iterator[bool]:
    """For each line that is not blank: is it part of a recording?"""
    in_summary = False
    for line in lines:
        if line.strip():
            in_summary = in_summary or SUMMARY.match(line) is not None
            yield _is_part(line, in_summary)


def _is_part(line: str, in_summary: bool) -> bool:
    if in_summary:
        return bool(SUMMARY.match(line) or SUMMARY_ROW.match(line) or line.startswith("----"))
    match = CALL.match(line)
    call = match is not None and ("<unfinished" in match["rest"] or RESULT.search(match["rest"]) is not None or " <detached" in line)
    return call or EVENT.match(line) is not None or line.startswith("strace: ")


def _count(counts: dict[tuple[int | None, str], _Count], match: re.Match[str], source: str) -> None:
    thread = match["pid"] or match["tid"]
    tid = None if thread is None else int(thread)
    count = counts.setdefault((tid, match["name"] or match["resumed"]), _Count(source))
    count.calls += match["name"] is not None
    result = RESULT.search(match["rest"])
    if result is None:
        return
    count.errors += result["errno"] is not None
    if result["seconds"] is not None:
        count.seconds = (count.seconds or 0.0) + float(result["seconds"])


def _row(pid: int | None, tid: int | None, name: str, count: _Count) -> dict[str, object]:
    seconds = None if count.seconds is None else round(count.seconds, 6)
    return {
        "pid": pid, "tid": tid, "syscall": name, "calls": count.calls, "errors": count.errors, "seconds": seconds,
        "source": count.source,
    }


TABLES: tuple[Table, ...] = (SYSCALL_COUNTS,)
