"""engine_progress and metric_changes over rows and over real reads of a vLLM engine."""

from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pytest

from diag.collectors import metrics
from diag.model import Artefact
from diag.tables import merged

ROOT = Path(__file__).parents[2]
VIEWS = ROOT / "diag" / "views"
SAMPLES = ROOT / "samples" / "vllm-0.32-cpu"
COLUMNS = {column.name: column.type for column in merged(())["metrics"].columns}

View = Callable[[str, Sequence[dict[str, object]]], list[dict[str, object]]]


def view(name: str, rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of `metrics` -> rows of a view, in the order of target and engine."""
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE metrics ({', '.join(f'{column} {kind}' for column, kind in COLUMNS.items())})")
        for row in rows:
            full = {"bundle": "b", "host": "h", "capture": "1", "target": "t", "labels": "{}", **row}
            names = ", ".join(full)
            connection.execute(f"INSERT INTO metrics ({names}) VALUES ({', '.join('?' for _ in full)})", list(full.values()))
        found = connection.execute((VIEWS / f"{name}.sql").read_text()).df()
    found = found.sort_values(["target", "engine"], na_position="last")
    return [{str(key): value for key, value in row.items()} for row in found.astype(object).where(found.notna(), None).to_dict("records")]


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
    (row,) = view("engine_progress", saved(state))
    assert (row["engine"], row["running"], row["waiting"], row["moved"], row["tokens_delta"]) == ("0", running, 0, moved, tokens)
    assert (row["witnesses"], row["resets"], row["reads"], row["window_s"]) == (5, 0, 2, None)
    assert str(row["source"]).startswith("metrics2.txt:")


def test_one_long_prefill_moves_the_kv_usage_only() -> None:
    flat = ("vllm:iteration_tokens_total_count", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    rows = [row for name in flat for row in series(name, 7, 7)]
    rows += series("vllm:num_requests_running", 1, 1) + series("vllm:kv_cache_usage_perc", 0.25, 0.5)
    (row,) = view("engine_progress", rows)
    assert (row["running"], row["witnesses"], row["moved"], row["kv_usage_delta"], row["tokens_delta"]) == (1, 4, 1, 0.25, 0)


def test_kv_usage_that_only_falls_is_no_progress() -> None:
    (row,) = view("engine_progress", series("vllm:kv_cache_usage_perc", 0.5, 0.25))
    assert (row["moved"], row["kv_usage_delta"], row["running"]) == (0, -0.25, None)
    (peak,) = view("engine_progress", series("vllm:kv_cache_usage_perc", 0.5, 0.75, 0.25))
    assert peak["moved"] == 1


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_", "ray_vllm:"])
def test_names_of_relabelled_vllm(prefix: str) -> None:
    (row,) = view("engine_progress", series(f"{prefix}num_requests_running", 2, 2) + series(f"{prefix}generation_tokens_total", 5, 9))
    assert (row["running"], row["tokens_delta"], row["moved"]) == (2, 4, 1)


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_", "ray_sglang_"])
def test_sglang_counts_chunks(prefix: str) -> None:
    rows = series(f"{prefix}num_running_reqs", 1, 3, engine="tp0") + series(f"{prefix}num_queue_reqs", 4, 2, engine="tp0")
    rows += series(f"{prefix}realtime_tokens_total", 10, 110, engine="tp0", labels='{"mode": "prefill_compute"}')
    rows += series(f"{prefix}realtime_tokens_total", 5, 15, engine="tp0", labels='{"mode": "decode"}')
    rows += series(f"{prefix}generation_tokens_total", 3, 3, engine=None)
    (row,) = view("engine_progress", rows)
    assert (row["engine"], row["running"], row["waiting"], row["tokens_delta"]) == ("tp0", 3, 4, 110)
    assert (row["witnesses"], row["moved"]) == (3, 2)


def test_priorities_are_not_counted_twice() -> None:
    rows = series("sglang:num_running_reqs", 3, 3, engine="tp0", labels='{"priority": "", "tp_rank": "0"}')
    rows += series("sglang:num_running_reqs", 2, 2, engine="tp0", labels='{"priority": "5", "tp_rank": "0"}')
    (row,) = view("engine_progress", rows)
    assert row["running"] == 3


def test_a_dead_rank_is_seen_beside_a_living_one() -> None:
    rows = series("vllm:num_requests_running", 1, 1, engine="0") + series("vllm:num_requests_running", 1, 1, engine="1")
    rows += series("vllm:generation_tokens_total", 5, 9, engine="0") + series("vllm:generation_tokens_total", 5, 5, engine="1")
    alive, dead = view("engine_progress", rows)
    assert (alive["engine"], alive["moved"], dead["engine"], dead["moved"], dead["witnesses"]) == ("0", 1, "1", 0, 1)


def test_a_witness_without_rank_speaks_for_no_one_of_several() -> None:
    rows = series("sglang:num_running_reqs", 1, 1, engine="dp0") + series("sglang:num_running_reqs", 1, 1, engine="dp1")
    rows += series("sglang:generation_tokens_total", 5, 9, engine=None)
    found = view("engine_progress", rows)
    assert [(row["engine"], row["running"], row["moved"]) for row in found] == [("dp0", 1, 0), ("dp1", 1, 0), (None, None, 1)]


def test_one_read_proves_nothing() -> None:
    (row,) = view("engine_progress", series("vllm:num_requests_running", 4) + series("vllm:generation_tokens_total", 5))
    assert (row["running"], row["witnesses"], row["moved"], row["tokens_delta"], row["reads"], row["window_s"]) == (4, 0, 0, None, 1, None)


def test_a_counter_that_falls_is_a_restart_and_no_progress() -> None:
    (row,) = view("engine_progress", series("vllm:num_requests_running", 1, 1) + series("vllm:generation_tokens_total", 50, 2))
    assert (row["moved"], row["resets"]) == (0, 1)


def test_unknown_values_are_left_out() -> None:
    (row,) = view("engine_progress", series("vllm:kv_cache_usage_perc", None, 0.5, 0.5))
    assert (row["reads"], row["moved"], row["witnesses"]) == (2, 0, 1)


def test_estimate_of_flops_that_is_switched_off_is_no_witness() -> None:
    running = series("vllm:num_requests_running", 1, 1)
    (off,) = view("engine_progress", running + series("vllm:estimated_flops_per_gpu_total", 0, 0))
    (on,) = view("engine_progress", running + series("vllm:estimated_flops_per_gpu_total", 1e12, 2e12))
    assert (off["witnesses"], on["witnesses"], on["moved"]) == (0, 1, 1)


def test_captures_and_targets_are_kept_apart() -> None:
    rows = [row | {"capture": capture, "target": target} for capture, target in (("1", "a"), ("2", "a"), ("2", "b"))
            for row in series("vllm:num_requests_running", 1, 1)]
    found = view("engine_progress", rows)
    assert sorted((str(row["capture"]), str(row["target"])) for row in found) == [("1", "a"), ("2", "a"), ("2", "b")]


def test_changes_of_counters_and_known_gauges() -> None:
    rows = series("vllm:prompt_tokens_total", 5, 7, 11, labels='{"x": "1"}') + series("vllm:prompt_tokens_total", 5, 5, 5, labels='{"x": "2"}')
    rows += series("vllm:kv_cache_usage_perc", 0.5) + series("vllm:cache_config_info", 1, 1) + series("vllm:prompt_tokens_created", 1, 2)
    rows += series("ray_vllm_num_requests_waiting", 4, 2) + series("process_start_time_seconds", 10, 20, engine=None)
    found = {(row["name"], row["labels"]): row for row in view("metric_changes", rows)}
    assert set(found) == {
        ("vllm:prompt_tokens_total", '{"x": "1"}'), ("vllm:prompt_tokens_total", '{"x": "2"}'), ("vllm:kv_cache_usage_perc", "{}"),
        ("ray_vllm_num_requests_waiting", "{}"), ("process_start_time_seconds", "{}"),
    }
    row = found["vllm:prompt_tokens_total", '{"x": "1"}']
    assert (row["first"], row["last"], row["delta"], row["reads"], row["source"]) == (5, 11, 6, 3, "m2.txt:vllm:prompt_tokens_total")
    assert found["vllm:kv_cache_usage_perc", "{}"]["delta"] is None
    assert found["ray_vllm_num_requests_waiting", "{}"]["delta"] == -2


def test_window_is_the_time_between_the_reads() -> None:
    rows = series("vllm:prompt_tokens_total", 5, 7)
    rows = [row | {"ts": f"2026-11-30 02:41:0{2 + 5 * number}.5"} for number, row in enumerate(rows)]
    assert [row["window_s"] for name in ("metric_changes", "engine_progress") for row in view(name, rows)] == [5.0, 5.0]


def test_changes_of_the_stopped_worker_are_of_the_process_only() -> None:
    moved = {row["name"] for row in view("metric_changes", saved("worker-stopped")) if row["delta"]}
    assert moved == {"process_cpu_seconds_total"}
