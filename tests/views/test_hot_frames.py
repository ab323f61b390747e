"""hot_frames: per hot thread and function, how often it is innermost and how often it is on the stack at all."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pytest

from diag import evidence
from diag.lineage import reads
from tests.conftest import SAMPLES
from tests.derive.frames import Row, frames, stack

VIEW = Path(__file__).parents[2] / "diag" / "views" / "hot_frames.sql"
START = datetime.datetime(2026, 11, 30, 2, 54, 39)


def hot(kind: str | None = "spin", tid: int = 11, **more: object) -> Row:
    return {"pid": 10, "tid": tid, "class": kind, "name": "python3", "started_at": START, **more}


def view(stacks: Sequence[Row], activity: Sequence[Row] = (hot(),)) -> list[Mapping[str, object]]:
    """The view over these rows, in order of thread, self and total share, name."""
    connection = duckdb.connect(":memory:")
    for name, frame in frames(thread_activity=activity, stack_frames=stacks).items():
        connection.register("incoming", frame)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    cursor = connection.execute(f"SELECT * FROM ({VIEW.read_text(encoding='utf-8')}) ORDER BY tid, self_pct DESC, total_pct DESC, func, file")
    names = [str(item[0]) for item in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def samples(*texts: str, **more: object) -> list[Row]:
    return [row for number, text in enumerate(texts) for row in stack(text, number, **more)]  # type: ignore[arg-type]


def shares(rows: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    return [(row["func"], row["self_pct"], row["total_pct"]) for row in rows]


def test_leaves_and_ancestors_over_all_samples() -> None:
    found = view(samples("main > retry > send", "main > retry > send", "main > retry > recv", "main > retry"))
    assert shares(found) == [("send", 50.0, 50.0), ("retry", 25.0, 100.0), ("recv", 25.0, 25.0), ("main", 0.0, 100.0)]
    assert {(row["thread"], row["class"], row["samples"], row["pid"], row["tid"], row["started_at"]) for row in found} == {
        ("worker-0", "spin", 4, 10, 11, START)
    }
    assert {(row["bundle"], row["host"], row["capture"]) for row in found} == {("b", "h", "1")}
    assert [row["source"] for row in found] == ["stacks/1.json#0", "stacks/3.json#0", "stacks/2.json#0", "stacks/3.json#1"]


def test_a_function_that_calls_itself_is_counted_once_a_sample() -> None:
    found = view(samples("main > walk > walk > walk", "main > walk > leaf"))
    assert shares(found) == [("walk", 50.0, 100.0), ("leaf", 50.0, 50.0), ("main", 0.0, 100.0)]
    assert found[0]["source"] == "stacks/1.json#1"


def test_functions_of_one_name_in_two_files_are_two() -> None:
    found = view(samples("main > get@a.py", "main > get@b.py"))
    assert [(row["func"], row["file"], row["self_pct"]) for row in found] == [("get", "a.py", 50.0), ("get", "b.py", 50.0), ("main", "app.py", 0.0)]


@pytest.mark.parametrize(("kind", "expected"), [("spin", 2), ("poll", 2), ("active", 0), ("parked", 0), ("stopped", 0), (None, 0)])
def test_only_hot_threads_are_in_it(kind: str | None, expected: int) -> None:
    assert len(view(samples("main > a"), [hot(kind)])) == expected


def test_torn_stacks_are_left_out_and_unknown_ones_are_not() -> None:
    found = view([*samples("main > a", "main > a"), *stack("b > c", 2, whole=False), *stack("main > d", 3, whole=None)])
    assert [(row["func"], row["samples"]) for row in found] == [("a", 3), ("d", 3), ("main", 3)]
    assert [row["self_pct"] for row in found] == pytest.approx([200 / 3, 100 / 3, 0.0])


def test_a_thread_with_nothing_but_torn_stacks_is_not_in_it() -> None:
    assert view(samples("a > b", whole=False)) == []


def test_threads_and_captures_are_counted_each_on_its_own() -> None:
    stacks = [*samples("main > a", "main > b"), *samples("main > a", tid=12), *samples("main > a", tid=13), *samples("main > b", capture="2")]
    found = view(stacks, [hot(), hot("poll", 12), hot("parked", 13), hot(capture="2")])
    by_thread = {(row["tid"], row["capture"], row["func"]): (row["self_pct"], row["samples"], row["class"]) for row in found if row["func"] != "main"}
    assert by_thread == {
        (11, "1", "a"): (50.0, 2, "spin"), (11, "1", "b"): (50.0, 2, "spin"), (12, "1", "a"): (100.0, 1, "poll"), (11, "2", "b"): (100.0, 1, "spin"),
    }


def test_stacks_without_name_file_or_start_are_kept() -> None:
    rows = [{**row, "thread": None, "file": None, "bundle": None, "host": None} for row in samples("main > a")]
    found = view(rows, [hot(bundle=None, host=None, started_at=None)])
    assert [(row["thread"], row["func"], row["file"], row["self_pct"]) for row in found] == [("python3", "a", None, 100.0), ("python3", "main", None, 0.0)]


def test_every_column_is_described_and_nothing_else() -> None:
    text = VIEW.read_text(encoding="utf-8")
    told = [line.removeprefix("-- col ").split(": ", 1)[0] for line in text.splitlines() if line.startswith("-- col ")]
    (row,) = view(samples("main"))
    assert ["bundle", "host", "capture", *told] == list(row)
    assert text.splitlines()[0].startswith("-- Where")


def test_it_rests_on_threads_and_stacks() -> None:
    assert reads(VIEW.read_text(encoding="utf-8")).relations == {"thread_activity", "stack_frames"}


def test_a_recorded_spin_is_named() -> None:
    found = evidence.open_paths([SAMPLES / "cpu-spin" / "incident.zip"])
    rows, _ = found.rows("SELECT func, self_pct, samples, thread FROM hot_frames ORDER BY self_pct DESC, total_pct DESC", "test", 1)
    assert [tuple(row.values()) for row in rows] == [("_one_turn", 100.0, 5, "MainThread")]
