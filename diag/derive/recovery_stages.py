"""Where the time of each recovery went, stage by stage, and what came after it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diag.recovery import aftermath, facts, latency
from diag.recovery.incidents import Capture, Recovery, recoveries
from diag.recovery.records import Event, Life, Line, Request, Sample
from diag.recovery.starts import OF_A_START
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("log_events",)
WANTS = ("host_events", "http_events", "metrics", "restarts")
_INCIDENT = "incident BIGINT: number of the recovery, from 0, in order of time"
GIVES: tuple[Table, ...] = (
    table(
        "recovery_stages",
        "Stages of each recovery, one row each, also those that are not known",
        _INCIDENT,
        "stage VARCHAR: detect stop reclaim process device weights compile kv_pool graphs api_up ready traffic_switched warm",
        "ts TIMESTAMP: when it began; NULL = not known", "seconds DOUBLE: how long it took, without what another stage counts; NULL = not known",
        "basis VARCHAR: stated (by the engine) | lines (between two lines) | events (of a journal) | mixed; NULL = not known",
        "why VARCHAR: why it is not known, or what it covers; NULL = nothing to say",
    ),
    table(
        "recoveries",
        "Recoveries of a service, from the first sign of trouble until it was ready, and what came after",
        _INCIDENT, "unit VARCHAR: unit, container or pod; NULL = no journal names it",
        "engine VARCHAR: vllm | sglang; NULL = no start is in the logs", "engine_version VARCHAR: as it prints it; NULL = it does not",
        "cause VARCHAR: start (no end is seen) | external-stop | stuck | engine-died | worker-died | out-of-memory | device-error | nccl-error | heartbeat-lost | unknown",
        "says VARCHAR: the cause in words", "how VARCHAR: external | self | auto | unknown, as in restarts; NULL = no end is seen",
        "fault_ts TIMESTAMP: first sign that something was wrong; NULL = none", "seen_by VARCHAR: what showed it first; NULL = nothing",
        "probe_ts TIMESTAMP: first failed probe after it; NULL = none in the evidence", "probe_by VARCHAR: whose probe; NULL = none",
        "probe_later_s DOUBLE: how much later than the first sign the probe failed; NULL = one of them is not seen",
        "command_ts TIMESTAMP: when somebody decided to restart it; NULL = not seen", "command_by VARCHAR: who; NULL = not known",
        "detect_ts TIMESTAMP: when the fault was acted upon, which is command_ts; NULL = no fault, or no command is seen",
        "detect_s DOUBLE: from the first sign to the command; NULL = one of them is not seen",
        "begun_ts TIMESTAMP: what the time to recover is counted from; NULL = not known",
        "started_ts TIMESTAMP: when the new process began; NULL = no start is seen", "ready_ts TIMESTAMP: when it was ready; NULL = it never was",
        "mttr_s DOUBLE: from begun_ts to ready_ts; NULL = it never was ready", "mttr_from VARCHAR: fault | command | stop | start: what begun_ts is; NULL = mttr_s is not known",
        "bottleneck VARCHAR: the longest stage, or unattributed; NULL = nothing is known",
        "bottleneck_s DOUBLE: how long that took; NULL = nothing is known", "unattributed_s DOUBLE: mttr_s that no stage covers; NULL = mttr_s is not known",
        "lost_requests BIGINT: requests that failed for it; NULL = nothing tells", "failed_pct DOUBLE: failed share of the work asked for until it was ready; NULL = no access log",
        "queue_peak BIGINT: most requests waiting, from begun_ts until half an hour after it was ready; NULL = no statistics",
        "first_p50_s DOUBLE: of the first requests after it was ready; NULL = not measured", "first_p99_s DOUBLE: the same, 99th percentile; NULL = not measured",
        "first_n BIGINT: how many; NULL = not measured", "before_p50_s DOUBLE: of the ten minutes before; NULL = not measured",
        "before_p99_s DOUBLE: the same, 99th percentile; NULL = not measured", "before_n BIGINT: how many; NULL = not measured",
        "latency_basis VARCHAR: access log | histogram; NULL = not measured",
        "traffic_switched_s DOUBLE: from ready to the first success of a user; NULL = not seen", "warm_s DOUBLE: from ready to the prefix hit rate of before; NULL = not seen",
        "second_ts TIMESTAMP: second look, after the first peak of traffic; NULL = no traffic is seen",
        "second_ok BOOLEAN: memory and latency were as before; NULL = not known", "second_says VARCHAR: in words; NULL = no traffic is seen",
        "memory_before_pct DOUBLE: KV cache in use before; NULL = not known", "memory_after_peak_pct DOUBLE: after the first peak; NULL = not known",
        "second_p99_s DOUBLE: latency after the first peak, 99th percentile; NULL = not measured",
        "fragmented_bytes BIGINT: reserved and not allocated, of an out-of-memory message after it; NULL = there is none",
        "why VARCHAR: what is not known, and why, as JSON; NULL = nothing",
    ),
    table(
        "recovery_facts",
        "What was seen around each recovery, one row each, with its line",
        _INCIDENT,
        "fact VARCHAR: waiting_before waiting_after running_before running_after (most that waited, and how many ran then; ten minutes before, one after) | preempted | "
        "first_user (s from ready until the first request that was answered was let through) | refused (requests that a proxy's log shows to fail until then; no row = no such log) | drain_done traffic_switch "
        "(s after ready) | queue_released admitted_pct | left_before left_after left_before_pct left_after_pct (clients that gave up) | patience_s waited_s timed_out answered_for_nobody | "
        "hit_rate_before hit_rate_after | back_off (s after the fault: a supervisor waits on purpose) | weights_gib weights_gib_per_s weights_download_s weights_prefetch_s weights_on_network | compiled compile_cached compile_cache_dir",
        "ts TIMESTAMP: when; NULL = of several moments", "value DOUBLE: its number; NULL = it has none", "says VARCHAR: in words",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]
AHEAD_S, BEHIND_S = 4500.0, 3600.0
METRICS = frozenset({*latency.HISTOGRAMS, *aftermath.KV_USAGE, *aftermath.QUEUED, *aftermath.RUNS, *facts.PREEMPTIONS})


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """log_events, journals, access logs and restarts -> recovery_stages and recoveries."""
    import pandas as pd

    out: dict[str, list[dict[str, object]]] = {item.name: [] for item in GIVES}
    for origin, seen in captures(frames).items():
        for number, item in enumerate(recoveries(seen)):
            head = {**dict(zip(KEYS, origin, strict=True)), "incident": number}
            out["recoveries"].append({**head, **_recovery(item)})
            for stage in item.stages:
                row = {**asdict(stage), "why": stage.why or None, "source": stage.source or item.source}
                out["recovery_stages"].append({**head, **row})
            out["recovery_facts"] += [{**head, **asdict(fact)} for fact in item.facts]
    return {name: pd.DataFrame(rows) for name, rows in out.items() if rows}


def _recovery(item: Recovery) -> dict[str, object]:
    fault, second, seconds = item.fault, item.second, {stage.stage: stage.seconds for stage in item.stages}
    longest = item.unattributed_s if item.bottleneck == "unattributed" else seconds.get(item.bottleneck or "")
    measured = item.first or item.before
    return {
        "source": item.source, "unit": item.unit, "engine": item.engine, "engine_version": item.version, "cause": fault.cause, "says": fault.says, "how": item.how,
        "fault_ts": fault.ts, "seen_by": fault.seen_by, "probe_ts": fault.probe_at, "probe_by": fault.probe_by,
        "probe_later_s": aftermath.span_s(fault.ts, fault.probe_at), "command_ts": fault.command_at, "command_by": fault.command_by,
        "detect_ts": fault.command_at if seconds["detect"] is not None else None, "detect_s": seconds["detect"],
        "begun_ts": item.begun_at, "started_ts": item.started_at, "ready_ts": item.ready_at, "mttr_s": item.mttr_s, "mttr_from": item.mttr_from,
        "bottleneck": item.bottleneck, "bottleneck_s": longest, "unattributed_s": item.unattributed_s,
        "lost_requests": item.lost_requests, "failed_pct": item.failed_pct, "queue_peak": item.queue_peak,
        "first_p50_s": item.first and item.first.p50_s, "first_p99_s": item.first and item.first.p99_s, "first_n": item.first and item.first.n,
        "before_p50_s": item.before and item.before.p50_s, "before_p99_s": item.before and item.before.p99_s, "before_n": item.before and item.before.n,
        "latency_basis": measured and measured.basis, "traffic_switched_s": seconds["traffic_switched"], "warm_s": seconds["warm"],
        "second_ts": second and second.ts, "second_ok": second and second.ok, "second_says": second and second.says,
        "memory_before_pct": second and second.memory_used_pct_before, "memory_after_peak_pct": second and second.memory_used_pct_after_peak,
        "second_p99_s": second and second.p99_after_s, "fragmented_bytes": second and second.fragmented_bytes,
        "why": json.dumps(item.why) if item.why else None,
    }  # fmt: skip


def captures(frames: "Mapping[str, pd.DataFrame]") -> dict[tuple[object, ...], Capture]:
    """Frames -> what each capture tells, in order of time; those without a start and an end of an engine are left out."""
    parts = {name: _split(frames.get(name)) for name in (*NEEDS, *WANTS)}
    found = {}
    for origin in dict.fromkeys([*parts["log_events"], *parts["restarts"]]):
        mine = {name: parts[name].get(origin) for name in parts}
        moments = _moments(mine["log_events"], mine["restarts"])
        if moments:
            rows = {name: _records(_chosen(name, frame, moments)) for name, frame in mine.items() if name != "http_events"}
            found[origin] = Capture(
                [_line(row) for row in rows["log_events"]], [_event(row) for row in rows["host_events"]], [_life(row) for row in rows["restarts"]],
                _requests(_chosen("http_events", mine["http_events"], moments)), [_sample(row) for row in rows["metrics"]],
            )  # fmt: skip
    return found


def _moments(lines: "pd.DataFrame | None", lives: "pd.DataFrame | None") -> "list[Any]":
    """Around which something can have happened that belongs to a recovery."""
    found = [] if lines is None else list(lines.loc[lines["event"].isin(OF_A_START), "ts"].dropna())
    for name in ("killed_at", "died_at", "stopped_at", "restarted_at", "ready_at"):
        found += [] if lives is None else list(lives[name].dropna())
    return sorted(found)


def _chosen(name: str, frame: "pd.DataFrame | None", moments: "list[Any]") -> "pd.DataFrame | None":
    """The rows that can matter, before they become records."""
    if frame is None:
        return None
    match name:
        case "log_events":
            return frame.dropna(subset=["ts", "event"]).sort_values(["ts", "line"], kind="stable")
        case "host_events":
            return frame.dropna(subset=["ts", "kind"]).sort_values("ts", kind="stable")
        case "http_events":
            work = frame[(frame["method"] == "POST") & frame["dated"].fillna(True).astype(bool)].dropna(subset=["ts", "path"])
            return _near(work, moments).sort_values("ts", kind="stable")
        case "metrics":
            return _near(frame[frame["name"].isin(METRICS)].dropna(subset=["ts", "value"]), moments).sort_values("ts", kind="stable")
        case _:
            return frame


def _near(frame: "pd.DataFrame", moments: "list[Any]") -> "pd.DataFrame":
    """Rows from an hour and a quarter before until an hour after one of the moments."""
    import numpy as np

    at = np.array(moments, dtype="datetime64[us]")
    ts = frame["ts"].to_numpy(dtype="datetime64[us]")
    after = np.minimum(np.searchsorted(at, ts, "left"), len(at) - 1)
    before = np.maximum(np.searchsorted(at, ts, "right") - 1, 0)
    ahead, behind = (at[after] - ts) / np.timedelta64(1, "s"), (ts - at[before]) / np.timedelta64(1, "s")
    near: pd.DataFrame = frame.loc[((ahead >= 0) & (ahead <= AHEAD_S)) | ((behind >= 0) & (behind <= BEHIND_S))]
    return near


def _split(frame: "pd.DataFrame | None") -> "dict[tuple[object, ...], pd.DataFrame]":
    if frame is None or frame.empty:
        return {}
    groups = frame.groupby(KEYS, dropna=False, sort=False)
    return {tuple(None if value != value else value for value in origin): group for origin, group in groups}


def _records(frame: "pd.DataFrame | None") -> list[dict[str, Any]]:
    """Rows with None for unknown."""
    if frame is None or frame.empty:
        return []
    kept = frame.drop(columns=KEYS)
    plain = kept.astype(object).where(kept.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def _moment(value: Any) -> Any:
    return None if value is None else value.to_pydatetime()


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _line(row: Mapping[str, Any]) -> Line:
    return Line(
        _moment(row["ts"]), row["event"], row["message"] or "", row["source"] or "", row["file"] or "", _int(row["line"]) or 0, _int(row["pid"]), row["role"]
    )  # fmt: skip


def _event(row: Mapping[str, Any]) -> Event:
    return Event(
        _moment(row["ts"]), row["kind"], row["origin"] or "", row["source"] or "", row["unit"], row["initiator"], _int(row["pid"]), _int(row["code"]), row["detail"] or ""
    )  # fmt: skip


def _life(row: Mapping[str, Any]) -> Life:
    moments = {name: _moment(row[name]) for name in ("killed_at", "died_at", "stopped_at", "restarted_at", "ready_at")}
    return Life(
        row["source"] or "", row["unit"], initiator=row["initiator"], how=row["how"] or "unknown", lost_requests=_int(row["lost_requests"]),
        detail=row["detail"] or "", **moments,
    )  # fmt: skip


def _requests(frame: "pd.DataFrame | None") -> list[Request]:
    """Column by column: there may be a million."""
    if frame is None or frame.empty:
        return []
    columns = [frame["ts"].to_numpy(dtype="datetime64[us]").tolist()]
    for name in ("method", "path", "status", "source", "seconds", "first_byte_s", "queued", "queue_s", "ended"):
        columns.append(frame[name].astype(object).where(frame[name].notna(), None).tolist())
    columns.append(frame["origin"].notna().tolist())
    return [
        Request(ts, method, path, _int(status), source or "", seconds, first, _int(queued), proxied, queue_s, ended)
        for ts, method, path, status, source, seconds, first, queued, queue_s, ended, proxied in zip(*columns, strict=True)
    ]  # fmt: skip


def _sample(row: Mapping[str, Any]) -> Sample:
    return Sample(_moment(row["ts"]), row["name"], row["labels"] or "", float(row["value"]), row["source"] or "")
