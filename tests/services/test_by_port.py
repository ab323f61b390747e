"""Who listens on a port: here, in a container, behind docker's proxy; and what is said where it is nobody, or several."""

import shutil
import socket
import subprocess
import sys

import pytest

from diag.errors import BadInput, Denied
from diag.services import by_port
from tests.conftest import ROOT
from tests.services.people import LISTENS, can_be_alone, listening, listening_elsewhere, started

alone = pytest.mark.skipif(not can_be_alone(), reason="needs root, unshare and ip")
PREFORK = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0 or os.fork() == 0:
    time.sleep(600)
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_who_listens_is_found() -> None:
    with listening() as person:
        found = by_port.find(person.port)
    assert found.pids == (person.pid,)
    assert found.says.startswith(f"listens on port {person.port}: pid {person.pid}, engine-of-tests -c"), found.says


def test_workers_that_share_a_socket_are_one_service() -> None:
    with started([sys.executable, "-c", PREFORK]) as person:
        assert by_port.find(person.port).pids == (person.pid,)


def test_nobody_listens_and_who_else_does_is_told() -> None:
    port = free_port()
    with listening() as person, pytest.raises(BadInput) as caught:
        by_port.find(port)
    assert caught.value.message == f"nobody listens on port {port}"
    told = caught.value.hint.partition(";")[0]
    assert str(person.port) in told or told.count(",") == by_port.MOST_PORTS - 1, caught.value.hint  # beside tests with servers of theirs


@alone
def test_a_container_with_a_network_of_its_own_is_looked_into() -> None:
    port = free_port()
    with listening_elsewhere(port) as inside:
        found = by_port.find(port)
        assert found.pids == (inside.pid,)
        assert "in a network of its own" in found.says
        with listening(port=port) as here:  # who listens here is meant
            assert by_port.find(port).pids == (here.pid,)


@alone
def test_two_containers_are_listed() -> None:
    port = free_port()
    with listening_elsewhere(port) as one, listening_elsewhere(port) as other, pytest.raises(BadInput) as caught:
        by_port.find(port)
    assert "2 services" in caught.value.message
    assert f"pid {one.pid}, " in caught.value.hint
    assert f"pid {other.pid}, " in caught.value.hint


@alone
def test_the_proxy_of_docker_leads_to_its_container() -> None:
    port = free_port()
    address = "ip addr add {}/32 dev lo"
    argv = ["-c", LISTENS, "127.0.0.1", "0", "-container-ip", "10.213.7.2", "-container-port", str(port)]
    with (
        listening_elsewhere(port, address.format("10.213.7.1")), listening_elsewhere(port, address.format("10.213.7.2")) as inside,
        started(["docker-proxy", *argv], sys.executable) as proxy,
    ):
        found = by_port.find(proxy.port)
    assert found.pids == (inside.pid,)
    assert found.says.startswith(f"a container listens behind port {proxy.port}"), found.says


@pytest.mark.skipif(not can_be_alone() or shutil.which("setpriv") is None, reason="needs root and setpriv to become somebody else")
def test_somebody_who_may_not_be_seen_is_no_nobody() -> None:
    code = "from diag.services import by_port\ntry:\n    by_port.find(PORT)\nexcept Exception as error:\n    print(type(error).__name__, error)"
    with listening() as person:
        done = subprocess.run(
            ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c", code.replace("PORT", str(person.port))],
            capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        )
    if "Permission denied" in done.stderr:
        pytest.skip("this Python may not be run by another user")
    assert done.stdout.startswith(f"{Denied.__name__} somebody listens on port {person.port}"), done
    assert f"sudo llmdiag snapshot --port {person.port}" in done.stdout
