"""What happened when: restarts, events of the machine, known log lines, probes, and when llmdiag looked. All hosts in one picture."""

import datetime
from collections.abc import Callable, Iterator, Mapping

from diag.model import Part, Section
from diag.plots import Lane, Mark, Timeline, Tone
from diag.report.sections import Rows

Row = Mapping[str, object]

ORDER = 2
PICTURES = True
READS = {
    "restarts": """
SELECT host, unit, initiator, how, detail, source, coalesce(died_at, killed_at, stopped_at, restarted_at) AS ts, coalesce(ready_at, restarted_at) AS until_ts
FROM restarts WHERE coalesce(died_at, killed_at, stopped_at, restarted_at) IS NOT NULL ORDER BY ts""",
    "events": """
SELECT e.ts, e.host, e.kind, e.unit, e.initiator, e.detail, e.source,
  EXISTS (SELECT 1 FROM memory_kills k WHERE k.bundle = e.bundle AND k.capture = e.capture AND k.source = e.source AND NOT k.of_service) AS of_others
FROM host_events e WHERE e.ts IS NOT NULL ORDER BY e.ts""",
    "logs": """
SELECT ts, host, file, level, event, message, source FROM log_events
WHERE ts IS NOT NULL AND event IS DISTINCT FROM 'engine_stats' AND (event IS NOT NULL OR level IN ('ERROR', 'CRITICAL', 'FATAL')) ORDER BY ts""",
    "requests": """
SELECT date_trunc('second', ts) AS ts, host, count(*) AS failed, min(status) AS status, min(source) AS source FROM http_events
WHERE ts IS NOT NULL AND status >= 500 GROUP BY ALL ORDER BY ts""",
    "probes": "SELECT ts, host, url, outcome, status, seconds, source FROM probes WHERE ts IS NOT NULL ORDER BY ts",
    "answers": """
SELECT ts, host, arm, ordinal, prompt, answer_class, source FROM prefix_trials WHERE reproduced AND ts IS NOT NULL ORDER BY ts""",
    "stacks": "SELECT sample, host, pid, min(ts) AS ts, min(source) AS source FROM stack_frames WHERE ts IS NOT NULL GROUP BY sample, host, pid, bundle ORDER BY ts",
    "threads": "SELECT read, host, min(ts) AS ts, min(source) AS source FROM threads WHERE ts IS NOT NULL GROUP BY read, host, bundle ORDER BY ts",
}
MAX_MARKS = 400
"""Of one lane; the worst are kept."""
BAD_KINDS = frozenset({
    "oom_kill", "xid", "nvrm", "device_error", "nccl_error", "heartbeat_lost", "probe_failed", "killing", "exit", "back_off", "left_over", "cache_error",
    "hung_task", "segfault",
})  # fmt: skip
GOOD_KINDS = frozenset({"reclaim_done", "drain_done", "traffic_switch", "queue_released"})
BAD_EVENTS = frozenset({
    "worker_died", "engine_dead", "fatal", "oom", "memory_short", "nccl", "cuda_error", "rpc_timeout", "watchdog", "futures_after_shutdown",
})  # fmt: skip
WARN_EVENTS = frozenset({"health_fail", "preemption", "request_error", "shm_broadcast_notice", "shutdown_signal"})
GOOD_EVENTS = frozenset({"ready", "engine_ready"})
WORST: tuple[Tone, ...] = ("bad", "warn", "good", "calm")


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One picture, where anything has a time."""
    hosts = {row["host"] for found in rows.values() for row in found}
    lanes = tuple(lane for name, (title, mark) in LANES.items() for lane in _lanes(title, rows.get(name, ()), mark, several=len(hosts) > 1))
    if lanes:
        yield Section("What happened when", (Part(plot=Timeline(lanes)),))


def _lanes(name: str, found: Rows, mark: Callable[[Row], Mark], *, several: bool) -> Iterator[Lane]:
    """One lane a host."""
    for host in sorted({row["host"] for row in found}, key=str):
        marks = [mark(row) for row in found if row["host"] == host]
        kept = sorted(sorted(marks, key=lambda item: WORST.index(item.tone))[:MAX_MARKS], key=lambda item: item.at_s)
        yield Lane(f"{name}, {'unknown' if host is None else host}" if several else name, tuple(kept), len(marks) - len(kept))


def _restart(row: Row) -> Mark:
    what = {"external": "ended from outside", "self": "died by itself"}.get(str(row["how"]), "ended")
    by = f" by {row['initiator']}" if row["initiator"] is not None else ""
    return Mark(_s(row["ts"]), _line(row["unit"], f"{what}{by}", row["detail"]), "bad", None if row["until_ts"] is None else _s(row["until_ts"]), _source(row))


def _event(row: Row) -> Mark:
    kind = str(row["kind"])
    of_others = bool(row.get("of_others"))
    tone: Tone = "bad" if kind in BAD_KINDS and not of_others else "good" if kind in GOOD_KINDS else "calm"
    by = f" by {row['initiator']}" if row["initiator"] is not None else ""
    by += " (not of the service)" if of_others else ""
    return Mark(_s(row["ts"]), _line(row["unit"], f"{kind.replace('_', ' ')}{by}", row["detail"]), tone, None, _source(row))


def _log(row: Row) -> Mark:
    event = row["event"]
    bad = event in BAD_EVENTS or (event is None and row["level"] in ("ERROR", "CRITICAL", "FATAL"))
    tone: Tone = "bad" if bad else "warn" if event in WARN_EVENTS else "good" if event in GOOD_EVENTS else "calm"
    return Mark(_s(row["ts"]), _line(str(event or row["level"]).replace("_", " "), row["message"]), tone, None, _source(row))


def _request(row: Row) -> Mark:
    return Mark(_s(row["ts"]), f"{row['failed']} requests failed with HTTP {row['status']} or more", "bad", None, _source(row))


def _probe(row: Row) -> Mark:
    seconds = row["seconds"]
    took = f" after {seconds:.1f} s" if isinstance(seconds, float) else ""
    answered = row["outcome"] == "answer"
    what = f"HTTP {row['status']}" if answered else f"no answer: {row['outcome']}"
    fine = answered and isinstance(status := row["status"], int) and status < 400
    return Mark(_s(row["ts"]), _line(row["url"], f"{what}{took}"), "good" if fine else "bad", None, _source(row))


def _answer(row: Row) -> Mark:
    return Mark(_s(row["ts"]), f"wrong answer to prompt {row['prompt']}: {row['answer_class']} (request {row['ordinal']} of the {row['arm']} arm)", "bad", None, _source(row))


def _stack(row: Row) -> Mark:
    return Mark(_s(row["ts"]), f"stack sample {row['sample']} of pid {row['pid']}", "calm", None, _source(row))


def _thread(row: Row) -> Mark:
    return Mark(_s(row["ts"]), f"all threads read, read {row['read']}", "calm", None, _source(row))


LANES: Mapping[str, tuple[str, Callable[[Row], Mark]]] = {
    "restarts": ("Restarts", _restart), "events": ("Journals", _event), "logs": ("Engine logs", _log), "requests": ("Failed requests", _request),
    "answers": ("Wrong answers", _answer), "probes": ("Probes", _probe), "stacks": ("Stack samples", _stack), "threads": ("Reads of all threads", _thread),
}  # fmt: skip
"""Rows -> title of their lane and how one of them is told; from what went wrong down to when was looked."""


def _line(*parts: object) -> str:
    return ": ".join(str(part) for part in parts if part is not None and str(part))


def _source(row: Row) -> str:
    return "" if row["source"] is None else str(row["source"])


def _s(ts: object) -> float:
    """A time of the evidence, which is in UTC, as seconds since 1970."""
    assert isinstance(ts, datetime.datetime)
    return ts.replace(tzinfo=datetime.UTC).timestamp()

