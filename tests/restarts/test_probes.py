"""Stretches without progress in a log, and probes against what was measured."""

import json

import pytest

from diag.derive import engine_freezes, probe_margins
from diag.restarts import margins
from tests.derive.frames import derived
from tests.restarts.told import Row, at, life, line, request, rule, stats


def stretches(*lines: Row, http: list[Row] | None = None, dumped: list[Row] | None = None) -> list[tuple[object, object, object]]:
    found = derived(engine_freezes, log_events=[*life(), *lines], http_events=http or [], thread_places=dumped or [])["engine_freezes"]
    return [(row["since"], row["frozen_s"], row["ended_by"]) for row in found]


def test_requests_and_no_progress() -> None:
    assert stretches(stats(-10, 30.0), *[stats(second, 0.0) for second in range(0, 400, 10)], stats(400, 30.0)) == [(at(0), 400.0, "progress")]


def test_the_silence_after_a_flat_line_counts_until_the_evidence_ends() -> None:
    assert stretches(stats(-10, 30.0), stats(0, 0.0), http=[request(500, 200, "/health")]) == [(at(0), 500.0, "end of the log")]
    assert stretches(stats(-10, 30.0), stats(0, 0.0), line(700, "shutdown_signal")) == [(at(0), 700.0, "shutdown")]


def test_a_dump_of_one_who_writes_to_the_log_tells_of_a_later_moment() -> None:
    flat = [stats(-10, 30.0), {**stats(0, 0.0), "pid": 4711}]
    assert stretches(*flat, dumped=[{"pid": 4711, "last_ts": at(300)}, {"pid": 4711, "last_ts": at(500)}]) == [(at(0), 500.0, "end of the log")]
    assert stretches(*flat, dumped=[{"pid": 4712, "last_ts": at(500)}]) == [], "somebody else's"
    assert stretches(*flat, dumped=[{"pid": 4711, "last_ts": None}]) == []


def test_silence_after_progress_is_no_stretch() -> None:
    assert stretches(stats(0, 30.0), http=[request(500, 200, "/health")]) == []


def test_kv_usage_that_rises_and_an_idle_engine_are_none() -> None:
    assert stretches(*[stats(second, 0.0, kv_pct=10 + second / 100) for second in range(0, 400, 10)]) == []
    assert stretches(*[stats(second, 0.0, running=0) for second in range(0, 400, 10)]) == []


def test_engines_of_one_log_are_kept_apart() -> None:
    two = [{**stats(second, 30.0), "message": str(stats(second, 30.0)["message"]).replace("Engine 000", "Engine 001")} for second in range(0, 400, 10)]
    assert stretches(*[stats(second, 0.0) for second in range(0, 400, 10)], *two) == [(at(0), 390.0, "end of the log")]


LIVENESS = rule("kubelet (liveness probe)", 10, 1, 3, "http-get http://:8000/health")


def margin(given: Row = LIVENESS, **rows: list[Row]) -> dict[str, bool]:
    found = derived(probe_margins, watchdog_rules=[given], **{name: rows.get(name, []) for name in ("http_events", "metrics", "restarts")})["probe_margins"]
    return {str(row["measure"]): bool(row["tight"]) for row in found}


@pytest.mark.parametrize(("late", "tight"), [(0, False), (1, True), (30, True)])
def test_timeout_against_the_latency_of_its_path(late: int, tight: bool) -> None:
    requests = [request(n, 200, "/health", seconds=1.4 if n < late else 0.02) for n in range(100)]
    other = [request(n, 200, seconds=200.0) for n in range(100)]
    assert margin(http_events=[*requests, *other]) == {"latency": tight}


def test_too_few_requests_or_no_durations_say_nothing() -> None:
    assert margin(http_events=[request(n, 200, "/health", seconds=5.0) for n in range(10)]) == {}
    assert margin(http_events=[request(n, 200, "/health") for n in range(100)]) == {}


def test_a_real_request_is_not_compared() -> None:
    assert margin(rule("dog", 300, 45, 5, "POST http://x:8000/v1/chat/completions"), http_events=[request(n, 200, seconds=200.0) for n in range(100)]) == {}


def test_a_start_that_takes_longer_than_its_patience() -> None:
    """Delay 30 s and 21 s of silence: a start of a minute is never finished. A probe of another unit is not concerned."""
    slow = [{"restart": 0, "unit": "llm-0/server", "restarted_at": at(0), "ready_at": at(60), "source": "j:1"}]
    given = {**LIVENESS, "delay_s": 30.0, "unit": "llm-0/server"}
    assert margin(given, restarts=slow) == {"start-up": True}
    assert margin({**given, "delay_s": 300.0}, restarts=slow) == {"start-up": False}
    assert margin({**given, "unit": "llm-1/server"}, restarts=slow) == {}


def buckets(**counts: float) -> list[Row]:
    return [{"read": 1, "name": "http_request_duration_seconds_bucket", "value": value, "source": "m:1",
             "labels": json.dumps({"handler": "/health", "le": bound.removeprefix("le").replace("_", ".").replace("inf", "+Inf")})}
            for bound, value in counts.items()]  # fmt: skip


def test_the_histogram_of_the_server() -> None:
    assert margin(metrics=buckets(le0_1=90, le0_5=95, le1_0=96, leinf=100)) == {"latency": True}
    assert margin(metrics=buckets(le0_1=98, le0_5=99, le1_0=100, leinf=100)) == {"latency": False}
    assert margin(metrics=buckets(le0_1=1, leinf=2)) == {}


@pytest.mark.parametrize(("what", "path"), [("http-get http://:8000/health", "/health"), ("GET /v1/models", "/v1/models"), ("exec python check.py", None), ("a chat request", None)])
def test_the_path_of_a_probe(what: str, path: str | None) -> None:
    assert margins.path_of(what) == path
