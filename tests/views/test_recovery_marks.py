"""recovery_marks and main_stages: each bound from both sides."""

import datetime
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest

VIEWS = Path(__file__).parents[2] / "diag" / "views"
FAULT = datetime.datetime(2026, 6, 10, 9, 30)
STARTED = FAULT + datetime.timedelta(seconds=11)
PLAIN: Mapping[str, object] = {
    "cause": "device-error", "fault_ts": FAULT, "started_ts": STARTED, "detect_s": 2.0, "mttr_s": 40.0, "first_n": 5, "before_n": 5, "first_p99_s": 1.0, "before_p99_s": 1.0,
}  # fmt: skip
TYPES = {"cause": "VARCHAR", "fault_ts": "TIMESTAMP", "started_ts": "TIMESTAMP", "first_n": "BIGINT", "before_n": "BIGINT"}


def mark(column: str, facts: Mapping[str, float] | None = None, **changes: object) -> object:
    """One column of the view, for one recovery."""
    row = {**PLAIN, **changes}
    connection = duckdb.connect(":memory:")
    columns = ", ".join(f"CAST(? AS {TYPES.get(name, 'DOUBLE')}) AS {name}" for name in row)
    origin = "'b' AS bundle, 'h' AS host, '1' AS capture, 0 AS incident"
    connection.execute(f"CREATE TABLE recoveries AS SELECT {origin}, {columns}, 'vllm.log:1' AS source", list(row.values()))
    connection.execute(f"CREATE TABLE recovery_facts AS SELECT {origin}, '' AS fact, now()::TIMESTAMP AS ts, 0.0::DOUBLE AS value, '' AS source LIMIT 0")
    for name, value in (facts or {}).items():
        connection.execute("INSERT INTO recovery_facts VALUES ('b', 'h', '1', 0, ?, NULL, ?, 'vllm.log:9')", [name, value])
    (found,) = connection.execute(f"SELECT {column} FROM ({(VIEWS / 'recovery_marks.sql').read_text(encoding='utf-8')})").fetchall()
    return found[0]


@pytest.mark.parametrize(
    ("changes", "facts", "late"),
    [
        ({}, {}, False),
        ({"detect_s": 10.5}, {}, True),
        ({"detect_s": 10.0}, {}, False),
        ({"detect_s": 10.5, "mttr_s": 106.0}, {}, False),
        ({"detect_s": 10.5, "mttr_s": None}, {}, True),
        ({"detect_s": 3.5, "mttr_s": 6.0}, {}, True),
        ({"detect_s": 3.5, "mttr_s": 8.0}, {}, False),
        ({"detect_s": 2.5, "mttr_s": 4.0}, {}, False),
        ({"detect_s": 110.0, "cause": "stuck"}, {}, False),
        ({"detect_s": 130.0, "cause": "stuck"}, {}, True),
        ({"detect_s": 60.0, "cause": "start"}, {}, False),
        ({"detect_s": 60.0, "cause": "external-stop"}, {}, False),
        ({"detect_s": 60.0, "fault_ts": None}, {}, False),
        ({"detect_s": 60.0}, {"back_off": 40.0}, False),
        ({"detect_s": None}, {}, None),
        ({"detect_s": None, "started_ts": FAULT}, {}, False),
    ],
)
def test_late(changes: dict[str, object], facts: dict[str, float], late: bool | None) -> None:
    assert mark("late", facts, **changes) is late


@pytest.mark.parametrize(
    ("facts", "changes", "jump"),
    [
        ({"waiting_after": 10}, {}, True),
        ({"waiting_after": 9}, {}, False),
        ({"waiting_after": 20, "running_after": 20}, {}, False),
        ({"waiting_after": 20, "running_after": 19, "waiting_before": 9}, {}, True),
        ({"waiting_after": 20, "waiting_before": 10}, {}, False),
        ({"waiting_after": 20}, {"cause": "start"}, False),
        ({}, {}, False),
    ],
)
def test_jump(facts: dict[str, float], changes: dict[str, object], jump: bool) -> None:
    assert mark("jump", facts, **changes) is jump


@pytest.mark.parametrize(
    ("changes", "slow"),
    [
        ({"first_p99_s": 2.1}, True),
        ({"first_p99_s": 2.0}, False),
        ({"first_p99_s": 1.4, "before_p99_s": 0.5}, False),
        ({"first_p99_s": 2.1, "first_n": 4}, False),
        ({"first_p99_s": 2.1, "before_n": 4}, False),
        ({"first_p99_s": None}, False),
    ],
)
def test_slow_first(changes: dict[str, object], slow: bool) -> None:
    assert mark("slow_first", **changes) is slow


@pytest.mark.parametrize(
    ("stage", "seconds", "mttr_s", "cause", "is_main"),
    [
        ("compile", 21.0, 40.0, "device-error", True), ("compile", 20.0, 40.0, "device-error", False), ("compile", 9.0, 12.0, "device-error", False),
        ("warm", 90.0, 40.0, "device-error", False), ("compile", 21.0, 40.0, "start", False), ("compile", 21.0, 40.0, "external-stop", False), ("compile", 21.0, None, "device-error", False),
    ],
)  # fmt: skip
def test_main_stages(stage: str, seconds: float, mttr_s: float | None, cause: str, is_main: bool) -> None:
    connection = duckdb.connect(":memory:")
    origin = "'b' AS bundle, 'h' AS host, '1' AS capture, 0 AS incident, 'vllm.log:1' AS source"
    connection.execute(f"CREATE TABLE recoveries AS SELECT {origin}, ? AS cause, CAST(? AS DOUBLE) AS mttr_s", [cause, mttr_s])
    connection.execute(f"CREATE TABLE recovery_stages AS SELECT {origin}, ? AS stage, CAST(? AS DOUBLE) AS seconds", [stage, seconds])
    found = connection.execute((VIEWS / "main_stages.sql").read_text(encoding="utf-8")).fetchall()
    assert bool(found) is is_main, found
