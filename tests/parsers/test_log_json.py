"""Lines of JSON of every logger that routers and proxies use: level, time, writer, text, requests; and the quick way finds them."""

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.collectors import logs
from diag.parsers import engine_log, log_heads, log_json
from tests.collectors.harness import parse
from tests.parsers.test_engine_scan import assert_same

AT = datetime.datetime(2026, 11, 30, 2, 52, 45)
EPOCH = 1796007165
ZAP = '{"level":"warn","ts":1796007165.25,"caller":"proxy.go:88","msg":"backend gone","error":"dial tcp 10.0.0.4:8000: refused"}'
SLOG = '{"time":"2026-11-30T02:52:45.25Z","level":"ERROR","msg":"no upstream","model":"a"}'
RUST = '{"timestamp":"2026-11-30T02:52:45.250000Z","level":"WARN","fields":{"message":"worker left","worker":"w1"},"target":"router::pool"}'
STRUCT = '{"event": "retrying", "attempt": 2, "level": "warning", "timestamp": "2026-11-30 02:52:45", "logger": "gateway"}'
PINO = '{"level":50,"time":1796007165250,"pid":71,"hostname":"h","msg":"socket hang up"}'
PYTHON = '{"asctime": "2026-11-30 02:52:45,250", "levelname": "ERROR", "name": "app", "process": 9, "message": "boom", "exc_info": "Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nValueError: odd"}'
GELF = '{"version":"1.1","short_message":"no space","timestamp":1796007165.25,"level":3}'
ENVOY = '{"start_time":"2026-11-30T02:52:43.250Z","method":"POST","path":"/v1/x?key=s","response_code":503,"duration":2000,"bytes_sent":91,"user_agent":"curl/8"}'
NGINX = '{"time_iso8601":"2026-11-30T02:52:45+00:00","request":"GET /v1/models HTTP/1.1","status":"200","body_bytes_sent":"12","request_time":"0.250","remote_addr":"10.0.0.9"}'
CADDY = '{"level":"error","ts":1796007165.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.9","method":"POST","uri":"/v1/x"},"duration":2.0,"size":91,"status":502}'
TRAEFIK = '{"ClientHost":"10.0.0.9","DownstreamStatus":504,"Duration":2000000000,"RequestMethod":"POST","RequestPath":"/v1/x","time":"2026-11-30T02:52:45Z"}'
PINO_HTTP = '{"level":30,"time":1796007165250,"req":{"method":"POST","url":"/v1/x"},"res":{"statusCode":200},"responseTime":2000,"msg":"request completed"}'
GIN = '{"level":"info","ts":"2026-11-30T02:52:45Z","msg":"done","method":"POST","path":"/v1/x","status":200,"latency":"1m2.5s"}'
BARE = '{"ts": "2026-11-30T02:52:45Z", "path": "/v1/x", "status": 429, "duration_ms": 2000}'


@pytest.mark.parametrize(("line", "level", "logger", "message"), [
    (ZAP, "WARNING", "proxy.go:88", "backend gone: dial tcp 10.0.0.4:8000: refused"),
    (SLOG, "ERROR", None, "no upstream"),
    (RUST, "WARNING", "router::pool", "worker left"),
    (STRUCT, "WARNING", "gateway", "retrying"),
    (PINO, "ERROR", None, "socket hang up"),
    (PYTHON, "ERROR", "app", "boom: ValueError: odd"),
    (GELF, "ERROR", None, "no space"),
])
def test_what_a_line_says(line: str, level: str, logger: str | None, message: str) -> None:
    (row,) = parse(logs, {"router.log": f"{SLOG}\n{SLOG}\n{SLOG}\n{line}\n"})["log_events"][3:]
    assert (row["level"], row["logger"], row["message"], row["source"]) == (level, logger, message, "router.log:4")
    assert isinstance(row["ts"], datetime.datetime)
    assert abs((row["ts"] - AT).total_seconds()) < 1


@pytest.mark.parametrize(("line", "method", "path", "status", "seconds"), [
    (ENVOY, "POST", "/v1/x", 503, 2.0), (NGINX, "GET", "/v1/models", 200, 0.25), (CADDY, "POST", "/v1/x", 502, 2.0), (TRAEFIK, "POST", "/v1/x", 504, 2.0),
    (PINO_HTTP, "POST", "/v1/x", 200, 2.0), (GIN, "POST", "/v1/x", 200, 62.5), (BARE, None, "/v1/x", 429, 2.0),
])
def test_requests(line: str, method: str | None, path: str, status: int, seconds: float) -> None:
    *_, row = parse(logs, {"access.jsonl": f"{BARE}\n" * 3 + line})["http_events"]
    assert (row["method"], row["path"], row["status"], row["seconds"], row["dated"]) == (method, path, status, pytest.approx(seconds), True)
    assert abs((row["ts"] - AT).total_seconds()) < 1, "a request that tells when it began is dated when it was over"  # type: ignore[operator]


def test_a_request_that_is_logged_as_an_error_is_both() -> None:
    rows = parse(logs, {"caddy.log": f"{CADDY}\n" * 3})
    assert (len(rows["http_events"]), {row["level"] for row in rows["log_events"]}) == (3, {"ERROR"})


@pytest.mark.parametrize("duration", ['"duration":2000', '"latency":2000', '"duration":"soon"'])
def test_a_duration_without_a_unit_is_not_guessed(duration: str) -> None:
    record = log_json.read(f'{{"ts":{EPOCH},"method":"GET","path":"/x","status":200,{duration}}}')
    assert record is not None and record.request is not None
    assert record.request["seconds"] is None


def test_an_engine_that_logs_json_is_read_like_any_other() -> None:
    inner = "(EngineCore pid=7) ERROR 11-30 02:52:45 [core.py:935] EngineCore encountered a fatal error."
    stats = "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%"
    lines = [
        json.dumps({"time": "2026-11-30T02:52:45Z", "stream": "stderr", "log": inner}),
        json.dumps({"asctime": "2026-11-30 02:52:45,1", "levelname": "INFO", "name": "vllm.v1.metrics.loggers", "message": stats}),
        json.dumps({"asctime": "2026-11-30 02:52:46,1", "levelname": "INFO", "name": "uvicorn.access", "message": '10.0.0.9:5 - "GET /health HTTP/1.1" 200'}),
    ]
    rows = parse(logs, {"engine.jsonl": "\n".join(lines) + "\n"})
    assert [(row["event"], row["pid"], row["role"], row["level"]) for row in rows["log_events"]] == [("fatal", 7, "engine_core", "ERROR"), ("engine_stats", None, None, "INFO")]
    assert [(row["path"], row["status"]) for row in rows["http_events"]] == [("/health", 200)]


@pytest.mark.parametrize("line", [
    '{"a": 1}', "{}", "[1, 2]", '{"level":"info","msg":"no time"}', '{"ts":12,"level":"info","msg":"no such time"}', '{"ts": 1796007165, "n": 3}', '{"level":"info"',
    '{"ts":"2026-11-30T02:52:45Z","level":"info","msg":"' + "x" * 70_000, "{" * 5000 + "}" * 5000, '{"artefact":"logs","logs":[]}',
])
def test_what_is_no_such_line(line: str) -> None:
    assert log_heads.split(line).kind == "raw"
    assert not logs.recognise("x.jsonl", f"{line}\n".encode() * 4)


def test_recorded_lookups_and_events_are_no_logs() -> None:
    for line in ('{"request": "r7", "method": "engine", "position": 0, "block_hash": "8721", "hit": true, "ts": 1796007165.3}', '{"seq": 7, "ts": 1796007165.3, "events": []}'):
        assert not logs.recognise("x.jsonl", f"{line}\n".encode() * 4)


LINES = (ZAP, SLOG, RUST, STRUCT, PINO, PYTHON, GELF, ENVOY, NGINX, CADDY, TRAEFIK, PINO_HTTP, GIN, BARE)
QUIET = ('{"level":"info","ts":1796007170,"msg":"ordinary"}', '{"level": 30, "time": 1796007171000, "msg": "more"}', "ordinary", '{"ts":"2026-11-30T02:53:00Z","level":"debug","msg":"x"}')


@given(st.lists(st.sampled_from((*LINES, *QUIET)), min_size=1, max_size=25), st.sampled_from(("", "router-1  | ", "2026-11-30T02:52:47.5Z stdout F ")), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_quick_way_finds_what_the_slow_one_keeps(lines: list[str], before: str, in_docker: bool) -> None:
    texts = [json.dumps({"log": f"{before}{line}\n", "stream": "stderr", "time": "2026-11-30T02:52:47.1Z"}) if in_docker else before + line for line in lines]
    assert_same("\n".join(texts).encode(), blocks=(60, 900))


def test_each_line_alone_between_ordinary_ones() -> None:
    for line in LINES:
        kept = assert_same(f"ordinary\n{line}\nordinary\n".encode(), blocks=(4 << 20,))
        assert len(kept) >= 2, f"nothing kept of {line}"


def test_a_log_of_a_router_looks_like_one() -> None:
    for line in LINES:
        assert engine_log.looks_like_log(f"{line}\n" * 3), line


@pytest.mark.parametrize(("key", "cached"), [
    ('"cache_hit":true', True), ('"x-vendor-cache-hit":"true"', True), ('"x-cache":"HIT from edge"', True), ('"upstream_cache_status":"MISS"', False), ('"cache_hit":null', None),
    ('"cache":"x"', None), ('"cache_hit_tokens":7', None),
])
def test_whether_a_cache_answered(key: str, cached: bool | None) -> None:
    record = log_json.read(f'{{"ts":{EPOCH},"path":"/x","status":200,{key}}}')
    assert record is not None and record.request is not None
    assert record.request["cached"] is cached


@pytest.mark.parametrize(("files", "status"), [
    ({"router.log": f"{ZAP}\n" * 3}, "partial"), ({"access.jsonl": f"{ENVOY}\n" * 3, "router.log": f"{ZAP}\n" * 3}, "partial"),
    ({"router.log": f"{ZAP}\n" * 3, "server.log": "INFO:     Waiting for application startup.\n" * 3}, "ok"),
    ({"engine.jsonl": f"{ZAP}\n" * 3 + '{"ts":1796007165,"level":"info","msg":"Application startup complete."}\n'}, "ok"),
    ({"server.log": 'INFO:     10.0.0.9:5 - "GET /health HTTP/1.1" 200 OK\n' * 3}, "ok"),
])
def test_the_log_of_a_router_is_not_that_of_the_engine(files: dict[str, str], status: str) -> None:
    said = [(row["table_name"], row["status"]) for row in parse(logs, files)["collected"]]
    assert said == [("log_events", status)]
