"""Artefacts of the threads collector, and saved thread lists, -> rows of `threads` and `thread_states`."""

import datetime
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from diag import procfs
from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.parsers import thread_lists
from diag.parsers.bounds import Count, Epoch

ARTEFACT = '{"artefact":"threads"'
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


Futex = tuple[str, int | None, int | None]
"""Lock a thread waits for: address in hex, its word, thread that holds it as the host knows it; None where it does not say."""


class Header(msgspec.Struct, frozen=True):
    """First line: which full pass, or None for the quick reads."""

    artefact: str
    ts: Epoch
    read: Count | None = None
    ticks_per_s: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100


class Task(msgspec.Struct, frozen=True):
    """One thread in a full pass; what could not be read is None."""

    pid: Count
    started: Epoch
    tid: Count
    ts: Epoch
    name: str
    state: str
    ticks: tuple[Count, Count]
    sched: tuple[Nanoseconds, Nanoseconds, Count] | None = None
    switches: tuple[Count, Count] | None = None
    ns_tid: Count | None = None
    wchan: str | None = None
    syscall: str | None = None
    futex: Futex | None = None


class Look(msgspec.Struct, frozen=True, omit_defaults=True):
    """Equal quick reads of one thread: of its state, or of the system call it is in."""

    pid: Count
    started: Epoch
    tid: Count
    beat: Count
    ts: Epoch
    hits: Count
    state: str | None = None
    no: int | None = None
    fd: Count | None = None
    peer: str | None = None


def rows(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Saved lists are numbered in order of time; they say nothing of themselves but that. Raises Garbled."""
    saved = []
    for artefact in sorted(artefacts, key=lambda item: item.path):
        if next((line for _, line in artefact.lines()), "").startswith(ARTEFACT):
            yield from _ours(artefact)
        else:
            saved.append(artefact)
    yield from _saved(saved)


def _ours(artefact: Artefact) -> Iterator[Row]:
    """Rows of one of our artefacts. Raises Garbled with the line."""
    ticks_per_s, read = 100, 0
    for number, line in artefact.lines():
        try:
            if number == 1:
                header = msgspec.json.decode(line, type=Header)
                ticks_per_s, read, full = header.ticks_per_s, header.read or 0, header.read is not None
            elif full:
                yield "threads", _thread_row(artefact.at(number), msgspec.json.decode(line, type=Task), read, ticks_per_s)
            else:
                yield "thread_states", _look_row(artefact.at(number), msgspec.json.decode(line, type=Look))
        except msgspec.MsgspecError as error:
            raise Garbled(f"{artefact.at(number)} is not a line of the threads collector: {error}", hint="collect again") from error


def _thread_row(source: str, task: Task, read: int, ticks_per_s: int) -> dict[str, object]:
    return {
        "read": read, "ts": procfs.utc(task.ts), "pid": task.pid, "started_at": procfs.utc(task.started), "tid": task.tid,
        "name": task.name, "state": task.state, "user_s": task.ticks[0] / ticks_per_s, "sys_s": task.ticks[1] / ticks_per_s,
        "run_s": task.sched and task.sched[0] / 1e9, "runq_s": task.sched and task.sched[1] / 1e9,
        "vol_switches": task.switches and task.switches[0], "invol_switches": task.switches and task.switches[1],
        "wchan": task.wchan, "syscall": task.syscall, "ns_tid": task.ns_tid,
        "futex_address": task.futex and task.futex[0], "futex_owner_tid": task.futex and task.futex[2], "source": source,
    }


def _look_row(source: str, look: Look) -> dict[str, object]:
    return {
        "read": look.beat, "ts": procfs.utc(look.ts), "pid": look.pid, "started_at": procfs.utc(look.started), "tid": look.tid,
        "state": look.state, "sys_no": look.no, "fd": look.fd, "peer": look.peer, "hits": look.hits, "source": source,
    }


def _saved(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Rows of saved lists and of `top`, one read after the other."""
    times, lists, tops = {}, [], []
    for artefact in artefacts:
        text = artefact.text()
        if thread_lists.is_time(artefact.name, text):
            times[_pair(artefact)] = float(text)
        elif thread_lists.is_top(text):
            tops.append(artefact)
        elif thread_lists.is_tasks(text):
            lists.append(artefact)
        else:
            raise Garbled(f"{artefact.path} is no list of threads", hint="collect again, or save top -H -b -n 3 > top.txt")
    lists.sort(key=lambda item: (times.get(_pair(item), 0.0), item.path))
    for read, artefact in enumerate(lists):
        ts = times.get(_pair(artefact))
        for task in thread_lists.tasks(artefact.lines()):
            yield "threads", _saved_row(artefact, task, read, None if ts is None else procfs.utc(ts))
    of_threads = [item for item in tops if thread_lists.shows_threads(item.lines())]
    yield from _tops(of_threads, len(lists))
    if lists or of_threads:
        # a list says nothing of what was between two of them: there is nothing that could have been read
        yield "collected", {"table_name": "thread_states", "status": "ok", "reason": "saved lists hold no quick reads"}
    elif tops:
        reason = f"{tops[0].path} lists whole processes: take top -H -b -n 3 > top.txt"
        yield "collected", {"table_name": "threads", "status": "partial", "reason": reason}


def _tops(artefacts: Sequence[Artefact], read: int) -> Iterator[Row]:
    """Iterations of `top -H`; percentages of the first are of the whole life of a thread and left out."""
    for artefact in artefacts:
        last = -1
        for task in thread_lists.top(artefact.lines()):
            row = _saved_row(artefact, task, read + task.read, None)
            yield "threads", row if task.read > 0 else {**row, "cpu_pct": None}
            last = task.read
        read += last + 1


def _saved_row(artefact: Artefact, task: thread_lists.Task, read: int, ts: datetime.datetime | None) -> dict[str, object]:
    return {
        "read": read, "ts": ts, "pid": task.pid, "tid": task.tid, "name": task.name, "state": task.state,
        "user_s": task.user_s, "sys_s": task.sys_s, "wchan": task.wchan, "cpu_pct": task.cpu_pct, "source": artefact.at(task.line),
    }


def _pair(artefact: Artefact) -> tuple[str, str]:
    """Folder and number: what `threads2.txt` and `t2` have in common."""
    return artefact.path.rpartition("/")[0], thread_lists.number(artefact.name)
