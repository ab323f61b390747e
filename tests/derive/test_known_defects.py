"""Which versions have a known defect: ranges, cards and arguments."""

import pytest

from diag.derive import admission_stalls, known_defects
from diag.signatures import defects
from tests.derive.frames import Row, derived


def named(component: str, version: str, *, cards: tuple[str, ...] = (), said: str = "") -> set[object]:
    rows: dict[str, list[Row]] = {
        "versions": [{"component": component, "version": version, "source": "versions.jsonl:2"}],
        "gpu_devices": [{"name": card} for card in cards],
        "log_events": [{"event": "startup", "message": said}] if said else [],
    }
    return {row["defect"] for row in derived(known_defects, **rows)["known_defects"]}


@pytest.mark.parametrize(
    ("version", "found"), [("0.6.7", set()), ("0.6.8", {"flashinfer-0.6.8-wide-ep"}), ("0.6.8.post1", {"flashinfer-0.6.8-wide-ep"}), ("0.6.9", set()), ("unknown", set())]
)
def test_a_range_begins_and_ends(version: str, found: set[object]) -> None:
    assert named("flashinfer", version) == found


def test_a_defect_of_some_cards_needs_such_a_card() -> None:
    assert named("vllm", "0.25.1", cards=("NVIDIA H100 80GB HBM3",)) == set()
    assert named("vllm", "0.25.1", cards=("NVIDIA GeForce RTX 5090",)) == {"sm12x-sampler-barrier"}
    assert named("vllm", "0.20.2", cards=("NVIDIA GeForce RTX 5090",)) == set()


def test_a_defect_of_an_argument_needs_that_argument() -> None:
    assert named("vllm", "0.10.1", said="non-default args: {'skip_mm_profiling': True}") == {"encoder-budget-loop"}
    assert named("vllm", "0.10.1", said="non-default args: {}") == set()
    assert named("vllm", "0.10.2rc1", said="skip_mm_profiling") == {"encoder-budget-loop"}


def test_every_defect_says_where_it_is_told() -> None:
    assert all(item.url.startswith("https://") and item.needs and item.symptoms and item.do for item in defects.table())
    assert len({item.id for item in defects.table()}) == len(defects.table())


def stats(second: int, running: int, waiting: int, speed: float = 0.0, engine: str = "000") -> Row:
    message = f"Engine {engine}: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {speed:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 0.0%"
    return logged(second, "engine_stats", message)


def logged(second: int, event: str, message: str) -> Row:
    return {"ts": f"2026-06-10 10:{second // 60:02d}:{second % 60:02d}", "file": "vllm.log", "line": second + 1, "event": event, "message": message, "source": f"vllm.log:{second + 1}"}


def stalls(*rows: Row) -> list[tuple[object, ...]]:
    found = derived(admission_stalls, log_events=rows)["admission_stalls"]
    return [(row["engine"], row["stalled_s"], row["waiting"], row["lines"], row["ended_by"]) for row in found]


def test_a_queue_that_nobody_leaves() -> None:
    assert stalls(stats(0, 0, 2), stats(60, 0, 5), stats(180, 0, 4)) == [("000", 180.0, 5, 3, "end of the log")]
    assert stalls(stats(0, 0, 2), stats(60, 0, 5), stats(180, 1, 4, 30.0)) == [("000", 180.0, 5, 2, "progress")]
    assert stalls(stats(0, 0, 2), logged(150, "shutdown_signal", "shutdown triggered"), stats(400, 0, 0)) == [("000", 150.0, 2, 1, "shutdown")]


def test_what_is_no_such_queue() -> None:
    assert stalls(stats(0, 0, 2), stats(110, 0, 0), stats(400, 0, 0)) == []
    assert stalls(stats(0, 0, 0), stats(300, 0, 0)) == []
    assert stalls(stats(0, 3, 2), stats(300, 3, 2)) == []
    assert stalls(stats(0, 0, 2, 9.0), stats(300, 0, 2, 9.0)) == []


def test_engines_of_one_log_are_kept_apart() -> None:
    mixed = [stats(0, 0, 2), stats(10, 4, 0, 50.0, "001"), stats(150, 0, 2), stats(160, 4, 0, 50.0, "001"), stats(200, 2, 0, 40.0)]
    assert stalls(*mixed) == [("000", 200.0, 2, 2, "progress")]


def test_sizes_that_the_log_names() -> None:
    start = [
        logged(0, "startup", "non-default args: {'max_model_len': 65536}"), logged(1, "kv_size", "GPU KV cache size: 21,568 tokens"),
        logged(2, "kv_size", "Maximum concurrency for 65,536 tokens per request: 0.33x"),
    ]  # fmt: skip
    (found,) = derived(admission_stalls, log_events=[*start, stats(10, 0, 1), stats(200, 0, 1)])["admission_stalls"]
    assert (found["pool_tokens"], found["model_tokens"], found["prompt_tokens"]) == (21568, 65536, None)
