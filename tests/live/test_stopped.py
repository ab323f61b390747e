"""Who holds a stopped process: a signal, which SIGCONT ends, or a tracer, which only the tracer ends."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.labs import wait_until
from tests.live.run import snapshot
from tests.live.test_snapshot import PTRACE_DETACH, PTRACE_SEIZE, SERVICE, WAIT_S, end, start, states

pytestmark = pytest.mark.live

PTRACE_ATTACH, WAIT_ALL = 16, 0x40000000


@pytest.fixture
def service() -> Iterator[subprocess.Popen[str]]:
    child = start(SERVICE)
    yield child
    end(child)


def ptrace(request: int, task: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(request, task, None, None) == 0, os.strerror(ctypes.get_errno())


def actions(found: dict[str, Any], rule: str) -> list[tuple[str, str]]:
    (finding,) = [item for item in found["findings"] if item["rule"] == rule]
    assert finding["verdict"] == "confirmed"
    return [(action["run"], action["undo"]) for action in finding["actions"]]


def test_a_signal_is_undone_by_a_signal(service: subprocess.Popen[str], tmp_path: Path) -> None:
    service.send_signal(signal.SIGSTOP)
    wait_until(lambda: set(states(service.pid).values()) == {"T"}, WAIT_S)
    said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1")
    assert actions(said.json, "process-stopped") == [(f"kill -CONT {service.pid}", f"kill -STOP {service.pid}")]


def test_a_tracer_that_holds_it_is_named_and_no_signal_is_offered(service: subprocess.Popen[str], tmp_path: Path) -> None:
    held = []
    try:
        for task in map(int, states(service.pid)):
            ptrace(PTRACE_ATTACH, task)
            held.append(os.waitpid(task, WAIT_ALL)[0])
        assert set(states(service.pid).values()) == {"t"}
        said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1")
        assert actions(said.json, "observer-is-the-incident") == [(f"ps -o pid,ppid,user,lstart,args -p {os.getpid()}", "")]
    finally:
        for task in held:
            ptrace(PTRACE_DETACH, task)


def test_a_tracer_that_lets_it_run_is_mentioned(service: subprocess.Popen[str], tmp_path: Path) -> None:
    ptrace(PTRACE_SEIZE, service.pid)
    said = snapshot(service.pid, tmp_path / "b.zip", "--window", "1")
    why = {item["rule"]: item["because"] for item in said.json["ruled_out"]}
    assert f"pid {service.pid} runs and is traced by pid {os.getpid()}" in why["process-stopped"]
