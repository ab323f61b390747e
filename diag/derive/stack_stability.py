"""What stays the same in a thread's stack over all samples: the deepest common caller, and what varies below it.

A hung thread's leaf may differ at every look; the function it never leaves does not.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("stack_frames",)
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
THREAD = ("bundle", "host", "capture", "pid", "tid")
USED = ("started_at", "thread", "source", "of", "ts", "owns_gil")


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """stack_frames -> stack_stability. Plain lists inside: a frame per thread costs a second at 200 threads."""
    import pandas as pd

    rows = frames["stack_frames"]
    rows = rows[rows["native"].ne(True) | rows["native"].isna()]  # native frames differ below the same Python call
    if rows.empty:
        return {}
    taken = rows.groupby(["bundle", "capture", "pid"], dropna=False)["sample"].transform("nunique")  # a dump may name no process
    rows = rows.assign(of=taken, number=rows.groupby([*THREAD], dropna=False, sort=False).ngroup())
    whole = rows[rows["whole"].ne(False) | rows["whole"].isna()]
    ordered = whole.sort_values(["number", "sample", "depth"], ascending=[True, True, False])
    columns = {name: ordered[name].tolist() for name in (*THREAD, *USED)}
    columns |= {name: ordered[name].fillna("?").tolist() for name in ("func", "file")}
    threads: dict[int, dict[int, list[int]]] = {}
    for position, (number, sample) in enumerate(zip(ordered["number"].tolist(), ordered["sample"].tolist(), strict=True)):
        threads.setdefault(number, {}).setdefault(sample, []).append(position)
    out = [_stability(columns, _rooted(columns["func"], samples)) for samples in threads.values()]
    return {"stack_stability": pd.DataFrame(out)} if out else {}


def _rooted(func: Sequence[str], samples: Mapping[int, list[int]]) -> list[list[int]]:
    """The samples of one thread that begin at its usual entry: a torn stack begins somewhere in the middle."""
    roots = Counter(func[stack[0]] for stack in samples.values())
    usual = max(sorted(roots), key=lambda name: roots[name])
    return [stack for stack in samples.values() if func[stack[0]] == usual]


def common_callers(stacks: Sequence[Sequence[Frame]]) -> list[Frame]:
    """Stacks root first -> their longest common beginning."""
    common: list[Frame] = []
    for level in zip(*stacks, strict=False):
        if any(frame != level[0] for frame in level):
            break
        common.append(level[0])
    return common


def _stability(columns: Mapping[str, list[Any]], samples: Sequence[list[int]]) -> dict[str, object]:
    """One row from the places of a thread's frames, sample by sample, each root first."""
    stacks = [[(columns["func"][n], columns["file"][n]) for n in stack] for stack in samples]
    common = common_callers(stacks)
    last = samples[-1][-1]
    times = [ts for ts in (columns["ts"][n] for stack in samples for n in stack) if ts == ts]  # not NaT
    return {
        **{name: columns[name][last] for name in (*THREAD, "started_at", "thread", "source", "of")},
        "samples": len(stacks), "stacks": len({tuple(stack) for stack in stacks}),
        "common": len(common),
        "ancestor": common[-1][0] if common else None, "ancestor_file": common[-1][1] if common else None,
        "chain": " <- ".join(func for func, _ in reversed(common[-CHAIN_FRAMES:])) if common else None,
        "leaves": ", ".join(sorted({stack[-1][0] for stack in stacks})),
        "gil_samples": sum(columns["owns_gil"][stack[0]] is True for stack in samples),
        "first_ts": min(times, default=None), "last_ts": max(times, default=None),
    }
