"""What stays the same in a thread's stack over all samples: the deepest common caller, and what varies below it.

A hung thread's leaf may differ at every look; the function it never leaves does not.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """stack_frames -> stack_stability."""
    import pandas as pd

    rows = frames["stack_frames"]
    rows = rows[rows["native"].ne(True) | rows["native"].isna()]  # native frames differ below the same Python call
    if rows.empty:
        return {}
    taken = rows.groupby(["bundle", "capture", "pid"], dropna=False)["sample"].transform("nunique")  # a dump may name no process
    out = []
    for identity, thread in rows.groupby(["bundle", "host", "capture", "pid", "tid"], dropna=False, sort=False):
        whole = rooted(thread[thread["whole"].ne(False) | thread["whole"].isna()])
        if whole.empty:
            continue
        out.append(_stability(whole, identity, int(taken[whole.index[0]])))
    return {"stack_stability": pd.DataFrame(out)} if out else {}


def rooted(thread: "pd.DataFrame") -> "pd.DataFrame":
    """The samples of one thread that begin at its usual entry: a torn stack begins somewhere in the middle."""
    if thread.empty:
        return thread
    roots = thread.sort_values("depth").groupby("sample").tail(1)
    usual = roots["func"].mode()
    return thread[thread["sample"].isin(roots.loc[roots["func"].eq(usual.iloc[0]), "sample"])] if len(usual) else thread


def common_callers(stacks: Sequence[Sequence[Frame]]) -> list[Frame]:
    """Stacks root first -> their longest common beginning."""
    common: list[Frame] = []
    for level in zip(*stacks, strict=False):
        if any(frame != level[0] for frame in level):
            break
        common.append(level[0])
    return common


def _stability(thread: "pd.DataFrame", identity: tuple[object, ...], taken: int) -> dict[str, object]:
    ordered = thread.sort_values(["sample", "depth"], ascending=[True, False])
    stacks = [
        list(zip(group["func"].fillna("?"), group["file"].fillna("?"), strict=True))
        for _, group in ordered.groupby("sample", sort=True)
    ]
    common = common_callers(stacks)
    last = ordered.iloc[-1]
    per_sample = ordered.drop_duplicates("sample")
    return {
        "bundle": identity[0], "host": identity[1], "capture": identity[2], "pid": identity[3], "tid": identity[4],
        "started_at": last["started_at"], "thread": last["thread"], "source": last["source"],
        "samples": len(stacks), "of": taken, "stacks": len({tuple(stack) for stack in stacks}),
        "common": len(common),
        "ancestor": common[-1][0] if common else None, "ancestor_file": common[-1][1] if common else None,
        "chain": " <- ".join(func for func, _ in reversed(common[-CHAIN_FRAMES:])) if common else None,
        "leaves": ", ".join(sorted({stack[-1][0] for stack in stacks})),
        "gil_samples": int(per_sample["owns_gil"].fillna(False).sum()),
        "first_ts": ordered["ts"].min(), "last_ts": ordered["ts"].max(),
    }
