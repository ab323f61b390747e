"""engine_progress over rows and over real reads of a vLLM engine."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.collectors import metrics
from diag.derive import engine_progress
from diag.model import Artefact
from tests.derive.frames import derived

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples" / "vllm-0.32-cpu"


def progress(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of `metrics` -> rows of engine_progress, in the order of target and engine."""
    full = [{"target": "t", "labels": "{}", **row} for row in rows]
    found = derived(engine_progress, metrics=full)["engine_progress"]
    return sorted(found, key=lambda row: (str(row["target"]), row["engine"] is None, str(row["engine"])))


def series(name: str, *values: float | None, engine: str | None = "0", **more: object) -> list[dict[str, object]]:
    """One sample per read."""
    return [
        {"name": name, "engine": engine, "read": read, "value": value, "source": f"m{read}.txt:{name}", **more}
        for read, value in enumerate(values)
    ]


def saved(state: str) -> list[dict[str, object]]:
    """Both reads of a recorded state of a real engine."""
    files = sorted((SAMPLES / state).glob("metrics*.txt"))
    assert len(files) == 2
    artefacts = [Artefact.of_bytes(path.name, "metrics", path.read_bytes()) for path in files]
    return [dict(row) for table, row in metrics.parse(artefacts) if table == "metrics"]


@pytest.mark.parametrize("state, running, moved, tokens", [("idle", 0, 0, 0), ("busy", 12, 3, 2220), ("worker-stopped", 4, 0, 0)])
def test_real_engine(state: str, running: int, moved: int, tokens: int) -> None:
    (row,) = progress(saved(state))
    assert (row["engine"], row["running"], row["waiting"], row["moved"], row["tokens_delta"]) == ("0", running, 0, moved, tokens)
    assert (row["witnesses"], row["resets"], row["reads"], row["window_s"]) == (5, 0, 2, None)
    assert str(row["source"]).startswith("metrics2.txt:")


def test_one_long_prefill_moves_the_kv_usage_only() -> None:
    flat = ("vllm:iteration_tokens_total_count", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    rows = [row for name in flat for row in series(name, 7, 7)]
    rows += series("vllm:num_requests_running", 1, 1) + series("vllm:kv_cache_usage_perc", 0.25, 0.5)
    (row,) = progress(rows)
    assert (row["running"], row["witnesses"], row["moved"], row["kv_usage_delta"], row["tokens_delta"]) == (1, 4, 1, 0.25, 0)


def test_kv_usage_that_only_falls_is_no_progress() -> None:
    (row,) = progress(series("vllm:kv_cache_usage_perc", 0.5, 0.25))
    assert (row["moved"], row["kv_usage_delta"], row["running"]) == (0, -0.25, None)
    (peak,) = progress(series("vllm:kv_cache_usage_perc", 0.5, 0.75, 0.25))
    assert peak["moved"] == 1


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_", "ray_vllm:"])
def test_names_of_relabelled_vllm(prefix: str) -> None:
    (row,) = progress(series(f"{prefix}num_requests_running", 2, 2) + series(f"{prefix}generation_tokens_total", 5, 9))
    assert (row["running"], row["tokens_delta"], row["moved"]) == (2, 4, 1)


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_", "ray_sglang_"])
def test_sglang_counts_chunks(prefix: str) -> None:
    rows = series(f"{prefix}num_running_reqs", 1, 3, engine="tp0") + series(f"{prefix}num_queue_reqs", 4, 2, engine="tp0")
    rows += series(f"{prefix}realtime_tokens_total", 10, 110, engine="tp0", labels='{"mode": "prefill_compute"}')
    rows += series(f"{prefix}realtime_tokens_total", 5, 15, engine="tp0", labels='{"mode": "decode"}')
    rows += series(f"{prefix}generation_tokens_total", 3, 3, engine=None)
    (row,) = progress(rows)
    assert (row["engine"], row["running"], row["waiting"], row["tokens_delta"]) == ("tp0", 3, 4, 110)
    assert (row["witnesses"], row["moved"]) == (3, 2)


def test_priorities_are_not_counted_twice() -> None:
    rows = series("sglang:num_running_reqs", 3, 3, engine="tp0", labels='{"priority": "", "tp_rank": "0"}')
    rows += series("sglang:num_running_reqs", 2, 2, engine="tp0", labels='{"priority": "5", "tp_rank": "0"}')
    (row,) = progress(rows)
    assert row["running"] == 3


def test_a_dead_rank_is_seen_beside_a_living_one() -> None:
    rows = series("vllm:num_requests_running", 1, 1, engine="0") + series("vllm:num_requests_running", 1, 1, engine="1")
    rows += series("vllm:generation_tokens_total", 5, 9, engine="0") + series("vllm:generation_tokens_total", 5, 5, engine="1")
    alive, dead = progress(rows)
    assert (alive["engine"], alive["moved"], dead["engine"], dead["moved"], dead["witnesses"]) == ("0", 1, "1", 0, 1)


def test_a_witness_without_rank_speaks_for_no_one_of_several() -> None:
    rows = series("sglang:num_running_reqs", 1, 1, engine="dp0") + series("sglang:num_running_reqs", 1, 1, engine="dp1")
    rows += series("sglang:generation_tokens_total", 5, 9, engine=None)
    found = progress(rows)
    assert [(row["engine"], row["running"], row["moved"]) for row in found] == [("dp0", 1, 0), ("dp1", 1, 0), (None, None, 1)]


def test_one_read_proves_nothing() -> None:
    (row,) = progress(series("vllm:num_requests_running", 4) + series("vllm:generation_tokens_total", 5))
    assert (row["running"], row["witnesses"], row["moved"], row["tokens_delta"], row["reads"], row["window_s"]) == (4, 0, 0, None, 1, None)


def test_a_counter_that_falls_is_a_restart_and_no_progress() -> None:
    (row,) = progress(series("vllm:num_requests_running", 1, 1) + series("vllm:generation_tokens_total", 50, 2))
    assert (row["moved"], row["resets"]) == (0, 1)


def test_unknown_values_are_left_out() -> None:
    (row,) = progress(series("vllm:kv_cache_usage_perc", None, 0.5, 0.5))
    assert (row["reads"], row["moved"], row["witnesses"]) == (2, 0, 1)


def test_estimate_of_flops_that_is_switched_off_is_no_witness() -> None:
    running = series("vllm:num_requests_running", 1, 1)
    (off,) = progress(running + series("vllm:estimated_flops_per_gpu_total", 0, 0))
    (on,) = progress(running + series("vllm:estimated_flops_per_gpu_total", 1e12, 2e12))
    assert (off["witnesses"], on["witnesses"], on["moved"]) == (0, 1, 1)


def test_captures_and_targets_are_kept_apart() -> None:
    rows = [row | {"capture": capture, "target": target} for capture, target in (("1", "a"), ("2", "a"), ("2", "b"))
            for row in series("vllm:num_requests_running", 1, 1)]
    found = progress(rows)
    assert sorted((str(row["capture"]), str(row["target"])) for row in found) == [("1", "a"), ("2", "a"), ("2", "b")]


def test_window_is_the_time_between_the_reads() -> None:
    rows = series("vllm:prompt_tokens_total", 5, 7)
    times = [datetime.datetime(2026, 11, 30, 2, 41, 2 + 5 * number, 500_000) for number in range(2)]
    (row,) = progress([row | {"ts": ts} for row, ts in zip(rows, times, strict=True)])
    assert row["window_s"] == 5.0


def test_engines_that_the_view_of_old_did_not_know() -> None:
    rows = series("nv_trt_llm_request_metrics", 0, 2, engine=None, labels='{"model": "m", "request_type": "active", "version": "1"}')
    rows += series("nv_trt_llm_request_metrics", 9, 9, engine=None, labels='{"model": "m", "request_type": "max", "version": "1"}')
    rows += series("nv_trt_llm_general_metrics", 5, 8, engine=None, labels='{"general_type": "iteration_counter", "model": "m", "version": "1"}')
    (row,) = progress(rows)
    assert (row["kind"], row["engine"], row["running"], row["moved"], row["witnesses"]) == ("trtllm-triton", "m", 2, 1, 1)


def test_a_worker_that_passes_the_series_of_its_engine_through_is_that_engine() -> None:
    rows = series("dynamo_component_inflight_requests", 3, 3, engine=None) + series("vllm:num_requests_running", 2, 2)
    rows += series("vllm:generation_tokens_total", 5, 9)
    (row,) = progress(rows)
    assert (row["kind"], row["engine"], row["running"], row["moved"]) == ("vllm", "0", 2, 1)
