"""Real child processes in every state a thread can be in; each says when it is ready, none outlives its test."""

import contextlib
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from diag import procfs
from diag.errors import CollectorError

T = TypeVar("T")

WORKLOADS = """
import ctypes, json, os, platform, sys, threading, time

CLONE = {"x86_64": 56, "aarch64": 220}
never = threading.Event()

def spin():
    x = 0
    while True:
        x += 1

def poll():
    while not never.wait(0.001):
        pass

def parked():
    never.wait()

def stuck():
    # a child that never ends keeps the thread that made it with CLONE_VFORK in state D
    if ctypes.CDLL(None).syscall(CLONE[platform.machine()], 0x4000 | 17, 0, 0, 0, 0) == 0:
        while True:
            time.sleep(1000)

tids = {}
for name in sys.argv[1:]:
    thread = threading.Thread(target=globals()[name], daemon=True)
    thread.start()
    tids[name] = thread.native_id
print(json.dumps({"main": os.getpid(), **tids}), flush=True)
sys.stdin.read()
"""
"""`python -c WORKLOADS spin poll …`: one thread each, main thread parked in a read."""

ZOMBIE = """
import json, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print(json.dumps({"main": os.getpid(), "zombie": child.pid}), flush=True)
sys.stdin.read()
"""
"""A parent that never collects its dead child."""


@dataclass(frozen=True)
class Child:
    """A running child and what it said of itself: thread ids by name."""

    process: subprocess.Popen[str]
    tids: dict[str, int]

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def child(code: str, *arguments: str, before: Sequence[str] = (), env: dict[str, str] | None = None) -> Iterator[Child]:
    """Run Python code until the end of the block, then end it and everything below it. `before` wraps the command."""
    command = [*before, sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the child ended before it was ready"
        yield Child(process, json.loads(line))
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a child and all below it, and collect it."""
    try:
        family = procfs.tree(process.pid)
    except CollectorError:
        family = [process.pid]
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def wait_until(condition: Callable[[], T], deadline_s: float = 20.0) -> T:
    """The first true value of `condition`; fails when there is none in time."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"nothing after {deadline_s} s: {condition}"
        time.sleep(0.01)
    return value


def wait_for_state(pid: int, tid: int, states: str) -> None:
    wait_until(lambda: procfs.stat(pid, tid).state in states)


def stop(pid: int) -> None:
    """SIGSTOP a process and wait until all its threads are stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(procfs.stat(pid, tid).state == "T" for tid in procfs.tids(pid)))


@contextlib.contextmanager
def traced(pid: int) -> Iterator[None]:
    """Attach to a process as a debugger does (its main thread is in state t); let go at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(16, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    try:
        os.waitpid(pid, 0x40000000)
        yield
    finally:
        libc.ptrace(17, pid, None, None)


def as_nobody(work: Callable[[], T]) -> T:
    """Run `work` in a thread of another user without any capability, as a first-time user of llmdiag is."""
    number = {"x86_64": 117, "aarch64": 147}[platform.machine()]
    results: list[T] = []
    errors: list[BaseException] = []

    def changed() -> None:
        try:
            # the raw call changes this thread only; the C library's would change all of them
            assert ctypes.CDLL(None).syscall(number, 65534, 65534, 65534) == 0
            results.append(work())
        except BaseException as error:  # handed to the caller
            errors.append(error)

    thread = threading.Thread(target=changed)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def condition_of(pids: Sequence[int]) -> dict[tuple[int, int], tuple[object, ...]]:
    """What a collector must not change: is each thread stopped or traced, are signals waiting for it, who traces it."""
    found: dict[tuple[int, int], tuple[object, ...]] = {}
    for pid in pids:
        for tid in procfs.tids(pid):
            status = procfs.status(pid, tid)
            stopped = procfs.stat(pid, tid).state in "TtDZ" and procfs.stat(pid, tid).state
            found[(pid, tid)] = (stopped, status.get("SigPnd"), status.get("ShdPnd"), status.get("TracerPid"))
    return found


def can_unshare() -> bool:
    """May we make PID namespaces here?"""
    return subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0


def readable_by_all(folder: Path) -> Path:
    """Let other users write below a temporary folder."""
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.getuid() and str(place).startswith("/tmp/"):
            place.chmod(0o777)
    return folder
