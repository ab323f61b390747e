"""Where the limits of a process are: `/proc/PID/cgroup` and our own mounts -> a folder per controller, v1 and v2.

    0::/system.slice/vllm.service                          4:memory:/docker/0123…
    35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw    36 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

CONTROLLERS = {
    # controller -> (files of the group itself, files of the group and all its parents); names of v1 and v2 together
    "memory": (
        ("memory.current", "memory.events", "memory.usage_in_bytes", "memory.failcnt", "memory.oom_control"),
        ("memory.max", "memory.high", "memory.limit_in_bytes"),
    ),
    "cpu": (("cpu.stat",), ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "pids": (("pids.current",), ("pids.max",)),
}


class Group(NamedTuple):
    """The group of a process for one controller: `path` is below `mount`."""

    mount: Path
    path: str
    is_v1: bool


def places(cgroup: str, mountinfo: str, controllers: Iterable[str] = tuple(CONTROLLERS)) -> dict[str, Group]:
    """Controller -> group. On a machine with both versions a controller that v1 has is v1."""
    lines = (line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2)
    paths = {name: path for _, names, path in lines for name in names.split(",")}
    found: dict[str, Group] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        is_v1 = kind[0] == "cgroup"
        for controller in controllers:
            path = paths.get(controller if is_v1 else "")
            if path is None or (is_v1 and controller not in kind[2].split(",")) or (not is_v1 and controller in found):
                continue
            # A container without a cgroup namespace sees paths of the host, but mounts only its own group.
            root = fields[3].rstrip("/")
            inner = path.removeprefix(root) if path == root or path.startswith(root + "/") else path
            found[controller] = Group(Path(fields[4]), inner or "/", is_v1)
    return found
