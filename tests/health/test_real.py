"""Reads of a real vLLM 0.32.0 in sixteen states: what is said at each read, from the second on, is what was true."""

from functools import lru_cache
from itertools import groupby
from pathlib import Path

import pytest

from diag.health import recorded
from diag.health.budget import Budget
from diag.health.proof import ProcessEvidence
from diag.health.reads import LIST, Read, read_of, records
from diag.health.verdict import BackendVerdict, judge
from tests.live.run import llmdiag

FOLDER = Path(__file__).parents[2] / "samples" / "health" / "vllm-0.32-real"
SAID: dict[str, list[tuple[str, int]]] = {
    "starting": [("starting", 0)],
    "idle": [("idle-unproven", 0)],
    "loaded": [("progressing", 0)],
    "long-prefill": [("progressing", 0)],
    "one-step-prefill": [("busy-unproven", 3)],
    "one-step-stopped": [("stalled", 1)],
    "worker-stopped": [("stalled", 1)],
    "core-stopped": [("stalled", 1)],
    "core-stopped-unseen": [("busy-unproven", 3)],
    "core-stopped-idle": [("stalled", 1)],
    "core-continued": [("progressing", 0)],
    "core-killed": [("progressing", 0), ("unreachable", 3), ("unreachable", 1)],
    "worker-killed": [("progressing", 0), ("unreachable", 1)],
    "api-killed": [("progressing", 0), ("unreachable", 3), ("unreachable", 1)],
    "stopped-under-load": [("progressing", 0), ("unreachable", 3), ("unreachable", 1)],
    "restarted": [("idle-unproven", 0), ("unreachable", 3), ("unreachable", 1), ("restarted", 0), ("idle-unproven", 0)],
}
"""What is said while a record grows, without repetitions."""


@lru_cache
def sequence(name: str) -> tuple[tuple[Read, ...], ProcessEvidence | None]:
    folder = FOLDER / name
    listed = records((folder / LIST).read_bytes(), name)
    reads = tuple(read_of(item, None if item.file is None else (folder / item.file).read_bytes()) for item in listed)
    return reads, recorded._recorded_processes(folder)


def verdicts(name: str, budget: Budget | None = None, *, pid: bool = True) -> list[BackendVerdict]:
    """At every read from the second on, as a watcher would have said it."""
    reads, evidence = sequence(name)
    return [
        judge(reads[:count], evidence=ProcessEvidence(evidence.looks[:count]) if pid and evidence is not None else None, budget=budget)
        for count in range(2, len(reads) + 1)
    ]


def test_every_record_is_judged() -> None:
    assert sorted(SAID) == sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", sorted(SAID))
def test_what_is_said_while_it_goes_on(name: str) -> None:
    found = verdicts(name)
    said = [key for key, _ in groupby((verdict.state, verdict.exit) for verdict in found)]
    assert said == SAID[name], [verdict.reason for verdict in found]


@pytest.mark.parametrize("name", sorted(set(SAID) - {"core-stopped-unseen"}))
def test_a_folder_is_judged_as_its_last_read(name: str) -> None:
    (found,) = recorded.judged(FOLDER / name, Budget())
    assert (found.verdict.state, found.verdict.exit) == SAID[name][-1], found.verdict.reason


@pytest.mark.parametrize("pid", [True, False])
def test_a_long_prefill_is_no_stall_however_short_the_patience(pid: bool) -> None:
    reads, _ = sequence("long-prefill")
    assert reads[-1].ts is not None and reads[0].ts is not None and reads[-1].ts - reads[0].ts > 70
    found = verdicts("long-prefill", Budget(floor_s=5, ceiling_s=5), pid=pid)
    assert {(verdict.state, verdict.reason) for verdict in found} == {("progressing", "vllm:kv_cache_usage_perc moved")}
    counters = {name: pair for name, pair in found[-1].engines[0].witnesses.items() if name != "vllm:kv_cache_usage_perc"}
    assert counters and all(before == after for before, after in counters.values()), "nothing else moved: the reads show what they are there for"


def test_a_step_behind_zeros_is_seen_by_its_worker_and_nobody_asks_it_anything() -> None:
    seen, unseen = verdicts("one-step-prefill"), verdicts("one-step-prefill", pid=False)
    assert all("its gauges say idle, and yet worker 18294 computed" in verdict.reason for verdict in seen)
    assert not any(verdict.may_probe for verdict in seen)
    assert {verdict.state for verdict in unseen} == {"idle-unproven"}
    assert all(verdict.may_probe for verdict in unseen), "without the processes only a question can tell"


def test_a_worker_that_computes_for_longer_than_the_budget_may_be_asked() -> None:
    found = verdicts("one-step-prefill", Budget(floor_s=15))
    assert [verdict.may_probe for verdict in found] == [False, False, True, True, True]
    assert "stalled" not in {verdict.state for verdict in found}


def test_a_stopped_engine_without_its_processes_takes_the_budget() -> None:
    found = verdicts("core-stopped-unseen", Budget(floor_s=8))
    assert [(verdict.state, verdict.exit) for verdict in found] == [("busy-unproven", 3)] * 2 + [("stalled", 1)] * 2
    assert "more than the budget of 8 s" in found[-1].reason


def test_who_lives_on_is_named() -> None:
    assert "its process is gone, though engine_core 20817, worker 21382 live on" in verdicts("api-killed")[6].reason
    assert "engine_core 14055, worker 14216 are gone at both looks" in verdicts("stopped-under-load")[-1].reason


def test_processes_of_the_old_service_are_no_proof_against_the_new_one() -> None:
    found = verdicts("restarted")
    assert found[-1].state == "idle-unproven"
    assert found[-1].may_probe
    _, evidence = sequence("restarted")
    assert evidence is not None
    assert not any(seen.role == "engine_core" for look in evidence.looks[-3:] for seen in look.processes), "it is gone in the record"


def test_on_the_command_line() -> None:
    said = llmdiag("health", str(FOLDER / "long-prefill"), str(FOLDER / "worker-stopped"), "-f", "json")
    assert [backend["state"] for backend in said.json["backends"]] == ["progressing", "stalled"], said.err
    assert said.code == 1
