"""Engine processes that outlive whoever started them, for real: an init of their own (named tini) gets them for children."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diag import procfs
from diag.recovery.orphans import Orphan

DEADLINE_S = 30.0
INIT = Path(__file__).parent / "orphan_init.py"

SLEEPS = "signal.pause()"
IGNORES_TERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nready()\nwhile True: signal.pause()"
LISTENS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
ready(port=server.getsockname()[1])
peer, _ = server.accept()
peer.recv(1)
signal.pause()"""
WITH_WORKER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
if (child := os.fork()) == 0:
    joined = socket.create_connection(server.getsockname())
    signal.pause()
joined, _ = server.accept()
ready(worker=child)
while True: signal.pause()"""
METRICS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(%r)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
ready(port=server.server_port)
server.serve_forever()"""
PREAMBLE = """
import json, os, signal, sys
def ready(**more):
    with open(sys.argv[1] + '.new', 'w') as out: json.dump({'pid': os.getpid(), **more}, out)
    os.rename(sys.argv[1] + '.new', sys.argv[1])
"""


@dataclass(frozen=True)
class Engine:
    """One process of an engine that is up. `port`: where it listens; `worker`: its child."""

    pid: int
    port: int = 0
    worker: int = 0

    @property
    def orphan(self) -> Orphan:
        """As evidence tells of it."""
        return as_orphan(self.pid)

    @property
    def alive(self) -> bool:
        return alive(self.pid)


def as_orphan(pid: int, cmd: str = "VLLM::EngineCore") -> Orphan:
    return Orphan(pid, procfs.started_at(pid), cmd, 76 << 30, 0, "its parent is gone", "ps.txt:3")


def alive(pid: int) -> bool:
    """There, and no zombie."""
    try:
        return procfs.stat(pid).state not in ("Z", "X")
    except procfs.Vanished:
        return False


def wait_until(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)  # leave the machine to those that are waited for


class Nursery:
    """Starts engines whose starter ends at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.pids: list[int] = []
        self.init: subprocess.Popen[str] | None = None

    def engine(self, code: str = SLEEPS, *, owned: bool = False) -> Engine:
        """A process that calls itself an engine core, without an owner, or with one that lives."""
        said = self._told(PREAMBLE + ("ready()\n" if "ready(" not in code else "") + code, owned)
        found = Engine(**said)
        self.pids += [found.pid, *([found.worker] if found.worker else [])]
        return found

    def _told(self, code: str, owned: bool) -> dict[str, int]:
        self.count += 1
        path = self.folder / f"engine-{self.count}"
        assert self.init is not None and self.init.stdin is not None
        self.init.stdin.write(json.dumps({"code": code, "path": str(path), "owned": owned}) + "\n")
        self.init.stdin.flush()
        wait_until(path.exists, f"engine {self.count} does not come up")
        told: dict[str, int] = json.loads(path.read_text())
        return told


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    found = Nursery(folder)
    with subprocess.Popen(["tini", str(INIT), sys.executable], executable=sys.executable, stdin=subprocess.PIPE, text=True) as found.init:
        try:
            yield found
        finally:
            for pid in found.pids:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            found.init.kill()
