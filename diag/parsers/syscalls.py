"""`/proc/PID/task/TID/syscall` -> which system call, and which descriptor or lock it waits on.

    202 0x7fb5e114e6f0 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd1c0 0x7fb5e1
    running
    -1 0x7ffd1c0 0x7fb5e1

Number and six arguments, then stack and instruction pointer; `running` on a CPU; `-1` stopped outside any call.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

FD_FIRST: Mapping[str, frozenset[int]] = {
    "x86_64": frozenset((0, 1, 16, 17, 18, 19, 20, 42, 43, 44, 45, 46, 47, 73, 232, 281, 288, 299, 307, 426, 441)),
    "aarch64": frozenset((22, 29, 32, 63, 64, 65, 66, 67, 68, 202, 203, 206, 207, 211, 212, 242, 243, 269, 426, 441)),
}
"""Calls whose first argument is a descriptor they may wait on: read, write, recv…, send…, accept, connect, epoll_wait, ioctl."""
POLL: Mapping[str, frozenset[int]] = {"x86_64": frozenset((7, 271)), "aarch64": frozenset((73,))}
"""poll and ppoll: the first argument points to a list of descriptors, the second is its length."""
MAX_FD = 1 << 20
FUTEX: Mapping[str, int] = {"x86_64": 202, "aarch64": 98}
"""futex: the first argument is the address of a word, the second what to do, the third the value it is expected to have."""
FUTEX_WAITS = frozenset((0, 128))
"""FUTEX_WAIT and FUTEX_WAIT_PRIVATE. Semaphores (Python's own locks) and waits with a timeout ask for other operations."""
CONTENDED = 2
"""A pthread mutex that is locked while somebody waits for it."""
MUTEX_BYTES = 20
"""`int lock; unsigned count; int owner; unsigned nusers; int kind`: where a 64-bit glibc begins a pthread_mutex_t."""
MUTEX_KINDS = 0x400


class Call(NamedTuple):
    """A system call a thread is in; arguments as unsigned numbers."""

    number: int
    arguments: tuple[int, ...]


class Lock(NamedTuple):
    """What a lock says of itself: its word, and its owner's thread id as the process itself knows it.

    No owner: nobody holds it by now, or it is no pthread mutex (the C library's inner locks are waited for in the same
    way but do not say who holds them).
    """

    word: int
    owner: int | None


def call(text: str) -> Call | None:
    """One line -> the call; None when the thread runs, or is in none."""
    cells = text.split()
    try:
        number, arguments = int(cells[0]), tuple(int(cell, 16) for cell in cells[1:7])
    except (ValueError, IndexError):
        return None
    return Call(number, arguments) if number >= 0 and len(arguments) == 6 else None


def descriptor(found: Call, machine: str) -> int | None:
    """The descriptor it waits on, where the arguments tell."""
    first = found.arguments[0] & 0xFFFFFFFF
    return first if found.number in FD_FIRST.get(machine, frozenset()) and first < MAX_FD else None


def poll_list(found: Call, machine: str) -> int | None:
    """Address of the single `struct pollfd` it polls; None for any other call and for longer lists."""
    return found.arguments[0] if found.number in POLL.get(machine, frozenset()) and found.arguments[1] == 1 else None


def polled(entry: bytes) -> int | None:
    """`struct pollfd` -> its descriptor; None when the bytes do not look like one (the call had returned)."""
    fd, events = int.from_bytes(entry[:4], "little"), int.from_bytes(entry[4:6], "little")
    return fd if len(entry) == 8 and fd < MAX_FD and 0 < events < 0x4000 else None


def mutex(found: Call, machine: str) -> int | None:
    """Address of the lock it waits for, where it waits as one does for a pthread mutex; None for any other call."""
    address, operation, expected = found.arguments[:3]
    waits = found.number == FUTEX.get(machine) and operation & 0xFFFFFFFF in FUTEX_WAITS
    return address if waits and expected & 0xFFFFFFFF == CONTENDED else None


def lock(begin: bytes) -> Lock | None:
    """The first bytes of a lock -> what they say; None when they could not be read."""
    if len(begin) < MUTEX_BYTES:
        return None
    word, _, owner, users, kind = struct.unpack("<iIiIi", begin[:MUTEX_BYTES])
    held = word == CONTENDED and owner > 0 and users > 0 and 0 <= kind < MUTEX_KINDS
    return Lock(word, owner if held else None)
