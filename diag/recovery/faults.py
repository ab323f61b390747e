"""What went wrong before a recovery, who saw it first, and how much later a probe did."""

import itertools
import re
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from diag.recovery.records import Event, Life, Line, Time
from diag.restarts.records import between_s, later

FATAL_LINES = {
    "fatal": "engine-died", "engine_dead": "engine-died", "worker_died": "worker-died", "oom": "out-of-memory", "cuda_error": "device-error", "nccl": "nccl-error",
    "watchdog": "engine-died", "memory_short": "out-of-memory",
}  # fmt: skip
FATAL_EVENTS = {
    "xid": "device-error", "nvrm": "device-error", "device_error": "device-error", "nccl_error": "nccl-error", "heartbeat_lost": "heartbeat-lost",
    "oom_kill": "out-of-memory", "exit": "engine-died", "segfault": "engine-died", "hung_task": "device-error",
}  # fmt: skip
RANK = ("device-error", "nccl-error", "out-of-memory", "worker-died", "heartbeat-lost", "engine-died", "stuck")
"""Of several signs of one moment, the one that says most about the cause."""
SAYS = {
    "device-error": "a device error", "nccl-error": "a communication error", "out-of-memory": "memory ran out", "worker-died": "a worker died",
    "heartbeat-lost": "the heartbeat was lost", "engine-died": "the engine died", "stuck": "it stopped making progress", "external-stop": "it was stopped from outside",
    "start": "a start; no end is seen before it", "unknown": "why it ended is not told",
}  # fmt: skip
SILENT = "it fell silent while requests ran, and a new process began: whether it hung or died is not told"
ASKS = ("restart", "killing", "stop")
LOOK_BACK_S = 3600.0
SAME_MOMENT_S = 2.0
WHOLE_S = 1.0
"""The first line of a new process has whole seconds, and so may stand before the command that started it."""
GOES_ON_S = 15.0
"""An engine that makes progress this much later was not dead."""
SILENT_S, MISSED, LONGEST_INTERVAL_S = 30.0, 2.5, 60.0
"""Without progress for so long, and so many times longer than the statistics usually are apart."""
RUNNING = re.compile(r"(?:Running|#running-req): (\d{1,9})(?!\d)")
WAITING = re.compile(r"(?:Waiting|#queue-req): (\d{1,9})(?!\d)")
RATES = re.compile(r"throughput(?: \(token/s\))?: (\d{1,12}(?:\.\d{1,20})?)(?!\.?\d)")
NEW_TOKENS = re.compile(r"#new-token: (\d{1,12})(?!\d)")


@dataclass(frozen=True)
class Sign:
    """Something that showed that it went wrong. `by`: engine log, kernel, supervisor, …"""

    ts: Time
    cause: str
    by: str
    source: str
    detail: str = ""


@dataclass(frozen=True)
class Fault:
    """Cause of a recovery and when it could be known. None = not seen."""

    cause: str
    ts: Time | None
    seen_by: str | None
    source: str
    says: str
    command_at: Time | None
    command_by: str | None
    probe_at: Time | None
    probe_by: str | None


def fault_of(life: Life, since: Time | None, events: Sequence[Event], lines: Sequence[Line]) -> Fault:
    """What ended a life. `since`: when it had become ready, or the evidence begins."""
    command, by = command_of(life, events)
    end = min((moment for moment in (command, life.stopped_at, life.restarted_at) if moment is not None), default=life.ended_at)
    if end is None:
        return Fault("unknown", None, None, life.source, SAYS["unknown"], command, by, None, None)
    begin = later(end, -LOOK_BACK_S) if since is None else max(since, later(end, -LOOK_BACK_S))
    progress = progress_at(lines)
    latest = max(moment for moment in (end, life.died_at if life.how == "self" else None, life.restarted_at if life.how != "external" else None) if moment is not None)
    signs = [sign for sign in (*_events([event for event in events if _same(event, life)]), *_lines(lines)) if begin <= sign.ts <= latest and not _goes_on(sign.ts, progress, end)]
    if life.how == "external":
        signs = [sign for sign in signs if sign.ts < later(end, -SAME_MOMENT_S)]  # what comes with the signal, or after it, is its consequence
    if not signs and life.how == "self" and life.died_at is not None:
        signs = [Sign(life.died_at, "engine-died", "supervisor", life.source)]
    stuck = _stuck(lines, begin, min((sign.ts for sign in signs), default=end), progress)
    earliest = min([*signs, *([stuck] if stuck is not None else [])], key=lambda sign: sign.ts, default=None)
    probe = _of(_probe(events, end if earliest is None else earliest.ts, life.restarted_at or end))
    if earliest is None:
        cause = "external-stop" if life.how == "external" else "unknown"
        return Fault(cause, None, None, life.source, _told(cause, life), command, by, *probe)
    cause = _cause(signs)
    if cause == "stuck" and life.killed_at is None and life.stopped_at is None and not any(line.event == "engine_stats" and earliest.ts < line.ts <= end for line in lines):
        return Fault("unknown", None, None, earliest.source, f"{SILENT}; last progress at {earliest.ts:%Y-%m-%d %H:%M:%S}", command, by, *probe)
    return Fault(cause, earliest.ts, earliest.by, earliest.source, _told(cause, life, earliest), command, by, *probe)


def _cause(signs: Sequence[Sign]) -> str:
    """Of the first signs the one that says most; silence before them is how it began, and no cause."""
    if not signs:
        return "stuck"
    first = min(sign.ts for sign in signs)
    return min((sign.cause for sign in signs if between_s(first, sign.ts) <= SAME_MOMENT_S), key=RANK.index)


def command_of(life: Life, events: Sequence[Event]) -> tuple[Time | None, str | None]:
    """When somebody, or a supervisor, decided to restart it, and who; the signal, else the start where a journal tells of it.

    A start that only its own log shows says nothing: interpreters and imports run for a while before the first line.
    """
    if life.killed_at is not None:
        near = [event for event in events if event.kind in ASKS and _same(event, life) and abs(between_s(event.ts, life.killed_at)) <= SAME_MOMENT_S]
        return life.killed_at, life.initiator or next((event.initiator for event in near if event.initiator is not None), None)
    low, high = life.ended_at, life.restarted_at
    if low is None or high is None:
        return None, life.initiator
    asked = [event for event in events if event.kind in (*ASKS, "start") and low <= event.ts <= later(high, WHOLE_S) and _same(event, life)]
    if not asked:
        return None, life.initiator
    first = min(asked, key=lambda event: event.ts)
    return first.ts, first.initiator or life.initiator


def progress_at(lines: Iterable[Line]) -> list[Time]:
    """Moments at which an engine's own statistics show work, in order."""
    return sorted(line.ts for line in lines if line.event == "engine_stats" and works(line.message))


@lru_cache(maxsize=1 << 15)
def works(message: str) -> bool:
    """Does a line of statistics tell of tokens?"""
    tokens = NEW_TOKENS.search(message)
    return any(float(rate) > 0 for rate in RATES.findall(message)) or (tokens is not None and int(tokens[1]) > 0)


def number(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return None if match is None else int(match[1])


def _same(event: Event, life: Life) -> bool:
    return event.unit is None or life.unit is None or event.unit.removesuffix(".service") == life.unit.removesuffix(".service")


def _events(events: Iterable[Event]) -> Iterable[Sign]:
    for event in events:
        cause = FATAL_EVENTS.get(event.kind)
        if cause is None or (event.kind == "exit" and event.code in (0, None)):
            continue
        by = "kernel log" if event.origin == "dmesg" or event.kind in ("xid", "nvrm", "oom_kill", "segfault", "hung_task") else event.initiator or event.origin
        yield Sign(event.ts, cause, by, event.source, event.detail)


def _lines(lines: Iterable[Line]) -> Iterable[Sign]:
    for line in lines:
        if (cause := FATAL_LINES.get(line.event)) is not None:
            yield Sign(line.ts, cause, "engine log", line.source, line.message)


def _goes_on(moment: Time, progress: Sequence[Time], end: Time) -> bool:
    last = bisect_right(progress, end) - 1
    return last >= 0 and between_s(moment, progress[last]) > GOES_ON_S


def _stuck(lines: Sequence[Line], begin: Time, end: Time, progress: Sequence[Time]) -> Sign | None:
    """It had requests and its statistics fell silent, or told of no tokens, long before the end."""
    stats = [line for line in lines if line.event == "engine_stats" and begin <= line.ts <= end]
    if not stats or (number(RUNNING, stats[-1].message) or 0) == 0:
        return None
    before = [moment for moment in progress if begin <= moment <= end]
    at = before[-1] if before else stats[0].ts
    if between_s(at, end) <= max(SILENT_S, MISSED * _interval_s(stats)):
        return None
    return Sign(at, "stuck", "last progress in the engine log", stats[-1].source, stats[-1].message)


def _interval_s(stats: Sequence[Line]) -> float:
    """How often it writes statistics."""
    gaps = [between_s(first.ts, second.ts) for first, second in itertools.pairwise(stats) if second.ts > first.ts]
    return min(statistics.median(gaps), LONGEST_INTERVAL_S) if gaps else 0.0


def _probe(events: Iterable[Event], since: Time, until: Time) -> Event | None:
    found = [event for event in events if event.kind == "probe_failed" and since <= event.ts <= until]
    return min(found, key=lambda event: event.ts) if found else None


def _of(probe: Event | None) -> tuple[Time | None, str | None]:
    return (None, None) if probe is None else (probe.ts, probe.initiator or probe.origin)


def _told(cause: str, life: Life, sign: Sign | None = None) -> str:
    parts = [SAYS[cause]]
    if cause == "external-stop":
        parts = [f"it was stopped from outside, by {life.initiator}" if life.initiator else "it was stopped from outside; nobody is named"]
        if life.lost_requests:
            parts.append(f"{life.lost_requests} request{'s' if life.lost_requests != 1 else ''} in flight were lost")
    if sign is not None and life.how == "external":
        parts.append(f"and was then stopped by {life.initiator}" if life.initiator else "and was then stopped from outside")
    return ", ".join(parts)
