"""Real servers for the tests (servers.py says which), the classes of a service, and a little waiting."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.cache import servers
from tests.ports import free_port

START_S = 20.0


@dataclass(frozen=True)
class LiveServer:
    """A server that is up, and its process."""

    port: int
    process: subprocess.Popen[bytes]
    binary: Path
    unix: Path

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def target(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, db: int = 0, username: str | None = None, password: str | None = None) -> redis.Redis:
        at_once = Retry(NoBackoff(), 0)  # the default sleeps for seconds
        return redis.Redis(port=self.port, db=db, protocol=2, username=username, password=password, retry=at_once)


def _start(binary: Path, folder: Path, port: int, arguments: tuple[str, ...]) -> LiveServer:
    unix = folder / "s"
    command = [
        str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--unixsocket", str(unix), *arguments,
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        return LiveServer(port, subprocess.Popen(command, stdout=log, stderr=log), binary, unix)


def _wait_for(server: LiveServer) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with server.client() as client:
                client.ping()
            return
        except redis.AuthenticationError:
            return
        except redis.RedisError:
            log = (server.unix.parent / "log").read_text(errors="replace")
            assert server.process.poll() is None, f"the server ended with {server.process.returncode}: {log[-500:]}"
            assert time.monotonic() < deadline, "the server did not answer in time"


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LiveServer]]:
    """Start another server: `start_server("--requirepass", "x", binary=…, port=…)`."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, binary: Path | None = None, port: int | None = None) -> LiveServer:
        folder = tmp_path_factory.mktemp("server")
        server = _start(binary or servers.binary(), folder, port or free_port(), arguments)
        running.append(server.process)
        _wait_for(server)
        return server

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def shared_server(start_server: Callable[..., LiveServer]) -> Callable[[str | None], LiveServer]:
    """One server of each kind for all tests."""
    return cache(lambda name: start_server(binary=servers.binary(name)))


@pytest.fixture(scope="session")
def app() -> ModuleType:
    """The service's own classes, importable for its pickles. The scanner has no way to import them."""
    spec = importlib.util.spec_from_file_location("app_classes", Path(__file__).with_name("app_classes.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["app_classes"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(request: pytest.FixtureRequest, shared_server: Callable[[str | None], LiveServer]) -> LiveServer:
    """An empty server: the best there is, or each in turn with `on_every_server`."""
    live = shared_server(getattr(request, "param", None))
    with live.client() as client:
        client.flushall()
        client.config_resetstat()
    return live
