"""Requests wait and none runs: when that is an admission stall, and when they wait for something else."""

import json
from pathlib import Path

import pytest

from diag.health.budget import Budget
from tests.health.by_hand import FLAT, verdict
from tests.health.toy import Toy, text
from tests.live.run import llmdiag
from tests.repro.endpoint import Handler, serving

QUEUE = {"num_requests_running": (0, 0, 0), "num_requests_waiting": (4, 4, 4), **FLAT}
CAPACITY, DEFERRED = "num_requests_waiting_by_reason{reason=capacity}", "num_requests_waiting_by_reason{reason=deferred}"
SGL = '{engine_type="decode",model_name="m",pp_rank="0",tp_rank="0",moe_ep_rank="0"}'


def sglang(**values: float) -> dict[str, tuple[float, ...]]:
    """The same at each of five reads."""
    return {f"sglang:{name}": (value,) * 5 for name, value in values.items()}


def test_those_that_wait_for_something_else_are_no_admission_stall() -> None:
    for every_s in (10.0, 400.0, None):
        found = verdict({**QUEUE, CAPACITY: (0, 0, 0), DEFERRED: (4, 4, 4)}, every_s)
        assert (found.state, found.exit) == ("busy-unproven", 3), found.reason
        assert "4 for the LoRA budget, a transfer of KV, or a blocked status" in found.reason
    found = verdict({**QUEUE, CAPACITY: (0, 0, 0), DEFERRED: (4, 4, 4), "prefix_cache_queries_total": (5, 50, 500)})
    assert found.state == "busy-unproven", "they are asked again at every turn"


def test_a_part_that_waits_for_a_place_is_one() -> None:
    found = verdict({**QUEUE, CAPACITY: (1, 1, 1), DEFERRED: (3, 3, 3)})
    assert (found.state, found.exit) == ("admission-stalled", 1)
    assert "4 requests wait and none runs, of them 3 for the LoRA budget" in found.reason
    assert verdict({**QUEUE, CAPACITY: (0, 1, 1), DEFERRED: (4, 3, 3)}).state == "busy-unproven", "one comparison only"


@pytest.mark.parametrize("queue", ["num_decode_transfer_queue_reqs", "num_decode_prealloc_queue_reqs", "num_prefill_bootstrap_queue_reqs", "num_prefill_inflight_queue_reqs"])
@pytest.mark.parametrize("every_s", [10.0, 400.0, None])
def test_queues_of_a_prefill_decode_pair_neither_run_nor_stall(queue: str, every_s: float | None) -> None:
    series = sglang(num_running_reqs=0, num_queue_reqs=0, token_usage=0.4, generation_tokens_total=5, **{queue: 3})
    found = verdict(series, every_s)
    assert (found.state, found.exit, found.may_probe) == ("busy-unproven", 3, False), found.reason
    assert (found.engines[0].running, found.engines[0].waiting) == (0, 3)
    assert "requests run" not in found.reason and queue in found.reason
    stuck = verdict({**series, **sglang(num_queue_reqs=2)}, every_s)
    assert (stuck.state, stuck.engines[0].waiting) == ("admission-stalled", 5), stuck.reason
    work = verdict({**series, **sglang(num_running_reqs=2, num_used_tokens=900)}, 400.0)
    assert work.state == "stalled", "what runs is judged as ever"


@pytest.mark.parametrize(
    ("every_s", "budget", "state"),
    [
        (10.0, Budget(), "admission-stalled"), (5.0, Budget(), "admission-stalled"), (4.9, Budget(), "busy-unproven"), (1.0, Budget(), "busy-unproven"),
        (10.0, Budget(admission_s=300.0), "busy-unproven"), (150.0, Budget(admission_s=300.0), "admission-stalled"), (None, Budget(), "admission-stalled"),
    ],
)
def test_it_takes_time(every_s: float | None, budget: Budget, state: str) -> None:
    found = verdict(QUEUE, every_s, budget=budget)
    assert found.state == state, found.reason
    if state == "busy-unproven":
        assert f"that is proof after 2 comparisons over {budget.admission_s:g} s" in found.reason


def test_many_quick_reads_are_proof_when_they_cover_the_time() -> None:
    quick = {name: values[:1] * 13 for name, values in QUEUE.items()}
    assert verdict(quick, 1.0).state == "admission-stalled"
    assert verdict({**quick, "num_requests_running": (0,) * 8 + (1,) + (0,) * 4}, 1.0).state == "busy-unproven", "one ran four seconds ago"
    assert verdict({**quick, "generation_tokens_total": (50,) * 8 + (51,) * 5}, 1.0).state == "busy-unproven", "something moved four seconds ago"


def deferring(toy: Toy, reason: str) -> Handler:
    """The toy, whose waiting requests all have this reason."""
    def handler(path, body, headers):  # type: ignore[no-untyped-def]
        if path != "/metrics":
            return toy(path, body, headers)
        series = [f'vllm:num_requests_waiting_by_reason{{engine="0",model_name="toy",reason="{name}"}} {toy.waiting * (name == reason)}' for name in ("capacity", "deferred")]
        return text(toy.metrics() + "\n".join(series) + "\n")
    return handler


def test_a_queue_on_a_real_server_is_read_for_ten_seconds_at_least() -> None:
    toy = Toy(waiting=4)
    with serving(toy) as server:
        said = llmdiag("health", server.url, "--interval", "1", "-f", "json")
    (backend,) = said.json["backends"]
    assert (said.code, backend["state"]) == (1, "admission-stalled"), said.out
    assert backend["engines"][0]["flat_s"] >= 9.9, "three reads in two seconds were taken for proof"
    assert toy.reads >= 10


@pytest.mark.parametrize(
    ("more", "code", "proof_s"),
    [(("--floor", "60"), 3, "60"), (("--patience", "1"), 3, "10"), (("--patience", "1", "--floor", "60"), 3, "60"), (("--floor", "0.3", "--patience", "20"), 1, "")],
)
def test_floor_and_patience_hold_for_a_queue_too(more: tuple[str, ...], code: int, proof_s: str) -> None:
    with serving(Toy(waiting=4)) as server:
        said = llmdiag("health", server.url, "--interval", "0.1", *more)
    assert said.code == code, said.out
    assert said.out.startswith("BUSY-UNPROVEN" if code == 3 else "ADMISSION-STALLED"), said.out
    assert code == 1 or f"over {proof_s} s" in said.out, said.out


def test_deferred_requests_on_a_real_server_restart_nothing() -> None:
    with serving(deferring(Toy(waiting=4), "deferred")) as server:
        said = llmdiag("health", server.url, "--interval", "0.1", "--floor", "0.3", "--patience", "1")
    assert said.code == 3, said.out
    assert said.out.startswith("BUSY-UNPROVEN ") and "no admission stall" in said.out
    with serving(deferring(Toy(waiting=4), "capacity")) as server:
        said = llmdiag("health", server.url, "--interval", "0.1", "--floor", "0.3", "--patience", "20")
    assert said.code == 1 and said.out.startswith("ADMISSION-STALLED "), said.out


def test_the_evidence_table_counts_each_waiting_request_once(tmp_path: Path) -> None:
    """engine_progress, which rules read, knows the same names."""
    body = 'sglang:num_running_reqs{L} 0\nsglang:num_queue_reqs{L} 1\nsglang:num_decode_transfer_queue_reqs{L} 3\n'.replace("{L}", SGL)
    vllm = 'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 4\nvllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 4\n'
    for name, lines in (("sglang", body), ("vllm", vllm)):
        (tmp_path / name).mkdir()
        for number in (1, 2):
            (tmp_path / name / f"metrics{number}.txt").write_text(lines)
    said = llmdiag("query", str(tmp_path), "SELECT kind, running, waiting FROM engine_progress", "-f", "json")
    assert {row["kind"]: (row["running"], row["waiting"]) for row in json.loads(said.out)["rows"]} == {"sglang": (0, 4), "vllm": (0, 4)}, said.out
