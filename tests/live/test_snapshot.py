"""Snapshots that go wrong: the patient dies, llmdiag dies, rights are missing, the target is strange. Nothing is hurt."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag import evidence
from diag.labs import wait_until
from diag.live import Options
from diag.redact import Redactor
from diag.snapshot import take
from tests.live.run import llmdiag, snapshot

pytestmark = pytest.mark.live

WAIT_S = 30.0
SERVICE = """
import threading, time
def park():
    threading.Event().wait()
for number in range(3):
    threading.Thread(target=park, name=f"parked-{number}", daemon=True).start()
print("ready", flush=True)
park()
"""


def start(code: str, **options: object) -> subprocess.Popen[str]:
    """A Python child that says "ready"."""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child  # type: ignore[no-any-return]


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


@pytest.fixture
def service() -> Iterator[subprocess.Popen[str]]:
    child = start(SERVICE)
    yield child
    end(child)


def states(pid: int) -> dict[str, str]:
    """Task -> state letter."""
    return {task.name: (task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()}


def settled(pid: int) -> dict[str, str]:
    """The same once every task waits: on a loaded machine one is still on its way after "ready"."""
    return wait_until(lambda: {} if "R" in (found := states(pid)).values() else found, WAIT_S)


def test_an_idle_process_is_clear_and_unchanged(service: subprocess.Popen[str], tmp_path: Path) -> None:
    before = settled(service.pid)
    said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1")
    assert (said.code, said.json["verdict"]) == (0, "clear"), said.out
    assert said.json["side_effects"]["pause_ms"] == 0
    assert settled(service.pid) == before


def test_no_such_pid(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    said = snapshot(child.pid, tmp_path / "b.zip")
    assert said.code == 2
    assert str(child.pid) in said.err
    assert list(tmp_path.iterdir()) == []


def test_the_place_cannot_be_written(service: subprocess.Popen[str], tmp_path: Path) -> None:
    said = snapshot(service.pid, tmp_path / "no" / "such" / "b.zip")
    assert said.code == 2
    assert "nothing was collected yet" in said.err


def test_an_existing_file_is_never_overwritten(service: subprocess.Popen[str], tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_text("mine")
    said = snapshot(service.pid, tmp_path / "b.zip")
    assert said.code == 2
    assert (tmp_path / "b.zip").read_text() == "mine"


def test_sigkill_of_llmdiag_leaves_a_folder_that_analyze_accepts(service: subprocess.Popen[str], tmp_path: Path) -> None:
    tool = subprocess.Popen(
        [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "-o", str(tmp_path / "b.zip"), "--window", "60"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    journal = tmp_path / "b" / "manifest.jsonl"
    wait_until(lambda: journal.exists() and '"artefact"' in journal.read_text(), WAIT_S)
    tool.kill()
    tool.wait()
    said = llmdiag("analyze", str(tmp_path / "b"), "-f", "json")
    assert said.code in (0, 3)
    assert any(item["status"] != "ok" for item in said.json["collected"])


def test_ctrl_c_analyses_what_there_is(service: subprocess.Popen[str], tmp_path: Path) -> None:
    tool = subprocess.Popen(
        [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "-o", str(tmp_path / "b.zip"), "--window", "60", "-f", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    journal = tmp_path / "b" / "manifest.jsonl"
    wait_until(lambda: journal.exists() and '"artefact"' in journal.read_text(), WAIT_S)
    tool.send_signal(signal.SIGINT)
    out, err = tool.communicate(timeout=WAIT_S)
    assert "Traceback" not in err
    assert tool.returncode in (0, 3)
    assert json.loads(out)["schema"] == "llmdiag.diagnosis/1"
    assert (tmp_path / "b.zip").exists()


def test_sigkill_of_the_patient_mid_snapshot(service: subprocess.Popen[str], tmp_path: Path) -> None:
    tool = subprocess.Popen(
        [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "-o", str(tmp_path / "b.zip"), "--window", "4", "-f", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    journal = tmp_path / "b" / "manifest.jsonl"
    wait_until(lambda: journal.exists() and '"stacks/' in journal.read_text().replace("artefacts/stacks/", '"stacks/'), WAIT_S)
    service.kill()
    out, err = tool.communicate(timeout=60)
    assert "Traceback" not in err
    assert tool.returncode == 1
    assert [finding["rule"] for finding in json.loads(out)["findings"]] == ["process-ended"]
    found = json.loads(out)
    assert any(item["collector"] == "processes" for item in found["collected"])
    rows = llmdiag("query", str(tmp_path / "b.zip"), "SELECT count(*) AS n FROM stack_frames", "-f", "json").json["rows"]
    assert rows[0]["n"] > 0


def test_a_stopped_process_is_found_and_stays_stopped(service: subprocess.Popen[str], tmp_path: Path) -> None:
    service.send_signal(signal.SIGSTOP)
    wait_until(lambda: set(states(service.pid).values()) == {"T"}, WAIT_S)
    said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1")
    assert said.code == 1
    assert [(f["rule"], f["verdict"]) for f in said.json["findings"]] == [("process-stopped", "confirmed")]
    assert set(states(service.pid).values()) == {"T"}
    service.send_signal(signal.SIGCONT)


D_STATE = """
import ctypes, os, signal, threading
libc = ctypes.CDLL(None, use_errno=True)
stack = ctypes.create_string_buffer(1 << 16)
CHILD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def child(_):
    libc.pause()
    return 0
entry = CHILD(child)
CLONE_VFORK, CLONE_VM = 0x4000, 0x100
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
def uninterruptible():
    libc.clone(pause, ctypes.cast(ctypes.addressof(stack) + (1 << 16), ctypes.c_void_p), CLONE_VFORK | CLONE_VM | signal.SIGCHLD, None)
threading.Thread(target=uninterruptible, daemon=True).start()
while not any(open(f"/proc/self/task/{t}/stat").read().rpartition(")")[2].split()[0] == "D" for t in os.listdir("/proc/self/task")):
    pass
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_thread_in_d_state_is_not_disturbed(tmp_path: Path) -> None:
    child = start(D_STATE, start_new_session=True)
    try:
        before = settled(child.pid)
        assert "D" in before.values()
        said = snapshot(child.pid, tmp_path / "b.zip", "--window", "1", "--allow-pause")
        assert said.code in (0, 1, 3)
        assert settled(child.pid) == before
        rows = llmdiag("query", str(tmp_path / "b.zip"), "SELECT class FROM thread_activity ORDER BY class", "-f", "json").json["rows"]
        assert "uninterruptible" in {row["class"] for row in rows}
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        end(child)


PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


def test_a_traced_process_stays_traced(service: subprocess.Popen[str], tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_SEIZE, service.pid, None, None) == 0, os.strerror(ctypes.get_errno())
    try:
        said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1", "--allow-pause")
        assert said.code in (0, 3)
        status = Path(f"/proc/{service.pid}/status").read_text()
        assert f"TracerPid:\t{os.getpid()}" in status
    finally:
        service.kill()
        service.wait()


def test_a_non_python_process_gives_the_rest(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        said = snapshot(child.pid, tmp_path / "b.zip", "--window", "1")
        assert (said.code, said.json["verdict"]) == (0, "clear")
        rows = llmdiag("query", str(tmp_path / "b.zip"), "SELECT comm, is_python FROM processes", "-f", "json").json["rows"]
        assert {(row["comm"], row["is_python"]) for row in rows} == {("sleep", False)}
    finally:
        child.kill()
        child.wait()


FAMILY = """
import multiprocessing, time
def work(pipe):
    pipe.send(None)
    time.sleep(600)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs,))
    child.start()
    ours.recv()
    print(child.pid, flush=True)
    child.join()
"""


def test_a_child_leads_to_its_root(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    try:
        child = int(parent.stdout.readline())
        said = llmdiag("snapshot", str(child), "--dry-run", "-f", "json").json
        assert (said["root_pid"], said["pids"]) == (parent.pid, [parent.pid, child])
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to give up a capability")
def test_without_ptrace_the_rest_arrives_and_the_remedy_is_named(service: subprocess.Popen[str], tmp_path: Path) -> None:
    """A container without SYS_PTRACE, looking at a process that has it."""
    setpriv = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    command = [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "-o", str(tmp_path / "b.zip"), "--window", "1", "-f", "json"]
    done = subprocess.run([*setpriv, *command], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout)
    stacks = [item for item in found["collected"] if item["table_name"] == "stack_frames"]
    assert [item["status"] for item in stacks] != ["ok"]
    assert any("SYS_PTRACE" in (item["reason"] or "") or "root" in (item["reason"] or "") for item in stacks)
    assert any(item["table_name"] == "processes" and item["status"] == "ok" for item in found["collected"])
    assert {item["rule"] for item in found["inconclusive"]} >= {"event-loop-blocked"}


def test_progress_and_notes_stay_off_stdout(service: subprocess.Popen[str], tmp_path: Path) -> None:
    said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1")
    assert said.out.startswith("{")
    assert said.out.count("\n") == 1
    assert "bundle: " in said.err


def test_the_clock_of_a_window(service: subprocess.Popen[str], tmp_path: Path) -> None:
    """Samples are spread over the whole window (their own times say so)."""
    started = time.time()
    snapshot(service.pid, tmp_path / "b.zip", "--window", "2", "--samples", "3")
    sql = "SELECT sample, epoch(min(ts)) AS ts FROM stack_frames GROUP BY sample ORDER BY sample"
    rows = llmdiag("query", str(tmp_path / "b.zip"), sql, "-f", "json").json["rows"]
    assert [row["sample"] for row in rows] == [0, 1, 2]
    assert started <= rows[0]["ts"] < rows[1]["ts"] < rows[2]["ts"]
    assert 1.5 < rows[2]["ts"] - rows[0]["ts"] < 10


FULL_DISK = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from diag.cli import main
main()
"""


@pytest.mark.parametrize("limit", [0, 100, 2000, 6000])
def test_a_disk_that_fills_up_is_one_clear_error(service: subprocess.Popen[str], tmp_path: Path, limit: int) -> None:
    """No file may grow beyond `limit` bytes: the journal, or an artefact before it, cannot be written any further."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(limit), "snapshot", str(service.pid), "-o", str(tmp_path / "b.zip"), "--window", "1"],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "LLMDIAG_STRICT": "1"},
    )
    *collected, first, hint = done.stderr.splitlines()
    assert (done.returncode, done.stderr.count("error:")) == (2, 1), done.stderr
    assert not any("cannot" in line for line in collected)
    assert first.startswith(f"error: cannot write {tmp_path / 'b'}/"), done.stderr
    assert first.endswith(": File too large")
    assert not (tmp_path / "b.zip").exists()
    if limit <= 100:  # less than the first line of the journal
        assert "nothing was collected yet" in hint
        assert list(tmp_path.iterdir()) == []
    else:
        assert f"llmdiag analyze {tmp_path / 'b'}" in hint
        assert llmdiag("analyze", str(tmp_path / "b")).code in (0, 3)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB; needs the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_clear_error(service: subprocess.Popen[str], small_disk: Path) -> None:
    """Nothing at all can be written any more, also by collectors that write when they are ended."""
    said = snapshot(service.pid, small_disk / "b.zip", "--window", "1")
    assert (said.code, said.err.count("error:")) == (2, 1), said.err
    assert "No space left on device" in said.err.splitlines()[-2]
    assert "Exception ignored" not in said.err


@pytest.mark.parametrize("output", [".", "", "there", "there.zip"])
def test_a_folder_gets_a_bundle_of_the_usual_name(tmp_path: Path, output: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there.zip").mkdir()
    child = subprocess.Popen(["sleep", "600"])
    try:
        said = llmdiag("snapshot", str(child.pid), "-o", output, "--window", "0.5", "--samples", "2", cwd=tmp_path)
    finally:
        child.kill()
        child.wait()
    assert said.code == 0, said.err
    (bundle,) = (tmp_path / output).glob(f"llmdiag-*-{child.pid}-*.zip")
    assert f"bundle: {bundle.relative_to(tmp_path)}" in said.err


def test_two_snapshots_of_one_second(service: subprocess.Popen[str], tmp_path: Path) -> None:
    """Started together; the name ends with the second, so that of some three two are the same."""
    command = [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "--window", "0.5", "--samples", "2", "--skip", "stacks"]
    tools = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(3)]
    said = [tool.communicate(timeout=120)[1] for tool in tools]
    assert [tool.returncode in (0, 3) for tool in tools] == [True] * 3, said
    assert len(list(tmp_path.glob("llmdiag-*.zip"))) == 3
    assert len(list(tmp_path.iterdir())) == 3


def test_the_next_free_name_is_taken(service: subprocess.Popen[str], tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_text("mine")
    (tmp_path / "b-2").mkdir()
    (tmp_path / "b-3.zip").symlink_to("nowhere")
    collectors = [module for module in evidence.collectors_of(evidence.Extras()) if module.NAME == "processes"]
    bundle, interrupted = take(
        [service.pid], Options(window_s=0.1, samples=2), tmp_path / "b.zip", collectors, redactor=Redactor(), show=lambda view: None,
        strict=True, numbered=True,
    )
    assert (bundle, interrupted) == (tmp_path / "b-4.zip", False)
    assert (tmp_path / "b.zip").read_text() == "mine"


def test_ctrl_c_before_the_first_look_is_no_verdict(service: subprocess.Popen[str], tmp_path: Path) -> None:
    """The bearer file is a pipe into which nothing is written: there it waits before anything is read."""
    os.mkfifo(tmp_path / "bearer")
    tool = subprocess.Popen(
        [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "-o", str(tmp_path / "b.zip"), "--bearer-file", str(tmp_path / "bearer")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    writer = wait_until(lambda: opened(tmp_path / "bearer"), WAIT_S)
    tool.send_signal(signal.SIGINT)
    out, err = tool.communicate(timeout=WAIT_S)
    os.close(writer)
    assert (tool.returncode, out, err.strip()) == (130, "", "interrupted")
    assert not (tmp_path / "b").exists()


def opened(pipe: Path) -> int | None:
    """The writing end, as soon as somebody reads."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
