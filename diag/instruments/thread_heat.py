"""Is a process busy enough to look closer? From the scheduler's counters between two looks, without pausing anybody.

Coarser on purpose than the activity classes of a diagnosis: a process looked at for nothing costs little, one that
was not looked at costs the proof.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from diag import procfs
from diag.errors import CollectorError

MIN_GAP_S = 0.2
RUNNABLE = 0.4
"""Share of the time that a thread ran or waited for a CPU."""
SWITCHES_PER_S = 30.0

_Look = Mapping[int, tuple[float, int]]
"""Thread -> (seconds runnable since its start, times it was put on a CPU)."""


@dataclass
class Heat:
    """Remembers the last look at one process. `hot` stays true once it was."""

    pid: int
    hot: bool = False
    _look: _Look = field(default_factory=dict)
    _at: float = 0.0

    def look(self) -> bool:
        """Compare with the last look, if that is long enough ago; a process that cannot be looked at is not hot."""
        now = time.monotonic()
        gap = now - self._at
        if self._look and gap < MIN_GAP_S:
            return self.hot
        look = _look(self.pid)
        if self._look:
            self.hot = self.hot or any(_is_hot(self._look[tid], look[tid], gap) for tid in look.keys() & self._look.keys())
        self._look, self._at = look, now
        return self.hot


def _is_hot(before: tuple[float, int], after: tuple[float, int], gap_s: float) -> bool:
    return (after[0] - before[0]) / gap_s >= RUNNABLE or (after[1] - before[1]) / gap_s >= SWITCHES_PER_S


def _look(pid: int) -> _Look:
    found: dict[int, tuple[float, int]] = {}
    with contextlib.suppress(CollectorError):
        for tid in procfs.tids(pid):
            with contextlib.suppress(CollectorError):
                found[tid] = _counters(pid, tid)
    return found


def _counters(pid: int, tid: int) -> tuple[float, int]:
    """From schedstat; where the kernel keeps none, CPU time and no count of switches."""
    try:
        run_ns, wait_ns, slices = procfs.read(f"{procfs.place(pid, tid)}/schedstat").split()
        return (int(run_ns) + int(wait_ns)) / 1e9, int(slices)
    except (CollectorError, ValueError):
        stat = procfs.stat(pid, tid)
        return (stat.user_ticks + stat.sys_ticks) / procfs.TICKS_PER_S, 0
