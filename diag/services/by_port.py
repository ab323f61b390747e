"""Who listens on a port: of this network, else of any network on this machine (containers) that may be looked into."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

from diag import procfs
from diag.errors import BadInput, CollectorError, Denied
from diag.health import listening
from diag.instruments import netns
from diag.services.found import Found, listed, one_service

PROXY = "docker-proxy"
"""Listens on a published port of a container and passes on what comes: never the service itself."""
MOST_PORTS = 15


def find(port: int) -> Found:
    """Raises BadInput (nobody, or several services), Denied (somebody who may not be seen)."""
    holders = [pid for pid, holds in listening.listeners(port, procfs.pids()).items() if holds]
    here = [pid for pid in holders if netns.is_ours(pid)]
    if here and (behind := [pid for proxy in here for pid in _behind(proxy)]):
        return one_service(behind, f"a container listens behind port {port}")
    if here:
        return one_service(_without_proxies(here, port), f"listens on port {port}")
    if listening.sockets_on(os.getpid(), port):
        raise Denied(f"somebody listens on port {port}, but who it is may not be seen by uid {os.geteuid()}", hint=f"sudo llmdiag snapshot --port {port}")
    if holders:
        return one_service(holders, f"listens on port {port} in a network of its own")
    open_ports = sorted(listening.ports_of(os.getpid()))
    known = ", ".join(map(str, open_ports[:MOST_PORTS])) or "none"
    raise BadInput(f"nobody listens on port {port}", hint=f"ports that somebody listens on: {known}; ss -lntp shows who. Or name the service by PID, --name, --unit, --container")


def _behind(pid: int) -> Sequence[int]:
    """Who listens in the container that a docker-proxy passes on to; nobody for any other process."""
    try:
        words = procfs.argv(pid)
    except CollectorError:
        return ()
    options = dict(pairwise(words))
    address, port = options.get("-container-ip"), options.get("-container-port", "")
    if not words or words[0].rpartition("/")[2] != PROXY or address is None or not port.isdecimal():
        return ()
    return [
        other for other, holds in listening.listeners(int(port), procfs.pids()).items()
        if holds and not netns.is_ours(other) and _has_address(other, address)
    ]


def _without_proxies(pids: Iterable[int], port: int) -> list[int]:
    found = list(pids)
    services = [pid for pid in found if procfs.stat(pid).comm != PROXY]
    if not services:
        raise BadInput(f"port {port} is published by docker, and the container behind it was not found", hint=f"docker ps names it: llmdiag snapshot --container NAME\n{listed(found)}")
    return services


def _has_address(pid: int, address: str) -> bool:
    """Is it an address of the network that the process is in?"""
    with contextlib.suppress(CollectorError):
        return address.encode() in procfs.read(f"/proc/{pid}/net/fib_trie", 1 << 20).split()
    return False
