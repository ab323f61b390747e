"""Ends and starts together: what was seen first, what a probe added, what the clients met, what came after."""

import datetime

import pytest

from diag.recovery import latency
from diag.recovery.incidents import Capture, Recovery, recoveries
from diag.recovery.records import Event, Life, Request, Sample
from tests.recovery.logs import at, lines, vllm
from tests.recovery.test_timing import V144

STATS = "Engine 000: Avg prompt throughput: {rate} tokens/s, Avg generation throughput: {rate} tokens/s, Running: {run} reqs, Waiting: {wait} reqs, GPU KV cache usage: {use}%, Prefix cache hit rate: {hit}%"


def stats(clock: str, rate: float = 50.0, run: int = 4, wait: int = 0, use: float = 40.0, hit: float = 60.0) -> str:
    return f"{clock} (APIServer pid=0) {STATS.format(rate=rate, run=run, wait=wait, use=use, hit=hit)}"


def post(clock: str, status: int = 200, seconds: float | None = 1.0, queued: int | None = None) -> Request:
    return Request(at(clock), "POST", "/v1/chat/completions", status, f"access.log:{clock}", seconds, None, queued, True)


def event(clock: str, kind: str, **more: object) -> Event:
    return Event(at(clock), kind, str(more.pop("origin", "journald")), f"journal.log:{clock}", **more)  # type: ignore[arg-type]


def life(how: str = "self", **moments: str) -> Life:
    return Life("journal.log:1", "vllm", initiator="systemd" if how == "self" else "watchdog", how=how, lost_requests=4, **{name: at(clock) for name, clock in moments.items()})  # type: ignore[arg-type]


BEFORE = vllm(stats("09:58:00"), stats("09:58:30"))
DIED = life(died_at="09:59:10", stopped_at="09:59:12", restarted_at="09:59:50", ready_at="10:01:13")
START = event("09:59:50", "start", unit="vllm.service")
KILLED = life("external", killed_at="09:58:35", stopped_at="09:58:45", restarted_at="09:58:46", ready_at="10:01:13")


def one(**seen: object) -> Recovery:
    found = recoveries(Capture(**seen))  # type: ignore[arg-type]
    assert len(found) == 1, [(item.source, item.fault.cause) for item in found]
    return found[0]


def span(found: Recovery, stage: str) -> float | None:
    return next(item.seconds for item in found.stages if item.stage == stage)


def test_a_device_error_is_seen_before_the_engine_says_so_and_long_before_a_probe() -> None:
    text = BEFORE + vllm("09:59:10 (EngineCore pid=3) EngineCore encountered a fatal error.").replace("INFO", "ERROR")
    events = [event("09:59:01", "xid", origin="dmesg", code=79), event("09:59:12", "exit", code=1), event("09:59:40", "probe_failed", initiator="kubelet"), START]
    found = one(lines=lines(text + V144), events=events, lives=[DIED])
    assert (found.fault.cause, found.fault.seen_by, found.fault.ts) == ("device-error", "kernel log", at("09:59:01"))
    assert found.fault.probe_at == at("09:59:40")
    assert found.fault.probe_by == "kubelet"
    assert span(found, "detect") == 49.0
    assert span(found, "stop") is None
    assert span(found, "process") == 22.0
    assert found.mttr_s == 132.0
    assert found.mttr_from == "fault"


def test_an_error_after_which_it_went_on_is_no_fault() -> None:
    events = [event("09:30:00", "xid", origin="dmesg", code=31), event("09:59:12", "exit", code=1)]
    found = one(lines=lines(vllm(stats("09:31:00"), stats("09:58:30")) + V144), events=events, lives=[DIED])
    assert (found.fault.cause, found.fault.ts) == ("engine-died", at("09:59:12"))


def test_an_engine_that_worked_until_the_signal_had_no_fault() -> None:
    found = one(lines=lines(BEFORE + V144), events=[event("09:58:45", "exit", code=143)], lives=[KILLED])
    assert (found.fault.cause, found.fault.ts, found.mttr_from) == ("external-stop", None, "command")
    assert span(found, "detect") is None
    assert span(found, "stop") == 10.0
    assert found.lost_requests == 4


def test_a_hang_counts_from_the_last_progress() -> None:
    hung = vllm(stats("09:50:00"), stats("09:50:10", rate=0.0), stats("09:58:00", rate=0.0))
    failed = [event("09:55:00", "probe_failed", initiator="watchdog")]
    found = one(lines=lines(hung + V144), events=failed, lives=[KILLED])
    assert (found.fault.cause, found.fault.ts) == ("stuck", at("09:50:00"))
    assert span(found, "detect") == 515.0
    assert found.bottleneck == "detect"
    assert found.fault.probe_at == at("09:55:00")


def test_what_follows_the_signal_is_a_consequence() -> None:
    text = BEFORE + vllm("09:58:36 (APIServer pid=0) AsyncLLM output_handler failed.").replace("INFO", "ERROR")
    found = one(lines=lines(text + V144), lives=[KILLED])
    assert found.fault.cause == "external-stop"


def test_an_idle_engine_that_is_stopped_had_no_fault() -> None:
    found = one(lines=lines(vllm(stats("09:20:00"), stats("09:20:10", rate=0.0, run=0)) + V144), lives=[KILLED])
    assert found.fault.cause == "external-stop"


def test_who_restarts_what_had_died_did_not_stop_it() -> None:
    asked = Life("journal.log:1", "vllm", killed_at=at("09:59:20"), died_at=at("09:59:10"), stopped_at=at("09:59:12"), restarted_at=at("09:59:21"), ready_at=at("10:01:13"), how="self")
    found = one(lines=lines(V144), lives=[asked], events=[event("09:59:20", "restart", unit="vllm", initiator="supervisor")])
    assert (found.fault.command_at, found.fault.command_by) == (at("09:59:20"), "supervisor")
    assert span(found, "detect") == 10.0
    assert [stage.why for stage in found.stages if stage.stage == "stop"] == ["it ended by itself"]


def test_memory_is_reclaimed_between_the_end_and_the_new_process() -> None:
    events = [event("09:59:13", "reclaim_start"), event("09:59:43", "reclaim_done")]
    found = one(lines=lines(BEFORE + V144), events=events, lives=[DIED])
    assert span(found, "reclaim") == 30.0


def test_reclaiming_that_goes_on_beside_the_start_is_not_counted_twice() -> None:
    events = [event("09:59:13", "reclaim_start"), event("10:00:10", "reclaim_done")]
    found = one(lines=lines(BEFORE + V144), events=events, lives=[DIED])
    assert span(found, "reclaim") == 37.0


def test_first_requests_failures_and_queue() -> None:
    before = [post(f"09:5{minute}:00", seconds=1.0 + minute / 10) for minute in range(9)]
    down = [post("09:59:20", 503, 0.1), post("10:00:00", 502, 0.1), post("10:00:30", 200, 0.1), post("10:00:50", 504, 60.0, queued=7)]
    after = [post("10:01:20", 200, 8.0), post("10:01:30", 200, 4.0), post("10:01:40", 500, 99.0), post("10:05:00", 200, 1.0)]
    found = one(lines=lines(BEFORE + V144 + vllm(stats("10:01:25", wait=31))), lives=[DIED], requests=[*before, *down, *after])
    assert found.first is not None
    assert (found.first.p50_s, found.first.p99_s, found.first.n) == (4.0, 7.0, 2)  # the second that one of them waited before ready is the outage's
    assert found.before is not None
    assert (found.before.p50_s, found.before.n) == (1.4, 9)
    assert found.failed_pct == 75.0
    assert found.queue_peak == 31
    assert span(found, "traffic_switched") == 7.0


def test_latency_from_histograms_where_there_is_no_access_log() -> None:
    def read(clock: str, *counts: float) -> list[Sample]:
        bounds = ("1.0", "2.0", "4.0", "+Inf")
        return [Sample(at(clock), latency.HISTOGRAMS[0], f'{{"le": "{bound}"}}', count, "metrics") for bound, count in zip(bounds, counts, strict=True)]

    samples = [*read("09:55:00", 10, 10, 10, 10), *read("09:58:00", 110, 110, 110, 110), *read("10:02:00", 0, 0, 4, 4)]
    found = one(lines=lines(BEFORE + V144), lives=[DIED], samples=samples)
    assert found.before is not None
    assert found.first is not None
    assert (found.before.n, found.before.p50_s, found.before.basis) == (100, 0.5, "histogram")
    assert (found.first.n, found.first.p50_s) == (4, 3.0)


def test_no_latency_has_its_reason() -> None:
    found = one(lines=lines(BEFORE + V144), lives=[DIED])
    assert found.first is None
    assert found.why["first_request"] == "no access log with times and durations, no latency histogram"
    assert found.why["failed_pct"] == "no dated access log of that time"


def test_warm_when_the_hit_rate_is_back() -> None:
    later = vllm(stats("10:01:20", hit=0.0), stats("10:02:20", hit=30.0), stats("10:04:13", hit=55.0))
    found = one(lines=lines(BEFORE + V144 + later), lives=[DIED])
    assert span(found, "warm") == 180.0


@pytest.mark.parametrize(("after_s", "ok"), [(1.5, True), (9.0, False)])
def test_the_second_look_after_the_first_peak(after_s: float, ok: bool) -> None:
    peak = vllm(stats("10:01:30", run=2), stats("10:02:30", run=12, use=91.0), stats("10:05:00", run=3, use=50.0))
    requests = [post("09:58:10", seconds=1.2), post("09:58:20", seconds=1.3), post("10:05:10", seconds=after_s)]
    found = one(lines=lines(BEFORE + V144 + peak), lives=[DIED], requests=requests)
    assert found.second is not None
    assert (found.second.ts, found.second.ok) == (at("10:05:00"), ok)
    assert (found.second.memory_used_pct_before, found.second.memory_used_pct_after_peak) == (40.0, 91.0)


def test_memory_in_fragments_after_the_peak() -> None:
    text = "CUDA out of memory. Tried to allocate 512.00 MiB. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated."
    peak = vllm(stats("10:01:30", run=12), f"10:03:00 (EngineCore pid=7) {text}", stats("10:05:00", run=3))
    found = one(lines=lines(BEFORE + V144 + peak), lives=[DIED])
    assert found.second is not None
    assert (found.second.fragmented_bytes, found.second.ok) == (3 << 29, False)


def test_without_a_journal_nobody_knows_when_the_restart_was_asked_for() -> None:
    found = one(lines=lines(V144), lives=[DIED])
    (detect,) = (stage for stage in found.stages if stage.stage == "detect")
    assert (detect.seconds, detect.why) == (None, "no command to restart is seen; 40.0 s until the first line of the new process are not attributed")
    assert found.mttr_s == 123.0
    assert found.unattributed_s is not None
    assert found.unattributed_s > 40.0


def test_a_line_that_an_earlier_restart_left_is_no_fault_of_the_next() -> None:
    """Killed while it still loads: what the life before said when it was ended is not why."""
    first = life("external", killed_at="09:58:35", stopped_at="09:58:45", restarted_at="09:58:46")
    second = life("external", killed_at="09:59:30", stopped_at="09:59:31", restarted_at="09:59:32", ready_at="10:01:13")
    text = BEFORE + vllm("09:58:37 (APIServer pid=0) AsyncLLM output_handler failed.").replace("INFO", "ERROR")
    found = recoveries(Capture(lines=lines(text + V144), lives=[first, second]))
    assert [item.fault.cause for item in found] == ["external-stop", "external-stop"]


def test_the_end_of_another_unit_is_no_fault_of_this_one() -> None:
    found = one(lines=lines(BEFORE + V144), events=[event("09:58:20", "exit", code=1, unit="other.service")], lives=[KILLED])
    assert found.fault.cause == "external-stop"


def test_an_end_without_a_start_is_not_recovered() -> None:
    found = one(lines=lines(BEFORE), lives=[life("external", killed_at="09:58:35")])
    assert (found.mttr_s, found.ready_at, found.bottleneck) == (None, None, None)
    assert found.why["mttr_s"] == "no start that became ready is seen after it"


def test_a_restart_of_which_only_the_journal_tells() -> None:
    found = one(lives=[DIED], events=[START])
    assert found.mttr_s == 123.0
    assert found.unattributed_s == pytest.approx(83.0)
    assert span(found, "detect") == 40.0


@pytest.mark.parametrize(("n", "p50", "p99"), [(1, 1.0, 1.0), (2, 1.0, 2.0), (100, 50.0, 99.0), (101, 51.0, 100.0)])
def test_percentiles_are_measured_values(n: int, p50: float, p99: float) -> None:
    values = [float(value) for value in range(1, n + 1)]
    assert (latency.percentile(values, 0.5), latency.percentile(values, 0.99)) == (p50, p99)


def test_silence_before_the_error_is_how_it_began() -> None:
    """A collective times out ten minutes after the hang: the error names the cause, the last progress the moment."""
    hung = vllm(stats("09:48:00"), stats("09:48:10", rate=0.0))
    error = vllm("09:58:10 (Worker pid=4) [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)").replace("INFO", "ERROR")
    found = one(lines=lines(hung + error + V144), lives=[DIED], events=[START])
    assert (found.fault.cause, found.fault.ts) == ("nccl-error", at("09:48:00"))
    assert found.fault.seen_by == "last progress in the engine log"
    assert span(found, "detect") == 710.0


def test_a_recovery_of_a_day() -> None:
    next_day = at("09:59:50") + datetime.timedelta(days=1)
    found = one(lives=[Life("journal.log:1", "vllm", died_at=at("09:59:10"), restarted_at=next_day, how="self")], events=[Event(next_day, "start", "journald", "journal.log:9", "vllm")])
    assert span(found, "detect") == 86440.0


def passed_on(clock: str, seconds: float, queue_s: float, data_s: float = 0.0, ended: str = "CD--") -> Request:
    """A request that stood in HAProxy's queue and was answered with 200."""
    return Request(at(clock), "POST", "/v1/chat/completions", 200, f"haproxy.log:{clock}", seconds, seconds - queue_s - data_s, 3, True, queue_s, ended)


def test_an_answer_to_a_client_that_had_left_is_none() -> None:
    gone, reading, served = passed_on("10:01:15", 62.0, 60.0), passed_on("10:01:16", 62.0, 55.0, data_s=5.0), passed_on("10:01:20", 3.0, 1.0, ended="----")
    found = one(lines=lines(BEFORE + V144), lives=[DIED], requests=[gone, reading, served])
    assert found.first is not None
    assert (found.first.n, span(found, "traffic_switched")) == (2, 3.0)
    earlier = passed_on("10:00:30", 62.0, 60.0)
    assert one(lines=lines(BEFORE + V144), lives=[DIED], requests=[earlier, gone]).failed_pct == 100.0


def test_what_was_waited_before_ready_says_nothing_of_the_time_after() -> None:
    found = one(lines=lines(BEFORE + V144), lives=[DIED], requests=[passed_on("10:01:15", 62.0, 60.0, ended="----"), passed_on("10:01:20", 3.0, 0.5, ended="----")])
    assert found.first is not None
    assert (found.first.p50_s, found.first.p99_s) == (2.0, 3.0)


def test_the_engine_answers_the_proxy_and_not_the_user() -> None:
    own = Request(at("10:01:14"), "POST", "/v1/chat/completions", 200, "server.log:9")
    found = one(lines=lines(BEFORE + V144), lives=[DIED], requests=[own, passed_on("10:01:14", 60.0, 59.0), passed_on("10:01:33", 3.0, 0.5, ended="----")])
    assert span(found, "traffic_switched") == 20.0


def test_a_first_line_of_whole_seconds_does_not_come_before_the_command() -> None:
    """Started 29 ms after the second, and the log says the second."""
    ask = Event(at("09:59:50") + datetime.timedelta(milliseconds=29), "restart", "map", "manager.log:7", "vllm", "manager")
    found = one(lines=lines(BEFORE + V144), lives=[DIED], events=[ask])
    assert (found.fault.command_at, found.fault.command_by) == (ask.ts, "manager")
    assert span(found, "detect") == pytest.approx(40.029)
