"""Real conditions that break a collector: rights given up, servers that are silent or talk nonsense, tools that hang."""

import contextlib
import os
import shlex
import shutil
import socketserver
import stat
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diag.labs import wait_until
from tests.conftest import ROOT
from tests.live.run import Said

DEADLINE_S = 90.0
SECRETS = ("LLMDIAG_REDIS_URL", "REDIS_URL")

# The python that follows sees a /dev of its own, with one NVIDIA device node in it; nobody else does.
OWN_DEV = """
import ctypes, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
kept = {name: os.stat(f"/dev/{name}") for name in ("null", "zero", "urandom", "random", "kmsg") if os.path.exists(f"/dev/{name}")}
NEWNS, PRIVATE = 0x20000, 1 << 18 | 1 << 14
for failed in (
    lambda: libc.unshare(NEWNS),
    lambda: libc.mount(b"none", b"/", None, PRIVATE, None),
    lambda: libc.mount(b"tmpfs", b"/dev", b"tmpfs", 0, None),
):
    if failed():
        sys.exit("no mount namespace: " + os.strerror(ctypes.get_errno()))
for name, facts in kept.items():
    os.mknod(f"/dev/{name}", 0o666 | stat.S_IFCHR, facts.st_rdev)
os.mknod("/dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0))
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Surroundings:
    """How llmdiag is started: which Python, what comes before it, with what arguments and environment."""

    python: str = sys.executable
    prefix: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    during: Callable[[], None] | None = None
    """Called once, in the middle of the window."""


def snapshot(pid: int, bundle: Path, *args: str, around: Surroundings) -> Said:
    """`llmdiag snapshot PID -o BUNDLE -f json` in these surroundings; `around.during` happens in mid-window."""
    clean = {name: value for name, value in os.environ.items() if name not in SECRETS}
    argv = [*around.prefix, around.python, "-m", "diag.cli", "snapshot", str(pid), "-o", str(bundle), "-f", "json", *args, *around.args]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, cwd=bundle.parent,
        env={**clean, "LLMDIAG_STRICT": "1", "PYTHONPATH": str(ROOT), **around.env},
    )
    try:
        if around.during is not None:
            _when_sampling(bundle.with_suffix(""), process)
            around.during()
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert "Traceback" not in err, err
    return Said(process.returncode, out, err)


def _when_sampling(folder: Path, process: subprocess.Popen[str]) -> None:
    """The first stacks are written: every collector has begun, and the window is open."""
    journal = folder / "manifest.jsonl"
    wait_until(lambda: process.poll() is not None or (journal.exists() and "artefacts/stacks/" in journal.read_text()), DEADLINE_S)
    assert process.poll() is None, "the snapshot was over before anything could be broken"


@contextlib.contextmanager
def serving(reply: bytes | None) -> Iterator[int]:
    """A TCP server that answers whatever it is asked with `reply` and hangs up; None = accepts and never says a word. Gives its port."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(65536)
                if reply is None:
                    over.wait()
                else:
                    self.request.sendall(reply)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            over.set()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def talking(reply: bytes) -> Iterator[int]:
    """A TCP server that answers every line it is sent with `reply`, again and again. Gives its port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while self.request.recv(65536):
                    self.request.sendall(reply)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def http(status: str, body: bytes, kind: str = "text/html") -> bytes:
    """One HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def tool(folder: Path, name: str, script: str, mode: int = 0o755) -> Path:
    """A real executable called `name`: a shell script."""
    place = folder / name
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(mode)
    return place


def own_python(folder: Path) -> Path:
    """A Python that sees what this one sees, with a scripts folder of its own (where llmdiag looks for py-spy first)."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def without(*capabilities: str) -> tuple[str, ...]:
    """Words before a command that take these capabilities from it, e.g. `sys_ptrace`."""
    given_up = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", "--bounding-set", given_up, "--inh-caps", given_up, "--")


def real_py_spy() -> str:
    found = shutil.which("py-spy", path=os.pathsep.join((sysconfig.get_path("scripts"), str(Path(sys.executable).parent)))) or shutil.which("py-spy")
    assert found is not None
    return found
