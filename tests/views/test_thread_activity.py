"""The activity class of a thread: the recipe on made-up numbers, on saved lists of a real engine, and on real threads."""

import datetime
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pytest

from diag.collectors import threads
from diag.model import Artefact
from diag.tables import merged
from tests.collectors import harness, states

VIEW = Path(__file__).parents[2] / "diag" / "views" / "thread_activity.sql"
START = datetime.datetime(2026, 11, 30, 2, 54, 39)
TABLES = merged(())
Row = Mapping[str, object]


def activity(rows: Mapping[str, Sequence[Row]]) -> list[dict[str, object]]:
    """The view over these rows, with the column types of the evidence tables."""
    connection = duckdb.connect(":memory:")
    for name in ("threads", "thread_states"):
        columns = TABLES[name].columns
        connection.execute(f"CREATE TABLE {name} ({', '.join(f'{column.name} {column.type}' for column in columns)})")
        values = [[row.get(column.name) for column in columns] for row in rows.get(name, ())]
        if values:
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' for _ in columns)})", values)
    cursor = connection.execute(VIEW.read_text(encoding="utf-8"))
    names = [str(item[0]) for item in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def reads(*, state: str = "S", states: str = "", window_s: float = 5.0, **grown: float | None) -> dict[str, list[Row]]:
    """Two reads of one thread with counters that grew by `grown`; `states` are the quick reads between them."""
    base: dict[str, object] = {"bundle": "b", "host": "h", "capture": "1", "pid": 10, "started_at": START, "tid": 11, "name": "x"}
    counters = {"user_s": 100.0, "sys_s": 10.0, "run_s": 50.0, "runq_s": 5.0, "vol_switches": 1000, "invol_switches": 100}
    first, last = dict(counters), dict(counters)
    for name, amount in grown.items():
        first[name] = last[name] = None if amount is None else counters[name]  # type: ignore[assignment]
        if amount is not None:
            last[name] = counters[name] + amount
    rows = [
        {**base, **found, "read": read, "state": state, "ts": START + datetime.timedelta(seconds=read * window_s), "source": f"t-{read}:2"}
        for read, found in enumerate((first, last))
    ]
    quick = [{**base, "state": one, "hits": len(list(group)), "read": 0} for one, group in itertools.groupby(states)]
    return {"threads": rows, "thread_states": quick}


NO_SCHED = {"run_s": None, "runq_s": None}
NO_SWITCHES = {"vol_switches": None, "invol_switches": None}


@pytest.mark.parametrize(("case", "expected"), [
    (reads(state="D", states="D" * 20), "uninterruptible"),
    (reads(state="D", states="D" * 16 + "S" * 4), "uninterruptible"),
    (reads(state="D", states="D" * 14 + "S" * 6), "parked"),
    (reads(state="T", states="T" * 20), "stopped"),
    (reads(state="t", states="t" * 19 + "T"), "stopped"),
    (reads(state="T", states="T" * 19 + "S"), "parked"),
    (reads(state="Z", states="Z"), "zombie"),
    (reads(state="R", states="RS" * 10, run_s=1.55, runq_s=2.85, vol_switches=1180, invol_switches=1345), "spin"),
    (reads(run_s=1.5, runq_s=1.5), "spin"),
    (reads(run_s=1.5, runq_s=1.49, vol_switches=300), "poll"),
    (reads(run_s=0.05, runq_s=1.2, vol_switches=2990, invol_switches=65), "poll"),
    (reads(vol_switches=200, invol_switches=50), "poll"),
    (reads(vol_switches=200, invol_switches=49), "active"),
    (reads(vol_switches=3), "active"),
    (reads(vol_switches=2), "parked"),
    (reads(), "parked"),
    (reads(user_s=3.5, sys_s=0.5, **NO_SCHED, **NO_SWITCHES), "spin"),
    (reads(user_s=0.5, **NO_SCHED, **NO_SWITCHES), "active"),
    (reads(user_s=0.02, **NO_SCHED, **NO_SWITCHES), "parked"),
    (reads(user_s=0.02, states="SSSR", **NO_SCHED, **NO_SWITCHES), "active"),
    (reads(user_s=0.02, vol_switches=600, **NO_SCHED), "poll"),
    (reads(window_s=0.0, run_s=1.0), None),
])
def test_the_recipe(case: dict[str, list[Row]], expected: str | None) -> None:
    (row,) = activity(case)
    assert row["class"] == expected


def test_numbers_of_a_spinning_thread() -> None:
    (row,) = activity(reads(state="R", states="RRRS", run_s=1.5, runq_s=2.0, user_s=1.4, vol_switches=1000, invol_switches=1500))
    assert (row["cpu_pct"], row["runnable_pct"]) == (pytest.approx(30.0), pytest.approx(70.0))
    assert (row["vol_per_s"], row["invol_per_s"], row["window_s"], row["reads"]) == (200.0, 300.0, 5.0, 6)
    assert (row["pid"], row["tid"], row["started_at"], row["name"], row["source"]) == (10, 11, START, "x", "t-1:2")


def test_without_schedstat_the_runnable_share_is_unknown() -> None:
    (row,) = activity(reads(user_s=3.5, **NO_SCHED))
    assert (row["runnable_pct"], row["cpu_pct"], row["class"]) == (None, pytest.approx(70.0), "spin")


@pytest.mark.parametrize(("state", "expected"), [("D", "uninterruptible"), ("T", "stopped"), ("t", "stopped"), ("Z", "zombie"), ("S", None), ("R", None)])
def test_a_single_read_tells_only_what_the_state_tells(state: str, expected: str | None) -> None:
    case = reads(state=state)
    (row,) = activity({"threads": case["threads"][:1]})
    assert (row["class"], row["window_s"], row["reads"]) == (expected, None, 1)


@pytest.mark.parametrize("seen_in", [0, 1])
def test_a_thread_seen_only_once_has_no_class(seen_in: int) -> None:
    other = reads(run_s=5.0)["threads"]
    once = {**reads(run_s=5.0)["threads"][seen_in], "tid": 12}
    found = {row["tid"]: row["class"] for row in activity({"threads": [*other, once]})}
    assert found == {11: "spin", 12: None}


def test_a_pid_that_was_used_again_is_another_thread() -> None:
    first, last = reads(run_s=5.0)["threads"]
    later = {**last, "started_at": START + datetime.timedelta(hours=1)}
    assert [row["class"] for row in activity({"threads": [first, later]})] == [None, None]


def test_counters_that_went_back_are_of_another_thread() -> None:
    (row,) = activity(reads(run_s=-40.0, runq_s=-1.0, user_s=-50.0, vol_switches=-900, invol_switches=-90))
    assert (row["class"], row["cpu_pct"], row["runnable_pct"], row["vol_per_s"]) == (None, None, None, None)


def test_captures_are_judged_each_on_its_own() -> None:
    spin, parked = reads(run_s=5.0)["threads"], [{**row, "capture": "2"} for row in reads()["threads"]]
    found = {row["capture"]: row["class"] for row in activity({"threads": [*spin, *parked]})}
    assert found == {"1": "spin", "2": "parked"}


def test_unknown_bundle_host_and_pid_do_not_lose_rows() -> None:
    rows = [{**row, "bundle": None, "host": None, "capture": None, "pid": None, "started_at": None} for row in reads(run_s=5.0)["threads"]]
    (row,) = activity({"threads": rows})
    assert (row["class"], row["pid"]) == ("spin", None)


def test_percentages_of_top_stand_in_for_counters() -> None:
    counters = ("user_s", "sys_s", "run_s", "runq_s", "vol_switches", "invol_switches", "ts")
    rows = [{**row, **dict.fromkeys(counters), "cpu_pct": None if row["read"] == 0 else 97.0} for row in reads(state="R")["threads"]]
    (row,) = activity({"threads": rows})
    assert (row["class"], row["cpu_pct"], row["window_s"]) == ("spin", 97.0, None)


def test_every_column_is_described_and_nothing_else() -> None:
    lines = VIEW.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("-- ")
    described = [line.removeprefix("-- col ").split(":")[0] for line in lines if line.startswith("-- col ")]
    assert described == list(activity(reads())[0])


def _engine(name: str) -> list[dict[str, object]]:
    """Thread lists of a real engine, of three processes."""
    folder = Path(__file__).parent / "data" / name
    files = [folder / file for file in ("threads1.txt", "threads2.txt", "t1", "t2")]
    artefacts = [Artefact.of_bytes(f"{name}/{path.name}", "threads", path.read_bytes()) for path in files]
    rows = [row for table, row in threads.parse(artefacts) if table == "threads"]
    return activity({"threads": rows})


def test_an_idle_engine_neither_spins_nor_polls() -> None:
    found = _engine("idle")
    assert len(found) == 73
    assert {row["class"] for row in found} == {"parked", "active"}
    (window_s,) = {row["window_s"] for row in found}
    assert window_s == pytest.approx(6.987, abs=0.001)


def test_a_stopped_worker_is_stopped_in_all_its_threads() -> None:
    found = _engine("worker-stopped")
    assert Counter((row["pid"], row["class"]) for row in found if row["class"] == "stopped") == {(30484, "stopped"): 46}
    assert {row["class"] for row in found if row["pid"] != 30484} <= {"parked", "active"}


def test_a_busy_engine_is_what_its_numbers_say() -> None:
    main = {row["tid"]: row for row in _engine("busy") if row["pid"] == row["tid"]}
    assert (main[30484]["class"], main[30484]["cpu_pct"]) == ("spin", pytest.approx(76.8, abs=0.1))
    assert (main[30339]["class"], main[30339]["cpu_pct"]) == ("active", pytest.approx(19.1, abs=0.1))
    assert main[29677]["class"] == "active"


def _live(patient: states.Child, tmp_path: Path, window_s: float = 1.0) -> dict[str, Row]:
    found = harness.run(threads, patient.pid, tmp_path, window_s=window_s)
    by_tid = {row["tid"]: row for row in activity(found.rows)}
    return {name: by_tid[tid] for name, tid in patient.tids.items()}


def _once_it_counts(patient: states.Child, tmp_path: Path) -> dict[str, Row]:
    """The first window in which the spinning thread has most of the time, else the longest.

    The kernel counts a wait when it is over, so the one that a read falls into is missing: on a busy machine that is much of a second.
    """
    for window_s in (1.0, 2.0, 4.0, 8.0):
        folder = tmp_path / f"{window_s}"
        folder.mkdir()
        found = _live(patient, folder, window_s)
        if float(str(found["spin"]["runnable_pct"])) > 60:
            break
    return found


def test_real_threads_in_every_state(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "spin", "parked") as patient:
        found = _once_it_counts(patient, tmp_path)
        classes = {name: row["class"] for name, row in found.items()}
        assert classes.pop("main") in ("parked", "active")  # it has just told that it is ready
        assert classes == {"spin": "spin", "parked": "parked"}, found
        assert float(str(found["spin"]["runnable_pct"])) > 60, found
    with states.child(states.WORKLOADS, "poll", "stuck") as patient:
        states.wait_for_state(patient.pid, patient.tids["stuck"], "D")
        found = _live(patient, tmp_path)
        classes = {name: row["class"] for name, row in found.items()}
        assert classes.pop("main") in ("parked", "active")
        assert classes == {"poll": "poll", "stuck": "uninterruptible"}
    with states.child(states.WORKLOADS, "spin", "poll") as patient:
        states.stop(patient.pid)
        assert {row["class"] for row in _live(patient, tmp_path).values()} == {"stopped"}
    with states.child(states.ZOMBIE) as patient:
        assert _live(patient, tmp_path)["zombie"]["class"] == "zombie"
