"""Threads that wait for a mutex, the thread that holds it, and the circles they wait in: a deadlock, named without a pause.

A thread waits for one mutex at a time and a mutex has one owner, so following the owners either ends or goes round. The
reads of a pass are not made at one instant: only a circle that is the same in the first and in the last read counts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("threads",)
GIVES: tuple[Table, ...] = (
    table(
        "futex_waits",
        "Threads that wait for a pthread mutex whose owner is known",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: thread that waits",
        "owner_tid BIGINT: thread that holds the mutex", "address VARCHAR: address of the mutex, hex",
        "reads BIGINT: reads in which it waited for this mutex and this owner held it",
        "of BIGINT: full reads of the capture",
    ),
    table(
        "futex_cycles",
        "Threads that wait for each other's mutexes in a circle, the same in the first and in the last read",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process",
        "cycle VARCHAR: each thread and the one it waits for, 19628 -> 19629 -> 19628",
        "tids VARCHAR: the threads, joined by comma and space", "length BIGINT: number of threads; 1 = it waits for a mutex it holds itself",
        "reads BIGINT: reads in which all of them waited like this",
    ),
)

CAPTURE = ["bundle", "host", "capture"]
PROCESS = ["pid", "started_at"]


@dataclass(frozen=True)
class Wait:
    """One thread waits for one mutex of another."""

    tid: int
    owner: int
    address: str


Waits = Mapping[Wait, str]
"""Who waits in one read, and where that is written."""


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """threads -> futex_waits, futex_cycles."""
    import pandas as pd

    rows = frames["threads"]
    if rows.empty or not rows["futex_owner_tid"].notna().any():
        return {}
    waits: list[dict[str, object]] = []
    cycles: list[dict[str, object]] = []
    for capture, here in rows.groupby(CAPTURE, dropna=False, sort=False):
        reads = sorted(int(read) for read in here["read"].dropna().unique())
        waiting = here[here["futex_owner_tid"].notna() & here["read"].notna() & here["tid"].notna()]
        for process, group in waiting.groupby(PROCESS, dropna=False, sort=False):
            who = dict(zip((*CAPTURE, *PROCESS), (*capture, *process), strict=True))
            seen = _by_read(group, reads)
            waits += [{**who, **row, "of": len(reads)} for row in _waits(seen)]
            cycles += [{**who, **row} for row in _lasting(seen)]
    given = {"futex_waits": pd.DataFrame(waits)} if waits else {}
    return {**given, "futex_cycles": pd.DataFrame(cycles)} if cycles else given


def cycles_of(owners: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Thread -> the thread it waits for; gives each circle once, from its smallest thread id on."""
    done: set[int] = set()
    for start in owners:
        path: list[int] = []
        tid: int | None = start
        while tid is not None and tid not in done:
            done.add(tid)
            path.append(tid)
            tid = owners.get(tid)
        if tid is not None and tid in path:
            circle = path[path.index(tid) :]
            first = circle.index(min(circle))
            yield (*circle[first:], *circle[:first])


def _by_read(rows: "pd.DataFrame", reads: list[int]) -> list[Waits]:
    """The waits of one process in each read of its capture, first read first."""
    found: dict[int, dict[Wait, str]] = {read: {} for read in reads}
    columns = (rows[name] for name in ("read", "tid", "futex_owner_tid", "futex_address", "source"))
    for read, tid, owner, address, source in zip(*columns, strict=True):
        found[int(read)][Wait(int(tid), int(owner), str(address))] = str(source)
    return [found[read] for read in reads]


def _waits(seen: list[Waits]) -> Iterator[dict[str, object]]:
    for wait in dict.fromkeys(wait for waits in seen for wait in waits):
        sources = [waits[wait] for waits in seen if wait in waits]
        yield {"tid": wait.tid, "owner_tid": wait.owner, "address": wait.address, "reads": len(sources), "source": sources[-1]}


def _lasting(seen: list[Waits]) -> Iterator[dict[str, object]]:
    """Circles whose every wait, mutex included, is in the first and in the last read."""
    if len(seen) < 2:
        return
    first, last = seen[0], seen[-1]
    lasting = {wait.tid: wait for wait in first if wait in last}
    for circle in cycles_of({tid: wait.owner for tid, wait in lasting.items()}):
        needed = [lasting[tid] for tid in circle]
        yield {
            "cycle": " -> ".join(str(tid) for tid in (*circle, circle[0])), "tids": ", ".join(str(tid) for tid in circle),
            "length": len(circle), "reads": sum(all(wait in waits for wait in needed) for waits in seen),
            "source": last[needed[0]],
        }
