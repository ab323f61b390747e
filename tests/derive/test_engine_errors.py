"""Which error of a log came first, what only repeats it, and what the kernel says of cards and memory."""

import datetime

import pytest

from diag.derive import device_faults, engine_errors, memory_kills
from diag.signatures import known_errors, xids
from tests.derive.frames import Row, derived

T = datetime.datetime(2026, 6, 10, 10)


def line(number: int, second: float, message: str, *, event: str | None = None, level: str = "ERROR", role: str | None = "engine_core", pid: int | None = 7, file: str = "vllm.log") -> Row:
    ts = T + datetime.timedelta(seconds=second)
    return {"ts": ts, "file": file, "line": number, "pid": pid, "role": role, "level": level, "message": message, "event": event, "source": f"{file}:{number}", "dated": True}


READY = line(1, 0, "Application startup complete.", event="ready", level="INFO")
FATAL = "EngineCore encountered a fatal error."
DEAD = "EngineDeadError: EngineCore encountered an issue."


def told(*rows: Row, **more: list[Row]) -> list[dict[str, object]]:
    return derived(engine_errors, log_events=list(rows), **more)["engine_errors"]


@pytest.mark.parametrize(
    ("message", "kind", "delay_s"),
    [
        ("No available shared memory broadcast block found in 120 seconds. This", "stall-notice", 120.0),
        ("No available shared memory broadcast block found in 60 second.", "stall-notice", 60.0),
        ("Scheduler watchdog timeout (self.watchdog_timeout=450, self.soft=False)", "scheduler-watchdog", 450.0),
        ("Scheduler watchdog timeout (self.watchdog_timeout=450, self.soft=True)", "soft-watchdog", 450.0),
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=GATHER, Timeout(ms)=1800000) ran for 1800031 milliseconds", "collective-timeout", 1800.0),
        ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", "collective-watchdog", 480.0),
        ("TimeoutError: RPC call to sample_tokens timed out.", "rpc-timeout", 300.0),
        ("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.", "killed", 0.0),
        ("Worker proc VllmWorker-0 died unexpectedly (exit code: -6), shutting down executor.", "own-abort", 0.0),
        ("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", "worker-gone", 0.0),
        ("Worker 3 did not answer three times, marked dead", "taken-for-dead", 0.0),
        ("Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", "engine-gone", 0.0),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "device-memory", 0.0),
        ("RuntimeError: Prefill out of memory. Try to lower your batch size.", "kv-pool-exhausted", 0.0),
        ("AssertionError: Expected a cached item for mm_hash='4f'", "mm-cache-miss", 0.0),
    ],
)
def test_kinds_of_errors(message: str, kind: str, delay_s: float) -> None:
    found = known_errors.tell(message, None, None)
    assert found is not None
    assert (found.known.id, found.delay_s) == (kind, delay_s)


def test_tables_name_each_kind_and_code_once() -> None:
    assert len(set(known_errors.ids())) == len(known_errors.ids())
    codes = [item.code for item in xids.catalogue().xid]
    assert codes == sorted(set(codes))
    assert xids.catalogue().source.startswith("https://")


def test_the_earliest_specific_error_is_first_and_ranks_are_counted_once() -> None:
    ranks = [line(10 + rank, 5.0, f"[rank {rank}] CUDA error: an illegal memory access was encountered", event="cuda_error", role="worker", pid=20 + rank) for rank in range(4)]
    found = told(READY, line(5, 4.9, FATAL, event="fatal"), *ranks, line(20, 6, DEAD, event="engine_dead", role="api_server", pid=1))
    assert [(row["kind"], row["class"], row["n"], row["writers"], row["first"]) for row in found] == [
        ("engine-failed", "wrapper", 1, 1, False), ("cuda-illegal-access", "specific", 4, 4, True), ("engine-gone", "wrapper", 1, 1, False),
    ]  # fmt: skip
    assert found[1]["ranks"] == "0, 1, 2, 3"
    assert {row["episode"] for row in found} == {0}


def test_a_line_that_waited_is_dated_back() -> None:
    """The call gave up after 300 s: what another process wrote in between came after it had begun."""
    found = told(READY, line(5, 400, "RuntimeError: link down", event="traceback", role="worker"), line(6, 600, "TimeoutError: RPC call to execute_model timed out.", event="rpc_timeout"))
    assert [(row["kind"], row["onset_ts"]) for row in found] == [("rpc-timeout", T + datetime.timedelta(seconds=300)), ("exception", T + datetime.timedelta(seconds=400))]
    assert found[1]["first"]


@pytest.mark.parametrize(("signal_at", "kind"), [(3, "shutdown"), (9, "wrapper")])
def test_an_error_after_a_request_to_end_is_of_the_shutdown(signal_at: int, kind: str) -> None:
    asked = line(4 if signal_at < 5 else 8, signal_at, "API server: shutdown triggered", event="shutdown_signal", level="INFO")
    found = told(READY, asked, line(6, 5, DEAD, event="engine_dead"))
    assert [row["class"] for row in found] == [kind]


def test_a_supervisor_that_asked_counts_too() -> None:
    stop: Row = {"ts": T + datetime.timedelta(seconds=4), "kind": "killing", "initiator": "kubelet (liveness probe)", "origin": "kubernetes", "source": "events.txt:1"}
    assert [row["class"] for row in told(READY, line(6, 5, DEAD, event="engine_dead"), host_events=[stop])] == ["shutdown"]
    assert [row["class"] for row in told(READY, line(6, 5, DEAD, event="engine_dead"), host_events=[{**stop, "initiator": "kernel"}])] == ["wrapper"]


def test_lives_of_one_log_are_kept_apart() -> None:
    start = line(9, 20, "vLLM API server version 0.20.0", event="startup", level="INFO", role="api_server")
    again = [start, line(10, 30, "ValueError: No available memory for the cache blocks.", event="memory_short"), line(11, 31, "EngineCore failed to start.", event="fatal")]
    found = told(READY, line(5, 5, FATAL, event="fatal"), *again, line(12, 90, "Application startup complete.", event="ready", level="INFO"))
    assert [(row["kind"], row["phase"], row["episode"], row["ready_after"]) for row in found] == [
        ("engine-failed", "serving", 0, True), ("start-memory", "startup", 1, True), ("start-failed", "startup", 1, True),
    ]  # fmt: skip


def test_errors_without_times_are_told_in_the_order_of_the_log() -> None:
    rows: list[Row] = [{**row, "ts": None} for row in (READY, line(5, 5, "CUDA error: unspecified launch failure", event="cuda_error"), line(6, 6, DEAD, event="engine_dead"))]
    assert [(row["kind"], row["first"], row["onset_ts"]) for row in told(*rows)] == [("launch-failure", True, None), ("engine-gone", False, None)]


def test_an_error_of_the_web_server_is_a_request_s() -> None:
    found = told(READY, line(5, 5, "ValueError: This model's maximum context length is 4096 tokens", event="traceback", role="api_server"), line(6, 6, "KeyError: 'x'", event="traceback", role="api_server"))
    assert {row["class"] for row in found} == {"request"}


def kernel(second: float, kind: str, detail: str, code: int | None = None, pid: int | None = None, origin: str = "dmesg") -> Row:
    return {"ts": T + datetime.timedelta(seconds=second), "origin": origin, "kind": kind, "initiator": "kernel", "code": code, "pid": pid, "detail": detail, "source": f"dmesg.txt:{second}"}


def faults(*rows: Row) -> list[dict[str, object]]:
    return derived(device_faults, host_events=rows)["device_faults"]


def test_clean_up_is_folded_under_the_first_fault() -> None:
    cleaning = [kernel(1 + n, "xid", "NVRM: Xid (PCI:0000:41:00): 45, channel 1", 45) for n in range(5)]
    found = faults(kernel(0, "xid", "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.", 79), *cleaning)
    assert [(row["code"], row["class"], row["n"], row["first"], row["after"]) for row in found] == [
        (79, "hardware", 1, True, None), (45, "consequence", 5, False, "Xid 79 of 0000:41:00"),
    ]  # fmt: skip


def test_a_lost_card_told_over_several_lines_is_one_fault() -> None:
    words = kernel(0, "nvrm", "NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.")
    coded = kernel(1, "xid", "NVRM: Xid (PCI:0000:41:00): 79, pid=9, GPU has fallen off the bus.", 79, 9)
    assert [(row["code"], row["n"], row["pid"]) for row in faults(words, coded)] == [(79, 2, 9)]
    assert [(row["code"], row["n"]) for row in faults(coded, words)] == [(79, 1)]
    assert [(row["code"], row["class"], row["first"]) for row in faults(words)] == [(None, "hardware", True)]


def test_a_kernel_s_own_page_fault_accuses_no_card_and_an_unknown_code_is_said_to_be_that() -> None:
    found = faults(kernel(0, "xid", "NVRM: Xid (PCI:0000:41:00): 31, pid=9", 31), kernel(5, "xid", "NVRM: Xid (PCI:0000:52:00): 999", 999))
    assert [(row["class"], row["first"]) for row in found] == [("application", True), ("unknown", True)]


def test_what_another_xid_is_said_to_have_caused() -> None:
    found = faults(kernel(0, "xid", "NVRM: Xid (PCI:0000:41:00): 45, caused by previous Xid 149", 45))
    assert [row["after"] for row in found] == ["Xid 149"]


@pytest.mark.parametrize(
    ("detail", "pid", "ours", "reached"),
    [
        ("Memory cgroup out of memory: Killed process 50 (python3) total-vm:9kB, anon-rss:2097152kB", 50, True, "cgroup"),
        ("Out of memory: Killed process 51 (python3) total-vm:9kB, anon-rss:2097152kB", 51, False, "machine"),
        ("Out of memory: Killed process 52 (redis-server) total-vm:9kB, anon-rss:2097152kB", 52, True, "machine"),
    ],
)
def test_whose_process_the_kernel_killed(detail: str, pid: int, ours: bool, reached: str) -> None:
    (found,) = derived(memory_kills, host_events=[kernel(0, "oom_kill", detail, 9, pid)], log_events=[line(1, 0, "x", pid=50)])["memory_kills"]
    assert (found["of_service"], found["reached"], found["resident_bytes"]) == (ours, reached, 2 << 30)


def test_a_container_s_record_and_the_kernel_s_are_one_kill() -> None:
    rows = [kernel(2, "oom_kill", "server terminated: OOMKilled", 9, origin="kubernetes"), kernel(0, "oom_kill", "Memory cgroup out of memory: Killed process 52 (VLLM::Worker) anon-rss:1kB", 9, 52)]
    assert [row["pid"] for row in derived(memory_kills, host_events=rows)["memory_kills"]] == [52]
    assert [row["of_service"] for row in derived(memory_kills, host_events=rows[:1])["memory_kills"]] == [True]
