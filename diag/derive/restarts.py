"""Restarts of the service: who did each of them, was it working, did one bring about the next, and by whose rule."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diag.restarts import fingerprints, initiators, progress_before, replay, timeline, watchdogs
from diag.restarts.progress_before import Counted
from diag.restarts.records import Event, Line, Restart, Time, WatchRule, between_s
from diag.restarts.replay import Error
from diag.restarts.requests import Requests
from diag.restarts.watchdogs import Known
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("host_events", "log_events", "event_files")
"""Without any supervisor's journal nobody knows who restarted a service, however quiet the kernel's log is."""
WANTS = ("http_events", "metrics", "log_files", "watchdog_rules")

_RESTART = "restart BIGINT: number of the restart, from 0, in order of time"
_UNIT = "unit VARCHAR: unit, container or pod that was restarted; NULL = no journal names it"
GIVES: tuple[Table, ...] = (
    table(
        "restarts",
        "Ends and starts of a service, one row each",
        _RESTART, _UNIT, "pid BIGINT: process that ended; NULL = not told",
        "started_at TIMESTAMP: when the life that ended had begun; NULL = before the evidence",
        "killed_at TIMESTAMP: first signal or request to end from outside; NULL = none is seen",
        "stopped_at TIMESTAMP: when the process had ended; NULL = not told",
        "restarted_at TIMESTAMP: when it was started again; NULL = not seen",
        "ready_at TIMESTAMP: when it was ready to serve; NULL = not seen",
        "died_at TIMESTAMP: first sign that it died by itself; NULL = none before somebody ended it",
        "initiator VARCHAR: who ended it, and of a death who started it again; NULL = not known",
        "who VARCHAR: watchdog | person | rollout | supervisor; NULL = not known",
        "how VARCHAR: external (somebody sent a signal or asked) | self (it died) | auto (it ended, why is open, and its supervisor started it) | unknown",
        "lost_requests BIGINT: requests that failed for it, the least that is known; NULL = nothing tells",
        "detail VARCHAR: what the evidence says of its end",
    ),
    table(
        "restart_progress",
        "Was the engine working when somebody ended it: one row per restart from outside and witness",
        _RESTART, "window_s DOUBLE: how long before the end its initiator looked",
        "witness VARCHAR: engine_stats | answers | metrics", "moved BOOLEAN: it was working until shortly before; NULL = this witness cannot tell",
        "says VARCHAR: in words",
    ),
    table(
        "restart_links",
        "Would the next restart of a unit have come without this one: its initiator's rule replayed without this one's errors, and those of restarts before it",
        _RESTART, "next_restart BIGINT: the one after it, of the same unit", "initiator VARCHAR: who ended the next one; NULL = not known",
        "rule VARCHAR: by which rule, in words", "errors_before BIGINT: errors the rule counted; NULL = not in the evidence",
        "errors_without BIGINT: those that are not of this restart, nor (where they decide) of those before it; NULL = cannot be told",
        "causal BOOLEAN: without this restart, or without it and those before it, the rule would not have fired; NULL = cannot be told",
        "missing VARCHAR: table that would tell; NULL = it is told", "says VARCHAR: in words",
    ),
    table(
        "restart_consequences",
        "Errors that a restart from outside left behind, and that tell nothing of the engine's health",
        _RESTART, "fingerprint VARCHAR: futures-after-shutdown | engine-dead-body | engine-gone | still-loading | refused",
        "n BIGINT: lines that bear it", "first_ts TIMESTAMP: first of them", "last_ts TIMESTAMP: last of them", "says VARCHAR: what they are",
    ),
    table(
        "watchdogs",
        "Everybody who watches the service, the rule by which each decides, and what it did",
        "initiator VARCHAR: who, or what is known of a client that probes", "period_s DOUBLE: how often it looks; NULL = not known",
        "timeout_s DOUBLE: how long it waits; NULL = not known", "strikes BIGINT: failures until it acts; NULL = not known",
        "what VARCHAR: what it looks at", "n BIGINT: probes or failures that the period was measured on; 0 = given",
        "basis VARCHAR: given | measured | given and measured | nothing", "restarts BIGINT: restarts it did",
        "phase VARCHAR: do its restarts keep to its period, with n and length of the observation; NULL = no period or no restart",
    ),
)  # fmt: skip
COUNTERS = frozenset({
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count", "vllm:prefix_cache_queries_total",
    "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:realtime_tokens_total",
})  # fmt: skip
"""Counters that rise with work and with nothing else; the whole set, with its traps, is the business of `llmdiag health`."""
ERROR_LINES = frozenset({"futures_after_shutdown", "request_error"})
KEYS = ["bundle", "host", "capture"]
Origin = tuple[object, object, object]


@dataclass(frozen=True)
class _Seen:
    """All that one capture tells."""

    events: Sequence[Event]
    lines: Sequence[Line]
    requests: Requests
    rules: Sequence[WatchRule]
    counted: Sequence[Counted]
    span_h: float

    @property
    def log_seen(self) -> bool:
        """Would an engine log have told that it was ready?"""
        return any(line.event in ("ready", "startup") for line in self.lines)


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """host_events, log_events, access logs and rules -> restarts and what is to be said of them."""
    import pandas as pd

    out: dict[str, list[dict[str, object]]] = {item.name: [] for item in GIVES}
    for origin, seen in _captures(frames).items():
        for name, row in _rows(seen):
            out[name].append({**dict(zip(KEYS, origin, strict=True)), **row})
    return {name: pd.DataFrame(rows) for name, rows in out.items() if rows}


def _rows(seen: _Seen) -> "list[tuple[str, dict[str, object]]]":
    probers = seen.requests.probers() if seen.requests.seen else []
    named = {rule.initiator for rule in seen.rules} | {str(event.initiator) for event in seen.events if event.kind == "probe_failed"}
    found = timeline.restarts(seen.events, seen.lines, frozenset(named))
    for restart in found:
        if restart.ready_at is None and restart.restarted_at is not None and not seen.log_seen and seen.requests.seen:
            restart.ready_at = seen.requests.first_success(restart.restarted_at)
    known = watchdogs.known(seen.rules, seen.events, found, probers)
    numbers = {id(restart): number for number, restart in enumerate(found)}
    rows: list[tuple[str, dict[str, object]]] = []
    for number, restart in enumerate(found):
        rows.append(("restarts", _restart(number, restart, seen)))
        if restart.how == "external":
            rows += [("restart_progress", {"restart": number, **vars(item)}) for item in _progress(restart, seen, known)]
            rows += [("restart_consequences", _consequence(number, item)) for item in fingerprints.consequences(restart, seen.lines)]
    for this, after in _pairs(found):
        earlier = [restart for restart in found[: numbers[id(this)]] if restart.unit == this.unit]
        row = _link(this, after, earlier, seen, known)
        rows.append(("restart_links", {"restart": numbers[id(this)], "next_restart": numbers[id(after)], **row}))
    rows += [("watchdogs", row) for row in _watchdogs(known, found, probers, seen)]
    return rows


def _restart(number: int, restart: Restart, seen: _Seen) -> dict[str, object]:
    names = ("unit", "pid", "started_at", "killed_at", "stopped_at", "restarted_at", "ready_at", "died_at", "initiator", "who", "how", "detail", "source")
    begin = restart.down_at
    lost = fingerprints.aborted([line for line in seen.lines if begin is not None and -1.0 <= between_s(begin, line.ts) <= fingerprints.TAIL_S])
    span = restart.until(restart.restarted_at or restart.stopped_at)
    failed = None if span is None else seen.requests.lost(*span)
    near = [] if begin is None else [item for item in seen.lines if item.event == "engine_stats" and -30.0 <= between_s(begin, item.ts) <= 5.0]
    running = progress_before.stats_of(near[-1]).running if near else None
    known = [count for count in (lost, failed, running) if count is not None]
    return {"restart": number, **{name: getattr(restart, name) for name in names}, "lost_requests": max(known) if known else None}


def _progress(restart: Restart, seen: _Seen, known: Mapping[tuple[str, str | None], Known]) -> list[progress_before.Progress]:
    rule = watchdogs.rule_for(known, restart.initiator, restart.unit)
    end = restart.killed_at
    if end is None:
        return []
    begin = end - datetime.timedelta(seconds=progress_before.window_s(rule))
    answered = seen.requests.answered(begin, end) if seen.requests.seen else []
    return progress_before.judge(restart, rule, seen.lines, answered, seen.counted)


def _consequence(number: int, item: fingerprints.Consequence) -> dict[str, object]:
    return {
        "restart": number, "fingerprint": item.fingerprint, "n": item.n, "first_ts": item.first.ts, "last_ts": item.last.ts, "says": item.says,
        "source": item.first.source,
    }  # fmt: skip


def _pairs(found: Sequence[Restart]) -> list[tuple[Restart, Restart]]:
    """Each restart with the next one of its unit."""
    last: dict[str | None, Restart] = {}
    pairs = []
    for restart in found:
        if restart.unit in last:
            pairs.append((last[restart.unit], restart))
        last[restart.unit] = restart
    return pairs


def _link(
    this: Restart, after: Restart, earlier: Sequence[Restart], seen: _Seen, known: Mapping[tuple[str, str | None], Known]
) -> dict[str, object]:  # fmt: skip
    rule = watchdogs.rule_for(known, after.initiator, after.unit)
    failures = [event for event in seen.events if event.kind == "probe_failed" and event.initiator == after.initiator]
    found = replay.link(this, after, rule, failures, _errors(seen), earlier, log_seen=seen.log_seen)
    return {
        "initiator": after.initiator, "rule": found.rule, "errors_before": found.before,
        "errors_without": found.without, "causal": found.causal, "missing": found.missing, "says": found.says, "source": found.source,
    }  # fmt: skip


def _errors(seen: _Seen) -> Callable[[Time, Time, int | None], Sequence[Error] | None]:
    """What clients met, from the access log; where there is none, from lines of the engine log."""
    def errors(begin: Time, end: Time, status: int | None) -> Sequence[Error] | None:
        if seen.requests.seen:
            return seen.requests.errors(begin, end, status)
        found = [Error(line.ts, line.ts, line.source) for line in seen.lines if line.event in ERROR_LINES and begin <= line.ts <= end]
        return found or None

    return errors


def _watchdogs(
    known: Mapping[tuple[str, str | None], Known], found: Sequence[Restart], probers: Sequence[watchdogs.Prober], seen: _Seen
) -> list[dict[str, object]]:  # fmt: skip
    phases: dict[str, watchdogs.Phase] = {}
    for (initiator, _), item in known.items():
        moments = [restart.killed_at for restart in found if restart.initiator == initiator and restart.killed_at is not None]
        if moments and item.rule.period_s is not None:
            phases[initiator] = watchdogs.phase(moments, item.rule.period_s, seen.span_h)
    phases = watchdogs.holm(phases)
    rows: list[dict[str, object]] = []
    for (initiator, _), item in known.items():
        rule, phase = item.rule, phases.get(initiator)
        rows.append({
            "initiator": initiator, "period_s": rule.period_s, "timeout_s": rule.timeout_s, "strikes": rule.strikes, "what": rule.what, "n": item.n,
            "basis": item.basis, "restarts": sum(restart.initiator == initiator for restart in found), "source": rule.source,
            "phase": None if phase is None else phase.says,
        })  # fmt: skip
    named = {(row["period_s"], row["what"]) for row in rows} | {(prober.period_s, prober.what) for prober in probers if _is_known(prober, known)}
    for prober in probers:
        if (prober.period_s, prober.what) in named:
            continue
        rows.append({
            "initiator": prober.who, "period_s": prober.period_s, "timeout_s": None, "strikes": None, "what": prober.what, "n": prober.n,
            "basis": "measured", "restarts": 0, "phase": None, "source": prober.source,
        })  # fmt: skip
    return rows


def _is_known(prober: watchdogs.Prober, known: Mapping[tuple[str, str | None], Known]) -> bool:
    """Is this client one of the watchdogs that are named already?"""
    return any(watchdogs.is_like(prober, item.rule) for item in known.values())


# --- frames to records ---


def _captures(frames: "Mapping[str, pd.DataFrame]") -> dict[Origin, _Seen]:
    """Records per capture; those in which nothing can have been restarted are left out."""
    tables = {name: _split(frames.get(name)) for name in (*NEEDS, *WANTS)}
    found = {}
    for origin in dict.fromkeys([*tables["host_events"], *tables["log_events"]]):
        rows = {name: items.get(origin) for name, items in tables.items()}
        events, lines = _events(rows["host_events"]), _lines(rows["log_events"])
        marks = ("startup", "shutdown_signal", "futures_after_shutdown", "watchdog", *initiators.DEATHS)
        if any(event.kind in ("killing", "exit", "stop", "restart", "oom_kill", "start") for event in events) or any(line.event in marks for line in lines):
            requests = _requests(rows["http_events"], frames["http_events"])
            found[origin] = _Seen(events, lines, requests, _rules(rows["watchdog_rules"]), _counted(rows["metrics"]), _hours(rows))
    return found


def _split(frame: "pd.DataFrame | None") -> "dict[Origin, pd.DataFrame]":
    if frame is None or frame.empty:
        return {}
    found: dict[Origin, pd.DataFrame] = {}
    for (bundle, host, capture), group in frame.groupby(KEYS, dropna=False, sort=False):
        found[_plain(bundle), _plain(host), _plain(capture)] = group
    return found


def _plain(value: object) -> object:
    """pandas' missing values are None here."""
    return None if value is None or value != value else value


def _known_rows(frame: "pd.DataFrame | None", *needed: str) -> list[dict[str, Any]]:
    """Rows with None for unknown; those without the needed columns are left out."""
    if frame is None:
        return []
    kept = frame.dropna(subset=list(needed))
    return [{str(name): value for name, value in row.items()} for row in kept.astype(object).where(kept.notna(), None).to_dict("records")]


def _int(value: Any) -> int | None:
    """Whole numbers with holes come as floats."""
    return None if value is None else int(value)


def _events(frame: "pd.DataFrame | None") -> list[Event]:
    return sorted((
        Event(
            row["ts"].to_pydatetime(), row["kind"], str(row["origin"] or ""), row["source"] or "", row["unit"], row["initiator"], _int(row["pid"]), _int(row["code"]),
            str(row["detail"] or ""),
        )
        for row in _known_rows(frame, "ts", "kind")
    ), key=lambda event: event.ts)  # fmt: skip


def _lines(frame: "pd.DataFrame | None") -> list[Line]:
    rows = _known_rows(frame, "ts", "event")
    rows.sort(key=lambda row: (row["ts"], row["line"] or 0))
    return [Line(row["ts"].to_pydatetime(), row["event"], str(row["message"] or ""), row["source"] or "", str(row["file"] or ""), pid=_int(row["pid"])) for row in rows]


def _requests(frame: "pd.DataFrame | None", like: "pd.DataFrame") -> Requests:
    rows = like.iloc[0:0] if frame is None else frame
    return Requests(rows.dropna(subset=["ts"]).sort_values("ts", kind="stable").reset_index(drop=True))


def _rules(frame: "pd.DataFrame | None") -> list[WatchRule]:
    return [
        WatchRule(
            row["initiator"], str(row["what"] or "not said"), row["source"] or "", row["period_s"], row["timeout_s"], _int(row["strikes"]), row["unit"], row["delay_s"]
        )
        for row in _known_rows(frame, "initiator")
    ]  # fmt: skip


def _counted(frame: "pd.DataFrame | None") -> list[Counted]:
    if frame is None:
        return []
    rows = _known_rows(frame[frame["name"].isin(COUNTERS)], "ts", "value")
    return [Counted(row["ts"].to_pydatetime(), f"{row['target']} {row['name']} {row['labels'] or ''}".strip(), row["value"], row["source"] or "") for row in rows]


def _hours(rows: "Mapping[str, pd.DataFrame | None]") -> float:
    """From the first to the last moment that any log covers, whatever happened in it."""
    moments = [
        moment
        for name, columns in (("log_files", ("first_ts", "last_ts")), ("event_files", ("first_ts", "last_ts")), ("host_events", ("ts",)), ("http_events", ("ts",)))
        if (frame := rows[name]) is not None
        for column in columns
        for moment in (frame[column].min(), frame[column].max())
        if moment == moment and moment is not None
    ]  # fmt: skip
    return (max(moments) - min(moments)).total_seconds() / 3600 if moments else 0.0
