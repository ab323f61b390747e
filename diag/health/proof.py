"""What the processes of an engine prove: that they cannot go on, or that they work although no metric moves.

Filled by whoever looked (live by pid, or a recorded folder); judged here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

ENGINE_ROLES = ("engine_core", "worker", "scheduler")
SERVER = "api_server"
STOPPED = "T"
HALTED = {STOPPED: "stopped by a signal", "Z": "dead (zombie)", "X": "dead"}
"""States of /proc that nothing leaves by itself. A tracing stop (t) is not among them: py-spy and debuggers make it for moments."""
DEAD = ("Z", "X")
AT_WORK = re.compile(r":\d+$")
"""Stacks that do not end in a wait end in a line (diag/health/process_evidence.py): idle workers spin, too, but in a wait."""
ASKS_FOR_WORK = "process_input_queue"
"""In the stack of a vLLM EngineCore that has none."""
BUSY_SHARE = 0.05
"""Of one CPU, between two looks: on a crowded machine work gets no more."""
UNINTERRUPTIBLE = "D"


@dataclass(frozen=True)
class ProcessSeen:
    """One process at one look. `stack` is any text that is equal when the stacks of its threads are; None = not looked at."""

    pid: int
    role: str
    state: str
    """R S D T t Z X as the kernel says; with threads in several states the one of the main thread."""
    started_at: float | None = None
    """Epoch seconds: identity is pid and start."""
    cpu_s: float | None = None
    """CPU seconds used so far, user and system."""
    stack: str | None = None
    listens: bool | None = None
    """It holds a socket that listens on the port of the backend; None = not known."""


@dataclass(frozen=True)
class Look:
    """All processes of the service at one moment; a list of none says that there were none."""

    processes: tuple[ProcessSeen, ...] = ()
    ts: float | None = None
    monotonic_s: float | None = None


@dataclass(frozen=True)
class ProcessEvidence:
    """Looks in order, one per read where they were made together. `gone` is said of the pid that was asked for."""

    looks: tuple[Look, ...] = field(default_factory=tuple)
    gone: bool = False
    """The target itself no longer exists (or its pid belongs to another process now)."""


def halted(evidence: ProcessEvidence | None) -> str | None:
    """A sentence when an engine process was stopped, dead or gone at each of the last two looks (or at the only one)."""
    if evidence is None or not evidence.looks:
        return None
    last = evidence.looks[-2:]
    known = {(seen.pid, seen.started_at): seen for look in evidence.looks for seen in look.processes if seen.role in ENGINE_ROLES}
    for key, seen in known.items():
        found = [_at(look, key) for look in last]
        states = {None if item is None else item.state for item in found}
        if states <= {*HALTED, None}:
            if _was_replaced(seen, last[-1]):
                continue
            what = "gone" if None in states else HALTED[found[-1].state]  # type: ignore[union-attr]
            return f"{seen.role} {seen.pid} is {what}{' at both looks' if len(last) == 2 else ''}"
    return None


def gone(evidence: ProcessEvidence | None) -> str | None:
    """A sentence when whoever answered requests is gone, also if parts of the engine outlived him."""
    if evidence is None:
        return None
    if not evidence.gone and not _server_gone(evidence):
        return None
    left = [seen for seen in _living(evidence.looks[-1]) if seen.role in ENGINE_ROLES] if evidence.looks else []
    names = ", ".join(f"{seen.role} {seen.pid}" for seen in left)
    return f"its process is gone, though {names} {'lives' if len(left) == 1 else 'live'} on" if left else "its process is gone"


def outlived(evidence: ProcessEvidence | None) -> bool:
    """The service that was looked at is gone as a whole, so that what answers now is another one, and these looks say nothing of it."""
    return evidence is not None and _server_gone(evidence)


def none_runs(evidence: ProcessEvidence | None) -> str | None:
    """A sentence when there were engine processes, and at each of the last two looks none of them could run."""
    if evidence is None or len(evidence.looks) < 2:
        return None
    known = {(seen.role, seen.pid): None for look in evidence.looks for seen in _engine(look)}
    last = evidence.looks[-2:]
    if not known or any(seen.state not in HALTED for look in last for seen in _engine(look)):
        return None
    stopped = [f"{seen.role} {seen.pid}" for seen in _living(last[-1]) if seen.role in ENGINE_ROLES]
    names = ", ".join(stopped) or ", ".join(f"{role} {pid}" for role, pid in known)
    how = "stopped by a signal" if stopped else "gone"
    return f"{names} {'is' if len(stopped or known) == 1 else 'are'} {how} at both looks"


def stopped(evidence: ProcessEvidence | None) -> tuple[str, bool] | None:
    """(sentence, whether it is proof) when a process was stopped at the last two looks: proof if all who listen for the backend are."""
    if evidence is None or len(evidence.looks) < 2:
        return None
    before, after = evidence.looks[-2:]
    still = [seen for seen in after.processes if seen.state == STOPPED and (old := _at(before, (seen.pid, seen.started_at))) is not None and old.state == STOPPED]
    if not still:
        return None
    owners = [seen for seen in after.processes if seen.listens]
    names = ", ".join(_called(seen) for seen in owners or still)
    said = f"{names} {'is' if len(owners or still) == 1 else 'are'} stopped by a signal at both looks"
    if owners:
        return (f"{said}, and listens on its port", True) if all(seen in still for seen in owners) else None
    known = all(seen.listens is not None for seen in after.processes)
    return f"{said}, but {'does not listen on its port' if known else 'whether it listens on its port could not be read'}: that proves nothing about this backend", False


def _called(seen: ProcessSeen) -> str:
    return f"process {seen.pid} (not recognised as part of an engine)" if seen.role == "other" else f"{seen.role} {seen.pid}"


def waits(evidence: ProcessEvidence) -> bool:
    """There is no engine process, and nothing of the service used CPU between the last two looks: it loads nothing."""
    if len(evidence.looks) < 2 or _engine(evidence.looks[-1]):
        return False
    before, after = evidence.looks[-2:]
    used = [None if old is None or old.cpu_s is None or seen.cpu_s is None else seen.cpu_s - old.cpu_s
            for seen in after.processes for old in (_at(before, (seen.pid, seen.started_at)),)]
    known = [seconds for seconds in used if seconds is not None]
    return len(known) == len(used) and sum(known) < 0.05


def _server_gone(evidence: ProcessEvidence) -> bool:
    """There were processes, and none is left; or none of those that answer requests at two looks, so that nobody is between two of them."""
    looks = evidence.looks
    if not any(look.processes for look in looks):
        return False
    if not _living(looks[-1]):
        return True
    served = any(seen.role == SERVER for look in looks for seen in look.processes)
    return served and len(looks) > 1 and not any(seen.role == SERVER for look in looks[-2:] for seen in _living(look))


def _living(look: Look) -> tuple[ProcessSeen, ...]:
    return tuple(seen for seen in look.processes if seen.state not in DEAD)


def frozen_s(evidence: ProcessEvidence | None) -> tuple[float, str] | None:
    """(seconds, sentence) over which no engine process used CPU and no stack changed, over three looks at least; None = not so."""
    if evidence is None:
        return None
    looks = evidence.looks
    first = len(looks) - 1
    while first > 0 and _same(looks[first - 1], looks[first]):
        first -= 1
    held = looks[first:]
    if len(held) < 3:
        return None
    seconds = _seconds(held[0], held[-1])
    if seconds is None:
        return None
    stuck = [seen for seen in _engine(held[-1]) if seen.state == UNINTERRUPTIBLE]
    names = ", ".join(f"{seen.role} {seen.pid}" for seen in stuck or _engine(held[-1]))
    what = "sleeps uninterruptibly" if stuck else "uses no CPU and does not leave its stack"
    return seconds, f"{names} {what} over {len(held)} looks in {seconds:.0f} s"


def works(evidence: ProcessEvidence | None) -> str | None:
    """A sentence when the engine's processes run and their stacks changed between the last two looks."""
    if evidence is None or len(evidence.looks) < 2 or halted(evidence) is not None:
        return None
    before, after = evidence.looks[-2:]
    doers = [seen for seen in _engine(after) if seen.role == "worker"] or list(_engine(after))
    cores = [seen for seen in _engine(after) if seen.role != "worker"]
    if not doers or any(seen.state in HALTED or seen.state == UNINTERRUPTIBLE for seen in (*doers, *cores)):
        return None
    if not all(_moves(_at(before, (seen.pid, seen.started_at)), seen) for seen in doers):
        return None
    return f"{', '.join(f'{seen.role} {seen.pid}' for seen in doers)} ran and changed its stack between the last two looks"


def computes(evidence: ProcessEvidence | None) -> tuple[float, str] | None:
    """(seconds, sentence) over which a worker used CPU outside of its waits and no EngineCore waited for requests; None = not so.

    That is work or a loop without end: which of both it is, it does not say. Schedulers are left out: SGLang's turns when idle, too.
    """
    if evidence is None or halted(evidence) is not None:
        return None
    looks = evidence.looks
    doers: tuple[ProcessSeen, ...] = ()
    first = len(looks) - 1
    while first > 0 and (found := _computing(looks[first - 1], looks[first])):
        doers, first = doers or found, first - 1
    seconds = _seconds(looks[first], looks[-1]) if doers else None
    if seconds is None:
        return None
    return seconds, f"{', '.join(f'{seen.role} {seen.pid}' for seen in doers)} computed at each of {len(looks) - first} looks in {seconds:.0f} s"


def _computing(before: Look, after: Look) -> tuple[ProcessSeen, ...]:
    seconds = _seconds(before, after)
    if seconds is None or seconds <= 0 or any(seen.stack is not None and ASKS_FOR_WORK in seen.stack for look in (before, after) for seen in _engine(look)):
        return ()
    pairs = [(_at(before, (seen.pid, seen.started_at)), seen) for seen in _engine(after) if seen.role == "worker"]
    return tuple(
        new for old, new in pairs
        if old is not None and old.cpu_s is not None and new.cpu_s is not None and new.cpu_s - old.cpu_s >= BUSY_SHARE * seconds
        and all(seen.stack is not None and AT_WORK.search(seen.stack) for seen in (old, new))
    )


def _engine(look: Look) -> tuple[ProcessSeen, ...]:
    return tuple(seen for seen in look.processes if seen.role in ENGINE_ROLES)


def _at(look: Look, key: tuple[int, float | None]) -> ProcessSeen | None:
    return next((seen for seen in look.processes if (seen.pid, seen.started_at) == key), None)


def _was_replaced(seen: ProcessSeen, look: Look) -> bool:
    """Another, later started process of the same role is there: that one is the engine now."""
    later: Iterator[ProcessSeen] = (
        other for other in look.processes
        if other.role == seen.role and other.state not in HALTED and (other.pid, other.started_at) != (seen.pid, seen.started_at)
    )
    return any(None not in (other.started_at, seen.started_at) and other.started_at > seen.started_at for other in later)  # type: ignore[operator]


def _same(before: Look, after: Look) -> bool:
    """No engine process used CPU or changed its stack; unknown stacks or CPU times prove nothing."""
    pairs = [(_at(before, (seen.pid, seen.started_at)), seen) for seen in _engine(after)]
    return bool(pairs) and all(
        old is not None and old.stack is not None and old.stack == seen.stack
        and old.cpu_s is not None and seen.cpu_s is not None and seen.cpu_s - old.cpu_s < 0.05
        for old, seen in pairs
    )


def _moves(old: ProcessSeen | None, new: ProcessSeen) -> bool:
    """It used CPU (or was on one) and its stack is another one."""
    if old is None or old.stack is None or new.stack is None or old.stack == new.stack:
        return False
    used = None if old.cpu_s is None or new.cpu_s is None else new.cpu_s - old.cpu_s
    return new.state == "R" or (used is not None and used > 0.05)


def _seconds(first: Look, last: Look) -> float | None:
    if first.monotonic_s is not None and last.monotonic_s is not None:
        return last.monotonic_s - first.monotonic_s
    return None if first.ts is None or last.ts is None else last.ts - first.ts
