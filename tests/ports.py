"""Ports for the servers that tests start.

None that the kernel hands out by itself, none that another worker of pytest-xdist draws, and none twice:
who still talks to a server that has ended must not meet that of another test.
"""

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator

BUS = 10_000
"""The bus of a cluster node listens so far above its port."""
FIRST, END = 12_000, 22_700
"""With their buses they end below 32768, where the kernel begins to pick for itself."""


def _of_this_worker() -> Iterator[int]:
    worker, workers = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(FIRST + worker, END, workers)
    start = random.randrange(len(mine))  # two runs side by side know nothing of each other
    return itertools.cycle([*mine[start:], *mine[:start]])


_PORTS = _of_this_worker()


def free_port() -> int:
    """A port of 127.0.0.1 that is free, and so is that of its bus."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            return port
    raise AssertionError("the ports go round")
