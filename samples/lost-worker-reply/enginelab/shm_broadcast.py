"""One message at a time between two processes, under the names that vLLM's queue has."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAX_BYTES = 1 << 16


class MessageQueue:
    """An end of a socket pair that keeps the borders of messages."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def enqueue(self, **message: Any) -> None:
        self.end.send(json.dumps(message).encode())

    def dequeue(self) -> dict[str, Any]:
        """Waits without a limit. Raises EOFError once the other end is gone."""
        data = self.end.recv(MAX_BYTES)
        if not data:
            raise EOFError
        message: dict[str, Any] = json.loads(data)
        return message


def from_fd(fd: int) -> MessageQueue:
    return MessageQueue(socket.socket(fileno=fd))


def child(python: str, title: str, script: str, *arguments: str) -> tuple[subprocess.Popen[bytes], MessageQueue]:
    """A process of this lab that calls itself `title`, and our end of the queue to it.

    Its end stays open here, too: a worker that dies is not noticed by the socket, as it is not by a queue in shared memory.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [title, "-B", str(HERE / script), "--fd", str(theirs.fileno()), "--python", python, *arguments]
    # with such a name Python does not find its library by itself
    process = subprocess.Popen(argv, executable=python, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONHOME": sys.base_prefix})
    OPEN.append(theirs)
    return process, MessageQueue(ours)


OPEN: list[socket.socket] = []


def option(argv: Sequence[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def fd_and_python(argv: Sequence[str]) -> tuple[int, str]:
    return int(option(argv, "--fd")), option(argv, "--python")
