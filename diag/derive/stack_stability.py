"""What stays the same in a thread's stack over all samples: the deepest common caller, and what varies below it.

A hung thread's leaf may differ at every look; the function it never leaves does not.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from diag.looks import Look, looks
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("stacks",)
GIVES: tuple[Table, ...] = (
    table(
        "stack_stability",
        "Per thread: what its stack has in common over all samples",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: thread",
        "thread VARCHAR: Python name of the thread",
        "samples BIGINT: whole stacks of this thread",
        "of BIGINT: samples taken of its process",
        "stacks BIGINT: distinct stacks among them",
        "common BIGINT: frames in common, counted from the thread's entry",
        "ancestor VARCHAR: deepest function common to all samples",
        "ancestor_file VARCHAR: its file",
        "chain VARCHAR: the innermost common functions, innermost first, joined by <-",
        "leaves VARCHAR: distinct innermost functions seen, joined by comma",
        "gil_samples BIGINT: samples in which it held the GIL",
        "first_ts TIMESTAMP: first sample", "last_ts TIMESTAMP: last sample",
    ),
)

Frame = tuple[str, str]
CHAIN_FRAMES = 4


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """stacks -> stack_stability. Native frames differ below the same Python call, and do not count."""
    import pandas as pd

    python: dict[str, list[Frame]] = {}
    taken: dict[tuple[object, ...], set[int | None]] = {}
    threads: dict[tuple[object, ...], list[Look]] = {}
    for look in looks(frames["stacks"]):
        if look.packed not in python:
            python[look.packed] = [(frame.func, frame.file) for frame in reversed(look.stack) if not frame.native]
        if not python[look.packed]:
            continue
        taken.setdefault((look.bundle, look.capture, look.pid), set()).add(look.sample)  # a dump may name no process
        if look.whole is not False:
            threads.setdefault((look.bundle, look.host, look.capture, look.pid, look.tid), []).append(look)
    out = []
    for samples in threads.values():
        first = samples[0]
        ordered = sorted(samples, key=lambda look: (look.sample is None, look.sample))
        out.append(_stability(_rooted(ordered, python), python, len(taken[first.bundle, first.capture, first.pid])))
    return {"stack_stability": pd.DataFrame(out)} if out else {}


def _rooted(samples: Sequence[Look], python: Mapping[str, list[Frame]]) -> list[Look]:
    """The samples of one thread that begin at its usual entry: a torn stack begins somewhere in the middle."""
    if len({look.packed for look in samples}) == 1:
        return list(samples)
    entries = [python[look.packed][0][0] for look in samples]
    roots = Counter(entries)
    usual = max(sorted(roots), key=lambda name: roots[name])
    return [look for look, entry in zip(samples, entries, strict=True) if entry == usual]


def common_callers(stacks: Sequence[Sequence[Frame]]) -> list[Frame]:
    """Stacks root first -> their longest common beginning."""
    if len(stacks) == 1:
        return list(stacks[0])
    common: list[Frame] = []
    for level in zip(*stacks, strict=False):
        if any(frame != level[0] for frame in level):
            break
        common.append(level[0])
    return common


def _stability(samples: Sequence[Look], python: Mapping[str, list[Frame]], of: int) -> dict[str, object]:
    """One row from the looks at a thread, in the order of the samples."""
    different = {look.packed: python[look.packed] for look in samples}
    common = common_callers(list(different.values()))
    last = samples[-1]
    leaf = next(depth for depth, frame in enumerate(last.stack) if not frame.native)
    times = [look.ts for look in samples if look.ts is not None]
    return {
        **{name: getattr(last, name) for name in ("bundle", "host", "capture", "pid", "tid", "started_at", "thread")},
        "source": last.source(leaf), "of": of,
        "samples": len(samples), "stacks": len({tuple(stack) for stack in different.values()}),
        "common": len(common),
        "ancestor": common[-1][0] if common else None, "ancestor_file": common[-1][1] if common else None,
        "chain": " <- ".join(func for func, _ in reversed(common[-CHAIN_FRAMES:])) if common else None,
        "leaves": ", ".join(sorted({stack[-1][0] for stack in different.values()})),
        "gil_samples": sum(look.owns_gil is True for look in samples),
        "first_ts": min(times, default=None), "last_ts": max(times, default=None),
    }
