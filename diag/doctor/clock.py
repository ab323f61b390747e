"""Is the time right? Several hosts are joined by it, and start times of processes are counted from the boot."""

import ctypes
import time
from collections.abc import Iterator

from diag import procfs
from diag.doctor.ground import Check, Ground
from diag.errors import CollectorError

ORDER = 110
UNSYNCHRONISED = 0x40
"""STA_UNSYNC of linux/timex.h."""
JITTER_S = 2.0


class _Timex(ctypes.Structure):
    """The beginning of struct timex on 64-bit Linux; the kernel writes 208 bytes."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256),
    ]


def check(ground: Ground) -> Iterator[Check]:
    """What the kernel says of its clock, and whether a process that was just started counts as that."""
    synchronised = _is_synchronised()
    if synchronised is None:
        yield Check("clock", None, "the kernel does not say whether its clock is synchronised")
    elif synchronised:
        yield Check("clock", True, "synchronised, says the kernel")
    else:
        yield Check("clock", False, "not synchronised: evidence of several hosts may be joined in the wrong order", "sudo timedatectl set-ntp true    # on the host")
    yield _boot_time(ground.own)


def _is_synchronised() -> bool | None:
    """adjtimex() without a change asked for: everybody may."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = _Timex()
    if not hasattr(libc, "adjtimex") or libc.adjtimex(ctypes.byref(state)) < 0:
        return None
    return not state.status & UNSYNCHRONISED


def _boot_time(own: int) -> Check:
    """Our child is some seconds old at most; in a time namespace, or behind a faked /proc, it would not be."""
    try:
        started = procfs.started_s(procfs.stat(own).start_ticks)
    except CollectorError as error:
        return Check("boot time", False, f"start times cannot be read: {error.message}", "sudo llmdiag snapshot PID    # on the host")
    age = time.time() - started
    if -JITTER_S <= age <= 60 + JITTER_S:
        return Check("boot time", True, f"{procfs.utc(procfs.boot_s()):%Y-%m-%d %H:%M:%S} UTC, and start times count from it")
    return Check("boot time", False, f"start times of processes are wrong by {age:+.0f} s (a clock that was set, a time namespace)", "sudo llmdiag snapshot PID    # on the host")
