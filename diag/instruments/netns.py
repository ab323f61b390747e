"""Sockets in the network of another process: its 127.0.0.1 is not ours when it runs in a container.

The network namespace is entered by a thread that ends right after: no other thread of llmdiag leaves its own.
"""

import ctypes
import os
import socket
import threading
from pathlib import Path

from diag.errors import Absent, Denied, Vanished

CLONE_NEWNET = 0x40000000
STREAM = socket.SOCK_STREAM


def of(pid: int | str) -> int | None:
    """Identity of the network namespace of a process; None when it cannot be seen."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def is_ours(pid: int) -> bool:
    """Does the process share our network? What cannot be seen is taken for shared: most are."""
    return of(pid) in (None, of("self"))


def open_socket(pid: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket in the network of `pid`. Raises Denied, Vanished or Absent (no such protocol here)."""
    if is_ours(pid):
        return _socket(family, kind, protocol)
    made: list[socket.socket | Exception] = []

    def enter() -> None:
        try:
            _enter(pid)
            made.append(_socket(family, kind, protocol))
        except (Denied, Vanished, Absent) as error:
            made.append(error)

    thread = threading.Thread(target=enter, name="llmdiag-netns", daemon=True)
    thread.start()
    thread.join()
    result = made[0]
    if isinstance(result, Exception):
        raise result
    return result


def _socket(family: int, kind: int, protocol: int) -> socket.socket:
    try:
        return socket.socket(family, kind, protocol)
    except PermissionError as error:
        raise Denied(f"cannot open a socket: {error.strerror}", hint="run llmdiag as root") from error
    except OSError as error:
        raise Absent(f"this machine has no such sockets: {error.strerror}") from error


def _enter(pid: int) -> None:
    """Move the calling thread into the network namespace of `pid`."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Vanished(f"process {pid} ended") from error
    except OSError as error:
        raise _denied(pid, error.strerror or "not allowed") from error
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise _denied(pid, os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _denied(pid: int, why: str) -> Denied:
    return Denied(
        f"process {pid} has a network of its own (container) that cannot be entered: {why}",
        hint=f"run llmdiag as root, or inside the container, or: nsenter -t {pid} -n llmdiag …",
    )
