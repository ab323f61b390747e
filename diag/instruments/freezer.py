"""Who holds a process by the freezer of a control group: `docker pause`, `systemctl freeze`, a runtime that checkpoints.

Such a process is in state D (version 1) or S (version 2), as any that sleeps; only its group tells.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from diag import procfs
from diag.errors import CollectorError
from diag.parsers import cgroups

FREEZER = "freezer"


def frozen_by(pid: int) -> str | None:
    """The file that has to be written to let it run again, of its group or of one above; None = none, or none that can be seen."""
    try:
        lines, mounts = (procfs.read(name).decode() for name in (f"/proc/{pid}/cgroup", "/proc/self/mountinfo"))
    except (CollectorError, UnicodeDecodeError):
        return None
    return next(filter(None, map(_switch, _groups(lines, mounts))), None)


def _groups(lines: str, mounts: str) -> Iterator[cgroups.Group]:
    """Of both versions, where a machine has both: either may hold it."""
    v2 = [mount for mount in mounts.splitlines() if " - cgroup2 " in mount]
    v1 = [mount for mount in mounts.splitlines() if mount not in v2]
    return (group for part in (v1, v2) for group in cgroups.places(lines, "\n".join(part), (FREEZER,)).values())


def _switch(group: cgroups.Group) -> str | None:
    """See `frozen_by`."""
    own = group.mount / group.path.lstrip("/")
    if ".." in group.path.split("/") or not _is_frozen(own, group.is_v1):
        return None
    wish, switch = ("freezer.self_freezing", "freezer.state") if group.is_v1 else ("cgroup.freeze", "cgroup.freeze")
    return next((str(folder / switch) for folder in _upwards(own, group.mount) if _text(folder / wish) == "1"), None)


def _is_frozen(own: Path, is_v1: bool) -> bool:
    return _text(own / "freezer.state") == "FROZEN" if is_v1 else "frozen 1" in _text(own / "cgroup.events").splitlines()


def _upwards(own: Path, mount: Path) -> Iterator[Path]:
    return (folder for folder in (own, *own.parents) if folder == mount or mount in folder.parents)


def _text(file: Path) -> str:
    with contextlib.suppress(CollectorError, OSError):
        return procfs.read(str(file)).decode("utf-8", "replace").strip()
    return ""
