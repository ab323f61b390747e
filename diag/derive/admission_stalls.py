"""Stretches in which requests wait and none runs, from the statistics in an engine's log, with the size of the pool they wait for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.restarts.progress_before import stats_of
from diag.restarts.records import Line, between_s
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("log_events",)
WANTS = ("http_events",)
GIVES: tuple[Table, ...] = (
    table(
        "admission_stalls",
        "Stretches of two minutes and more in which an engine's statistics show requests that wait, none that runs, and no tokens",
        "file VARCHAR: log", "engine VARCHAR: engine as its lines name it; NULL = they do not", "since TIMESTAMP: first line of it",
        "until TIMESTAMP: next sign of life or of an end, or the last moment of the evidence", "stalled_s DOUBLE: how long", "waiting BIGINT: requests that waited, the most",
        "lines BIGINT: lines of statistics that show it", "kv_usage_pct DOUBLE: share of the pool in use in the last of them; NULL = not told", "ended_by VARCHAR: progress | shutdown | start | end of the log",
        "pool_tokens BIGINT: size of the KV pool as the log says at its start; NULL = it does not", "model_tokens BIGINT: longest request that is permitted; NULL = the log does not say",
        "prompt_tokens BIGINT: longest prompt that a line of the log names; NULL = none does",
    ),
)  # fmt: skip
LEAST_S = 120.0
GROUP = ["bundle", "host", "capture", "file"]
ENGINE = re.compile(r"^Engine (\d+)")
WAITING = re.compile(r"Waiting: (\d{1,9}) reqs|#queue-req: (\d{1,9})")
ENDS = {"shutdown_signal": "shutdown", "shutdown_step": "shutdown", "startup": "start"}
POOL = (re.compile(r"KV cache size: ([\d,]{1,15}) tokens"), re.compile(r"max_total_num_tokens=(\d{1,12})"))
LONGEST = (
    re.compile(r"Maximum concurrency for ([\d,]{1,15}) tokens per request"), re.compile(r"['\"]?max_model_len['\"]?[=:] ?(\d{1,12})"), re.compile(r"\bmax_seq_len=(\d{1,12})"),
    re.compile(r"\bcontext_len=(\d{1,12})"),
)  # fmt: skip
PROMPT = (
    re.compile(r"(?i)\bprompt[ _](?:length|len|tokens)\b[^\d\n]{0,12}(\d[\d,]{0,14})"), re.compile(r"(?i)\b(\d[\d,]{0,14}) (?:prompt|input) tokens"),
    re.compile(r"(?i)\binput length \((\d{1,12}) tokens?\)"),
)  # fmt: skip
Row = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """log_events -> admission_stalls, per log and engine."""
    import pandas as pd

    events, requests = frames["log_events"], frames["http_events"]
    stats = events["event"] == "engine_stats"
    if not stats.any():
        return {}
    last = max(moment for moment in (events["ts"].max(), requests["ts"].max()) if moment == moment)
    names = ["ts", "event", "message", "source", "line"]
    found: list[dict[str, object]] = []
    for key, group in events[events["ts"].notna()].groupby(GROUP, dropna=False, sort=False):
        origin = dict(zip(GROUP, (None if part != part else part for part in key), strict=True))
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(group.sort_values("line", kind="stable")[name] for name in names), strict=True)]
        if any(row["event"] == "engine_stats" for row in rows):
            found += [{**origin, **row} for row in _stalls(rows, last)]
    return {"admission_stalls": pd.DataFrame(found)} if found else {}


def _stalls(rows: Sequence[Row], last: Any) -> Iterator[dict[str, object]]:
    engines = {match[1] for row in rows if row["event"] == "engine_stats" and (match := ENGINE.match(str(row["message"])))} or {None}
    for engine in sorted(engines, key=str):
        begin: dict[str, Any] | None = None
        for row in rows:
            message = str(row["message"] or "")
            if row["event"] == "engine_stats":
                named = ENGINE.match(message)
                if engine is not None and (named is None or named[1] != engine):
                    continue
                if _stands(row, message):
                    begin = begin or {"row": row, "waiting": 0, "lines": 0}
                    begin |= {"waiting": max(begin["waiting"], _waiting(message)), "lines": begin["lines"] + 1, "kv": _stats(row, message).kv_usage_pct}
                    continue
            ended = "progress" if row["event"] == "engine_stats" else ENDS.get(str(row["event"]))
            if begin is not None and ended is not None:
                yield from _stall(engine, begin, row["ts"], ended, rows)
                begin = None
        if begin is not None:
            yield from _stall(engine, begin, last, "end of the log", rows)


def _stall(engine: str | None, begin: Mapping[str, Any], until: Any, ended: str, rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    first = begin["row"]
    seconds = between_s(first["ts"], until)
    if seconds < LEAST_S:
        return
    before = [str(row["message"] or "") for row in rows if row["ts"] <= until]
    yield {
        "engine": engine, "since": first["ts"], "until": until, "stalled_s": seconds, "waiting": begin["waiting"], "lines": begin["lines"], "kv_usage_pct": begin["kv"],
        "ended_by": ended, "pool_tokens": _last(POOL, before), "model_tokens": _last(LONGEST, before), "prompt_tokens": max(_all(PROMPT, before), default=None), "source": first["source"],
    }  # fmt: skip


def _stands(row: Row, message: str) -> bool:
    """Do requests wait, does none run, and came nothing out?"""
    stats = _stats(row, message)
    return stats.running == 0 and _waiting(message) > 0 and stats.tokens_per_s == 0 and not stats.batch


def _stats(row: Row, message: str) -> Any:
    return stats_of(Line(row["ts"], "engine_stats", message, str(row["source"])))


def _waiting(message: str) -> int:
    match = WAITING.search(message)
    return 0 if match is None else int(match[1] or match[2])


def _all(patterns: Sequence["re.Pattern[str]"], messages: Sequence[str]) -> list[int]:
    return [int(match[1].replace(",", "")) for message in messages for pattern in patterns if (match := pattern.search(message)) is not None]


def _last(patterns: Sequence["re.Pattern[str]"], messages: Sequence[str]) -> int | None:
    found = _all(patterns, messages)
    return found[-1] if found else None
