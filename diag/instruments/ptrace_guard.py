"""Before and after a tool stops a process: who must not be stopped, and what to repair.

A thread in state D cannot be stopped: the tool hangs, the others stay frozen, and a SIGSTOP queued on it goes off when
it wakes. So no tool that stops runs on such a process, and afterwards a thread that was left stopped is let go.
"""

import contextlib
import os
import signal
from collections.abc import Mapping

from diag import procfs
from diag.errors import CollectorError

UNTOUCHABLE = {"D": "uninterruptible", "T": "stopped", "t": "traced", "Z": "a zombie", "X": "dead"}
WATCH_S = 3.0
"""How long a process is watched after it was stopped."""
_SIGSTOP_BIT = 1 << (signal.SIGSTOP - 1)


def states(pid: int) -> dict[int, str]:
    """Thread -> state letter. Raises Vanished or Denied."""
    found: dict[int, str] = {}
    for tid in procfs.tids(pid):
        with contextlib.suppress(CollectorError):
            found[tid] = procfs.stat(pid, tid).state
    return found


def refusal(pid: int) -> str | None:
    """Why the process must not be stopped by a tool; None when it may be. Raises Vanished or Denied."""
    for tid, state in states(pid).items():
        if state in UNTOUCHABLE:
            return f"thread {tid} is {UNTOUCHABLE[state]} (state {state})"
    tracer = procfs.status(pid).get("TracerPid", "0")
    return None if tracer == "0" else f"it is traced by pid {tracer}"


def repair(known: procfs.Identity, before: Mapping[int, str]) -> str | None:
    """Let the process go on when a thread is stopped that was not, or a stop is queued; says what was done."""
    try:
        now = states(known.pid)
        left = sorted(tid for tid, state in now.items() if state == "T" and before.get(tid) != "T")
        queued = [] if left else sorted(tid for tid, state in now.items() if state == "D" and _stop_is_queued(known.pid, tid))
        if not (left or queued) or not procfs.is_same(known):
            return None
        _continue(known)
    except (CollectorError, ProcessLookupError):
        return None
    why = f"thread {left[0]} was left stopped" if left else f"a stop was queued on thread {queued[0]}"
    return f"SIGCONT sent to pid {known.pid}: {why}"


def _stop_is_queued(pid: int, tid: int) -> bool:
    status = procfs.status(pid, tid)
    return any(int(status.get(name, "0"), 16) & _SIGSTOP_BIT for name in ("SigPnd", "ShdPnd"))


def _continue(known: procfs.Identity) -> None:
    descriptor = os.pidfd_open(known.pid)
    try:
        if procfs.is_same(known):
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    finally:
        os.close(descriptor)
