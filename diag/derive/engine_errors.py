"""Errors in the logs of engines: each once, what it is, and which of an episode came first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.signatures import known_errors
from diag.signatures.errors import Error, Line, errors
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("log_events",)
WANTS = ("host_events",)
GIVES: tuple[Table, ...] = (
    table(
        "engine_errors",
        "Errors in engines' logs, each once however many ranks and lines tell of it",
        "ts TIMESTAMP: first line of it; NULL = the log has no times", "onset_ts TIMESTAMP: the same less the time that it had lasted when it was written",
        "last_ts TIMESTAMP: last line of it", "delay_s DOUBLE: how long it had lasted when the first line was written",
        "file VARCHAR: log of the first line", "line BIGINT: its line", "pid BIGINT: its writer; NULL = not told", "role VARCHAR: role of its writer; NULL = not told",
        "event VARCHAR: as in log_events", "kind VARCHAR: what it is, as diag/signatures/errors.toml names it", "says VARCHAR: that in words",
        "class VARCHAR: specific (what went wrong) | wrapper (says that something did) | consequence | request (one request's own trouble) | shutdown (after somebody asked for the end)",
        "message VARCHAR: text of the first line", "n BIGINT: lines", "writers BIGINT: processes that wrote it; 0 = not told", "ranks VARCHAR: ranks that the lines name, joined by comma and space; NULL = none",
        "phase VARCHAR: startup | serving | shutdown; NULL = the log does not show its start", "episode BIGINT: errors that belong together have one number",
        "first BOOLEAN: the earliest specific error of its episode", "death BOOLEAN: an engine process is gone after it",
        "ready_after_ts TIMESTAMP: when the same log tells of an engine that is ready afterwards; NULL = it does not",
        "ready_after BOOLEAN: the same log tells of an engine that is ready afterwards", "until_ts TIMESTAMP: last line of that log that is kept",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]
LOUD = frozenset({"ERROR", "CRITICAL"})
EVENTS = frozenset({
    "worker_died", "watchdog", "engine_dead", "fatal", "oom", "nccl", "cuda_error", "shm_broadcast_notice", "rpc_timeout", "futures_after_shutdown", "traceback",
})  # fmt: skip
Row = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """log_events -> engine_errors."""
    import pandas as pd

    logs = frames["log_events"]
    told = logs["event"].isin(EVENTS) | logs["level"].isin(LOUD) | ((logs["level"] == "WARNING") & (logs["event"] == "memory_short"))
    if not told.any():
        return {}
    found: list[dict[str, object]] = []
    for key, group in logs.groupby(KEYS, dropna=False, sort=False):
        origin = dict(zip(KEYS, (None if part != part else part for part in key), strict=True))
        rows = _records(group)
        asked = _asked(frames.get("host_events"), origin)
        found += [{**origin, **row} for row in _rows(rows, asked)]
    return {"engine_errors": pd.DataFrame(found)} if found else {}


def _rows(rows: Sequence[Row], asked: Sequence[Any]) -> Iterator[dict[str, object]]:
    files: dict[str, list[Row]] = {}
    for row in rows:
        files.setdefault(str(row["file"] or ""), []).append(row)
    lines = [line for name, of_file in files.items() for line in _lines(name, sorted(of_file, key=lambda row: row["line"] or 0), asked)]
    ready = {name: [(row["line"] or 0, row["ts"]) for row in of_file if row["event"] in ("ready", "engine_ready")] for name, of_file in files.items()}
    ends = {name: max((row["ts"] for row in of_file if row["ts"] is not None), default=None) for name, of_file in files.items()}
    for error in errors(lines):
        yield _row(error, ready, ends)


def _lines(file: str, rows: Sequence[Row], asked: Sequence[Any]) -> Iterator[Line]:
    """Error lines of one log, in order, with the life and phase in which each was written."""
    life, phase, dead = 0, None, False
    for row in rows:
        event, ts = row["event"], row["ts"]
        if event == "startup" and (phase in ("serving", "shutdown") or dead):
            life, phase, dead = life + 1, "startup", False
        elif event in ("startup", "engine_init") and phase is None:
            phase = "startup"
        elif event == "ready" or (event == "engine_stats" and phase is None):
            phase, dead = "serving", False
        if event == "shutdown_signal" and not dead:
            phase = "shutdown"
        told = known_errors.tell(str(row["message"] or ""), event, row["role"]) if event in EVENTS or row["level"] in LOUD or event == "memory_short" else None
        if told is None:
            continue
        now = "shutdown" if not dead and phase != "shutdown" and _was_asked(ts, asked) else phase
        dead = dead or (told.known.death and phase != "shutdown" and row["level"] != "INFO")
        yield Line(
            file, int(row["line"] or 0), ts, None if row["pid"] is None else int(row["pid"]), row["role"], event, str(row["message"] or ""), str(row["source"] or ""), told, life, now
        )


def _was_asked(ts: Any, asked: Sequence[Any]) -> bool:
    """Had a supervisor asked for the end in the minute before?"""
    return ts is not None and any(-1.0 <= (ts - moment).total_seconds() <= 60.0 for moment in asked)


def _asked(events: "pd.DataFrame | None", origin: Mapping[str, object]) -> list[Any]:
    """When somebody outside asked for the end, by the supervisors' journals."""
    if events is None or events.empty:
        return []
    mine = events[events["kind"].isin(["killing", "stop"]) & events["ts"].notna() & events["initiator"].notna() & (events["initiator"] != "kernel")]
    for name, value in origin.items():
        mine = mine[mine[name].isna() if value is None else mine[name] == value]
    return [moment.to_pydatetime() for moment in mine["ts"]]


def _row(error: Error, ready: Mapping[str, Sequence[tuple[int, Any]]], ends: Mapping[str, Any]) -> dict[str, object]:
    line = error.line
    after = next(((number, ts) for number, ts in ready.get(line.file, ()) if number > line.number), None)
    return {
        "ts": line.ts, "onset_ts": line.onset, "last_ts": error.last, "delay_s": line.told.delay_s, "file": line.file, "line": line.number, "pid": line.pid, "role": line.role,
        "event": line.event, "kind": line.told.known.id, "says": line.told.known.says, "class": line.kind, "message": line.message, "n": error.n, "writers": len(error.writers),
        "ranks": ", ".join(map(str, sorted(error.ranks))) or None, "phase": line.phase, "episode": error.episode, "first": error.first, "death": line.told.known.death,
        "ready_after_ts": None if after is None else after[1], "ready_after": after is not None, "until_ts": ends.get(line.file), "source": line.source,
    }  # fmt: skip


def _records(group: "pd.DataFrame") -> list[Row]:
    """Rows with None for unknown and plain times."""
    names = ["file", "line", "ts", "pid", "role", "level", "message", "event", "source"]
    plain = group[names].astype(object).where(group[names].notna(), None).to_dict("records")
    return [{str(name): value.to_pydatetime() if hasattr(value, "to_pydatetime") else value for name, value in row.items()} for row in plain]
