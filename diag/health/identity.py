"""Did one and the same process answer all reads? Deltas across a restart, or across two backends behind one address, mean nothing.

The ladder, from strong to weak: start time of the process (2 s of jitter are none), uptime or a counter that fell, model or
cache size changed. A start time that goes back, or an identity that returns after another one, is no restart: several backends
take turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from diag.health.track import Backend

JITTER_S = 2.0
"""Start times are wall clock computed from the boot time: a time server's step moves them."""
RECENT = 12
"""Reads in which a return to an earlier identity is looked for."""
CLOSE = 0.1
"""A series returned to another's values when it is above them by at most this share of the distance between the two."""


@dataclass(frozen=True)
class Identity:
    """Reads from `since` on are of one process. `mixed`: a sentence when several backends took turns. `says`: the last change."""

    since: int
    mixed: str | None = None
    says: str | None = None


def identity(backends: Sequence[Backend]) -> Identity:
    """Answered reads in order -> where the present process begins."""
    changes = [change(before, after) for before, after in pairwise(backends)]
    since = max((number + 1 for number, found in enumerate(changes) if found is not None), default=0)
    if since == 0:
        return Identity(0)
    return Identity(since, _mixed(backends[-RECENT:]), changes[since - 1])


@lru_cache(maxsize=4096)
def change(before: Backend, after: Backend) -> str | None:
    """A sentence when these two reads are not of one process."""
    if before.started_at is not None and after.started_at is not None and abs(after.started_at - before.started_at) >= JITTER_S:
        return f"the start time of the process changed by {after.started_at - before.started_at:+.0f} s"
    if before.uptime_s is not None and after.uptime_s is not None and after.uptime_s < before.uptime_s:
        return f"the uptime fell from {before.uptime_s:.0f} to {after.uptime_s:.0f} s"
    for name, old, new in _falls(before, after):
        return f"{name} fell from {old:g} to {new:g}"
    if before.family is not None and after.family is not None and before.names != after.names and before.names and after.names:
        told = ", ".join(sorted(after.names - before.names)) or "fewer labels"
        return f"the backend calls itself otherwise ({told}): restarted, or another one answered"
    return None


def _falls(before: Backend, after: Backend) -> Iterator[tuple[str, float, float]]:
    for engine, point in after.engines.items():
        old = before.engines.get(engine)
        if old is not None:
            yield from ((name, old.counters[name], value) for name, value in point.counters.items() if value < old.counters.get(name, value))


def _mixed(recent: Sequence[Backend]) -> str | None:
    starts = [found.started_at for found in recent if found.started_at is not None]
    clusters: list[float] = []
    for start in starts:
        if clusters and abs(clusters[-1] - start) < JITTER_S:
            clusters[-1] = start
        elif any(abs(known - start) < JITTER_S for known in clusters):
            return "start times return after others: several backends take turns behind this address"
        elif clusters and start < clusters[-1]:
            return f"a process {clusters[-1] - start:.0f} s older answered after a younger one: several backends take turns behind this address"
        else:
            clusters.append(start)
    if len(starts) == len(recent):
        return None
    counts = [_counters(found) for found in recent]
    for number, (a, b) in enumerate(pairwise(counts)):
        if not any(b[key] < value for key, value in a.items() if key in b):
            continue
        if any(_returns(earlier, b, a) for earlier in counts[:number]) or any(_returns(a, later, b) for later in counts[number + 2:]):
            return "counters fall and return to earlier values: several backends take turns behind this address"
    return None


def _counters(found: Backend) -> Mapping[tuple[str | None, str], float]:
    return {(engine, name): value for engine, point in found.engines.items() for name, value in point.counters.items()}


def _returns(earlier: Mapping[tuple[str | None, str], float], later: Mapping[tuple[str | None, str], float], other: Mapping[tuple[str | None, str], float]) -> bool:
    """`later` continues `earlier`, and `other` is far from both in every counter that tells them apart."""
    keys = [key for key in earlier if key in later and key in other]
    if any(later[key] < earlier[key] for key in keys):
        return False
    told = [key for key in keys if other[key] != earlier[key]]
    near = all(later[key] - earlier[key] <= CLOSE * abs(other[key] - earlier[key]) for key in told)
    return bool(told) and near and any(earlier[key] > 0 for key in told)
