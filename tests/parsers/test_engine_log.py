"""Log formats of the engines, and what is kept of them."""

import datetime
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.errors import BadInput
from diag.parsers import engine_events, engine_log, log_access, log_heads
from diag.parsers.log_clock import Clock

SAMPLES = Path(__file__).parents[2] / "samples" / "vllm-0.32-cpu"
EPOCH = datetime.datetime(2026, 11, 30, 3, 0, tzinfo=datetime.UTC).timestamp()


def rows_of(text: str | bytes, *, year: int | None = 2026, tz: str | None = "UTC", **known: object) -> dict[str, list[dict[str, object]]]:
    data = text.encode() if isinstance(text, str) else text
    origin = engine_log.Origin("x.log", lambda line: f"x.log:{line}", **known)  # type: ignore[arg-type]
    found: dict[str, list[dict[str, object]]] = {"log_events": [], "http_events": [], "log_files": []}
    for table, row in engine_log.rows(engine_log.read(io.BytesIO(data)), origin, year=year, tz=tz):
        found[table].append(dict(row))
    assert len(found["log_files"]) == 1
    assert found["log_files"][0]["kept"] == len(found["log_events"])
    return found


def events(text: str | bytes, **known: object) -> list[dict[str, object]]:
    return rows_of(text, **known)["log_events"]  # type: ignore[arg-type]


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


HEADS = [
    # line, kind, level, logger, role, pid, time, message
    ("(APIServer pid=29677) INFO 11-30 02:52:45 [loggers.py:335] Engine 000: x", "vllm", "INFO", "loggers.py:335", "api_server", 29677, "2026-11-30T02:52:45", "Engine 000: x"),
    ("\x1b[1;36m(EngineCore_DP0 pid=12)\x1b[0;0m ERROR 11-30 02:52:45 [core.py:1] boom", "vllm", "ERROR", "core.py:1", "engine_core", 12, "2026-11-30T02:52:45", "boom"),
    ("(EngineCore pid=1) (RayWorkerWrapper pid=9, ip=10.0.0.2) WARNING 11-30 02:52:45 [v1/x.py:7] w", "vllm", "WARNING", "v1/x.py:7", "worker", 9, "2026-11-30T02:52:45", "w"),
    ("(VllmWorker rank=0 pid=8) INFO 11-30 02:52:45 [x.py:7] m", "vllm", "INFO", "x.py:7", "worker", 8, "2026-11-30T02:52:45", "m"),
    ("INFO 06-19 23:05:01 core.py:162] old", "vllm", "INFO", "core.py:162", None, None, "2026-06-19T23:05:01", "old"),
    ("INFO 06-19 23:05:01 [core.py:162]   indented", "vllm", "INFO", "core.py:162", None, None, "2026-06-19T23:05:01", "  indented"),
    ("[2026-11-30 02:52:45 TP0] Decode batch.", "sglang", None, None, "scheduler", None, "2026-11-30T02:52:45", "Decode batch."),
    ("[2026-11-30 02:52:45.123 DP1 TP3 EP3] x", "sglang", None, None, "scheduler", None, "2026-11-30T02:52:45.123", "x"),
    ("[2026-11-30 02:52:45] INFO:     127.0.0.1 x", "sglang", "INFO", None, None, None, "2026-11-30T02:52:45", "127.0.0.1 x"),
    ("[2026-11-30 02:52:45] WARNING server_args.py:12: careful", "sglang", "WARNING", "server_args.py:12", None, None, "2026-11-30T02:52:45", "careful"),
    ("INFO:     Application startup complete.", "uvicorn", "INFO", None, None, None, None, "Application startup complete."),
    ("(APIServer pid=5) INFO:     Shutting down", "uvicorn", "INFO", None, "api_server", 5, None, "Shutting down"),
    ("WARNING:app.cache:retry 7", "logging", "WARNING", "app.cache", None, None, None, "retry 7"),
    ("2026-11-30 02:52:45,123 ERROR app.cache: lost", "logging", "ERROR", "app.cache", None, None, "2026-11-30T02:52:45.123", "lost"),
    ("2026-11-30 02:52:45,123 - app.cache - CRITICAL - lost", "logging", "CRITICAL", "app.cache", None, None, "2026-11-30T02:52:45.123", "lost"),
    ("2026-11-30 02:52:45.123 | WARNING  | app:f:12 - lost", "logging", "WARNING", "app:f:12", None, None, "2026-11-30T02:52:45.123", "lost"),
    ("2026-11-30T02:52:45.123456Z  WARN dynamo_runtime::x: lost", "logging", "WARNING", "dynamo_runtime::x", None, None, "2026-11-30T02:52:45.123456", "lost"),
    ("2026-11-30T02:52:45+02:00 [ERROR] app: lost", "logging", "ERROR", "app", None, None, "2026-11-30T00:52:45", "lost"),
    ("2026-11-30 02:52:45 INFO request done in 3 s", "logging", "INFO", None, None, None, "2026-11-30T02:52:45", "request done in 3 s"),
    ("[W1130 03:05:27.594835110 utils.cpp:68] Warning: NUMA", "glog", "WARNING", "utils.cpp:68", None, None, "2026-11-30T03:05:27.594835", "Warning: NUMA"),
    ("[rank3]:[E1130 03:05:27.594 ProcessGroupNCCL.cpp:616] x", "glog", "ERROR", "ProcessGroupNCCL.cpp:616", "worker", None, "2026-11-30T03:05:27.594", "x"),
    ("[rank3]:[E613 02:20:19.110042110 ProcessGroupNCCL.cpp:563] x", "glog", "ERROR", "ProcessGroupNCCL.cpp:563", "worker", None, "2026-06-13T02:20:19.110042", "x"),
    ("E1130 03:05:27.594000 4711 torch/_inductor/x.py:1436] x", "glog", "ERROR", "torch/_inductor/x.py:1436", None, None, "2026-11-30T03:05:27.594", "x"),
    ("/opt/x.py:138: FutureWarning: old", "warning", "WARNING", "/opt/x.py:138", None, None, None, "FutureWarning: old"),
    ("node1:123:456 [0] misc/socket.cc:50 NCCL WARN closed", "nccl", "WARNING", None, None, 123, None, "NCCL WARN closed"),
    ("Triton is installed, but no", "raw", None, None, None, None, None, "Triton is installed, but no"),
    ("(Worker pid=3) some print", "raw", None, None, "worker", 3, None, "some print"),
    ("sglang-1  | [2026-11-30 02:52:45 TP0] x", "sglang", None, None, "scheduler", None, "2026-11-30T02:52:45", "x"),
    ("[pod/llm-0/server] INFO:     up", "uvicorn", "INFO", None, None, None, None, "up"),
    ("2026-11-30T02:52:45.123456789Z stdout F INFO:     up", "uvicorn", "INFO", None, None, None, "2026-11-30T02:52:45.123456", "up"),
    ("2026-11-30T01:00:00.5Z (Worker pid=3) INFO 11-30 02:52:45 [x.py:1] m", "vllm", "INFO", "x.py:1", "worker", 3, "2026-11-30T01:00:00.500", "m"),
    ("Nov 30 02:52:45 gpu-1 vllm[123]: INFO:     up", "uvicorn", "INFO", None, None, 123, "2026-11-30T02:52:45", "up"),
    ("2026-11-30T02:52:45.123456+0100 gpu-1 vllm[123]: (Worker pid=9) INFO 11-30 09:09:09 [x.py:1] m", "vllm", "INFO", "x.py:1", "worker", 9, "2026-11-30T01:52:45.123456", "m"),
    ('{"log":"INFO:     up\\n","stream":"stderr","time":"2026-11-30T02:52:45.1Z"}', "uvicorn", "INFO", None, None, None, "2026-11-30T02:52:45.100", "up"),
    ("Loading shards: 100%|##| 1/1 [00:00<00:00](Worker pid=3) INFO 11-30 02:52:45 [x.py:1] m", "vllm", "INFO", "x.py:1", "worker", 3, "2026-11-30T02:52:45", "m"),
]


@pytest.mark.parametrize(("line", "kind", "level", "logger", "role", "pid", "time", "message"), HEADS)
def test_head(line: str, kind: str, level: str | None, logger: str | None, role: str | None, pid: int | None, time: str | None, message: str) -> None:
    head = log_heads.split(log_heads.clean(line))
    assert (head.kind, head.level, head.logger, head.role, head.pid, head.message) == (kind, level, logger, role, pid, message)
    clock = Clock(2026, None, EPOCH)
    assert (None if head.stamp is None else clock.utc(head.stamp)) == (None if time is None else at(time))


EVENTS = [
    ("Engine 000: Avg prompt throughput: 109.3 tokens/s, Running: 6 reqs", "engine_stats"),
    ("Decode batch. #running-req: 4, #token: 12, token usage: 0.01", "engine_stats"),
    ("Prefill batch. #new-seq: 1, #queue-req: 0", "engine_stats"),
    ("vLLM API server version 0.9.1", "startup"),
    ("vLLM server version 0.33.0, serving model x", "startup"),
    ("Starting to load model /models/tiny...", "weights_loading"),
    ("Model loading took 14.9 GiB and 3.141593 seconds", "weights_loaded"),
    ("Load weight end. elapsed=2.10 s, type=LlamaForCausalLM", "weights_loaded"),
    ("GPU KV cache size: 1,234 tokens", "kv_size"),
    ("KV Cache is allocated. #tokens: 9, K size: 1 GB", "kv_size"),
    ("torch.compile takes 9.11 s in total", "compile"),
    ("Graph capturing finished in 17 secs, took 0.43 GiB", "graph_capture"),
    ("Capture cuda graph end. Time elapsed: 4.1 s.", "graph_capture"),
    ("init engine (profile, create kv cache, warmup model) took 34.11 seconds", "engine_ready"),
    ("The server is fired up and ready to roll!", "ready"),
    ("cannot schedule new futures after shutdown", "futures_after_shutdown"),
    ("cannot schedule new futures after interpreter shutdown", "futures_after_shutdown"),
    ("[shutdown] API server: shutdown triggered", "shutdown_signal"),
    ("[shutdown] EngineCore: trigger received signal=SIGTERM", "shutdown_signal"),
    ("SIGTERM received. signum=None, frame=None. Draining requests and shutting down...", "shutdown_signal"),
    ("[shutdown] MPClient: start timeout=0s", "shutdown_step"),
    ("Finished server process [123]", "shutdown_step"),
    ("EngineCore encountered a fatal error.", "fatal"),
    ("EngineCore failed to start.", "fatal"),
    ("Scheduler hit an exception: Traceback", "fatal"),
    ("Engine core proc EngineCore_0 died unexpectedly, shutting down client.", "engine_dead"),
    ("[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", "engine_dead"),
    ("Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "worker_died"),
    ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.", "worker_died"),
    ("SIGQUIT received. signum=3, frame=x. It usually means one child failed.", "worker_died"),
    ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog"),
    ("CUDA out of memory. Tried to allocate 2.00 GiB.", "oom"),
    ("Free memory on device (3.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).", "memory_short"),
    ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)", "nccl"),
    ("NCCL WARN socketProgress: Connection closed by remote peer", "nccl"),
    ("CUDA error: an illegal memory access was encountered", "cuda_error"),
    ("No available shared memory broadcast block found in 60 seconds.", "shm_broadcast_notice"),
    ("RPC call to sample_tokens timed out.", "rpc_timeout"),
    ("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.", "health_fail"),
    ("Exception in ASGI application", "request_error"),
    ("Request chatcmpl-1 failed (engine dead).", "request_error"),
    ("vLLM is using nccl==2.21.5", None),
    ("Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated", None),
    ("Route: /inference/v1/abort_requests, Methods: POST", None),
    ("Received request cmpl-1: prompt: 'why is my CUDA out of memory, request failed', params: x", None),
    ("Using max model len 2048", None),
]


@pytest.mark.parametrize(("message", "event"), EVENTS)
def test_event(message: str, event: str | None) -> None:
    assert engine_events.event_of(message) == event


def test_the_real_sigterm_log() -> None:
    with (SAMPLES / "sigterm-in-flight.log").open("rb") as stream:
        data = stream.read()
    found = rows_of(data, year=None, tz=None, collected_at=EPOCH)
    (file,) = found["log_files"]
    assert (file["lines"], file["bytes"]) == (data.count(b"\n"), len(data))
    assert file["assumed"] == "year 2026 (from the time of collection); zone UTC"
    assert (file["first_ts"], file["last_ts"]) == (at("2026-11-30T03:04:56"), at("2026-11-30T03:05:52"))
    signals = [(row["line"], row["role"], row["ts"]) for row in found["log_events"] if row["event"] == "shutdown_signal"]
    assert signals == [(106, "api_server", at("2026-11-30T03:05:52")), (113, "engine_core", at("2026-11-30T03:05:52"))]
    assert [row["path"] for row in found["http_events"]] == ["/health", "/metrics", "/metrics"]
    assert {row["pid"] for row in found["log_events"] if row["role"] == "worker"} == {12286}
    undated = [row for row in found["log_events"] if row["event"] == "ready"]
    assert [(row["ts"], row["dated"], row["line"]) for row in undated] == [(at("2026-11-30T03:05:32"), False, 101)]


@pytest.mark.parametrize("case", ["idle", "busy", "worker-stopped"])
def test_the_real_server_logs(case: str) -> None:
    data = (SAMPLES / case / "server.log").read_bytes()
    found = rows_of(data)
    assert found["log_files"][0]["lines"] == data.count(b"\n")
    assert len(found["http_events"]) == data.count(b'HTTP/1.1"')
    kinds = [row["event"] for row in found["log_events"]]
    assert kinds.count("engine_stats") == data.count(b"Avg prompt throughput")
    assert not {"fatal", "engine_dead", "worker_died", "oom", "shutdown_signal", "traceback"} & set(kinds)
    assert {"startup", "engine_init", "weights_loaded", "kv_size", "engine_ready", "ready"} <= set(kinds)
    assert engine_log.looks_like_log(data[:64 << 10].decode())


def test_statistics_are_thinned_and_the_last_one_is_kept() -> None:
    text = "".join(f"[2026-11-30 02:00:{second:02d} TP0] Decode batch. #running-req: {second}\n" for second in range(60))
    found = rows_of(text)
    assert [row["line"] for row in found["log_events"]] == [*range(1, 61, 5), 60]
    assert found["log_files"][0]["lines"] == 60


def test_statistics_of_two_ranks_do_not_hide_each_other() -> None:
    text = "[2026-11-30 02:00:00 DP0 TP0] Decode batch. a\n[2026-11-30 02:00:00 DP1 TP0] Decode batch. b\n[2026-11-30 02:00:00 DP0 TP0] Prefill batch. c\n"
    assert [row["message"] for row in events(text)] == ["Decode batch. a", "Decode batch. b", "Prefill batch. c"]


def test_prefixed_traceback_is_one_event_where_it_starts() -> None:
    prefix = "(EngineCore_DP0 pid=7) ERROR 11-30 02:00:00 [core.py:935] "
    lines = [
        "EngineCore encountered a fatal error.", "Traceback (most recent call last):", '  File "/x/core.py", line 9, in run', "    self.step()", "",
        '  File "/x/model.py", line 4, in step', "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", "",
        "The above exception was the direct cause of the following exception:", "", "Traceback (most recent call last):", '  File "/x/core.py", line 1, in f',
        "RuntimeError: step failed",
    ]
    text = "".join(f"{prefix}{line}\n" for line in lines) + "INFO:     127.0.0.1:1 - \"GET /health HTTP/1.1\" 503 Service Unavailable\n"
    found = rows_of(text)
    got = [(row["line"], row["event"], row["level"], row["role"], row["message"]) for row in found["log_events"]]
    assert got == [
        (1, "fatal", "ERROR", "engine_core", "EngineCore encountered a fatal error."),
        (2, "oom", "ERROR", "engine_core", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
        (2, "traceback", "ERROR", "engine_core", "RuntimeError: step failed"),
    ]
    assert found["log_events"][1]["source"] == "x.log:2"
    assert [row["status"] for row in found["http_events"]] == [503]


def test_raw_traceback_after_an_announcing_line_has_its_time_and_writer() -> None:
    text = (
        "2026-11-30 02:00:00,5 ERROR app: cannot encode\n"
        "Traceback (most recent call last):\n"
        '  File "/x/enc.py", line 9, in encode\n'
        "    raise ValueError('no')\n"
        "app.errors.SkipImage: no\n"
        "2026-11-30 02:00:01,5 INFO app: next\n"
    )
    got = [(row["line"], row["event"], row["ts"], row["logger"], row["message"]) for row in events(text)]
    assert got == [
        (1, None, at("2026-11-30T02:00:00.5"), "app", "cannot encode"),
        (2, "traceback", at("2026-11-30T02:00:00.5"), "app", "app.errors.SkipImage: no"),
    ]


def test_two_writers_interleave_their_tracebacks() -> None:
    a, b = "(Worker_TP0 pid=1) ERROR 11-30 02:00:00 [a.py:1] ", "(Worker_TP1 pid=2) ERROR 11-30 02:00:00 [a.py:1] "
    text = "\n".join([
        a + "Traceback (most recent call last):", b + "Traceback (most recent call last):", a + '  File "/x.py", line 1, in f',
        b + '  File "/y.py", line 2, in g', b + "KeyError: 'b'", a + "ValueError: a", "",
    ])
    assert [(row["line"], row["pid"], row["message"]) for row in events(text)] == [(2, 2, "KeyError: 'b'"), (1, 1, "ValueError: a")]


def test_raw_traceback_with_noise_in_it() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x.py", line 3, in <module>\n'
        'INFO:     127.0.0.1:9 - "GET /health HTTP/1.1" 200 OK\n'
        "(Worker pid=2) WARNING 11-30 02:00:00 [a.py:1] careful\n"
        "    main()\n"
        "KeyboardInterrupt: terminated\n"
        "Loading: 10%\n"
    )
    found = rows_of(text)
    assert [(row["line"], row["event"], row["logger"]) for row in found["log_events"]] == [(4, None, "a.py:1"), (1, "shutdown_signal", "/x.py:3")]
    assert len(found["http_events"]) == 1


def test_traceback_behind_an_sglang_head() -> None:
    text = (
        "[2026-11-30 02:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/sgl/scheduler.py", line 3, in run\n'
        "    boom()\n"
        "RuntimeError: CUDA error: device-side assert triggered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call\n"
        "\n"
        "[2026-11-30 02:00:01] SIGQUIT received. signum=3, frame=x. It usually means one child failed.\n"
    )
    got = [(row["line"], row["event"], row["role"], row["ts"]) for row in events(text)]
    assert got == [
        (1, "fatal", "scheduler", at("2026-11-30T02:00:00")),
        (1, "cuda_error", "scheduler", at("2026-11-30T02:00:00")),
        (7, "worker_died", None, at("2026-11-30T02:00:01")),
    ]


def test_exception_group_and_a_log_that_ends_in_a_traceback() -> None:
    text = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/x.py", line 3, in f\n'
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/y.py", line 3, in g\n'
        "    | ValueError: inner\n"
        "    +------------------------------------\n"
        "INFO:     Shutting down\n"
        "Traceback (most recent call last):\n"
        '  File "/z.py", line 8, in h\n'
    )
    got = [(row["line"], row["message"]) for row in events(text)]
    assert got == [
        (1, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"), (1, "ValueError: inner"), (9, "Shutting down"),
        (10, "Traceback (most recent call last) … (cut off)"),
    ]


def test_rank_prefixed_traceback() -> None:
    text = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/x.py", line 3, in f\n[rank1]: torch.distributed.DistBackendError: NCCL error in: x\n'
    assert [(row["line"], row["role"], row["event"]) for row in events(text)] == [(1, "worker", "nccl")]


def test_application_startup_complete_is_not_ready_for_sglang() -> None:
    text = "[2026-11-30 02:00:00] INFO:     Application startup complete.\n[2026-11-30 02:00:09] The server is fired up and ready to roll!\n"
    assert [row["event"] for row in events(text)] == ["api_up", "ready"]


ACCESS = [
    ('127.0.0.1:39218 - "GET /metrics HTTP/1.1" 200 OK', ("GET", "/metrics", 200, "127.0.0.1:39218", None, None, None)),
    ('::1:39218 - "POST /v1/completions?key=x HTTP/1.1" 500 Internal Server Error', ("POST", "/v1/completions", 500, "::1:39218", None, None, None)),
    (' - "GET /health HTTP/1.1" 200', ("GET", "/health", 200, None, None, None, None)),
    ('10.0.0.9 [30/Nov/2026:02:52:45 +0100] "GET /h HTTP/1.1" 200 150 "-" "kube-probe/1.27"', ("GET", "/h", 200, "10.0.0.9", None, 150, "kube-probe/1.27")),
    ('10.0.0.9 - - [30/Nov/2026:02:52:45 +0000] "POST /v1/x HTTP/1.1" 499 0 "-" "curl/8.5" 45.002', ("POST", "/v1/x", 499, "10.0.0.9", 45.002, 0, "curl/8.5")),
    ('10.0.0.9 - bob [30/Nov/2026:02:52:45 +0000] "POST http://h:1/v1/x HTTP/1.1" 200 - "-" "-" rt=0.5', ("POST", "/v1/x", 200, "10.0.0.9", 0.5, None, None)),
]


@pytest.mark.parametrize(("message", "want"), ACCESS)
def test_access_line(message: str, want: tuple[object, ...]) -> None:
    found = log_access.of(message)
    assert found is not None
    assert tuple(found.row.get(name) for name in ("method", "path", "status", "client", "seconds", "bytes", "user_agent")) == want


def test_access_lines_carry_the_best_known_time() -> None:
    text = (
        'INFO:     1.1.1.1:1 - "GET /a HTTP/1.1" 200 OK\n'
        "(APIServer pid=1) INFO 11-30 02:00:00 [x.py:1] m\n"
        'INFO:     1.1.1.1:1 - "GET /b HTTP/1.1" 200 OK\n'
        '[2026-11-30 02:00:07] INFO:     1.1.1.1:1 - "GET /c HTTP/1.1" 200 OK\n'
        '1.1.1.1 - - [30/Nov/2026:03:00:09 +0100] "GET /d HTTP/1.1" 200 5 "-" "x"\n'
    )
    got = [(row["path"], row["ts"], row["dated"], row["source"]) for row in rows_of(text)["http_events"]]
    assert got == [
        ("/a", None, False, "x.log:1"), ("/b", at("2026-11-30T02:00:00"), False, "x.log:3"),
        ("/c", at("2026-11-30T02:00:07"), True, "x.log:4"), ("/d", at("2026-11-30T02:00:09"), True, "x.log:5"),
    ]


@pytest.mark.parametrize(("year", "collected", "want"), [
    (None, "2027-01-05T00:00:00", [at("2026-12-31T23:00:00"), at("2027-01-01T01:00:00")]),
    (2026, None, [at("2026-12-31T23:00:00"), at("2027-01-01T01:00:00")]),
])
def test_a_log_across_the_turn_of_the_year(year: int | None, collected: str | None, want: list[datetime.datetime]) -> None:
    text = "WARNING 12-31 23:00:00 [x.py:1] a\nWARNING 01-01 01:00:00 [x.py:1] b\n"
    epoch = None if collected is None else at(collected).replace(tzinfo=datetime.UTC).timestamp()
    found = rows_of(text, year=year, collected_at=epoch)
    assert [row["ts"] for row in found["log_events"]] == want
    assert found["log_files"][0]["assumed"] == (None if year else "years 2026 to 2027 (from the time of collection)")


def test_the_last_29_february_is_meant() -> None:
    epoch = at("2026-03-01T00:00:00").replace(tzinfo=datetime.UTC).timestamp()
    assert [row["ts"] for row in events("ERROR 02-29 10:00:00 [x.py:1] a\n", year=None, collected_at=epoch)] == [at("2024-02-29T10:00:00")]


def test_zone_given_assumed_or_wrong() -> None:
    line = "ERROR 11-30 02:00:00 [x.py:1] a\n"
    assert events(line, tz="Europe/Berlin")[0]["ts"] == at("2026-11-30T01:00:00")
    assert events(line, tz="-05:00")[0]["ts"] == at("2026-11-30T07:00:00")
    assert rows_of(line, tz=None)["log_files"][0]["assumed"] == "zone UTC"
    with pytest.raises(BadInput, match="not a time zone"):
        events(line, tz="Europe/Atlantis")


def test_impossible_times_are_unknown_not_errors() -> None:
    text = "ERROR 13-45 02:00:00 [x.py:1] a\n2026-11-30T02:00:00+99:99 ERROR app: b\n0001-01-01T00:00:00+14:00 ERROR app: c\n"
    assert [(row["ts"], row["dated"]) for row in events(text)][:2] == [(None, False), (None, False)]


def test_dirty_bytes_are_cleaned_and_counted() -> None:
    data = b"\0\0\0\x1b[31mERROR 11-30 02:00:00 [x.py:1] bad \xff\xfe \x07bell\x1b[0m\n" + b"10%\r50%\rWARNING:a:done\r\n" + b"ERROR:a:" + b"x" * 200_000 + b"\nERROR:a:last"
    found = rows_of(data)
    assert [(row["line"], str(row["message"])[:8]) for row in found["log_events"]] == [(1, "bad \ufffd\ufffd b"), (2, "done"), (3, "xxxxxxxx"), (4, "last")]
    assert (found["log_files"][0]["lines"], found["log_files"][0]["bytes"]) == (4, len(data))
    assert all(len(str(row["message"])) <= engine_log.MESSAGE_CHARS for row in found["log_events"])


def test_pids_of_a_container_become_those_of_the_host() -> None:
    text = "(EngineCore pid=7) ERROR 11-30 02:00:00 [x.py:1] a\nERROR:app:b\n"
    got = [(row["pid"], row["role"]) for row in events(text, ns_pids={7: 4107}, pids=(4107,), roles={4107: "engine_core"})]
    assert got == [(4107, "engine_core"), (4107, "engine_core")]
    assert [row["pid"] for row in events(text, pids=(4107, 4108))] == [7, None]


def test_silence_is_known_only_live() -> None:
    text = "ERROR 11-30 02:00:00 [x.py:1] a\n"
    live = rows_of(text, collected_at=EPOCH, written_at=EPOCH - 90.5, cut=True)["log_files"][0]
    assert (live["silent_s"], live["cut"], live["written_at"]) == (90.5, True, at("2026-11-30T02:58:29.5"))
    assert rows_of(text)["log_files"][0]["silent_s"] is None
    journal = rows_of("2026-11-30T02:59:00+0000 h u[1]: INFO:     x\n", collected_at=EPOCH)["log_files"][0]
    assert journal["silent_s"] == 60


NOT_LOGS = [
    "2026-11-30T06:03:16,292389+00:00 random: crng reseeded\n" * 5,
    "[    1.234567] usb 1-1: new device\n" * 5,
    "2026-01-01 00:00:00,123 INFO spawned: 'vllm' with pid 123\n2026-01-01 00:00:01,123 INFO exited: vllm (exit status 1; not expected)\n" * 3,
    "Nov 30 02:52:45 h systemd[1]: vllm.service: Main process exited\n" * 5,
    "18s  Warning  Unhealthy  pod/llm-0  Liveness probe failed: x\n" * 5,
    'Thread 1 (idle): "MainThread"\n    wait (threading.py:1)\n' * 5,
    "Traceback for thread 9 [] (most recent call last):\n    (Python) File \"x.py\", line 2, in f\n",
    'Current thread 0x00007f (most recent call first):\n  File "x.py", line 2 in f\n',
    "# HELP a b\n# TYPE a counter\na 1.0\n" * 5,
    "29677 29677 vllm S 10 20 ep_poll\n" * 5,
    "4711 02:52:45.123456 futex(0x7f, FUTEX_WAIT, 2, NULL) = 0\n" * 5,
]


@pytest.mark.parametrize("text", NOT_LOGS)
def test_what_is_not_an_engine_log(text: str) -> None:
    assert not engine_log.looks_like_log(text)


@pytest.mark.parametrize(("text", "want"), [
    ("ERROR 11-30 21:00:05 [core.py:2] EngineCore encountered a fatal error.", True),
    ("ERROR 11-30 21:00:05 [core.py:2] EngineCore encountered a fatal error.\nRuntimeError: x\n", True),
    ("hello\n(EngineCore pid=7) ERROR 11-30 21:00:05 [core.py:2] a\nsome text\nERROR 11-30 21:00:05 [core.py:2] b\n", True),
    ("[rank0]:[E1130 02:52:45.594 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught\n", True),
    ("hello\nERROR 11-30 21:00:05 [core.py:2] a\nsome text\n", False),
    ("ERROR 11-30 21:00:05 [core.py:2] a\n" + "some text\n" * 5, False),
    ("INFO:     started\n", False),
    ("2026-11-30 00:00:00,123 INFO app: x\n", False),
    ("", False),
])
def test_a_few_lines_cut_out_of_a_log(text: str, want: bool) -> None:
    assert engine_log.is_fragment(text) is want


@pytest.mark.parametrize("text", NOT_LOGS)
def test_what_is_no_log_is_no_piece_of_one(text: str) -> None:
    assert not engine_log.is_fragment(text)
    assert not engine_log.is_fragment(text.splitlines()[0])


@pytest.mark.parametrize("name", ["metrics1.txt", "ps.txt", "pyspy-29677-1.txt", "pyspy-29677-1.json", "threads1.txt", "t1"])
def test_other_samples_are_not_engine_logs(name: str) -> None:
    assert not engine_log.looks_like_log((SAMPLES / "busy" / name).read_text()[:64 << 10])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([line[0].encode() for line in HEADS] + [
    b"Traceback (most recent call last):", b'  File "/x.py", line 3, in f', b"ValueError: x", b"", b"  | x", b"  + Exception Group Traceback (most recent call last):",
    b'INFO:     1.1.1.1:1 - "GET / HTTP/1.1" 200 OK', b"(" * 50, b'{"log":' + b"[" * 50,
])), max_size=30))
def test_no_input_breaks_it_and_no_line_is_lost(lines: list[bytes]) -> None:
    data = b"\n".join(lines)
    file = rows_of(data)["log_files"][0]
    assert file["bytes"] == len(data)
    assert file["lines"] == data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


@pytest.mark.parametrize("line", [
    f"(Worker pid={'9' * 5000}) ERROR 11-30 02:00:00 [x.py:1] a", f"2026-11-30T02:00:00+0000 h u[{'9' * 40}]: ERROR:a:b",
    f'1.1.1.1 - - [30/Nov/2026:03:00:09 +0100] "GET /d HTTP/1.1" 200 {"9" * 40} "-" "x"',
])
def test_numbers_too_large_for_a_table_stay_text(line: str) -> None:
    for rows in rows_of(line + "\n").values():
        for row in rows:
            assert all(not isinstance(value, int) or value < 2 ** 53 for value in row.values())
