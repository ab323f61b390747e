"""Logs that processes hold open while their stdout and stderr go elsewhere."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.collectors import logs
from diag.instruments import log_places
from diag.live import Options
from diag.redact import Redactor
from diag.snapshot import would_read
from tests.collectors import harness

WARNING = "(APIServer pid=1) WARNING 11-30 02:52:45 [x.py:1] careful\n"
HOLD = """
import os, sys
held = [os.open(path, {"w": os.O_WRONLY, "a": os.O_WRONLY | os.O_APPEND, "r": os.O_RDONLY}[how]) for how, path in zip(sys.argv[1::2], sys.argv[2::2])]
os.close(READY)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(*opened: str | Path, stdout: object = subprocess.DEVNULL) -> Iterator[int]:
    """A process with these files open: `a` append, `w` write, `r` read, each before its path."""
    ready, theirs = os.pipe()
    code = HOLD.replace("READY", str(theirs))
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, opened)], stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.DEVNULL, pass_fds=(theirs,),  # type: ignore[call-overload]
    )
    os.close(theirs)
    try:
        assert os.read(ready, 1) == b""  # all is open
        assert child.poll() is None
        yield child.pid
    finally:
        os.close(ready)
        child.kill()
        child.communicate()


def names(got: harness.Run) -> list[str]:
    return [str(row["file"]).rpartition("/")[2] for row in got.rows.get("log_files", ())]


def test_a_log_of_a_handler_is_read_and_stands_for_the_service(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(WARNING)
    with holding("a", log) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert list(got.notes) == []
    assert [(row["file"], row["pid"]) for row in got.rows["log_files"]] == [(str(log), pid)]
    assert [row["message"] for row in got.rows["log_events"]] == ["careful"]


@pytest.mark.parametrize(("how", "name", "content", "is_read"), [
    ("a", "engine.log.1", WARNING, True),
    ("w", "nohup.out", "hello\n", True),
    ("a", "server_log", "hello\n", True),
    ("a", "engine.log", "", True),
    ("a", "what-happens", "hello\n" + WARNING, True),
    ("w", "said.txt", WARNING, True),
    ("w", "rows.jsonl", '{"level":"error","message":"x","time":"2026-11-30T02:52:45Z"}\n', True),
    ("r", "engine.log", WARNING, False),
    ("w", "what-happens", WARNING, False),
    ("a", "what-happens", "hello\n", False),
    ("w", "prompts.jsonl", '{"prompt":"x"}\n', False),
    ("w", "said.txt", "Dear all\n", False),
    ("a", "catalog.db", "hello\n", False),
    ("a", "000003.log", "a\0b\1c", False),
    ("a", "appendonly.aof", "*1\r\n$4\r\n" + WARNING, False),
])
def test_what_is_a_log(tmp_path: Path, how: str, name: str, content: str, is_read: bool) -> None:
    (tmp_path / name).write_text(content)
    with holding(how, tmp_path / name) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert names(got) == ([name] if is_read else [])
    assert {note.status for note in got.notes} == (set() if is_read else {"failed"})


def test_a_log_of_a_library_is_read_but_stands_for_nothing(tmp_path: Path) -> None:
    log = tmp_path / "flashinfer_jit.log"
    log.write_text("2026-11-30 02:52:45,123 - WARNING - flashinfer.jit: slow\n")
    with holding("a", log) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert [row["message"] for row in got.rows["log_events"]] == ["slow"]
    assert {(note.table_name, note.status) for note in got.notes} == {(table, "partial") for table in logs.FEEDS}
    assert got.notes[0].reason.endswith(f"llmdiag snapshot {pid} --log FILE"), got.notes


def test_what_stdout_has_too_is_told_once(tmp_path: Path) -> None:
    out, same, other = tmp_path / "out.log", tmp_path / "same.log", tmp_path / "other.log"
    for place in (out, same):
        place.write_text(WARNING)
    other.write_text(WARNING.replace("careful", "mind the gap"))
    with out.open("a") as stream, holding("a", same, "a", other, stdout=stream) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert (names(got), list(got.notes)) == (["out.log", "other.log"], [])


def test_many_logs_are_bounded_and_it_is_said(tmp_path: Path) -> None:
    places = [tmp_path / f"{number}.log" for number in range(log_places.MAX_HELD + 2)]
    for number, place in enumerate(places):
        place.write_text(WARNING.replace("careful", f"w{number}"))
        os.utime(place, (1000 + number, 1000 + number))
    with holding(*(word for place in places for word in ("a", place))) as pid:
        got = harness.run(logs, pid, tmp_path)
    assert names(got) == [place.name for place in reversed(places[2:])]
    assert {note.status for note in got.notes} == {"partial"}
    assert f"{len(places)} log files are open, and 2 were not read ({places[1]}, {places[0]}); give --log FILE" == got.notes[0].reason


def test_secrets_in_them_are_redacted_and_their_size_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("WARNING:app:password=hunter2hunter2\n" + "WARNING:app:x\n" * 100)
    with holding("a", log) as pid:
        whole = harness.run(logs, pid, tmp_path, redactor=Redactor())
        end = harness.run(logs, pid, tmp_path, options=Options(log_bytes=500))
    assert len(whole.rows["log_events"]) == 101 and b"hunter2" not in whole.bytes()
    assert [(row["cut"], len(end.rows["log_events"])) for row in end.rows["log_files"]] == [(True, 35)]


def test_a_plan_names_the_files(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(WARNING)
    with holding("a", log) as one, holding() as two:
        plans = would_read([one], Options(), [logs]), would_read([two], Options(), [logs])
    assert plans[0] == {"logs": [str(log)]}
    (nothing,) = plans[1]["logs"]
    assert nothing.startswith("not: no log of the service was found"), nothing
