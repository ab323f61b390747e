"""Reads on disk: the real captures of an engine, folders of --record, files one by one, and what is none of these."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from diag.errors import BadInput, BundleError
from diag.health.budget import Budget
from diag.health.checking import Checker, Settings
from diag.health.polling import Look, backend_of, look
from diag.health.reads import Record
from diag.health.recorded import judged, judged_files
from diag.health.recording import Recorder
from diag.repro.http_post import Wire
from tests.conftest import SAMPLES
from tests.health.toy import Toy, text
from tests.repro.endpoint import Response, serving

REAL = SAMPLES / "vllm-0.32-cpu"
STOPPED = REAL / "worker-stopped"


def state(path: Path) -> tuple[str, int]:
    (found,) = judged(path, Budget())
    return found.verdict.state, found.verdict.exit


def copied(tmp_path: Path, *names: str) -> Path:
    """`metrics1.txt`, or `metrics2.txt=metrics3.txt` for another name."""
    for name in names:
        source, _, target = name.partition("=")
        shutil.copy(STOPPED / source, tmp_path / (target or source))
    return tmp_path


def test_idle() -> None:
    (found,) = judged(REAL / "idle", Budget())
    assert (found.verdict.state, found.verdict.exit, found.verdict.engine_kind) == ("idle-unproven", 0, "vllm")
    assert found.reads == 2


def test_busy_with_its_rate() -> None:
    (found,) = judged(REAL / "busy", Budget())
    assert (found.verdict.state, found.verdict.exit) == ("progressing", 0)
    (engine,) = found.verdict.engines
    assert (engine.engine, engine.running) == ("0", 12)
    assert engine.tokens_per_s == pytest.approx(2220 / (1796007307.3196 - 1796007298.3076), rel=0.01)


def test_a_stopped_worker_on_its_two_reads_alone(tmp_path: Path) -> None:
    assert state(copied(tmp_path, "metrics1.txt", "metrics2.txt")) == ("busy-unproven", 3)


def test_a_stopped_worker_with_its_second_read_repeated_as_a_third(tmp_path: Path) -> None:
    assert state(copied(tmp_path, "metrics1.txt", "metrics2.txt", "metrics2.txt=metrics3.txt")) == ("stalled", 1)
    assert judged_files([STOPPED / f"metrics{number}.txt" for number in (1, 2, 2)], Budget()).verdict.exit == 1
    assert judged_files([STOPPED / f"metrics{number}.txt" for number in (1, 2)], Budget()).verdict.exit == 3


def test_a_stopped_worker_with_its_process_evidence(tmp_path: Path) -> None:
    (found,) = judged(STOPPED, Budget())
    assert (found.verdict.state, found.verdict.exit) == ("stalled", 1)
    assert "worker 30484 is stopped by a signal at both looks" in found.verdict.reason
    assert state(copied(tmp_path, "metrics1.txt", "metrics2.txt", "ps.txt")) == ("stalled", 1)


def test_several_folders_below_one_are_several_backends() -> None:
    found = {item.name.split("/")[-2]: item.verdict.state for item in judged(REAL, Budget())}
    assert found == {"idle": "idle-unproven", "busy": "progressing", "worker-stopped": "stalled"}


def test_what_was_recorded_is_judged_the_same_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with serving(Toy(running=3, per_read=9)) as server, serving(lambda p, b, h: Response(404)) as other:
        backends = [backend_of(server.url), backend_of(other.url)]
        checker = Checker(Wire(), backends, Settings(interval_s=0.05, probe=False), threading.Event(), recorder=Recorder(kept))
        live = checker.once()
    again = judged(kept, Budget())
    assert [(item.verdict.state, item.verdict.reason) for item in again] == [(item.verdict.state, item.verdict.reason) for item in live]
    assert [item.verdict.engines for item in again] == [item.verdict.engines for item in live]
    assert [item.reads for item in again] == [3, 3]
    assert again[0].name.endswith(f"kept: {server.url}/metrics")


def test_reads_that_brought_nothing_are_recorded_too(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "kept")
    recorder.add(Look(Record(url="http://a/metrics", outcome="refused", ts=1796007298.0, monotonic_s=1.0), None, "Connection refused"))
    assert state(tmp_path / "kept") == ("unreachable", 3)


def test_a_record_holds_no_secret(tmp_path: Path) -> None:
    body = Toy().metrics() + '# HELP x Authorization: Bearer sk-abcdef0123456789abcdef\nx{api_key="sk-abcdef0123456789abcdef",p="hunter2-token"} 1\n'
    with serving(lambda p, b, h: text(body)) as server:
        kept = tmp_path / "kept"
        Recorder(kept, "hunter2-token").add(look(Wire(), backend_of(server.url), 5))
    written = b"".join(path.read_bytes() for path in kept.iterdir())
    assert b"num_requests_running" in written
    assert b"sk-abcdef" not in written
    assert b"hunter2" not in written


def test_a_folder_with_something_in_it_is_not_recorded_into(tmp_path: Path) -> None:
    (tmp_path / "reads.jsonl").write_text("")
    with pytest.raises(BadInput, match="is not empty"):
        Recorder(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="cannot write"):
        Recorder(tmp_path / "file" / "kept")


@pytest.mark.parametrize(("line", "says"), [
    ("{", "reads.jsonl:1"), ('{"url":"a","outcome":"answer","colour":1}', "colour"), ('{"url":"a","outcome":"maybe"}', "maybe"),
    ('{"url":"a","outcome":"answer","file":"../../etc/passwd"}', "not a name inside"), ('{"url":"a","outcome":"answer","file":"0009.txt"}', "0009.txt"),
    ('{"url":"a","outcome":"answer","file":"link.txt"}', "link, not followed"), ('{"url":"a","outcome":"answer","file":"pipe"}', "not a regular file"), ("", "lists no read"),
])  # fmt: skip
def test_a_list_that_is_none(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "reads.jsonl").write_text(line + "\n")
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput) as caught:
        judged(tmp_path, Budget())
    assert says in str(caught.value)


def test_a_list_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reads.jsonl")
    with pytest.raises(BadInput, match="not a regular file"):
        judged(tmp_path, Budget())


def test_damaged_looks_at_processes_are_named(tmp_path: Path) -> None:
    shutil.copy(STOPPED / "metrics1.txt", tmp_path / "0001.txt")
    (tmp_path / "reads.jsonl").write_text(json.dumps({"url": "a", "outcome": "answer", "file": "0001.txt"}) + "\n")
    (tmp_path / "processes.jsonl").write_text('{"processes":[{"pid":"x"}]}\n')
    with pytest.raises(BadInput, match=r"processes\.jsonl:1"):
        judged(tmp_path, Budget())


def test_a_folder_without_reads(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here\n")
    with pytest.raises(BadInput, match="holds no reads"):
        judged(tmp_path, Budget())


def test_a_file_that_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<html></html>")
    with pytest.raises(BadInput, match="is no answer"):
        judged_files([tmp_path / "a.html"], Budget())
