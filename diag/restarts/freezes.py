"""Stretches in which an engine held requests and nothing moved, from its lines of statistics.

vLLM writes one line without throughput and then none at all while nothing comes out: the silence after such a line counts
as flat until the next line, or the end of what was handed in. One long prompt on a healthy engine looks the same for two
minutes, but for its KV usage; so do compile pauses of a minute. Only much longer stretches mean something.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from diag.restarts.progress_before import stats_of
from diag.restarts.records import Line, Time, between_s

LEAST_S = 120.0


@dataclass(frozen=True)
class Freeze:
    """`until` = the next sign of life, or the end of the log."""

    file: str
    since: Time
    until: Time
    frozen_s: float
    running: int
    lines: int
    ended_by: str
    """progress | shutdown | start | end of the log"""
    source: str


def freezes(lines: Sequence[Line], ends: Time) -> list[Freeze]:
    """Of one log, lines in order. `ends` = last moment that the evidence covers."""
    found: list[Freeze] = []
    begin: Line | None = None
    usage: float | None = None
    running = flat = 0
    for line in lines:
        reason = "shutdown" if line.event in ("shutdown_signal", "futures_after_shutdown", "shutdown_step") else "start" if line.event == "startup" else None
        if line.event == "engine_stats":
            item = stats_of(line)
            moved = item.tokens_per_s > 0 or item.batch or (usage is not None and item.kv_usage_pct is not None and item.kv_usage_pct > usage)
            busy = (item.running or 0) > 0
            if busy and not moved:
                begin, flat, running = begin or line, flat + 1, item.running or 0
            else:
                reason = "progress"
            usage = item.kv_usage_pct
        if reason is not None and begin is not None:
            found += _freeze(begin, line.ts, running, flat, reason)
            begin, flat = None, 0
    if begin is not None:
        found += _freeze(begin, ends, running, flat, "end of the log")
    return found


def _freeze(begin: Line, until: Time, running: int, lines: int, ended_by: str) -> list[Freeze]:
    seconds = between_s(begin.ts, until)
    return [Freeze(begin.file, begin.ts, until, seconds, running, lines, ended_by, begin.source)] if seconds >= LEAST_S else []
