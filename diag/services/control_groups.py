"""Processes by their cgroup: units and containers have one each, also where nobody can be asked for them."""

from collections.abc import Callable, Iterator

from diag import procfs
from diag.errors import CollectorError


def members(fits: Callable[[str], str | None]) -> dict[str, list[int]]:
    """What `fits` makes of a part of the path (None: nothing) -> the processes that are in it or below it."""
    found: dict[str, list[int]] = {}
    for pid in procfs.pids():
        for name in {name for part in _parts(pid) if (name := fits(part)) is not None}:
            found.setdefault(name, []).append(pid)
    return found


def topmost(pids: list[int]) -> list[int]:
    """Those whose parent is none of them."""
    known = set(pids)
    return [pid for pid in pids if _parent(pid) not in known]


def _parts(pid: int) -> Iterator[str]:
    """`kubepods.slice`, `docker-0123….scope`, … of all its hierarchies."""
    try:
        lines = procfs.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines()
    except CollectorError:
        return
    for line in lines:
        yield from filter(None, line.split(":", 2)[-1].split("/"))


def _parent(pid: int) -> int | None:
    try:
        return procfs.stat(pid).ppid
    except CollectorError:
        return None
