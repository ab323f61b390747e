"""Who waits for whose mutex: the circles, what an address and a word tell, and real deadlocks of real threads."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag import procfs
from diag.collectors import threads
from diag.derive import futex_cycles
from diag.parsers import syscalls
from tests.collectors import harness, states
from tests.derive.frames import Row, derived

PATIENT = """
import ctypes, json, os, sys, threading
libc = ctypes.CDLL(None)
never = threading.Event()
locks = [(ctypes.c_ulong * 8)() for _ in range(3)]
for lock in locks:
    libc.pthread_mutex_init(ctypes.byref(lock), None)

def take(*numbers, meet=lambda: None):
    libc.pthread_mutex_lock(ctypes.byref(locks[numbers[0]]))
    meet()
    for number in numbers[1:]:
        libc.pthread_mutex_lock(ctypes.byref(locks[number]))
    never.wait()

def start(name, *numbers, meet=lambda: None):
    thread = threading.Thread(target=take, args=numbers, kwargs={"meet": meet}, daemon=True)
    thread.start()
    tids[name] = thread.native_id

tids = {"main": os.getpid()}
held = threading.Barrier({"abba": 2, "round": 3}.get(sys.argv[1], 2))
if sys.argv[1] == "abba":
    start("a", 0, 1, meet=held.wait)
    start("b", 1, 0, meet=held.wait)
elif sys.argv[1] == "round":
    start("a", 0, 1, meet=held.wait)
    start("b", 1, 2, meet=held.wait)
    start("c", 2, 0, meet=held.wait)
elif sys.argv[1] == "self":
    start("a", 0, 0)
elif sys.argv[1] == "holder":
    start("a", 0, meet=held.wait)
    held.wait()
    start("b", 0)
    start("c", 0)
elif sys.argv[1] == "fork":
    start("a", 0, meet=held.wait)
    held.wait()
    if (child := os.fork()) == 0:
        libc.pthread_mutex_lock(ctypes.byref(locks[0]))
    tids["child"] = child
print(json.dumps(tids), flush=True)
sys.stdin.read()
"""
"""`python -c PATIENT abba`: threads that take real pthread mutexes in the wrong order."""

Edges = Mapping[int, int | None]


def rows(*reads: Edges, pid: int | None = 10, address: str | None = None, **more: object) -> list[Row]:
    """Threads at each read: thread id -> owner of the mutex it waits for; the mutex is named after its owner."""
    return [
        {
            "pid": pid, "read": read, "tid": tid, "futex_owner_tid": owner, "source": f"tasks-{read}.jsonl:{tid}",
            "futex_address": None if owner is None else address or f"0x{owner:x}", **more,
        }
        for read, edges in enumerate(reads) for tid, owner in edges.items()
    ]


def cycles(found: Sequence[Row]) -> list[object]:
    return [row["cycle"] for row in derived(futex_cycles, threads=found)["futex_cycles"]]


ABBA = {1: 2, 2: 1, 3: None}


@pytest.mark.parametrize(("found", "expected"), [
    (rows(ABBA, ABBA), ["1 -> 2 -> 1"]),
    (rows({7: 5, 6: 7, 5: 6}, {5: 6, 6: 7, 7: 5}), ["5 -> 6 -> 7 -> 5"]),
    (rows({1: 1}, {1: 1}), ["1 -> 1"]),
    (rows({3: 1, 1: 2, 2: 1, 4: 3}, {3: 1, 1: 2, 2: 1, 4: 3}), ["1 -> 2 -> 1"]),
    (rows({1: 2, 2: 1, 3: 4, 4: 3}, {1: 2, 2: 1, 3: 4, 4: 3}), ["1 -> 2 -> 1", "3 -> 4 -> 3"]),
    (rows(ABBA, {1: None, 2: None}, ABBA), ["1 -> 2 -> 1"]),
    (rows({2: 1, 3: 1, 1: None}, {2: 1, 3: 1, 1: None}), []),
    (rows({1: 2, 2: 3, 3: None}, {1: 2, 2: 3, 3: None}), []),
    (rows(ABBA, {1: 2, 2: None}), []),
    (rows({1: 2, 2: None}, ABBA), []),
    (rows(ABBA), []),
    (rows({1: 2, 2: 3, 3: 1}, {1: 3, 3: 2, 2: 1}), []),
    ([*rows(ABBA, address="0xaa"), *rows({}, ABBA, address="0xbb")], []),
    ([*rows(ABBA, {9: None}, pid=10), *rows({9: None}, ABBA, pid=11)], []),
    ([*rows(ABBA, {9: None}), *rows({9: None}, ABBA, capture="2")], []),
    ([*rows(ABBA, ABBA, pid=10), *rows(ABBA, ABBA, pid=11)], ["1 -> 2 -> 1", "1 -> 2 -> 1"]),
    (rows(ABBA, ABBA, pid=None, bundle=None, host=None, capture=None), ["1 -> 2 -> 1"]),
    (rows({1: None}, {1: None}), []),
    ([], []),
])
def test_a_cycle_is_the_same_in_the_first_and_the_last_read(found: list[Row], expected: list[str]) -> None:
    assert cycles(found) == expected


def test_numbers_and_source_of_a_cycle() -> None:
    found = derived(futex_cycles, threads=rows(ABBA, {1: 2, 2: None}, ABBA, ABBA))
    (cycle,) = found["futex_cycles"]
    assert (cycle["pid"], cycle["tids"], cycle["length"], cycle["reads"]) == (10, "1, 2", 2, 3)
    assert (cycle["bundle"], cycle["host"], cycle["capture"], cycle["source"]) == ("b", "h", "1", "tasks-3.jsonl:1")
    waits = [(row["tid"], row["owner_tid"], row["address"], row["reads"], row["of"], row["source"]) for row in found["futex_waits"]]
    assert waits == [(1, 2, "0x2", 4, 4, "tasks-3.jsonl:1"), (2, 1, "0x1", 3, 4, "tasks-3.jsonl:2")]


def test_a_thread_that_waits_for_another_owner_later_is_another_wait() -> None:
    found = derived(futex_cycles, threads=rows({3: 1}, {3: 2}))
    assert [(row["tid"], row["owner_tid"], row["reads"]) for row in found["futex_waits"]] == [(3, 1, 1), (3, 2, 1)]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(1, 12), st.integers(1, 12)))
def test_every_thread_that_comes_back_to_itself_is_in_exactly_one_cycle(owners: dict[int, int]) -> None:
    def returns(start: int) -> bool:
        tid: int | None = start
        for _ in owners:
            tid = owners.get(tid) if tid is not None else None
            if tid == start:
                return True
        return False

    found = list(futex_cycles.cycles_of(owners))
    assert sorted(tid for circle in found for tid in circle) == sorted(tid for tid in owners if returns(tid))
    for circle in found:
        assert circle[0] == min(circle)
        assert [owners[tid] for tid in circle] == [*circle[1:], circle[0]]


@pytest.mark.parametrize(("text", "machine", "address"), [
    ("202 0x7fb5e114e6f0 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", 0x7FB5E114E6F0),
    ("202 0x7fb5e114e6f0 0x0 0x2 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", 0x7FB5E114E6F0),
    ("98 0xffff9a0010 0x80 0x2 0x0 0x0 0x0 0xffff 0xffff", "aarch64", 0xFFFF9A0010),
    ("202 0x7fb5e114e6f0 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7fb5", "x86_64", None),
    ("202 0x7fb5e114e6f0 0x189 0x2 0x0 0x0 0xffffffff 0x7ffd 0x7fb5", "x86_64", None),
    ("202 0x7fb5e114e6f0 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", None),
    ("202 0x7fb5e114e6f0 0x81 0x2 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", None),
    ("98 0x7fb5e114e6f0 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", None),
    ("202 0xffff9a0010 0x80 0x2 0x0 0x0 0x0 0xffff 0xffff", "aarch64", None),
    ("202 0x7fb5e114e6f0 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7fb5", "riscv64", None),
])
def test_which_waits_are_for_a_mutex(text: str, machine: str, address: int | None) -> None:
    found = syscalls.call(text)
    assert found is not None
    assert syscalls.mutex(found, machine) == address


@pytest.mark.parametrize(("words", "expected"), [
    ((2, 0, 19629, 1, 0), (2, 19629)),
    ((2, 3, 19629, 1, 1), (2, 19629)),
    ((2, 0, 19629, 1, 0x80), (2, 19629)),
    ((0, 0, 0, 0, 0), (0, None)),
    ((1, 0, 19629, 1, 0), (1, None)),
    ((2, 0, 0, 0, 0), (2, None)),
    ((2, 0, 1, 0, 0), (2, None)),
    ((2, 0, -5, 1, 0), (2, None)),
    ((2, 0, 19629, 1, 0x7F00), (2, None)),
])
def test_what_the_bytes_of_a_lock_say(words: tuple[int, ...], expected: tuple[int, int | None]) -> None:
    assert syscalls.lock(struct.pack("<iIiIi", *words)) == expected


@pytest.mark.parametrize("begin", [b"", b"\x02\0\0\0" * 4])
def test_a_lock_that_could_not_be_read_says_nothing(begin: bytes) -> None:
    assert syscalls.lock(begin) is None


def wait_until_locked(pid: int, *tids: int) -> None:
    """Until each of these threads waits for a mutex."""

    def waits(tid: int) -> bool:
        call = syscalls.call(procfs.read(f"{procfs.place(pid, tid)}/syscall").decode())
        return call is not None and syscalls.mutex(call, threads.MACHINE) is not None

    states.wait_until(lambda: all(waits(tid) for tid in tids))


def test_a_real_deadlock_of_two_threads_is_named_and_nobody_is_stopped(tmp_path: Path) -> None:
    with states.child(PATIENT, "abba") as patient:
        a, b = patient.tids["a"], patient.tids["b"]
        wait_until_locked(patient.pid, a, b)
        before = states.condition_of([patient.pid])
        found = harness.run(threads, patient.pid, tmp_path)
        assert states.condition_of([patient.pid]) == before
        assert list(found.notes) == []
        assert found.side_effects == {}
        assert [row["futex_owner_tid"] for row in found.of("threads", tid=a)] == [b, b]
        assert [row["futex_owner_tid"] for row in found.of("threads", tid=b)] == [a, a]
        given = derived(futex_cycles, threads=found.rows["threads"])
    first, second = min(a, b), max(a, b)
    (cycle,) = given["futex_cycles"]
    assert (cycle["cycle"], cycle["length"], cycle["reads"]) == (f"{first} -> {second} -> {first}", 2, 2)
    assert (cycle["pid"], cycle["started_at"]) == (patient.pid, found.rows["threads"][0]["started_at"])
    assert {(row["tid"], row["owner_tid"], row["reads"], row["of"]) for row in given["futex_waits"]} == {(a, b, 2, 2), (b, a, 2, 2)}


@pytest.mark.parametrize(("kind", "length"), [("round", 3), ("self", 1)])
def test_real_deadlocks_of_other_lengths(tmp_path: Path, kind: str, length: int) -> None:
    with states.child(PATIENT, kind) as patient:
        names = "abc"[:length]
        tids = [patient.tids[name] for name in names]
        wait_until_locked(patient.pid, *tids)
        found = harness.run(threads, patient.pid, tmp_path)
    (cycle,) = derived(futex_cycles, threads=found.rows["threads"])["futex_cycles"]
    assert (cycle["length"], {int(tid) for tid in str(cycle["tids"]).split(", ")}) == (length, set(tids))


def test_one_long_holder_is_waited_for_but_is_no_deadlock(tmp_path: Path) -> None:
    with states.child(PATIENT, "holder") as patient:
        a, b, c = (patient.tids[name] for name in "abc")
        wait_until_locked(patient.pid, b, c)
        found = harness.run(threads, patient.pid, tmp_path)
    assert [(row["futex_address"], row["futex_owner_tid"]) for row in found.of("threads", tid=a)] == [(None, None)] * 2
    given = derived(futex_cycles, threads=found.rows["threads"])
    assert given["futex_cycles"] == []
    assert {(row["tid"], row["owner_tid"], row["reads"]) for row in given["futex_waits"]} == {(b, a, 2), (c, a, 2)}
    assert len({row["address"] for row in given["futex_waits"]}) == 1


def test_an_owner_that_is_no_thread_of_the_process_is_none(tmp_path: Path) -> None:
    with states.child(PATIENT, "fork") as patient:
        child = patient.tids["child"]
        wait_until_locked(child, child)
        found = harness.run(threads, patient.pid, tmp_path)
        waiting = found.of("threads", tid=child)
        assert [(str(row["futex_address"])[:2], row["futex_owner_tid"]) for row in waiting] == [("0x", None)] * 2
        raw = next(artefact for artefact in found.artefacts if artefact.path.endswith("tasks-1.jsonl"))
        assert f'"futex":["{waiting[1]["futex_address"]}",2,null]' in raw.text()
    assert derived(futex_cycles, threads=found.rows["threads"]) == {"futex_waits": [], "futex_cycles": []}


@pytest.mark.skipif(not states.can_unshare(), reason="PID namespaces may not be made here")
def test_owners_in_a_container_are_named_as_the_host_knows_them(tmp_path: Path) -> None:
    with states.child(PATIENT, "abba", before=["unshare", "--pid", "--fork"]) as patient:
        (outside,) = [pid for pid in procfs.tree(patient.pid) if pid != patient.pid]
        main, *others = procfs.tids(outside)
        wait_until_locked(outside, *others)
        found = harness.run(threads, outside, tmp_path)
    assert patient.tids["main"] == 1
    (cycle,) = derived(futex_cycles, threads=found.rows["threads"])["futex_cycles"]
    assert main == outside
    assert str(cycle["tids"]) == ", ".join(str(tid) for tid in sorted(others))
