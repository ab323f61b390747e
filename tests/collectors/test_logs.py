"""Logs of real processes: files, pipes, sockets, journals, and how long they have been silent."""

import datetime
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag import procfs
from diag.collectors import logs
from diag.instruments import log_places, process_zone
from diag.live import Options, Patient, Tick
from diag.model import Artefact
from diag.parsers.log_index import Log
from tests.collectors import harness

SAMPLES = Path(__file__).parents[2] / "samples" / "vllm-0.32-cpu"
LINE = "(APIServer pid=1) WARNING 11-30 02:52:45 [x.py:1] careful\n"
ACCESS = 'INFO:     127.0.0.1:1 - "GET {} HTTP/1.1" 200 OK\n'


@contextmanager
def process(**streams: object) -> Iterator[int]:
    """A process that does nothing, with the given stdout and stderr."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, **streams)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + 10
        while not procfs.environ(child.pid):  # exec has returned, but its memory is still being set up
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_stdout_is_a_file_and_its_silence_is_measured(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE)
    with log.open("a") as stream, process(stdout=stream, stderr=subprocess.STDOUT) as pid:
        os.utime(log, (time.time() - 500, time.time() - 500))
        got = harness.run(logs, pid, tmp_path)
    assert (got.error, list(got.notes)) == (None, [])
    (file,) = got.rows["log_files"]
    assert (file["file"], file["pid"], file["lines"], file["cut"]) == (str(log), pid, 1, False)
    assert isinstance(file["silent_s"], float)
    assert 500 <= file["silent_s"] < 530
    assert isinstance(file["collected_at"], datetime.datetime)
    assert [row["message"] for row in got.rows["log_events"]] == ["careful"]
    assert [artefact.name for artefact in got.artefacts] == ["0-server.log", "index.json"]


def test_two_processes_and_two_descriptors_of_one_file_are_one_log(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    with (
        log.open("a") as stream, other.open("a") as second,
        process(stdout=stream, stderr=stream) as one, process(stdout=stream, stderr=second) as two,
    ):
        got = harness.run(logs, one, tmp_path, root=one, pids=[one, two])
    assert [(row["file"], row["pid"]) for row in got.rows["log_files"]] == [(str(log), one), (str(other), two)]
    index = json.loads(got.artefacts[-1].bytes())
    assert index["logs"][0]["pids"] == [one, two]


def test_only_the_end_of_a_long_log_is_read_and_it_is_said(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"WARNING:app:line {number}\n" for number in range(1000)))
    with log.open("a") as stream, process(stdout=stream, stderr=stream) as pid:
        got = harness.run(logs, pid, tmp_path, options=Options(log_bytes=1000))
    (file,) = got.rows["log_files"]
    assert file["cut"] is True
    messages = [str(row["message"]) for row in got.rows["log_events"]]
    assert messages[-1] == "line 999"
    assert 30 < len(messages) < 50
    assert all(message.startswith("line ") for message in messages)


def test_several_logs_share_what_may_be_read(tmp_path: Path) -> None:
    places = [tmp_path / "a.log", tmp_path / "b.log"]
    for place in places:
        place.write_text("WARNING:app:line\n" * 100)
    with process(stdout=subprocess.DEVNULL) as pid:
        got = harness.run(logs, pid, tmp_path, options=Options(logs=tuple(map(str, places)), log_bytes=1000))
    assert [(row["cut"], row["bytes"]) for row in got.rows["log_files"]] == [(True, 493), (True, 493)]


@pytest.mark.parametrize(("written", "alive"), [
    ([], False),
    ([ACCESS.format("/metrics"), ACCESS.format("/health")], False),
    ([ACCESS.format("/metrics"), ACCESS.format("/v1/completions")], True),
    ([LINE], True),
])
def test_answers_to_our_own_probes_are_no_sign_of_life(tmp_path: Path, written: list[str], alive: bool) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE)

    def write(tick: Tick) -> None:
        if tick.number == 1:
            with log.open("a") as more:
                more.writelines(written)

    with log.open("a") as stream, process(stdout=stream, stderr=stream) as pid:
        os.utime(log, (time.time() - 500, time.time() - 500))
        got = harness.run(logs, pid, tmp_path, at_beat=write)
    (file,) = got.rows["log_files"]
    assert isinstance(file["silent_s"], float)
    assert (file["silent_s"] < 100) is alive
    assert file["lines"] == 1 + len(written)


def test_a_deleted_log_is_still_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("a") as stream, process(stdout=stream, stderr=stream) as pid:
        log.write_text(LINE)
        log.unlink()
        got = harness.run(logs, pid, tmp_path)
    assert [row["message"] for row in got.rows["log_events"]] == ["careful"]
    assert got.artefacts[0].name == "0-server.log"


def test_a_service_without_any_log_was_not_looked_at(tmp_path: Path) -> None:
    with process(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert (got.error, dict(got.rows)) == (None, {})
    assert {(note.table_name, note.status) for note in got.notes} == {(table, "failed") for table in logs.FEEDS}
    assert got.notes[0].reason == (
        f"no log of the service was found: stdout and stderr of pid {pid} go nowhere, and no process holds one open; llmdiag snapshot {pid} --log FILE"
    )


def test_a_pipe_cannot_be_read_and_the_remedy_is_named(tmp_path: Path) -> None:
    with process(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert {(note.table_name, note.status) for note in got.notes} == {(table, "failed") for table in logs.FEEDS}
    assert got.notes[0].reason == f"stdout of pid {pid} is a pipe; give --log FILE"


def test_a_pipe_beside_a_file_is_a_part_missing(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE)
    with log.open("a") as stream, process(stdout=subprocess.PIPE, stderr=stream) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert {note.status for note in got.notes} == {"partial"}
    assert len(got.rows["log_files"]) == 1


def test_pipes_of_workers_do_not_matter_when_the_service_has_a_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE)
    with log.open("a") as stream, process(stdout=stream, stderr=stream) as root, process(stdout=subprocess.PIPE) as worker:
        got = harness.run(logs, root, tmp_path, root=root, pids=[root, worker])
    assert list(got.notes) == []


def test_given_logs_are_read_instead_of_stdout(tmp_path: Path) -> None:
    given, own, missing = tmp_path / "given.log", tmp_path / "own.log", tmp_path / "missing.log"
    given.write_text(LINE)
    with own.open("a") as stream, process(stdout=stream, stderr=stream) as pid:
        got = harness.run(logs, pid, tmp_path, options=Options(logs=(str(given), str(missing))))
    assert [(row["file"], row["pid"]) for row in got.rows["log_files"]] == [(str(given), None)]
    assert {(note.status, note.reason) for note in got.notes} == {("partial", f"cannot read {missing}: No such file or directory; check --log")}


def test_given_log_that_a_process_writes_to_is_its(tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    with log.open("a") as stream, process(stdout=stream, stderr=stream) as pid:
        got = harness.run(logs, pid, tmp_path, options=Options(logs=(str(log),)))
    assert [row["pid"] for row in got.rows["log_files"]] == [pid]


def test_a_process_that_died_before_the_end_leaves_its_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE)
    child: list[subprocess.Popen[bytes]] = []

    def kill(tick: Tick) -> None:
        if tick.number == 1:
            child[0].kill()
            child[0].wait()

    with log.open("a") as stream:
        child.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=stream, stderr=stream))
        got = harness.run(logs, child[0].pid, tmp_path, at_beat=kill)
        child[0].communicate()
    assert got.error is None
    assert got.rows.get("log_files") or {note.status for note in got.notes} == {"failed"}


def test_roles_pids_of_containers_and_zone_reach_the_rows(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("(EngineCore pid=7) ERROR 11-30 02:00:00 [x.py:1] a\n")
    with log.open("a") as stream, process(stdout=stream, stderr=stream, env={**os.environ, "TZ": "Europe/Berlin"}) as pid:
        seen = {"processes": [{"pid": pid, "ns_pid": 7, "role": "engine_core"}]}
        got = harness.run(logs, pid, tmp_path, seen=seen)
    (row,) = got.rows["log_events"]
    assert (row["pid"], row["role"]) == (pid, "engine_core")
    ts = row["ts"]
    assert isinstance(ts, datetime.datetime)
    assert (ts.month, ts.day, ts.hour) == (11, 30, 1)
    assert "zone" not in str(got.rows["log_files"][0]["assumed"])


@pytest.mark.parametrize(("zone", "want"), [("UTC", "UTC"), ("", "UTC"), (":Asia/Tokyo", "Asia/Tokyo"), ("CET-1CEST,M3.5.0,M10.5.0", None), ("UTC+1", None)])
def test_zone_of_a_process(zone: str, want: str | None) -> None:
    with process(stdout=subprocess.DEVNULL, env={**os.environ, "TZ": zone}) as pid:
        assert process_zone.zone_of_process(pid) == want


JOURNAL = "".join(
    f"2026-11-30T02:52:{second:02d}.000000+0000 gpu-1 vllm[42]: (APIServer pid=42) WARNING 11-30 02:52:{second:02d} [x.py:1] w{second}\n" for second in range(3)
)


@contextmanager
def unit_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[int]:
    """A process whose stdout is a socket as systemd's, in what looks like a unit, and a journalctl that runs `script`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "journalctl"
    tool.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/argv\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(log_places, "_cgroup", lambda pid: "0::/system.slice/vllm.service\n")
    ours, theirs = socket.socketpair()
    with ours, theirs, process(stdout=theirs, stderr=theirs) as pid:
        yield pid


def test_journal_of_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").write_text(JOURNAL)
    with unit_process(tmp_path, monkeypatch, f"cat {tmp_path}/journal") as pid:
        got = harness.run(logs, pid, tmp_path)
    assert (tmp_path / "argv").read_text().strip() == "--unit vllm.service -o short-iso-precise -n 5000 --no-pager -q"
    (file,) = got.rows["log_files"]
    assert (file["file"], file["pid"], file["lines"], file["written_at"]) == ("vllm.service", pid, 3, None)
    collected, silent = file["collected_at"], file["silent_s"]
    assert isinstance(collected, datetime.datetime)
    assert silent == max(0.0, (collected - datetime.datetime(2026, 11, 30, 2, 52, 2)).total_seconds())
    assert [row["message"] for row in got.rows["log_events"]] == ["w0", "w1", "w2"]
    assert list(got.notes) == []


@pytest.mark.parametrize(("script", "want"), [
    ("echo 'Failed to open journal: denied' >&2; exit 1", "journal of vllm.service: Failed to open journal: denied; run llmdiag as root"),
    ("exit 0", "journal of vllm.service: nothing readable there; run llmdiag as root"),
])
def test_a_journal_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, want: str) -> None:
    with unit_process(tmp_path, monkeypatch, script) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert {note.status for note in got.notes} == {"failed"}
    assert got.notes[0].reason.startswith(want)


def test_a_journalctl_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BUDGET_S", 0.3)
    with unit_process(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 600") as pid:
        got = harness.run(logs, pid, tmp_path)
    assert "journalctl did not answer in 0.3 s" in got.notes[0].reason
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_socket_without_journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unit_process(tmp_path, monkeypatch, "exit 0") as pid:
        monkeypatch.setenv("PATH", str(tmp_path))
        got = harness.run(logs, pid, tmp_path)
    assert "journalctl is not on PATH; give --log FILE" in got.notes[0].reason


def test_an_interrupted_collection_leaves_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diag.bundle import Door, Writer
    from diag.redact import Redactor

    with unit_process(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; exec sleep 600") as pid:
        writer = Writer(tmp_path / "bundle", Redactor(), {}, {})
        door = Door(writer, "logs", 1 << 20)
        going = logs.collect(Patient(pid, pid, [pid], Options(), lambda table: ()), door)
        next(going)
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        going.close()
        writer.close(tmp_path / "bundle.zip")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize(("text", "want"), [
    ("0::/system.slice/vllm.service\n", ("vllm.service", False)),
    ("12:pids:/x\n1:name=systemd:/system.slice/system-vllm.slice/vllm@1.service\n0::/\n", ("vllm@1.service", False)),
    ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service\n", ("llm.service", True)),
    ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
    ("0::/system.slice/docker-0123.scope\n", None),
    ("", None),
])
def test_unit_of(text: str, want: tuple[str, bool] | None) -> None:
    assert log_places.unit_of(text) == want


def test_container_id_gives_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_places, "_cgroup", lambda pid: f"0::/system.slice/docker-{'0123456789ab' + 'c' * 52}.scope\n")
    with process(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert "docker logs -t 0123456789ab > FILE 2>&1" in got.notes[0].reason


def test_loose_logs_of_a_real_engine() -> None:
    name = "sigterm-in-flight.log"
    rows = harness.parse(logs, {name: (SAMPLES / name).read_bytes()})
    assert rows["collected"] == [{"table_name": "log_events", "status": "ok"}]
    (file,) = rows["log_files"]
    assert (file["written_at"], file["collected_at"], file["silent_s"]) == (None, None, None)
    assert str(file["assumed"]).endswith("zone UTC")
    assert {row["source"] for row in rows["log_events"]} >= {f"{name}:106"}


def test_an_unpacked_bundle_is_read_with_its_index() -> None:
    index = {"artefact": "logs", "logs": [{"n": 0, "kind": "file", "file": "/var/log/s.log", "collected_at": 1000.0, "mtime": 900.0}]}
    rows = harness.parse(logs, {"logs/index.json": json.dumps(index, separators=(",", ":")), "logs/0-s.log": LINE * 3, "other/0-s.log": LINE * 3})
    assert [(row["file"], row["silent_s"]) for row in rows["log_files"]] == [("/var/log/s.log", 100.0), ("other/0-s.log", None)]


def test_a_damaged_index_is_a_named_error() -> None:
    from diag.errors import Garbled

    with pytest.raises(Garbled, match="index of logs"):
        list(logs.parse([Artefact.of_bytes("logs/index.json", "logs", b'{"artefact":"logs","logs":[{"n":"x"}]}')]))


@pytest.mark.parametrize("name", ["metrics1.txt", "ps.txt", "pyspy-29677-1.txt", "pyspy-29677-1.json", "threads1.txt", "t1"])
def test_files_of_other_collectors_are_left_to_them(name: str) -> None:
    assert not logs.recognise(name, (SAMPLES / "busy" / name).read_bytes()[:64 << 10])


def test_index_entry_round_trip() -> None:
    from diag.parsers import log_index

    log = Log(3, "file", "/x", 5.0, 4.0, pids=[1, 2], roles={1: "worker"}, ns_pids={7: 1}, zone="UTC")
    data = json.dumps(log_index.as_json([log])).encode()
    assert dict(log_index.read(Artefact.of_bytes("logs/index.json", "logs", data))) == {("logs", "3"): log}


@pytest.mark.parametrize("change", [{"collected_at": 1e300}, {"pids": [10 ** 30]}, {"mtime": -1}, {"zone": 5}])
def test_an_index_with_impossible_numbers_is_damaged(change: dict[str, object]) -> None:
    from diag.errors import Garbled

    index = {"artefact": "logs", "logs": [{"n": 0, "kind": "file", "file": "/x", "collected_at": 1000.0, **change}]}
    with pytest.raises(Garbled):
        list(logs.parse([Artefact.of_bytes("logs/index.json", "logs", json.dumps(index).encode())]))


@pytest.mark.parametrize(("zone", "offset", "hour", "assumed"), [
    ("Asia/Tokyo", None, 17, False), ("Mars/Base", "+0100", 1, False), ("Mars/Base", None, 2, True), (None, "+9999", 2, True),
])
def test_a_zone_this_machine_does_not_know(zone: str | None, offset: str | None, hour: int, assumed: bool) -> None:
    index = {"artefact": "logs", "logs": [{"n": 0, "kind": "file", "file": "/x", "collected_at": time.time(), "zone": zone, "offset": offset}]}
    files = {"logs/index.json": json.dumps(index), "logs/0-x": "ERROR 11-30 02:00:00 [x.py:1] a\n"}
    rows = list(logs.parse([Artefact.of_bytes(name, "logs", text.encode()) for name, text in files.items()]))
    (event,), (file,) = ([row for table, row in rows if table == name] for name in ("log_events", "log_files"))
    assert event["ts"].hour == hour  # type: ignore[attr-defined]
    assert ("zone UTC" in str(file["assumed"])) is assumed
