"""Stacks of all threads and samples folded into one prefix tree: where they are together, and where they part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from diag.model import Part, Section
from diag.plots import Branch, Tree
from diag.report.sections import Rows

Row = Mapping[str, object]
Who = tuple[object, ...]

ORDER = 6
PICTURES = True
READS = {
    "stacks": """
SELECT bundle, host, pid, tid, min(thread) AS thread, funcs, files, count(*) AS times FROM (
  SELECT bundle, host, pid, tid, sample, min(thread) AS thread, list(coalesce(qualname, func, '?') ORDER BY depth DESC) AS funcs, list(coalesce(file, '') ORDER BY depth DESC) AS files
  FROM stack_frames WHERE whole IS DISTINCT FROM FALSE GROUP BY bundle, host, pid, tid, sample
) GROUP BY bundle, host, pid, tid, funcs, files ORDER BY min(sample), bundle, host, pid, tid""",
    "samples": "SELECT count(DISTINCT sample) AS of FROM stack_frames WHERE whole IS DISTINCT FROM FALSE",
    "places": "SELECT bundle, host, pid, tid, role, rank FROM thread_places",
}
MAX_BRANCHES, MAX_NODES, MAX_NAMED = 12, 400, 3


@dataclass
class _Node:
    """A function below the same callers: the threads that were seen in it, and its callees."""

    threads: set[Who] = field(default_factory=set)
    samples: int = 0
    below: dict[str, "_Node"] = field(default_factory=dict)


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One tree, where there are stacks."""
    root, names, roles = _Node(), dict[Who, str](), {_who(row): _role(row) for row in rows["places"]}
    for row in rows["stacks"]:
        who = _who(row)
        names.setdefault(who, str(row["thread"] or row["tid"]))
        frames = [_frame(func, file) for func, file in zip(row["funcs"], row["files"], strict=True)]  # type: ignore[call-overload]
        _add(root, who, frames, int(str(row["times"])))
    if root.below:
        left = [MAX_NODES]
        branches = _branches(root, names, roles, left)
        yield Section(f"Stacks of {len(names)} threads in {rows['samples'][0]['of']} samples, folded", (Part(plot=Tree("threads", branches)),))


def _who(row: Row) -> Who:
    return (row["bundle"], row["host"], row["pid"], row["tid"])


def _role(row: Row) -> str:
    return " ".join(str(part) for part in (row["role"], row["rank"]) if part is not None)


def _frame(func: str, file: str) -> str:
    """`func (package/module.py)`: the line differs from sample to sample."""
    return f"{func} ({'/'.join(file.split('/')[-2:])})" if file else func


def _add(root: _Node, who: Who, frames: Sequence[str], times: int) -> None:
    node = root
    for frame in frames:
        node = node.below.setdefault(frame, _Node())
        node.threads.add(who)
        node.samples += times


def _branches(node: _Node, names: Mapping[Who, str], roles: Mapping[Who, str], left: list[int]) -> tuple[Branch, ...]:
    """The largest first; what is beyond the limits is counted."""
    ordered = sorted(node.below.items(), key=lambda item: (-len(item[1].threads), -item[1].samples, item[0]))
    kept = ordered[: min(MAX_BRANCHES, max(1, left[0]))]
    left[0] -= len(kept)
    shown = [_branch(frame, below, names, roles, left) for frame, below in kept]
    rest = [below for _, below in ordered[len(kept) :]]
    if rest:
        shown.append(Branch((f"and {len(rest)} further ways",), len(set().union(*(below.threads for below in rest)))))
    return tuple(shown)


def _branch(frame: str, node: _Node, names: Mapping[Who, str], roles: Mapping[Who, str], left: list[int]) -> Branch:
    """With the functions below it up to where its threads part."""
    frames = [frame]
    while len(node.below) == 1:
        ((frame, below),) = node.below.items()
        if below.threads != node.threads or below.samples != node.samples:
            break
        frames.append(frame)
        node = below
    below_it = _branches(node, names, roles, left) if node.below else ()
    return Branch(tuple(frames), len(node.threads), "" if below_it else _note(node, names, roles), below_it)


def _note(node: _Node, names: Mapping[Who, str], roles: Mapping[Who, str]) -> str:
    """Whose threads they are, and in how many stacks it was seen."""
    called = list(dict.fromkeys(names[who] for who in sorted(node.threads, key=str)))
    ranks = list(dict.fromkeys(role for who in sorted(node.threads, key=str) if (role := roles.get(who))))
    pids = {who[:3] for who in node.threads}
    where = f" of {', '.join(ranks[:MAX_NAMED])}{', …' if len(ranks) > MAX_NAMED else ''}" if ranks else ""
    processes = f", {len(pids)} processes" if len(pids) > 1 else ""
    return f"{', '.join(called[:MAX_NAMED])}{', …' if len(called) > MAX_NAMED else ''}{where}{processes}, in {node.samples} stacks"
