"""The rules of a verdict, one by one, on reads written by hand and on reads of a real engine."""

from pathlib import Path

import pytest

from diag.health.budget import Budget
from diag.health.proof import Look, ProcessEvidence, ProcessSeen
from diag.health.reads import Read, Record, read_of
from diag.health.states import ProbeResult
from diag.health.verdict import BackendVerdict, judge, worst
from tests.health.by_hand import BUSY, FLAT, IDLE, Values, reads, verdict

REAL = Path(__file__).parents[2] / "samples" / "vllm-0.32-cpu"


def real(state: str, *numbers: int, every_s: float | None = None) -> list[Read]:
    """Reads of the recorded engine, as often as they are named."""
    return [
        read_of(Record(url="u", outcome="answer", status=200, ts=None if every_s is None else 1.79e9 + place * every_s), (REAL / state / f"metrics{number}.txt").read_bytes())
        for place, number in enumerate(numbers)
    ]


def stopped(*states: str) -> ProcessEvidence:
    """A worker in these states, one a look."""
    return ProcessEvidence(tuple(Look((ProcessSeen(2, "engine_core", "S", 1.0), ProcessSeen(3, "worker", state, 1.0))) for state in states))


@pytest.mark.parametrize(
    ("state", "numbers", "expected", "exits"),
    [
        ("idle", (1, 2), "idle-unproven", 0), ("busy", (1, 2), "progressing", 0), ("worker-stopped", (1, 2), "busy-unproven", 3),
        ("worker-stopped", (1, 2, 2), "stalled", 1), ("worker-stopped", (2,), "busy-unproven", 3), ("busy", (1,), "busy-unproven", 3),
    ],
)
def test_real_engine(state: str, numbers: tuple[int, ...], expected: str, exits: int) -> None:
    found = judge(real(state, *numbers))
    assert (found.state, found.exit, found.engine_kind, len(found.engines)) == (expected, exits, "vllm", 1), found.reason


def test_real_engine_with_its_processes() -> None:
    found = judge(real("worker-stopped", 1, 2), evidence=stopped("T"))
    assert (found.state, found.exit) == ("stalled", 1)
    assert "worker 3 is stopped by a signal" in found.reason


def test_real_engine_with_times_has_a_budget() -> None:
    """Two comparisons in 12 s prove nothing; in 400 s they do."""
    soon, late = judge(real("worker-stopped", 1, 2, 2, every_s=6.0)), judge(real("worker-stopped", 1, 2, 2, every_s=200.0))
    assert (soon.state, late.state) == ("busy-unproven", "stalled")
    assert "300 s (every running request is past its prefill: the floor)" in soon.reason and "over 400 s" in late.reason


def test_tokens_per_second_of_a_real_engine() -> None:
    (engine,) = judge(real("busy", 1, 2, every_s=7.0)).engines
    assert engine.tokens_per_s == pytest.approx(2220 / 7.0)
    assert engine.steps_per_s == pytest.approx(185 / 7.0)
    assert (engine.running, engine.witnesses["vllm:generation_tokens_total"]) == (12, (2746.0, 4966.0))


@pytest.mark.parametrize("every_s", [None, 10.0, 100.0])
def test_flat_iterations_alone_are_never_stalled(every_s: float | None) -> None:
    found = verdict({**BUSY, "iteration_tokens_total_count": (7, 7, 7)}, every_s)
    assert found.state == "busy-unproven", found.reason
    long = verdict({**{name: values * 20 for name, values in BUSY.items()}, "iteration_tokens_total_count": (7,) * 60}, 60.0)
    assert long.state == "busy-unproven", long.reason


def test_output_counters_without_a_witness_of_the_prefill_need_time() -> None:
    """Files without times whose only witnesses stand still in every long prefill."""
    assert verdict({**BUSY, **FLAT}, None).state == "busy-unproven"
    assert verdict({**BUSY, **FLAT, "kv_cache_usage_perc": (0.2, 0.2, 0.2)}, None).state == "stalled"
    assert verdict({**BUSY, **FLAT, "kv_cache_usage_perc": (0.0, 0.0, 0.0)}, None).state == "busy-unproven"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kv_cache_usage_perc", (0.2, 0.3, 0.4)), ("estimated_flops_per_gpu_total", (1e12, 1e12, 2e12)), ("prefix_cache_queries_total", (5, 5, 905)),
        ("external_prefix_cache_queries_total", (1, 2, 3)), ("gpu_cache_usage_perc", (0.1, 0.1, 0.2)),
    ],
)
def test_progress_while_the_output_is_flat(name: str, values: Values) -> None:
    found = verdict({**BUSY, **FLAT, name: values}, 400.0)
    assert (found.state, found.exit) == ("progressing", 0)
    assert name in found.reason


@pytest.mark.parametrize("values", [(0.4, 0.3, 0.2), (0.4, 0.3, 0.4)])
def test_usage_that_reaches_no_new_maximum_is_no_progress(values: Values) -> None:
    found = verdict({**BUSY, **FLAT, "kv_cache_usage_perc": values}, 400.0)
    assert found.state == "stalled", found.reason


def test_the_maximum_counts_anew_after_output() -> None:
    """A request that ended freed its blocks; the next one climbs from below."""
    series = {name: (1,) * 5 for name in BUSY} | {"iteration_tokens_total_count": (7, 8, 8, 8, 8), "prompt_tokens_total": (1, 2, 2, 2, 2)}
    found = verdict({**series, "kv_cache_usage_perc": (0.9, 0.1, 0.2, 0.3, 0.4)}, 400.0)
    assert found.state == "progressing"


def test_the_maximum_counts_anew_when_a_request_left_without_output() -> None:
    """The last token was counted by the read before; a long prefill now climbs from below what the other request held."""
    series = {"num_requests_running": (2, 1, 1, 1), "iteration_tokens_total_count": (7,) * 4, "prompt_tokens_total": (2,) * 4}
    assert verdict({**series, "kv_cache_usage_perc": (0.9, 0.1, 0.2, 0.3)}, 400.0).state == "progressing"
    assert verdict({**series, "kv_cache_usage_perc": (0.9, 0.1, 0.1, 0.1)}, 400.0).state == "stalled"


def test_flops_that_are_switched_off_are_no_witness() -> None:
    found = verdict({**BUSY, "iteration_tokens_total_count": (7, 7, 7), "estimated_flops_per_gpu_total": (0, 0, 0)}, 400.0)
    assert found.state == "busy-unproven" and "proves nothing alone" in found.reason


def test_budget_that_scales_with_the_prompt() -> None:
    series = {**BUSY, **FLAT, "kv_cache_usage_perc": (0.2, 0.2, 0.2)}
    long = Budget(prompt_tokens=300_000)
    assert verdict(series, 200.0, budget=long).state == "busy-unproven"
    assert "300,000 tokens given" in verdict(series, 200.0, budget=long).reason
    assert verdict(series, 500.0, budget=long).state == "stalled"


def test_a_request_that_just_came_has_its_own_time() -> None:
    series = {"num_requests_running": (0, 0, 0, 0, 1, 1, 1)} | {name: values[:1] * 7 for name, values in FLAT.items()}
    found = verdict({**series, "kv_cache_usage_perc": (0.2,) * 7}, 140.0)
    assert found.state == "busy-unproven" and "over 280 s" in found.reason


def test_one_dead_rank_beside_a_living_one() -> None:
    sets = {}
    for engine, tokens in (("0", (5, 9, 12)), ("1", (5, 5, 5))):
        for name, values in {"num_requests_running": (1, 1, 1), "generation_tokens_total": tokens, "prompt_tokens_total": (3, 3, 3), "kv_cache_usage_perc": (0.2,) * 3}.items():
            sets[f"{name}{{engine={engine}}}"] = values
    found = verdict(sets, 400.0)
    assert (found.state, [(item.engine, item.state) for item in found.engines]) == ("stalled", [("0", "progressing"), ("1", "stalled")])
    assert "engine 1" in found.reason


def test_waiting_and_none_running() -> None:
    series = {"num_requests_running": (0, 0, 0), "num_requests_waiting": (3, 3, 4), **FLAT}
    assert (verdict(series).state, verdict(series).exit) == ("admission-stalled", 1)
    assert verdict({**series, "prefix_cache_queries_total": (5, 50, 500)}).state == "admission-stalled", "those that wait are asked again"
    assert verdict({**series, "generation_tokens_total": (50, 60, 70)}).state == "progressing"
    assert verdict({name: values[:2] for name, values in series.items()}).state == "busy-unproven"
    assert verdict({**series, "num_requests_running": (1, 0, 0)}).state == "busy-unproven"


def test_idle_is_asked_only_when_idle_twice() -> None:
    assert verdict({**IDLE, **FLAT}).may_probe
    assert not verdict({**BUSY, **FLAT}).may_probe
    assert not verdict({**IDLE, **FLAT, "num_requests_running": (0, 1, 0)}).may_probe
    assert not verdict({name: values[:1] for name, values in {**IDLE, **FLAT}.items()}).may_probe
    assert not verdict({**IDLE, **FLAT}, probe=ProbeResult(True, True, 0.2)).may_probe


@pytest.mark.parametrize(
    ("probe", "state"),
    [
        (None, "idle-unproven"), (ProbeResult(False), "idle-unproven"), (ProbeResult(True, True, 0.4), "idle-proven"),
        (ProbeResult(True, None, 0.1, 401), "idle-unproven"), (ProbeResult(True, None, 0.1, 500), "idle-unproven"), (ProbeResult(True, False, 30.0), "busy-unproven"),
    ],
)
def test_idle_with_a_question(probe: ProbeResult | None, state: str) -> None:
    assert verdict({**IDLE, **FLAT}, probe=probe).state == state


@pytest.mark.parametrize(
    ("budget", "every_s", "state"),
    [
        (Budget(), 20.0, "busy-unproven"), (Budget(), 400.0, "busy-unproven"), (Budget(probe_s=20.0), 400.0, "busy-unproven"),
        (Budget(floor_s=20.0), 20.0, "stalled"), (Budget(floor_s=20.0, probe_s=30.0), 20.0, "stalled"), (Budget(floor_s=20.0, probe_s=60.0), 20.0, "busy-unproven"),
    ],
)
def test_a_hang_behind_a_stale_zero(budget: Budget, every_s: float, state: str) -> None:
    """Asked after the second read, no answer in 30 s, and two reads later the gauges still say 0, as those of an idle engine do."""
    series = {name: values[:1] * 4 for name, values in {**IDLE, **FLAT}.items()}
    found = verdict(series, every_s, budget=budget, probe=ProbeResult(True, False, 30.0, None, 2))
    assert found.state == state, found.reason


def test_an_unanswered_question_that_met_a_busy_engine_proves_nothing() -> None:
    series = {**{name: values[:1] * 4 for name, values in {**IDLE, **FLAT}.items()}, "num_requests_running": (0, 0, 2, 2)}
    assert verdict(series, 160.0, probe=ProbeResult(True, False, 30.0, None, 2)).state == "busy-unproven"


def test_in_flight_requests_contradict_a_zero_gauge() -> None:
    series = {"sglang:num_running_reqs": (0, 0, 0), "sglang:num_queue_reqs": (0, 0, 0), "sglang:scheduler_idle_seconds_total": (5, 5, 5)}
    series |= {"sglang:generation_tokens_total": (5, 5, 5), "sglang:token_usage": (0.2, 0.2, 0.2)}
    series["sglang:http_requests_active{endpoint=/v1/chat/completions}"] = (1, 1, 1)
    found = verdict(series)
    assert (found.state, found.may_probe) == ("busy-unproven", False)
    assert "1 are in flight at its HTTP server" in found.reason
    assert verdict(series, 400.0).state == "stalled"


def test_a_loop_that_turns_while_idle_is_proof() -> None:
    series = {"sglang:num_running_reqs": (0, 0, 0), "sglang:num_queue_reqs": (0, 0, 0), "sglang:generation_tokens_total": (5, 5, 5)}
    assert verdict({**series, "sglang:scheduler_idle_seconds_total": (5, 15, 25)}).state == "idle-proven"
    assert verdict({**series, "sglang:scheduler_idle_seconds_total": (5, 15, 15)}).state == "idle-unproven"


def test_asleep() -> None:
    series = {**IDLE, **FLAT, "engine_sleep_state{sleep_state=awake}": (0, 0, 0), "engine_sleep_state{sleep_state=discard_all}": (1, 1, 1)}
    assert (verdict(series).state, verdict(series).may_probe) == ("sleeping", False)


@pytest.mark.parametrize(
    ("name", "values"), [("process_start_time_seconds", (100.0, 100.4, 900.0)), ("prompt_tokens_total", (900, 950, 2)), ("prompt_tokens_created", (50.0, 50.0, 99.0))]
)
def test_restarted(name: str, values: Values) -> None:
    found = verdict({**BUSY, **FLAT, name: values})
    assert (found.state, found.exit, found.may_probe) == ("restarted", 0, False), found.reason
    assert verdict({**IDLE, **FLAT, name: values}).may_probe


def test_a_step_of_the_clock_is_no_restart() -> None:
    assert verdict({**BUSY, **FLAT, "process_start_time_seconds": (100.0, 101.2, 99.8)}).state == "busy-unproven"


def test_after_a_restart_two_comparisons_of_the_new_process_are_judged() -> None:
    series = {"num_requests_running": (1,) * 5, "generation_tokens_total": (900, 3, 50, 90, 120), "process_start_time_seconds": (1, 600, 600, 600, 600)}
    states = [judge(reads(series)[:count]).state for count in range(2, 6)]
    assert states == ["restarted", "restarted", "progressing", "progressing"]


@pytest.mark.parametrize(
    "series",
    [
        {"process_start_time_seconds": (100, 900, 100, 900), "generation_tokens_total": (5, 70, 8, 75)},
        {"process_start_time_seconds": (900, 100), "generation_tokens_total": (5, 70)},
        {"generation_tokens_total": (50_000, 9_000, 50_300, 9_400), "prompt_tokens_total": (80_000, 5_000, 80_100, 5_050)},
        {"generation_tokens_total": (9_000, 50_000, 9_400), "prompt_tokens_total": (5_000, 80_000, 5_050)},
    ],
)
def test_two_backends_behind_one_address(series: dict[str, Values]) -> None:
    count = len(next(iter(series.values())))
    found = verdict({"num_requests_running": (1,) * count, **series})
    assert (found.state, found.exit, found.engines) == ("mixed-backends", 3, ())


def test_nan_is_no_value() -> None:
    found = verdict({"num_requests_running": (None, None, None), "generation_tokens_total": (5, None, 5)})
    assert found.state == "no-metrics"
    assert verdict({**BUSY, **FLAT, "kv_cache_usage_perc": (0.1, None, 0.2)}).state == "progressing"


FAILED = Read("refused", 1.79e9, 0.0)


@pytest.mark.parametrize(
    ("read", "state", "exits"),
    [
        (FAILED, "unreachable", 3), (Read("timeout"), "unreachable", 3), (Read("reset"), "unreachable", 3), (Read("garbled"), "unreadable", 3),
        (read_of(Record(url="u", outcome="answer", status=404), b"nothing here"), "no-metrics", 3),
        (read_of(Record(url="u", outcome="answer", status=500), b"oh"), "unreadable", 3),
        (read_of(Record(url="u", outcome="answer", status=200), b"<html>"), "unreadable", 3),
        (read_of(Record(url="u", outcome="answer", status=200), b""), "no-metrics", 3),
        (read_of(Record(url="u", outcome="answer", status=200), b"process_open_fds 3\n"), "no-metrics", 3),
        (read_of(Record(url="u", outcome="answer", status=503), b'{"error":{"message":"Loading model"}}'), "starting", 0),
    ],
)
def test_reads_that_bring_nothing(read: Read, state: str, exits: int) -> None:
    found = judge([read])
    assert (found.state, found.exit, found.may_probe) == (state, exits, False)


def test_gone_and_starting_need_the_processes() -> None:
    young = ProcessEvidence((Look((ProcessSeen(2, "api_server", "S", 1.79e9 - 40),), ts=1.79e9),))
    dead = ProcessEvidence((Look((ProcessSeen(2, "api_server", "S", 1.79e9 - 40),)), Look(())))
    assert judge([FAILED], evidence=young).state == "starting"
    assert (judge([FAILED], evidence=dead).state, judge([FAILED], evidence=dead).exit) == ("unreachable", 1)
    assert (judge([FAILED], evidence=ProcessEvidence((), gone=True)).exit, judge([FAILED]).exit) == (1, 3)


def test_who_answered_before_and_listens_no_more_is_not_starting() -> None:
    """An API server that waits for its clients, after SIGTERM, has closed its port and lives on."""
    before = reads({**IDLE, "generation_tokens_total": (1, 2, 3)})
    since = (before[-1].ts or 0.0) + 5
    old, new = ProcessSeen(2, "api_server", "S", since - 90, 9.0), ProcessSeen(3, "api_server", "S", since + 1, 1.0)
    closed = Read("refused", since, 35.0)
    assert judge([*before, closed], evidence=ProcessEvidence((Look((old,), ts=since),))).state == "unreachable"
    assert judge([*before, closed], evidence=ProcessEvidence((Look((new,), ts=since + 5),))).state == "starting", "it was started anew"
    assert judge([closed], evidence=ProcessEvidence((Look((old,), ts=since), Look((old,), ts=since + 10)))).state == "unreachable", "it does nothing"


def test_it_began_to_answer() -> None:
    fresh = reads({**IDLE, "generation_tokens_total": (0, 0, 0)})[:1]
    assert judge([FAILED, *fresh]).state == "starting"
    assert judge([FAILED, *reads({**BUSY, **FLAT})[:1]]).state == "busy-unproven"


def test_the_last_read_decides_whether_it_is_there() -> None:
    found = judge([*reads({**BUSY, "generation_tokens_total": (1, 2, 3)}), Read("timeout")])
    assert found.state == "unreachable" and "it answered before" in found.reason


def test_no_read_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no reads"):
        judge([])


def test_the_worst_of_several() -> None:
    zero, one, three = (BackendVerdict("progressing", "", code) for code in (0, 1, 3))
    assert [worst(items) for items in ((), (zero,), (zero, three), (three, one, zero))] == [0, 0, 3, 1]


def seen(*each: tuple[str, float, str], every_s: float = 10.0) -> ProcessEvidence:
    """A worker, (state, cpu_s, stack) per look."""
    return ProcessEvidence(tuple(
        Look((ProcessSeen(3, "worker", state, 1.0, cpu, stack),), 1.79e9 + number * every_s, number * every_s) for number, (state, cpu, stack) in enumerate(each)
    ))


STILL = {**BUSY, **FLAT, "kv_cache_usage_perc": (0.2, 0.2, 0.2)}


@pytest.mark.parametrize(("every_s", "state"), [(10.0, "progressing"), (200.0, "busy-unproven"), (400.0, "stalled")])
def test_a_worker_that_computes_is_progress_until_the_budget_and_an_excuse_until_twice_that(every_s: float, state: str) -> None:
    works = seen(("R", 1.0, "a"), ("R", 9.0, "b"), ("R", 19.0, "c"))
    assert verdict(STILL, every_s, evidence=works).state == state


@pytest.mark.parametrize(("every_s", "state"), [(10.0, "busy-unproven"), (40.0, "stalled")])
def test_frozen_stacks_prove_it_before_the_budget(every_s: float, state: str) -> None:
    found = verdict(STILL, every_s, evidence=seen(*[("S", 1.0, "a")] * 3, every_s=every_s))
    assert found.state == state, found.reason


def test_a_stopped_worker_is_stuck_also_when_nobody_asks_anything_of_it() -> None:
    assert verdict({**IDLE, **FLAT}, evidence=stopped("T", "T")).state == "stalled"
    assert verdict({**IDLE, **FLAT}, evidence=stopped("T")).state == "idle-unproven"
    assert verdict({**BUSY, **FLAT, "generation_tokens_total": (1, 2, 3)}, evidence=stopped("T", "T")).state == "progressing"
    assert verdict({**BUSY, **FLAT, "generation_tokens_total": (1, 2, 2)}, evidence=stopped("S", "T", "T")).state == "stalled"
