"""metric_changes over rows and over real reads of a vLLM engine."""

from collections.abc import Sequence
from pathlib import Path

import duckdb

from diag.collectors import metrics
from diag.model import Artefact
from diag.tables import merged

ROOT = Path(__file__).parents[2]
VIEWS = ROOT / "diag" / "views"
SAMPLES = ROOT / "samples" / "vllm-0.32-cpu"
COLUMNS = {column.name: column.type for column in merged(())["metrics"].columns}


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
    assert [row["window_s"] for row in view("metric_changes", rows)] == [5.0]


def test_changes_of_the_stopped_worker_are_of_the_process_only() -> None:
    moved = {row["name"] for row in view("metric_changes", saved("worker-stopped")) if row["delta"]}
    assert moved == {"process_cpu_seconds_total"}
