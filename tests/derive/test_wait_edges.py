"""Who waits for whom: mutex owners, ends of sockets, and calls between processes of an engine."""

import pytest

from diag.derive import wait_edges
from tests.derive.frames import Row, derived

RECV = "45 0x9 0x55dbe1e7a780 0x8000 0x0 0x0 0x0 0x7ffd6c690748 0x7f36f1928929"
POLL = "7 0x7f264a5a49b0 0x1 0x1f4 0x0 0x0 0x0 0x7ffdbc1158e0 0x7f264a71a26f"
SOCKET = {"pid": 10, "fd": 9, "laddr": "10.0.0.1", "lport": 40488, "raddr": "10.0.0.5", "rport": 6379, "state": "ESTABLISHED", "read": 0}


def edges(**rows: list[Row]) -> list[dict[str, object]]:
    return derived(wait_edges, **rows)["wait_edges"]


def looks(first: str | None, last: str | None, switches: tuple[int, int] = (7, 7)) -> list[Row]:
    return [
        {"pid": 10, "tid": 11, "read": read, "syscall": call, "vol_switches": count, "source": f"tasks-{read}.jsonl:1"}
        for read, (call, count) in enumerate(zip((first, last), switches, strict=True))
    ]


def test_a_thread_that_reads_from_a_connection_waits_for_its_other_end() -> None:
    (edge,) = edges(threads=looks(RECV, RECV), sockets=[SOCKET])
    assert {name: edge[name] for name in ("tid", "via", "to_pid", "peer", "reads")} == {
        "tid": 11, "via": "socket", "to_pid": None, "peer": "10.0.0.5:6379", "reads": 2,
    }
    (known,) = edges(threads=looks(RECV, RECV), sockets=[{**SOCKET, "peer_pid": 77}])
    assert known["to_pid"] == 77


@pytest.mark.parametrize(("threads", "sockets"), [
    (looks(RECV, POLL), [SOCKET]),
    (looks(RECV, RECV, (7, 8)), [SOCKET]),  # an answer came, and it asked again
    (looks(None, None), [SOCKET]),
    (looks(RECV, RECV), [{**SOCKET, "fd": 8}]),
    (looks(RECV, RECV), [{**SOCKET, "raddr": None, "rport": None, "state": "LISTEN"}]),
    (looks(RECV, RECV)[:1], [SOCKET]),
])
def test_what_was_not_the_same_wait_all_the_time_is_none(threads: list[Row], sockets: list[Row]) -> None:
    assert edges(threads=threads, sockets=sockets) == []


@pytest.mark.parametrize(("reads", "found"), [(2, 1), (1, 0)])
def test_a_mutex_counts_when_it_was_waited_for_in_every_read(reads: int, found: int) -> None:
    waits = [{"pid": 10, "tid": 11, "owner_tid": 12, "address": "0x7f", "reads": reads, "of": 2, "source": "tasks-1.jsonl:4"}]
    given = edges(futex_waits=waits)
    assert len(given) == found
    assert [(edge["tid"], edge["via"], edge["to_tid"]) for edge in given] == [(11, "mutex", 12)] * found


def place(pid: int, role: str, place: str, waits_for: str | None, main: bool = True) -> Row:
    return {"pid": pid, "tid": pid, "main": main, "role": role, "place": place, "waits_for": waits_for, "samples": 3, "source": "s"}


def test_a_place_that_waits_for_a_role_points_at_all_its_processes_also_at_those_without_a_stack() -> None:
    core, worker = place(20, "engine_core", "waits-for-workers", "worker"), place(31, "worker", "computing", None)
    roles: list[Row] = [{"pid": 20, "role": "engine_core"}, {"pid": 31, "role": "worker"}, {"pid": 32, "role": "worker"}]
    found = edges(thread_places=[core, worker], process_roles=roles)
    assert [(edge["pid"], edge["via"], edge["to_pid"], edge["to_tid"]) for edge in found] == [(20, "call", 31, 31), (20, "call", 32, None)]
    assert edges(thread_places=[{**core, "place": "mixed"}], process_roles=roles) == []
    assert edges(thread_places=[{**core, "main": False}], process_roles=roles) == []
