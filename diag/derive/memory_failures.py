"""Engines that could not get device memory: the figures they name, and who else was on the device."""

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.parsers.process_titles import role
from diag.recovery import holders, shortage
from diag.recovery.holders import Failed, Holder, Process
from diag.recovery.records import Line, Start
from diag.recovery.shortage import Shortage
from diag.recovery.starts import OF_A_START, OF_AN_END, starts
from diag.restarts.records import between_s, later
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("log_events",)
WANTS = ("processes", "gpu_processes", "host_events", "event_files", "restarts")
_FAILURE = "failure BIGINT: number of the failure, from 0, in order of time"
GIVES: tuple[Table, ...] = (
    table(
        "memory_failures",
        "Requests for device memory that were refused, one row per engine process and moment",
        _FAILURE, "ts TIMESTAMP: when; NULL = the log has no dates", "pid BIGINT: process that asked; NULL = the line does not name it",
        "file VARCHAR: its log",
        "form VARCHAR: free-below-share | no-room-for-cache | pool-too-small | uneven | allocation",
        "phase VARCHAR: startup | running; NULL = the log does not show whether it was ready",
        "began_at TIMESTAMP: first line of that start; NULL = it is not in the log",
        "ready_at TIMESTAMP: when it had been ready before; NULL = it was not, or that is not in the log",
        "after_restart BOOLEAN: an earlier life of the service is in the evidence; NULL = nothing would tell of one",
        "ended_before_s DOUBLE: how long before its start the earlier life ended; NULL = none is seen to end",
        "later_ready_at TIMESTAMP: when a later start of the same log was ready; NULL = none",
        "gpu BIGINT: device as the engine counts; NULL = not named",
        "total_bytes BIGINT: capacity of the device; NULL = not named", "free_bytes BIGINT: free of it; NULL = not named",
        "wanted_bytes BIGINT: what was asked for; NULL = not named", "share DOUBLE: share of the device that it was told to take; NULL = not named",
        "own_bytes BIGINT: what the process itself held; NULL = not named",
        "unallocated_bytes BIGINT: what its allocator held in pieces that fit nobody; NULL = not named",
        "in_pieces BOOLEAN: as much as was asked for, and 1 GiB at least, lay in such pieces, and it was not the start",
        "held_bytes BIGINT: what others held, by these figures; NULL = they do not tell",
        "cause VARCHAR: orphan | freed (a later start fitted) | alone (nobody else is there) | model (nor are the weights loaded yet) | engine (another one) | other (another program); NULL = not known",
        "because VARCHAR: in words",
        "message VARCHAR: the message",
    ),
    table(
        "memory_holders",
        "Who beside the engine that failed was on its device",
        _FAILURE, "pid BIGINT: process", "started_at TIMESTAMP: its start; NULL = not told", "ppid BIGINT: its parent; NULL = not told",
        "role VARCHAR: as in processes", "cmd VARCHAR: command line or name; NULL = not told", "gpu BIGINT: device by its tool; NULL = not told",
        "used_bytes BIGINT: what it held; NULL = not told", "kind VARCHAR: orphan | engine (with a living parent) | other (another program) | unseen (whose child it is is not told)",
        "says VARCHAR: why it is that", "matters BOOLEAN: it held a good part of what others held",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]
ONE_FAILURE_S = 60.0
"""A failure is told by the worker, the engine core and the API server, one after the other."""
RECENT_END_S = 600.0
MANY_PIECES_BYTES = 1 << 30
"""Less than that in pieces is what any allocator has."""
WORDS = r"on startup is less than desired|No available memory for the cache|Please try to increase --mem-fraction|capacity is unbalanced|out of memory\. Tried to allocate"
Row = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """log_events (+ processes, devices, journals, restarts) -> memory_failures, memory_holders."""
    import pandas as pd

    out: dict[str, list[dict[str, object]]] = {item.name: [] for item in GIVES}
    logs = frames["log_events"]
    about = logs[logs["message"].fillna("").str.contains(WORDS, regex=True)]
    shown = logs[logs["event"].isin(OF_A_START | OF_AN_END) & logs["file"].isin(about["file"].dropna().unique()) & logs["ts"].notna()]
    journal = frames.get("host_events")
    left = None if journal is None else journal[journal["kind"] == "left_over"]
    for origin in _origins(about):
        mine = {"log_events": _of(shown, origin), **{name: _of(left if name == "host_events" else frames.get(name), origin) for name in WANTS}}
        for number, item in enumerate(_failures(_of(about, origin))):
            head = {**dict(zip(KEYS, origin, strict=True)), "failure": number}
            failure, around = _judged(item, mine)
            out["memory_failures"].append({**head, **failure})
            out["memory_holders"] += [{**head, **row} for row in around]
    return {name: pd.DataFrame(rows) for name, rows in out.items() if rows}


def _failures(rows: Sequence[Row]) -> Iterator[tuple[Row, Shortage]]:
    """One per failure: what was already said of it in the same log with the same figures is the same one."""
    seen: dict[tuple[str, Shortage], datetime.datetime] = {}
    for row in sorted(rows, key=lambda row: (row["ts"] or datetime.datetime.min, row["file"] or "", row["line"] or 0)):
        found = shortage.parse(str(row["message"] or ""))
        if found is None:
            continue
        key, ts = (str(row["file"]), found), row["ts"] or datetime.datetime.min
        before, seen[key] = seen.get(key), ts
        if before is None or between_s(before, ts) > ONE_FAILURE_S:
            yield row, found


def _judged(item: tuple[Row, Shortage], mine: Mapping[str, Sequence[Row]]) -> tuple[dict[str, object], list[dict[str, object]]]:
    """The row of a failure and those of its holders."""
    row, found = item
    begun = starts([_line(other) for other in mine["log_events"] if other["file"] == row["file"]])
    number = row["line"] or 0
    before = [start for start in begun if start.first.number <= number]
    start = before[-1] if before else None
    ready = start.ready if start is not None and start.ready is not None and start.ready.number < number else None
    began_at = None if start is None else start.first.ts
    later_ready = next((other.ready.ts for other in begun if other.first.number > number and other.ready is not None), None)
    ended = _ended(began_at or row["ts"], mine["restarts"])
    earlier = any(other.ready is not None for other in before[:-1])
    phase = _phase(found, start, ready)
    failed = Failed(_int(row["pid"]), began_at, row["ts"] or datetime.datetime.min, found, phase == "startup")
    around = _around(failed, mine)
    bare = phase == "startup" and found.form == "allocation" and start is not None and not any(line.event == "weights_loaded" and line.number < number for line in start.lines)
    cause, because = _cause(found, around, later_ready is not None, None if ended is None or began_at is None else between_s(ended, began_at), mine)
    if cause == "alone" and bare:
        cause, because = "model", f"{because}, and its weights were not loaded yet: they do not fit"
    return {
        "source": row["source"], "ts": row["ts"], "pid": failed.pid, "file": row["file"], "form": found.form, "phase": phase,
        "began_at": began_at, "ready_at": None if ready is None else ready.ts, "after_restart": True if earlier or ended is not None else False if mine["event_files"] else None,
        "ended_before_s": None if ended is None or began_at is None else between_s(ended, began_at), "later_ready_at": later_ready,
        "gpu": found.gpu, "total_bytes": found.total_bytes, "free_bytes": found.free_bytes, "wanted_bytes": found.wanted_bytes, "share": found.share,
        "own_bytes": found.own_bytes, "unallocated_bytes": found.unallocated_bytes, "in_pieces": phase != "startup" and _in_pieces(found), "held_bytes": found.held_bytes,
        "cause": cause, "because": because, "message": row["message"],
    }, [_holder(holder, found, row) for holder in around]  # fmt: skip


def _phase(found: Shortage, start: Start | None, ready: Line | None) -> str | None:
    if found.form != "allocation":
        return "startup"
    return "running" if ready is not None else None if start is None else "startup"


def _in_pieces(found: Shortage) -> bool:
    return found.unallocated_bytes is not None and found.unallocated_bytes >= max(MANY_PIECES_BYTES, found.wanted_bytes or 0)


def _ended(moment: datetime.datetime | None, lives: Sequence[Row]) -> datetime.datetime | None:
    """When the life before this start ended; None = none is seen."""
    if moment is None:
        return None
    ends = [min(known) for life in lives if (known := [at for name in ("killed_at", "died_at", "stopped_at") if (at := life[name]) is not None])]
    return max((end for end in ends if end < moment), default=None)


def _cause(found: Shortage, around: Sequence[Holder], fitted: bool, ended_s: float | None, mine: Mapping[str, Sequence[Row]]) -> tuple[str | None, str]:
    """Why there was no memory, as far as it is told, and in words what tells it."""
    heavy = [holder for holder in around if holders.matters(holder, found)]
    for kind in ("orphan", "engine", "other"):
        if some := [holder for holder in heavy if holder.kind == kind]:
            return kind, "; ".join(f"pid {holder.process.pid}: {holder.why}" for holder in some[:3])
    if fitted and not holders.is_alone(found) and ended_s is not None and ended_s <= RECENT_END_S:
        return "freed", f"the life before had ended {ended_s:.0f} s before, and a later start found the memory free"
    if any(holder.kind == "unseen" for holder in heavy):
        return None, "; ".join(f"pid {holder.process.pid}: {holder.why}" for holder in heavy if holder.kind == "unseen")
    if holders.is_alone(found):
        return "alone", "by its own figures nobody else holds the device"
    if mine["gpu_processes"] and not around and found.form in ("free-below-share", "allocation"):
        return None, "the device's list of processes, made at another time, shows nobody else"
    if mine["gpu_processes"] and not around:
        return "alone", "the device's list of processes shows nobody else"
    return None, "who held the device is in no list"


def _holder(holder: Holder, found: Shortage, row: Row) -> dict[str, object]:
    process = holder.process
    return {
        "source": process.source or row["source"], "pid": process.pid, "started_at": process.started_at, "ppid": process.ppid, "role": process.role, "cmd": process.cmd,
        "gpu": process.gpu, "used_bytes": process.used_bytes, "kind": holder.kind, "says": holder.why, "matters": holders.matters(holder, found),
    }  # fmt: skip


def _around(failed: Failed, mine: Mapping[str, Sequence[Row]]) -> list[Holder]:
    """Holders, from lists of processes and devices and from what supervisors found left over."""
    listed = [_listed(row) for row in _last_reads(mine["processes"], ("pid",)) if row["state"] != "X"]
    devices = [_on_device(row) for row in _last_reads(mine["gpu_processes"], ("pid", "gpu"))]
    at = failed.began_at or failed.at
    left = frozenset(
        pid for row in mine["host_events"]
        if (pid := _int(row["pid"])) is not None and row["ts"] is not None and later(at, -RECENT_END_S) <= row["ts"] <= later(failed.at, 60.0)
    )  # fmt: skip
    seen = {item.pid for item in listed}
    above = {item.pid: item for row in mine["gpu_processes"] for item in _above(row) if item.pid not in seen}
    known = holders.merged([*listed, *above.values()], devices)
    for row in mine["host_events"]:
        pid = _int(row["pid"])
        if pid in left and pid is not None and pid not in known:
            known[pid] = [Process(pid, row["source"] or "", listed=False)]
    return holders.holders(failed, known, left)


def _last_reads(rows: Sequence[Row], key: tuple[str, ...]) -> list[Row]:
    """The last read of each."""
    last: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: row["read"] or 0):
        last[tuple(row[name] for name in key)] = row
    return list(last.values())


def _listed(row: Row) -> Process:
    return Process(int(row["pid"]), row["source"] or "", _int(row["ppid"]), row["started_at"], row["age_s"], row["role"] or "other", row["cmd"], row["comm"])


def _on_device(row: Row) -> Process:
    name = row["cmd"] or row["name"] or ""
    return Process(
        int(row["pid"]), row["source"] or "", _int(row["ppid"]), row["started_at"], role=role(name), cmd=name or None, gpu=_int(row["gpu"]), used_bytes=_int(row["used_bytes"]),
        listed=row["ppid"] is not None,
    )  # fmt: skip


def _above(row: Row) -> Iterator[Process]:
    """The ancestors of a process that holds device memory, where a snapshot tells."""
    chain = [(int(pid), str(cmd)) for pid, cmd in json.loads(row["ancestors"])] if row["ancestors"] is not None else []
    for place, (pid, cmd) in enumerate(chain):
        yield Process(pid, row["source"] or "", chain[place + 1][0] if place + 1 < len(chain) else None, role=role(cmd), cmd=cmd)


def _line(row: Row) -> Line:
    return Line(row["ts"], row["event"], row["message"] or "", row["source"] or "", row["file"] or "", _int(row["line"]) or 0, _int(row["pid"]), row["role"])


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _origins(frame: "pd.DataFrame") -> list[tuple[object, ...]]:
    found = frame[KEYS].drop_duplicates().itertuples(index=False)
    return [tuple(None if value != value else value for value in origin) for origin in found]


def _of(frame: "pd.DataFrame | None", origin: tuple[object, ...]) -> list[Row]:
    """Rows of one capture, None for unknown, times as datetime."""
    if frame is None or frame.empty:
        return []
    mine = frame
    for name, value in zip(KEYS, origin, strict=True):
        mine = mine[mine[name].isna() if value is None else mine[name] == value]
    plain = mine.astype(object).where(mine.notna(), None)
    return [{str(name): value.to_pydatetime() if hasattr(value, "to_pydatetime") else value for name, value in row.items()} for row in plain.to_dict("records")]
