"""Where in its work every thread is, in words of the engine: idle, scheduling, waiting for workers, for peers, for the device.

A place must be the same in all samples to be called one. The stack of a process that is stopped shows where it was, not what
it waits for: its place is `stopped`. Then who waits for whom, and which rank is not where the others
are, follow from comparing processes.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from diag import places
from diag.looks import Look, looks
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("stacks",)
WANTS = ("process_roles", "processes")
GIVES: tuple[Table, ...] = (
    table(
        "thread_places",
        "Where in its work each thread is, over all samples",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: thread",
        "thread VARCHAR: Python name of the thread",
        "main BOOLEAN: the main thread, which runs the loop of an engine process (of a dump without names, whoever runs it)",
        "role VARCHAR: role of its process; NULL = not known",
        "rank VARCHAR: its place in the group as the process's title says, DP0 TP3; NULL = it does not",
        "place VARCHAR: as diag/places names it, the same in all samples; mixed = several, stopped = its process is, at every look; NULL = none that is known",
        "says VARCHAR: the place in words",
        "rest BOOLEAN: it is where such a thread is when there is nothing to do",
        "waits_for VARCHAR: whom it waits for there: a role, device, peers, cache, threads; NULL = nobody",
        "phase VARCHAR: startup | serving | shutdown; NULL = the stack does not say",
        "samples BIGINT: whole stacks of this thread", "of BIGINT: samples taken of its process",
        "same BOOLEAN: one and the same stack, lines included, in all samples; NULL = one sample",
        "span_s DOUBLE: between first and last sample; NULL = one sample, or they have no time",
        "last_ts TIMESTAMP: when the last sample was taken; NULL = it has no time",
        "active_samples BIGINT: samples in which the dumping tool saw it on a CPU",
        "gil_samples BIGINT: samples in which it held the GIL",
        "asleep_with_gil BIGINT: samples in which it held the GIL and was on no CPU; NULL = a text dump of an idle thread, which does not say",
        "leaf VARCHAR: innermost function in the last sample", "chain VARCHAR: innermost functions of the last sample, innermost first, joined by <-",
    ),
    table(
        "odd_ranks",
        "Main threads of one role that are not where most of their kind are",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: its main thread",
        "role VARCHAR: role that is compared", "rank VARCHAR: its place in the group; NULL = not known",
        "place VARCHAR: where it is; NULL = nowhere that is known", "says VARCHAR: the place in words",
        "chain VARCHAR: innermost functions, innermost first, joined by <-",
        "crowd_place VARCHAR: where most of the others are", "crowd_says VARCHAR: that place in words",
        "crowd BIGINT: how many are there", "of BIGINT: processes of that role with stacks", "hosts BIGINT: hosts that they are on",
    ),
)

PROCESS = ("bundle", "host", "capture", "pid")
STOPPED, SAYS_STOPPED = "stopped", "is stopped: by a signal, a tracer or a freezer"
CHAIN_FRAMES = 5
RANK = re.compile(r"(?:^|[_\s:-])((?:DP|PP|TP|EP|PCP|DCP)_?\d+|rank[_ ]?\d+)(?=\D|$)", re.IGNORECASE)


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """stacks (+ process_roles, processes) -> thread_places, odd_ranks."""
    import pandas as pd

    all_looks = sorted(looks(frames["stacks"]), key=lambda look: (look.sample is None, look.sample))
    if not all_looks:
        return {}
    roles = _roles(frames.get("process_roles"))
    taken: dict[_Who, set[object]] = {}
    threads = _threads(all_looks, taken)
    stacks = {look.packed: _Stack.of(look) for look in {look.packed: look for look in all_looks}.values()}
    found = [_thread(who, samples, stacks, roles.get(who[:4], (None, None)), len(taken[who[:4]])) for who, samples in threads.items()]
    stopped = _stopped(frames.get("processes"))
    found = [row if who[:4] not in stopped else {**row, **_HELD} for who, row in zip(threads, found, strict=True)]
    odd = _odd([row for row in found if row["main"]])
    given = {"thread_places": pd.DataFrame(found)} if found else {}
    return {**given, "odd_ranks": pd.DataFrame(odd)} if odd else given


def rank_in(title: str | None) -> str | None:
    """`VLLM::Worker_DP0_TP3` -> `DP0 TP3`; None: the title names no rank."""
    found = RANK.findall(title or "")
    return " ".join(re.sub("[_ ]", "", part) for part in found) or None


_Who = tuple[object, ...]


class _Stack(NamedTuple):
    """What a stack means, leaf first."""

    frames: tuple[places.Frame, ...]
    place: places.Place | None
    phase: str | None

    @classmethod
    def of(cls, look: Look) -> "_Stack":
        frames = tuple(places.frame(frame.func, frame.file, frame.native) for frame in look.stack)
        return cls(frames, places.place_of(frames), places.phase_of(frames))


def _roles(rows: "pd.DataFrame | None") -> dict[_Who, tuple[str | None, str | None]]:
    """Process -> its role and rank."""
    import pandas as pd

    found: dict[_Who, tuple[str | None, str | None]] = {}
    if rows is None:
        return found
    for *who, role, cmd in zip(*(rows[name] for name in (*PROCESS, "role", "cmd")), strict=True):
        key = tuple(None if pd.isna(part) else part for part in who)
        found[key] = (None if role == "other" else role, rank_in(None if pd.isna(cmd) else cmd))
    return found


_HELD = {"place": STOPPED, "says": SAYS_STOPPED, "rest": None, "waits_for": None, "phase": None}


def _stopped(rows: "pd.DataFrame | None") -> set[_Who]:
    """Processes that the kernel calls stopped (T) or traced (t), or that a freezer holds, at every look."""
    if rows is None or rows.empty:
        return set()
    import pandas as pd

    held: dict[_Who, list[bool]] = {}
    for *who, state, frozen_by in zip(*(rows[name] for name in (*PROCESS, "state", "frozen_by")), strict=True):
        if not pd.isna(state):
            held.setdefault(tuple(None if pd.isna(part) else part for part in who), []).append(state in ("T", "t") or not pd.isna(frozen_by))
    return {who for who, looks in held.items() if all(looks)}


def _threads(looked: Sequence[Look], taken: dict[_Who, set[object]]) -> dict[_Who, list[Look]]:
    """Thread -> the looks that showed a whole stack, first sample first; `taken` is told the samples of each process."""
    found: dict[_Who, list[Look]] = {}
    for look in looked:
        who = (look.bundle, look.host, look.capture, look.pid, look.tid)
        taken.setdefault(who[:4], set()).add(look.sample)
        if look.whole is not False:
            found.setdefault(who, []).append(look)
    return found


def _thread(who: _Who, samples: Sequence[Look], stacks: Mapping[str, _Stack], role_rank: tuple[str | None, str | None], of: int) -> dict[str, Any]:
    """One row of thread_places."""
    different = {look.packed: stacks[look.packed] for look in samples}
    names = {None if stack.place is None else stack.place.id for stack in different.values()}
    last = samples[-1]
    frames, place, _ = stacks[last.packed]
    place = place if len(names) == 1 else None
    phases = {stack.phase for stack in different.values() if stack.phase is not None}
    times = [look.ts for look in samples if look.ts is not None]
    gil = [look.owns_gil for look in samples]
    return {
        **dict(zip((*PROCESS, "tid"), who, strict=True)),
        "started_at": last.started_at, "source": last.source(0), "thread": last.thread,
        "main": last.thread == "MainThread" or (who[4] is not None and who[4] == who[3]) or (last.thread is None and bool(phases)),
        "role": role_rank[0], "rank": role_rank[1],
        "place": "mixed" if len(names) > 1 else None if place is None else place.id,
        "says": None if place is None else place.says, "rest": None if place is None else place.rest,
        "waits_for": (place.waits_for or None) if place is not None else None,
        "phase": phases.pop() if len(phases) == 1 else "startup" if "startup" in phases else None,
        "samples": len(samples), "of": of, "same": None if len(samples) < 2 else len(different) == 1,
        "span_s": (max(times) - min(times)).total_seconds() if len(times) > 1 else None, "last_ts": max(times, default=None),
        "active_samples": sum(look.active is True for look in samples), "gil_samples": sum(held is True for held in gil),
        "asleep_with_gil": None if None in gil else sum(look.owns_gil is True and look.active is False for look in samples),
        "leaf": frames[0].func, "chain": " <- ".join(frame.func for frame in frames[:CHAIN_FRAMES]),
    }


def _odd(mains: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of odd_ranks: a crowd is more than half of at least two processes of one role."""
    found: list[dict[str, Any]] = []
    for members in _groups(mains):
        counts = Counter(row["place"] for row in members if row["place"] not in (None, STOPPED))
        if len(members) < 2 or not counts:
            continue
        crowd, size = counts.most_common(1)[0]
        if 2 * size <= len(members):
            continue
        same = ("bundle", "host", "capture", "pid", "started_at", "tid", "role", "rank", "place", "says", "chain", "source")
        found += [
            {
                **{name: row[name] for name in same}, "crowd_place": crowd, "crowd_says": places.says(crowd), "crowd": size, "of": len(members),
                "hosts": len({row["host"] for row in members}),
            }
            for row in members
            if row["place"] != crowd
        ]
    return found


def _groups(mains: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Those that are compared: of one role in one bundle; over all hosts where every rank is there once, as replicas would not be."""
    roles: dict[str, list[Mapping[str, Any]]] = {}
    for row in mains:
        if row["role"] is not None:
            roles.setdefault(row["role"], []).append(row)
    groups: list[list[Mapping[str, Any]]] = []
    for members in roles.values():
        parts: dict[_Who, list[Mapping[str, Any]]] = {}
        for row in members:
            parts.setdefault((row["bundle"], row["capture"]), []).append(row)
        ranks = {row["rank"] for row in members}
        is_one = len(parts) == len({row["host"] for row in members}) and None not in ranks and len(ranks) == len(members)
        groups += [members] if is_one else parts.values()
    return groups
