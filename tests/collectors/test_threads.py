"""The threads collector on real threads in every state, its raw reads, and saved lists."""

import contextlib
import json
import os
import signal
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag import procfs
from diag.collectors import threads
from diag.errors import Garbled, Vanished
from diag.model import Artefact
from diag.parsers import syscalls
from tests.collectors import harness, states

CLIENT = """
import json, os, socket, sys, threading
family, address, timeout = json.loads(sys.argv[1])
link = socket.socket(family)
link.connect(tuple(address) if isinstance(address, list) else address)
link.settimeout(timeout)

def ask():
    while True:
        link.sendall(b"?")
        link.recv(1)

thread = threading.Thread(target=ask, daemon=True)
thread.start()
print(json.dumps({"main": os.getpid(), "ask": thread.native_id, "fd": link.fileno()}), flush=True)
sys.stdin.read()
"""


def test_every_state_of_a_thread_is_read_twice(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "spin", "poll", "parked") as patient:
        found = harness.run(threads, patient.pid, tmp_path)
        assert found.error is None
        assert list(found.notes) == []
        for name, tid in patient.tids.items():
            before, after = found.of("threads", tid=tid)
            assert (before["read"], after["read"]) == (0, 1), name
            assert before["pid"] == after["pid"] == patient.pid
            assert before["started_at"] == after["started_at"] == procfs.started_at(patient.pid)
            assert before["ns_tid"] == tid
        grown = {name: _growth(found, tid) for name, tid in patient.tids.items()}
        assert grown["parked"]["vol_switches"] == grown["parked"]["invol_switches"] == 0
        assert grown["poll"]["vol_switches"] > 20
        assert grown["spin"]["run_s"] + grown["spin"]["runq_s"] > 0.3
        parked = found.of("threads", tid=patient.tids["parked"], read=1)[0]
        assert "futex" in str(parked["wchan"])
        assert str(parked["syscall"]).split()[0] in {"202", "98"}
        assert parked["state"] == "S"


def test_a_stuck_thread_is_seen_and_left_alone(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "stuck", "parked") as patient:
        states.wait_for_state(patient.pid, patient.tids["stuck"], "D")
        before = states.condition_of(procfs.tree(patient.pid))
        found = harness.run(threads, patient.pid, tmp_path)
        rows = found.of("threads", tid=patient.tids["stuck"])
        assert [row["state"] for row in rows] == ["D", "D"]
        looks = [row for row in found.of("thread_states", tid=patient.tids["stuck"]) if row["state"] is not None]
        assert [(row["state"], row["hits"]) for row in looks] == [("D", 5)]
        assert states.condition_of(procfs.tree(patient.pid)) == before
        assert before[(patient.pid, patient.tids["stuck"])][0] == "D"


def test_a_stopped_process_is_seen_and_stays_stopped(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "spin", "parked") as patient:
        states.stop(patient.pid)
        before = states.condition_of([patient.pid])
        found = harness.run(threads, patient.pid, tmp_path)
        assert {row["state"] for row in found.rows["threads"]} == {"T"}
        assert {row["state"] for row in found.rows["thread_states"]} == {"T"}
        assert states.condition_of([patient.pid]) == before
        os.kill(patient.pid, signal.SIGCONT)
        states.wait_for_state(patient.pid, patient.tids["spin"], "RS")


def test_a_traced_process_is_seen_and_stays_traced(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "parked") as patient, states.traced(patient.pid):
        found = harness.run(threads, patient.pid, tmp_path)
        assert {row["state"] for row in found.of("threads", tid=patient.pid)} == {"t"}
        assert procfs.status(patient.pid)["TracerPid"] == str(os.getpid())


def test_a_zombie_child_is_a_thread_in_state_z(tmp_path: Path) -> None:
    with states.child(states.ZOMBIE) as patient:
        found = harness.run(threads, patient.pid, tmp_path)
        assert [row["state"] for row in found.of("threads", pid=patient.tids["zombie"])] == ["Z", "Z"]


def test_a_running_patient_is_unchanged(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "spin", "poll", "parked") as patient:
        before = states.condition_of([patient.pid])
        harness.run(threads, patient.pid, tmp_path)
        assert states.condition_of([patient.pid]) == before


def test_quick_reads_are_counted_not_kept(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "spin", "poll", "parked") as patient:
        found = harness.run(threads, patient.pid, tmp_path, window_s=1.0)
        looks = found.rows["thread_states"]
        for tid in patient.tids.values():
            assert sum(int(str(row["hits"])) for row in looks if row["tid"] == tid and row["state"] is not None) == 5
        calls = [row for row in looks if row["state"] is None]
        assert {row["tid"] for row in calls} >= {patient.tids["poll"], patient.tids["spin"]}
        assert {row["tid"] for row in calls}.isdisjoint({patient.tids["parked"]})
        polled = [row for row in calls if row["tid"] == patient.tids["poll"] and row["sys_no"] is not None]
        assert {row["sys_no"] for row in polled} <= {202, 98, 230, 115}
        assert sum(int(str(row["hits"])) for row in polled) > 5
        keys = [(row["tid"], row["state"], row["sys_no"], row["fd"], row["peer"]) for row in looks]
        assert len(keys) == len(set(keys))


def test_with_very_many_threads_a_beat_goes_on_where_the_last_ended(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, *["parked"] * 1500) as patient:
        found = harness.run(threads, patient.pid, tmp_path, window_s=1.0)
        pids_threads = set(procfs.tids(patient.pid))
        assert len(pids_threads) == 1501
        assert {row["tid"] for row in found.of("threads", read=1)} == pids_threads
        looked_at = [row["tid"] for row in found.rows["thread_states"]]
        assert len(set(looked_at)) == len(looked_at) >= 5 * threads.AT_LEAST


@pytest.mark.parametrize("timeout", [None, 5.0], ids=["recv", "poll"])
def test_a_busy_thread_names_the_tcp_server_it_waits_for(tmp_path: Path, timeout: float | None) -> None:
    with _server(socketserver.ThreadingTCPServer, ("127.0.0.1", 0)) as address:
        argument = json.dumps([int(socket.AF_INET), address, timeout])
        with states.child(CLIENT, argument) as patient:
            found = harness.run(threads, patient.pid, tmp_path, window_s=1.0)
            waits = [row for row in found.of("thread_states", tid=patient.tids["ask"]) if row["fd"] is not None]
            assert {row["fd"] for row in waits} == {patient.tids["fd"]}
            assert {row["peer"] for row in waits} == {f"127.0.0.1:{address[1]}"}
            assert sum(int(str(row["hits"])) for row in waits) >= 5


def test_a_busy_thread_names_the_unix_socket_it_waits_for(tmp_path: Path) -> None:
    path = str(tmp_path / "cache.sock")
    with _server(socketserver.ThreadingUnixStreamServer, path), states.child(CLIENT, json.dumps([int(socket.AF_UNIX), path, None])) as patient:
        found = harness.run(threads, patient.pid, tmp_path, window_s=1.0)
        waits = [row for row in found.of("thread_states", tid=patient.tids["ask"]) if row["fd"] is not None]
        assert {row["peer"] for row in waits} == {path}


def test_the_patient_may_die_in_the_window(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "spin", "poll", "parked") as patient:

        def kill(tick: harness.Tick) -> None:
            if tick.number == 1:
                os.kill(patient.pid, signal.SIGKILL)
                patient.process.wait()

        found = harness.run(threads, patient.pid, tmp_path, at_beat=kill)
        assert found.error is None
        assert {row["read"] for row in found.rows["threads"]} == {0}
        assert {row["tid"] for row in found.rows["thread_states"]} == set(patient.tids.values())


def test_a_patient_that_is_gone_is_an_error_with_a_name(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS) as patient:
        pass
    found = harness.run(threads, patient.pid, tmp_path, root=patient.pid, pids=[patient.pid])
    assert isinstance(found.error, Vanished)
    assert found.rows == {}


def test_threads_and_processes_that_come_later_are_in_the_second_read(tmp_path: Path) -> None:
    code = states.WORKLOADS.replace(
        "sys.stdin.read()",
        "sys.stdin.readline(); import subprocess; c = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)\n"
        "print(c.pid, flush=True)\nsys.stdin.read()",
    )
    with states.child(code) as patient:
        born: list[int] = []

        def bear(tick: harness.Tick) -> None:
            if tick.number == 1:
                assert patient.process.stdin is not None
                assert patient.process.stdout is not None
                patient.process.stdin.write("\n")
                patient.process.stdin.flush()
                born.append(int(patient.process.stdout.readline()))

        found = harness.run(threads, patient.pid, tmp_path, at_beat=bear)
        assert [row["read"] for row in found.of("threads", pid=born[0])] == [1]


def test_stopped_by_ctrl_c_what_was_seen_is_written(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "poll") as patient:

        class Interrupt(Exception):
            pass

        def interrupt(tick: harness.Tick) -> None:
            if tick.number == 1:
                raise Interrupt

        folder = tmp_path / "interrupted"
        folder.mkdir()
        with pytest.raises(Interrupt):
            harness.run(threads, patient.pid, folder, at_beat=interrupt)
        assert {path.name for path in folder.rglob("*.jsonl")} >= {"tasks-0.jsonl", "tasks-1.jsonl", "states.jsonl"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_without_permission_states_and_counters_are_still_read(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "poll", "parked") as patient:
        states.readable_by_all(tmp_path)
        found = states.as_nobody(lambda: harness.run(threads, patient.pid, tmp_path))
        assert found.error is None
        notes = {note.table_name: note for note in found.notes}
        assert notes["threads.syscall"].status == "failed"
        assert "CAP_SYS_PTRACE" in notes["threads.syscall"].reason
        assert set(notes) == {"threads.syscall", "threads.wchan"}
        rows = found.of("threads", tid=patient.tids["parked"])
        assert [(row["state"], row["syscall"], row["wchan"]) for row in rows] == [("S", None, None)] * 2
        assert _growth(found, patient.tids["poll"])["vol_switches"] > 20


@pytest.mark.skipif(not states.can_unshare(), reason="PID namespaces may not be made here")
def test_thread_ids_of_a_container_are_known_by_both_names(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, "parked", before=["unshare", "--pid", "--fork"]) as patient:
        inside = patient.tids
        (outside,) = [pid for pid in procfs.tree(patient.pid) if pid != patient.pid]
        found = harness.run(threads, outside, tmp_path)
        assert inside["main"] == 1
        assert {row["ns_tid"] for row in found.rows["threads"]} == set(inside.values())
        assert {row["pid"] for row in found.rows["threads"]} == {outside}


@pytest.mark.parametrize(("text", "machine", "fd", "poll_list"), [
    ("45 0x9 0x7f01 0x10 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", 9, None),
    ("0 0x0 0x7f01 0x10 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", 0, None),
    ("7 0x7ffd10 0x1 0x1388 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", None, 0x7FFD10),
    ("7 0x7ffd10 0x2 0x1388 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", None, None),
    ("202 0x7fb5e114e6f0 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7fb5", "x86_64", None, None),
    ("207 0x9 0x7f01 0x10 0x0 0x0 0x0 0x7ffd 0x7fb5", "aarch64", 9, None),
    ("73 0x7ffd10 0x1 0x0 0x0 0x0 0x0 0x7ffd 0x7fb5", "aarch64", None, 0x7FFD10),
    ("45 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7fb5", "x86_64", None, None),
    ("45 0x9 0x7f01 0x10 0x0 0x0 0x0 0x7ffd 0x7fb5", "riscv64", None, None),
])
def test_what_a_system_call_waits_on(text: str, machine: str, fd: int | None, poll_list: int | None) -> None:
    found = syscalls.call(text)
    assert found is not None
    assert (syscalls.descriptor(found, machine), syscalls.poll_list(found, machine)) == (fd, poll_list)


@pytest.mark.parametrize("text", ["running", "-1 0x7ffd1c0 0x7fb5e1", "", "45", "45 x y z a b c"])
def test_a_thread_that_is_in_no_system_call(text: str) -> None:
    assert syscalls.call(text) is None


@pytest.mark.parametrize(("entry", "fd"), [
    (b"\x09\0\0\0\x01\0\0\0", 9), (b"", None), (b"\xff" * 8, None), (b"\x09\0\0\0\0\0\0\0", None),
])
def test_a_poll_entry_is_believed_only_when_it_looks_like_one(entry: bytes, fd: int | None) -> None:
    assert syscalls.polled(entry) == fd


def test_a_garbled_artefact_names_its_line() -> None:
    artefact = Artefact.of_bytes("threads/tasks-0.jsonl", "threads", b'{"artefact":"threads","read":0,"ts":1.5}\n{"pid":"x"}\n')
    with pytest.raises(Garbled, match=r"threads/tasks-0\.jsonl:2 "):
        list(threads.parse([artefact]))


def test_a_saved_list_has_times_from_the_file_beside_it() -> None:
    line = "30339 30340 VLLM: Engine (x) S 150 25 futex_do_wait\n"
    rows = harness.parse(threads, {
        "b/threads1.txt": line, "b/t1": "1796007279.258632468\n", "b/threads2.txt": line.replace(" 150 ", " 250 "), "b/t2": "1796007286.25\n",
    })
    first, second = rows["threads"]
    assert (first["read"], second["read"]) == (0, 1)
    assert (first["name"], first["state"], first["wchan"]) == ("VLLM: Engine (x)", "S", "futex_do_wait")
    assert (first["user_s"], second["user_s"], first["sys_s"]) == (1.5, 2.5, 0.25)
    assert str(first["ts"]) == "2026-11-30 02:54:39.258632"
    assert second["source"] == "b/threads2.txt:1"
    assert [row["table_name"] for row in rows["collected"]] == ["thread_states"]


def test_a_saved_list_without_times_has_none() -> None:
    rows = harness.parse(threads, {"threads1.txt": "1 1 a R 0 0 0\n", "threads2.txt": "1 1 a R 5 0 0\n"})
    assert [row["ts"] for row in rows["threads"]] == [None, None]


TOP = """top - 02:41:10 up 3 days,  1 user,  load average: 4.10, 3.90, 3.80
Threads:   2 total,   1 running,   1 sleeping,   0 stopped,   0 zombie
%Cpu(s): 50.0 us,  0.0 sy,  0.0 ni, 50.0 id,  0.0 wa,  0.0 hi,  0.0 si,  0.0 st
MiB Mem :   7944.7 total,   5000.0 free,   2000.0 used,    944.7 buff/cache

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
  30339 root      20   0   12.3g 594196  93000 R  12.0   3.6   0:17.53 VLLM::EngineCor
  30340 root      20   0   12.3g 594196  93000 S   0.0   3.6   0:00.05 python3 -x

top - 02:41:13 up 3 days,  1 user,  load average: 4.10, 3.90, 3.80
Threads:   2 total,   1 running,   1 sleeping,   0 stopped,   0 zombie

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
  30339 root      20   0   12.3g 594196  93000 R  99,7   3.6   0:20.53 VLLM::EngineCor
  30340 root      20   0   12.3g 594196  93000 S   0.0   3.6   0:00.05 python3 -x
"""


def test_top_gives_one_read_an_iteration() -> None:
    rows = harness.parse(threads, {"top.txt": TOP})["threads"]
    assert [(row["read"], row["tid"], row["state"], row["cpu_pct"]) for row in rows] == [
        (0, 30339, "R", None), (0, 30340, "S", None), (1, 30339, "R", 99.7), (1, 30340, "S", 0.0),
    ]
    assert {row["pid"] for row in rows} == {None}
    assert rows[1]["name"] == "python3 -x"


def test_top_of_whole_processes_says_what_to_do_instead() -> None:
    rows = harness.parse(threads, {"top.txt": TOP.replace("Threads:", "Tasks:")})
    assert "threads" not in rows
    assert [(row["status"], "top -H -b" in str(row["reason"])) for row in rows["collected"]] == [("partial", True)]


def test_real_top_is_read(tmp_path: Path) -> None:
    top = harness.tool("top")
    with states.child(states.WORKLOADS, "spin", "parked") as patient:
        text = harness.output(top, "-H", "-b", "-n", "2", "-d", "0.5", "-p", str(patient.pid))
        rows = harness.parse(threads, {"top.txt": text})["threads"]
    last = {row["tid"]: row for row in rows if row["read"] == 1}
    assert set(last) == set(patient.tids.values())
    assert float(str(last[patient.tids["spin"]]["cpu_pct"])) > float(str(last[patient.tids["parked"]]["cpu_pct"]))


@pytest.mark.parametrize(("name", "text"), [
    ("ps.txt", "  PID  PPID STAT COMMAND\n    1     0 Ss   init\n"),
    ("metrics1.txt", "# HELP x y\nx 1\n"),
    ("t.log", "1796007279.25 something\n"),
    ("t1", "12\n"),
    ("server.log", "30339 30340 what is this\n"),
    ("x", ""),
])
def test_other_files_are_not_claimed(name: str, text: str) -> None:
    assert not threads.recognise(name, text.encode())


def _growth(found: harness.Run, tid: int) -> dict[str, float]:
    before, after = found.of("threads", tid=tid)
    names = ("run_s", "runq_s", "vol_switches", "invol_switches", "user_s", "sys_s")
    return {name: float(str(after[name])) - float(str(before[name])) for name in names}


@contextlib.contextmanager
def _server(kind: type[socketserver.BaseServer], address: object) -> Iterator[list[object]]:
    """A server that answers every byte with another, 2 ms later."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(1):
                threading.Event().wait(0.002)
                self.request.sendall(b"!")

    kind.daemon_threads = True  # type: ignore[attr-defined]
    with kind(address, Answer) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield list(server.server_address) if isinstance(server.server_address, tuple) else [server.server_address]
        finally:
            server.shutdown()
            thread.join()
