"""Processes that the kernel killed because memory ran out: whose limit it was, and whether they belong to the service."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("host_events",)
WANTS = ("log_events", "processes")
GIVES: tuple[Table, ...] = (
    table(
        "memory_kills",
        "Processes that the kernel killed because memory ran out, one row per process and moment",
        "ts TIMESTAMP: when; NULL = the log has no dates", "pid BIGINT: process; NULL = not named", "name VARCHAR: its name; NULL = not named",
        "unit VARCHAR: cgroup, container or unit; NULL = not named", "reached VARCHAR: cgroup (a limit) | machine", "resident_bytes BIGINT: anonymous memory it held; NULL = not told",
        "of_service BOOLEAN: it belongs to the service", "because VARCHAR: what says so", "message VARCHAR: the line",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]
VICTIM = re.compile(r"process (?P<pid>\d{1,10}) \((?P<name>[^)]*)\)")
RESIDENT = re.compile(r"anon-rss:(?P<kb>\d{1,15})kB")
OURS = re.compile(r"(?i)^(?:vllm|enginecore|apiserver|sglang|redis-server|valkey-server|keydb|falkordb|lmcache|mooncake|memcached|ray::|tritonserver|trtllm|mindie|llama-server|text-generation)")
CONTAINERS = frozenset({"kubernetes", "docker"})
SAME_S = 5.0
"""A runtime and the kernel tell of one kill at nearly the same time."""
Row = Mapping[str, Any]
Started = Mapping[int | None, datetime.datetime | None]
"""Pid of the service -> when it began; None: not known."""


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """host_events (+ pids that logs and lists of processes name) -> memory_kills."""
    import pandas as pd

    events = frames["host_events"]
    found: list[dict[str, object]] = []
    for key, group in events[events["kind"] == "oom_kill"].groupby(KEYS, dropna=False, sort=False):
        origin = dict(zip(KEYS, (None if part != part else part for part in key), strict=True))
        plain = group.astype(object).where(group.notna(), None).to_dict("records")
        pids = {**_pids(frames.get("log_events"), origin), **_pids(frames.get("processes"), origin)}
        found += [{**origin, **row} for row in _kills([{str(name): value for name, value in row.items()} for row in plain], pids)]
    return {"memory_kills": pd.DataFrame(found)} if found else {}


def _kills(rows: Sequence[Row], pids: Started) -> list[dict[str, Any]]:
    kills: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: row["origin"] != "dmesg"):  # the kernel itself says most
        if any(row["ts"] is not None and other["ts"] is not None and abs((row["ts"] - other["ts"]).total_seconds()) <= SAME_S for other in kills) and row["origin"] != "dmesg":
            continue
        detail = str(row["detail"] or "")
        victim, resident = VICTIM.search(detail), RESIDENT.search(detail)
        pid = int(victim["pid"]) if victim else None if row["pid"] is None else int(row["pid"])
        name = victim["name"] if victim else None
        because = _because(pid, name, row, pids)
        kills.append({
            "ts": row["ts"], "pid": pid, "name": name, "unit": row["unit"], "reached": "cgroup" if row["origin"] != "dmesg" or "cgroup out of memory" in detail else "machine",
            "resident_bytes": int(resident["kb"]) * 1024 if resident else None, "of_service": because is not None, "because": because or "nothing ties it to the service",
            "message": detail, "source": row["source"],
        })  # fmt: skip
    return kills


def _because(pid: int | None, name: str | None, row: Row, pids: Started) -> str | None:
    if pid in pids and not _began_later(pids[pid], row["ts"]):
        return "its pid is one of the service"
    if name is not None and OURS.match(name):
        return "its name is that of an engine or a cache server"
    return "its container's record was handed in" if name is None and row["origin"] in CONTAINERS else None


def _began_later(started_at: datetime.datetime | None, killed_at: datetime.datetime | None) -> bool:
    """A pid that was used again is not the victim."""
    return started_at is not None and killed_at is not None and started_at > killed_at


def _pids(frame: "pd.DataFrame | None", origin: Mapping[str, object]) -> Started:
    if frame is None or frame.empty:
        return {}
    mine = frame[frame["pid"].notna()]
    for name, value in origin.items():
        mine = mine[mine[name].isna() if value is None else mine[name] == value]
    first = mine.groupby("pid")["started_at"].min()
    return {int(str(pid)): None if start != start else start for pid, start in first.items()}  # NaT is not itself
