"""Who held device memory when an engine could not get it: an orphan of an earlier life, another engine, somebody else. Pure.

An engine's children (EngineCore, workers, schedulers) outlive an API server that is killed: they keep their memory, get a
supervisor, a shell or pid 1 for a parent, and no port tells of them. An API server below pid 1 is how services run, and no orphan.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diag import procfs
from diag.parsers.process_titles import role
from diag.recovery.shortage import GIB, Shortage

CHILDREN = frozenset({"engine_core", "worker", "scheduler", "detokenizer"})
ENGINE = CHILDREN | {"api_server"}
LEAST_SHARE = 0.25
"""Who holds less than this of what is held did not make the difference."""
SLACK_BYTES = 3 * GIB // 2
NOBODY_BYTES, NOBODY_SHARE = 3 * GIB // 2, 0.08
"""So much of a card is never free: driver, contexts, what the firmware keeps."""
SAME_START_S = 5.0
Time = datetime.datetime


@dataclass(frozen=True)
class Process:
    """A process that may hold device memory; None = not told."""

    pid: int
    source: str
    ppid: int | None = None
    started_at: Time | None = None
    age_s: float | None = None
    role: str = "other"
    cmd: str | None = None
    comm: str | None = None
    gpu: int | None = None
    used_bytes: int | None = None
    listed: bool = True
    """It stands in a list of processes; else only a device tool or a message names it."""

    @property
    def program(self) -> str:
        return (self.comm or "") if not self.cmd else procfs.program(self.cmd.split())


@dataclass(frozen=True)
class Holder:
    """One process on the device beside the engine that failed.

    `kind`: orphan | engine (another one, with a living parent) | other (another program) | unseen (its parent is not told)
    """

    process: Process
    kind: str
    why: str


@dataclass(frozen=True)
class Failed:
    """The engine that did not get memory."""

    pid: int | None
    began_at: Time | None
    at: Time
    shortage: Shortage
    starting: bool = True
    """It was not ready yet: whoever held the memory was there before it."""


def merged(processes: Sequence[Process], devices: Sequence[Process]) -> dict[int, list[Process]]:
    """Lists of processes and of devices joined: pid -> one record per device that it is on (or one without a device)."""
    listed = {item.pid: item for item in processes}
    found: dict[int, list[Process]] = {pid: [item] for pid, item in listed.items()}
    on: dict[int, dict[int | None, Process]] = {}
    for item in devices:
        on.setdefault(item.pid, {})[item.gpu] = item
    for pid, items in on.items():
        known = listed.get(pid)
        found[pid] = [
            item if known is None
            else replace(known, gpu=item.gpu, used_bytes=item.used_bytes, source=item.source, started_at=known.started_at or item.started_at)
            for item in items.values()
        ]  # fmt: skip
    return found


def holders(failed: Failed, known: Mapping[int, Sequence[Process]], left_over: frozenset[int]) -> list[Holder]:
    """Who beside the failed engine was on its device, the largest first. `left_over`: pids that a supervisor found still there."""
    shortage = failed.shortage
    if is_alone(shortage):
        return []
    first = {pid: items[0] for pid, items in known.items()}
    gpu = _device(failed, known)
    named = dict(shortage.others)
    found: list[Holder] = []
    for pid in dict.fromkeys([*named, *known]):
        candidates = known.get(pid) or [Process(pid, "", listed=False)]
        process = next((item for item in candidates if item.gpu == gpu), candidates[0]) if gpu is not None else candidates[0]
        if pid in named:
            process = replace(process, used_bytes=named[pid])
        elif pid not in left_over and not _may_be_there(process, gpu, shortage, told=bool(named)):
            continue
        if _is_itself(process, failed, first):
            continue
        kind, why = _kind(process, first, left_over)
        if process.used_bytes is None and (kind not in ("orphan", "unseen") or (kind == "unseen" and process.gpu is None)):
            continue  # a list of processes alone does not say who is on a device; an engine nobody owns has no business anywhere
        found.append(Holder(process, kind, why))
    if any(item.used_bytes is not None or item.gpu is not None for items in known.values() for item in items):
        found = _told_by_device(found, first, left_over)
    return sorted(found, key=lambda holder: -(holder.process.used_bytes or 0))


def _told_by_device(found: Sequence[Holder], known: Mapping[int, Process], left_over: frozenset[int]) -> list[Holder]:
    """Where the device's own list tells who is on it: those, and what belongs to the same engine (its core may hold nothing itself)."""
    there = {_top(holder.process, known).pid for holder in found if holder.process.used_bytes is not None or holder.process.gpu is not None}
    return [holder for holder in found if _top(holder.process, known).pid in there or holder.process.pid in left_over]


def is_alone(shortage: Shortage) -> bool:
    """Do the figures of the message say that nobody else holds much of the device?"""
    held, total = shortage.held_bytes, shortage.total_bytes
    return held is not None and total is not None and not shortage.others and held <= max(NOBODY_BYTES, NOBODY_SHARE * total)


def matters(holder: Holder, shortage: Shortage) -> bool:
    """Does what it holds make the difference? Unknown sizes are given the benefit of the doubt."""
    held, used = shortage.held_bytes, holder.process.used_bytes
    if used is None:
        return True
    return used >= LEAST_SHARE * held if held else used >= NOBODY_BYTES


def _may_be_there(process: Process, gpu: int | None, shortage: Shortage, *, told: bool) -> bool:
    """Could it be on that device? When a message names who is, nobody else was."""
    if told or (gpu is not None and process.gpu is not None and process.gpu != gpu):
        return False
    if process.gpu is None and process.role not in CHILDREN:
        return False
    held = shortage.held_bytes
    return held is None or process.used_bytes is None or process.used_bytes <= held + SLACK_BYTES


def _device(failed: Failed, known: Mapping[int, Sequence[Process]]) -> int | None:
    """Number of the device as its tool counts; what the engine calls 0 may be any card. None = not known."""
    own = [item.gpu for pid, items in known.items() for item in items if pid == failed.pid and item.gpu is not None]
    if own:
        return own[0]
    devices = {item.gpu for items in known.values() for item in items if item.gpu is not None}
    return next(iter(devices)) if len(devices) == 1 else failed.shortage.gpu


def _is_itself(process: Process, failed: Failed, known: Mapping[int, Process]) -> bool:
    """Is it of the engine that failed, or was it started after it?"""
    if failed.pid is not None and (process.pid == failed.pid or _top(process, known).pid == _top_of(failed.pid, known)):
        return True
    since = (failed.began_at or failed.at) if failed.starting else failed.at
    if process.started_at is not None:
        return (process.started_at - since).total_seconds() > -SAME_START_S
    if not failed.starting:
        return False
    new = known.get(failed.pid) if failed.pid is not None else None
    return new is not None and new.age_s is not None and process.age_s is not None and process.age_s <= new.age_s


def _top_of(pid: int, known: Mapping[int, Process]) -> int:
    return _top(known[pid], known).pid if pid in known else pid


def _top(process: Process, known: Mapping[int, Process]) -> Process:
    """The first of the engine's processes above this one."""
    seen = {process.pid}
    while process.ppid is not None and process.ppid not in seen and process.ppid in known and known[process.ppid].role in ENGINE:
        process = known[process.ppid]
        seen.add(process.pid)
    return process


def _kind(process: Process, known: Mapping[int, Process], left_over: frozenset[int]) -> tuple[str, str]:
    if process.pid in left_over:
        return "orphan", "the supervisor found it still there when it started the service anew"
    if not process.listed and process.ppid is None:
        if process.role == "other" and process.program and not _could_be_engine(process.program):
            return "other", f"it is another program, {process.program.split()[0]}"
        return "unseen", "no list of processes tells whose child it is"
    if process.role not in ENGINE:
        return "other", "it is another program" + (f", {process.program.split()[0]}" if process.program else "")
    top = _top(process, known)
    if top.role == "api_server":
        return "engine", f"its API server, pid {top.pid}, lives"
    if top.ppid is None:
        return "unseen", "its parent is not told"
    parent = known.get(top.ppid)
    if parent is not None and _owns(parent):
        return "engine", f"its parent, pid {parent.pid} ({parent.program or 'unknown'}), lives"
    if parent is None and top.ppid != 1:
        return "unseen", f"its parent, pid {top.ppid}, is in no list of processes"
    whose = "pid 1" if top.ppid == 1 else f"pid {top.ppid} ({parent.program or parent.comm})" if parent is not None else f"pid {top.ppid}"
    above = "" if top.pid == process.pid else f", by way of its own parent, pid {top.pid}"
    return "orphan", f"whoever started it is gone: its parent is now {whose}{above}"


def _owns(parent: Process) -> bool:
    """Can it be what started an engine's child? Not `/sbin/init splash`, `/lib/systemd/systemd --user`, `-bash`; pid 1 only where it is a Python program."""
    words = (parent.cmd or "").split()
    outside = (bool(words) and words[0].rpartition("/")[2].lstrip("-") in procfs.OUTSIDE) or (parent.comm or "") in procfs.OUTSIDE
    return not outside and (parent.pid != 1 or _could_be_engine(parent.program or "python"))


def _could_be_engine(program: str) -> bool:
    """A Python process says nothing of itself where no title is set."""
    return role(program) != "other" or procfs.PYTHON.match(program.split()[0].rpartition("/")[2]) is not None or program.split()[0].endswith(".py")
