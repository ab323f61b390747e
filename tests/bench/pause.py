"""How long is the patient held? The longest hole in its heartbeat during a snapshot, against windows without one."""

import contextlib
import itertools
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.bench.bars import Bar
from tests.bench.patient import SLOTS

RUNS = 7
ALLOWED_MS = 5.0
MAX_CHILDREN = 8
PATIENT = Path(__file__).with_name("patient.py")
KINDS: dict[str, Sequence[str]] = {
    "20 threads": ("--parked", "20"),
    "200 threads": ("--parked", "200"),
    "four threads churn": ("--parked", "20", "--churn", "4"),
    "tree of three processes": ("--parked", "20", "--children", "2"),
}


def bars() -> Iterator[Bar]:
    """One bar per kind of patient, and one at load 4."""
    for name, args in KINDS.items():
        yield _bar(name, args, peers=name == "200 threads")
    with _load(4):
        yield _bar("20 threads at load 4", KINDS["20 threads"], peers=False)


def _bar(name: str, args: Sequence[str], *, peers: bool) -> Bar:
    with _patient(args) as (pid, ring):
        quiet = statistics.median(_gap(ring, lambda: time.sleep(6.0)) for _ in range(RUNS))
        held = statistics.median(_gap(ring, lambda: _snapshot(pid)) for _ in range(RUNS))
        peer = f"window without snapshot {quiet:.1f} ms" + (f"; {_peers(pid, ring)}" if peers else "")
    return Bar(f"longest gap in a default snapshot, {name}", held, quiet + ALLOWED_MS, "ms", peer)


def _peers(pid: int, ring: Path) -> str:
    """What people use by hand, on the same patient."""
    spy = str(Path(sys.executable).with_name("py-spy"))
    tools: dict[str, list[str]] = {
        "py-spy dump": [spy, "dump", "--pid", str(pid)],
        "py-spy dump --locals": [spy, "dump", "--locals", "--pid", str(pid)],
    }
    if shutil.which("gdb"):
        tools["gdb bt"] = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"]
    found = []
    for name, command in tools.items():
        gap = statistics.median(_gap(ring, lambda command=command: _quiet(command)) for _ in range(3))  # type: ignore[misc]
        found.append(f"{name} {gap:.0f} ms")
    return ", ".join(found)


@contextlib.contextmanager
def _patient(args: Sequence[str]) -> Iterator[tuple[int, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        ring = Path(folder) / "ring"
        for name in ("ring", *(f"ring.{number}" for number in range(MAX_CHILDREN))):
            (Path(folder) / name).write_bytes(b"\0" * 8 * (SLOTS + 1))
        child = subprocess.Popen([sys.executable, str(PATIENT), str(ring), *args], stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child.pid, ring
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()


def _gap(ring: Path, during: Callable[[], object]) -> float:
    """Longest hole (ms) between heartbeats while `during` runs."""
    before = time.monotonic_ns()
    during()
    after = time.monotonic_ns()
    data = ring.read_bytes()
    count = struct.unpack_from("<q", data)[0]
    beats = sorted(struct.unpack_from("<q", data, 8 * (1 + n % SLOTS))[0] for n in range(max(0, count - SLOTS), count))
    inside = [before, *(b for b in beats if before <= b <= after), after]
    return max(b - a for a, b in itertools.pairwise(inside)) / 1e6


def _snapshot(pid: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _quiet([sys.executable, "-m", "diag.cli", "snapshot", str(pid), "-o", f"{folder}/b.zip", "-f", "json"])


def _quiet(command: Sequence[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def _load(processes: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in busy:
            child.kill()
            child.wait()
