"""Thread ids as the host sees them, for tools that report those of another PID namespace or of the C library."""

import os
import platform
import struct
from collections.abc import Mapping

from diag import procfs
from diag.errors import CollectorError

_TID_IN_PTHREAD = {"x86_64": 0x2D0, "aarch64": 0xD0}
"""Offset of `tid` in glibc's struct pthread; a pthread id is the address of that structure."""


def in_other_namespace(pid: int) -> bool:
    """Does the process live in a PID namespace below ours? Raises Vanished or Denied."""
    return len(procfs.status(pid).get("NSpid", "").split()) > 1


def by_inner_id(pid: int) -> Mapping[int, int]:
    """Thread id inside the process's own PID namespace -> thread id on this host. Raises Vanished or Denied."""
    found: dict[int, int] = {}
    for tid in procfs.tids(pid):
        try:
            inner = procfs.status(pid, tid).get("NSpid", "").split()
        except CollectorError:
            continue  # this thread has just ended
        found[int(inner[-1]) if inner else tid] = tid
    return found


def of_pthread(pid: int, pthread_id: int) -> int | None:
    """The (inner) thread id that the C library keeps for a pthread; None when it cannot be read. Reads 4 bytes, pauses nobody."""
    offset = _TID_IN_PTHREAD.get(platform.machine())
    if offset is None:
        return None
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.pread(descriptor, 4, pthread_id + offset)
    except (OSError, OverflowError):
        return None
    finally:
        os.close(descriptor)
    return struct.unpack("=i", data)[0] if len(data) == 4 else None
