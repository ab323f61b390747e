"""standstills: engines that hold requests and do not get on, by metrics and by logs."""

import pytest

from diag.derive import standstills
from tests.derive.frames import Row, derived

FROZEN: Row = {"target": "h:1", "engine": "0", "running": 3.0, "waiting": 0.0, "witnesses": 4, "moved": 0, "resets": 0, "reads": 2}
FREEZE: Row = {"file": "server.log", "engine": "000", "frozen_s": 600.0, "running": 2, "ended_by": "end of the log"}


def found(progress: list[Row], freezes: list[Row]) -> list[tuple[object, ...]]:
    rows = derived(standstills, engine_progress=progress, engine_freezes=freezes)["standstills"]
    return [(row["target"], row["running"], row["still"]) for row in rows]


def test_requests_and_no_progress_is_a_standstill() -> None:
    assert found([FROZEN], []) == [("h:1", 3.0, True)]
    assert found([{**FROZEN, "running": 0.0, "waiting": 2.0}], []) == [("h:1", 0.0, True)], "who waits is held up as well"


@pytest.mark.parametrize("change", [{"witnesses": 0}, {"running": 0.0}, {"running": None, "waiting": None}, {"resets": 1}])
def test_one_read_an_idle_engine_and_a_restart_say_nothing(change: Row) -> None:
    assert found([{**FROZEN, **change}], []) == []


def test_what_moves_gets_on() -> None:
    assert found([{**FROZEN, "moved": 1}], []) == [("h:1", 3.0, False)]


def test_a_log_tells_where_metrics_do_not_show_the_opposite() -> None:
    assert found([], [FREEZE]) == [("server.log", 2.0, True)]
    assert found([FROZEN], [FREEZE]) == [("h:1", 3.0, True), ("server.log", 2.0, True)]
    assert found([{**FROZEN, "moved": 2}], [FREEZE]) == [("h:1", 3.0, False)], "the log ends before"
    assert found([], [{**FREEZE, "ended_by": "progress"}]) == [], "it went on by itself"


def test_what_says_so_is_told_in_words() -> None:
    rows = derived(standstills, engine_progress=[FROZEN], engine_freezes=[FREEZE])["standstills"]
    assert [row["how"] for row in rows] == [
        "none of 4 progress counters of h:1 moved between 2 reads", "server.log shows requests and no progress for 600 s, up to the end of the evidence",
    ]
