"""Real conditions that break a collector: rights given up, servers that are silent or talk nonsense, tools that hang."""

import atexit
import contextlib
import os
import queue
import shutil
import socket
import socketserver
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from diag.labs import wait_until
from tests.conftest import ROOT
from tests.live.run import Said
from tests.warm import WARM, Warm

DEADLINE_S = 120.0

_FREE: "queue.SimpleQueue[Warm]" = queue.SimpleQueue()
for _warm in (WARM, Warm()):
    atexit.register(_warm.close)
    _FREE.put(_warm)

# The program that follows sees a /dev of its own, with the node of one NVIDIA device in it; nobody else does.
OWN_DEV = """
import ctypes, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
kept = {name: os.stat(f"/dev/{name}").st_rdev for name in ("null", "zero", "urandom", "random", "kmsg") if os.path.exists(f"/dev/{name}")}
NEWNS, PRIVATE = 0x20000, 1 << 18 | 1 << 14
for step in (
    lambda: libc.unshare(NEWNS),
    lambda: libc.mount(b"none", b"/", None, PRIVATE, None),
    lambda: libc.mount(b"tmpfs", b"/dev", b"tmpfs", 0, None),
):
    if step() != 0:
        sys.exit("no /dev of its own: " + os.strerror(ctypes.get_errno()))
for name, device in [*kept.items(), ("nvidia0", os.makedev(195, 0))]:
    os.mknod(f"/dev/{name}", 0o666 | stat.S_IFCHR, device)
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITH_A_GPU = (sys.executable, "-c", OWN_DEV)


@dataclass(frozen=True)
class Around:
    """How llmdiag is started: on whom, by which Python, behind which command, with which options and environment."""

    pid: int
    python: str = sys.executable
    behind: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    during: Callable[[], None] | None = None
    """Called once, in the middle of the window."""


def snapshot(bundle: Path, around: Around, *args: str) -> Said:
    """`llmdiag snapshot PID -o BUNDLE -f json`, in these surroundings. A traceback fails the test."""
    words = ("snapshot", str(around.pid), "-o", str(bundle), "-f", "json", *args, *around.args)
    clean = {name: value for name, value in os.environ.items() if name not in ("LLMDIAG_REDIS_URL", "REDIS_URL")}
    env = {**clean, "LLMDIAG_STRICT": "1", "PYTHONPATH": str(ROOT), **around.env}
    usual = not around.behind and around.python == sys.executable
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(_forked, words, bundle.parent, env) if usual else beside.submit(_started, around, words, bundle.parent, env)
        if around.during is not None:
            _wait_for_the_window(bundle.with_suffix(""), running)
            around.during()
        said = running.result()
    assert "Traceback" not in said.err, said.err
    return said


def _forked(words: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Said:
    """From one of the processes that have their imports behind them: there is one for each of two snapshots at a time."""
    warm = _FREE.get()
    try:
        return Said(**vars(warm.call(words, cwd=cwd, env=env, deadline_s=DEADLINE_S)))
    finally:
        _FREE.put(warm)


def _started(around: Around, words: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Said:
    """By another Python, or behind another command."""
    argv = (*around.behind, around.python, "-m", "diag.cli", *words)
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd, env=env, check=False, timeout=DEADLINE_S)
    return Said(done.returncode, done.stdout, done.stderr)


def _wait_for_the_window(folder: Path, running: "Future[Said]") -> None:
    """Until the first stacks are written: then every collector has begun."""
    journal = folder / "manifest.jsonl"
    wait_until(lambda: running.done() or (journal.exists() and "artefacts/stacks/" in journal.read_text()), DEADLINE_S)
    assert not running.done(), "the snapshot was over before anything could be broken"


@contextlib.contextmanager
def serving(reply: bytes | None, at: Path | None = None) -> Iterator["Serving"]:
    """A server, on a free TCP port or at a unix path, that answers whatever it is sent with `reply`; None = never a word."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while self.request.recv(1 << 16):
                    if reply is None:
                        over.wait()
                        return
                    self.request.sendall(reply)
                    if reply.startswith(b"HTTP/"):
                        return

    kind = socketserver.ThreadingTCPServer if at is None else socketserver.ThreadingUnixStreamServer
    kind.daemon_threads = True
    with kind(("127.0.0.1", 0) if at is None else str(at), Handler) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        running = Serving(server)
        try:
            yield running
        finally:
            over.set()
            running.stop()
            thread.join()


@dataclass(frozen=True)
class Serving:
    """A running server of `serving`."""

    server: socketserver.BaseServer

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])  # type: ignore[arg-type]

    def stop(self) -> None:
        """Nobody listens there any more."""
        self.server.shutdown()
        self.server.server_close()


def http(status: str, body: bytes) -> bytes:
    """One HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@contextlib.contextmanager
def out_of_the_way(path: Path) -> Iterator[None]:
    """A unix socket that keeps its connections, while something else may stand at its path."""
    aside = path.with_name(f"{path.name}-aside")
    path.rename(aside)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        aside.rename(path)


def program(folder: Path, name: str, script: str, mode: int = 0o755) -> None:
    """A real executable: a shell script."""
    folder.mkdir(exist_ok=True)
    place = folder / name
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(mode)


def python_with(py_spy: str, folder: Path) -> str:
    """A Python that has all that this one has, and beside it a py-spy that is this shell script."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program(folder / "bin", "py-spy", py_spy)
    return str(folder / "bin" / "python")


def real_py_spy() -> str:
    """Path of py-spy, found as llmdiag finds it."""
    places = os.pathsep.join((sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]))
    found = shutil.which("py-spy", path=places)
    assert found is not None
    return found


def without(*capabilities: str) -> tuple[str, ...]:
    """What stands before a command to take capabilities from it, e.g. `sys_ptrace`."""
    given_up = ",".join(f"-{name}" for name in capabilities)
    return ("setpriv", "--bounding-set", given_up, "--inh-caps", given_up, "--")


def may_give_up_rights() -> bool:
    """Root with setpriv, and with the right to mount: else there is nothing to give up."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*WITH_A_GPU, "true"], capture_output=True, check=False).returncode == 0


# Says "ready" on the descriptor it is given. Name, thread name, argument, environment, socket paths and output are garbage.
STRANGE = r"""
import os, socket, sys, threading
def park():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb") as comm:
        comm.write(b"\xff) R (\n\xfe")
    named.set()
    threading.Event().wait()
named = threading.Event()
threading.Thread(target=park, daemon=True).start()
named.wait()
with open("/proc/self/comm", "wb") as comm:
    comm.write(b"\xfe) Z 1 (\n\t")
listening = [socket.socket(socket.AF_UNIX) for _ in range(2)]
listening[0].bind(b"\0abstract \xff\n0A ")
listening[1].bind(os.fsencode(sys.argv[1]) + b"/s \xff\n[0]")
for item in listening:
    item.listen()
os.write(1, bytes(range(256)) * 64)
os.write(int(sys.argv[2]), b"ready\n")
threading.Event().wait()
"""


@contextlib.contextmanager
def strange_patient(folder: Path) -> Iterator[int]:
    """A process whose every name is garbage: neither UTF-8 nor one line, with brackets where /proc has its own. Gives its pid."""
    ours, theirs = socket.socketpair()
    with ours, theirs, (folder / "strange.log").open("wb") as log:
        argv = [sys.executable, "-c", STRANGE, os.fsencode(folder), str(theirs.fileno()), b"\xff\n) R 1 ( \x1b[31m"]
        child = subprocess.Popen(
            argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environb, b"G\xff": b"\xfe\n=\xff"},
            pass_fds=(theirs.fileno(),),
        )
        try:
            ours.settimeout(DEADLINE_S)
            assert ours.recv(16) == b"ready\n"
            yield child.pid
        finally:
            child.kill()
            child.wait()
