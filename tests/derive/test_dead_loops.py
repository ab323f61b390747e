"""dead_loops: since when a main thread stands at the end of its program."""

import datetime

import pytest

from diag.derive import dead_loops
from tests.derive.frames import Row, derived

DUMPED = datetime.datetime(2026, 11, 30, 2, 41, 10)
ENDED: Row = {"pid": 88, "tid": 88, "main": True, "role": "scheduler", "place": "interpreter-ends", "samples": 1, "chain": "_shutdown <- _bootstrap", "last_ts": DUMPED}
FAILED: Row = {"ts": DUMPED - datetime.timedelta(seconds=300), "event": "fatal", "role": "scheduler", "pid": None}


def lingers(place: Row, *events: Row) -> list[float | None]:
    return [row["lingers_s"] for row in derived(dead_loops, thread_places=[place], log_events=list(events))["dead_loops"]]  # type: ignore[misc]


def test_the_last_failure_of_such_a_process_before_its_last_dump_counts() -> None:
    assert lingers(ENDED, FAILED) == [300.0]
    assert lingers(ENDED, FAILED, {**FAILED, "ts": DUMPED - datetime.timedelta(seconds=7)}) == [7.0]
    assert lingers(ENDED, {**FAILED, "pid": 88, "role": None}) == [300.0]


@pytest.mark.parametrize("change", [
    {"role": "detokenizer"}, {"role": None}, {"pid": 89}, {"event": "oom"}, {"ts": DUMPED + datetime.timedelta(seconds=1)}, {"ts": None}, {"capture": "2"},
])
def test_what_another_one_wrote_or_wrote_later_does_not(change: Row) -> None:
    assert lingers(ENDED, {**FAILED, **change}) == [None]


def test_a_dump_without_a_time_cannot_tell() -> None:
    assert lingers({**ENDED, "last_ts": None}, FAILED) == [None]


@pytest.mark.parametrize("change", [{"main": False}, {"place": "engine-idle"}, {"place": None}])
def test_other_threads_and_places_are_no_dead_loop(change: Row) -> None:
    assert lingers({**ENDED, **change}, FAILED) == []
