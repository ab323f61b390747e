"""Where a service writes its logs: files a person names, or else stdout, stderr, journals and log files held open."""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from diag import procfs
from diag.errors import CollectorError, Denied, Vanished
from diag.instruments import open_logs
from diag.live import Patient

MAX_HELD = 12
"""Log files that are read beside stdout and stderr, those written last first."""
OUTPUTS = ((1, "stdout"), (2, "stderr"))
SERVICE = re.compile(r"/(?P<unit>[^/\n]+\.service)(?=/|$)", re.M)
CONTAINER = re.compile(r"[-/](?P<id>[0-9a-f]{64})(?:\.scope)?$", re.M)
KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a terminal"))


class Unit(NamedTuple):
    """A systemd service; `own` = of a user's own manager."""

    name: str
    own: bool


@dataclass
class LogFile:
    """A log found before the window: where it can be opened, who writes to it, how it was."""

    opens: Path
    shown: str
    size: int
    mtime: float
    inode: int
    pids: list[int] = field(default_factory=list)
    is_held: bool = False
    """Found among the open files of a process: it may repeat what stdout has."""
    of_library: bool = False
    """Tells of one library only: to have read it is not to have read the log of the service."""


@dataclass
class LogPlaces:
    """What the search for logs brought."""

    files: dict[tuple[int, int], LogFile] = field(default_factory=dict)
    journals: dict[Unit, list[int]] = field(default_factory=dict)
    """Unit -> pids whose output goes there."""
    blocked: list[tuple[int, str]] = field(default_factory=list)
    """(pid, why its output cannot be read)"""
    taken: list[bytes] = field(default_factory=list)
    """What the logs read so far end with."""
    is_known: bool = False
    """The log of the service was read, not only that of a library."""


def of(patient: Patient) -> LogPlaces:
    """Those a person named, or else those the processes show."""
    return _given(patient) if patient.options.logs else _outputs(patient)


def written(pids: Iterable[int]) -> list[str]:
    """Paths of the files that stdout and stderr of these processes go to, and of logs they hold open, the first in use first."""
    paths: dict[str, None] = {}
    for pid in pids:
        for number, _ in OUTPUTS:
            with contextlib.suppress(OSError, Vanished, Denied):
                link = f"/proc/{pid}/fd/{number}"
                if stat.S_ISREG(Path(link).stat().st_mode):
                    paths[procfs.link(link)] = None
        paths |= dict.fromkeys(log.shown for log in open_logs.held(pid) if not log.of_library)
    return [path for path in paths if Path(path).is_file()]


def unit_of(cgroup: str) -> Unit | None:
    """`/proc/PID/cgroup` -> the service it names; None = no service (a session, a container)."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        units = [match["unit"] for match in SERVICE.finditer(path)]
        if units:
            return Unit(units[-1], units[0].startswith("user@") and len(units) > 1)
    return None


def _given(patient: Patient) -> LogPlaces:
    """The logs a person named, with the processes that write to them."""
    found = LogPlaces()
    for name in patient.options.logs:
        path = Path(name)
        try:
            facts = path.stat()
        except OSError as error:
            found.blocked.append((patient.root_pid, f"cannot read {name}: {error.strerror}; check --log"))
            continue
        if not stat.S_ISREG(facts.st_mode):
            found.blocked.append((patient.root_pid, f"{name} is not a file; check --log"))
            continue
        found.files[facts.st_dev, facts.st_ino] = LogFile(path, name, facts.st_size, facts.st_mtime, facts.st_ino)
    for pid in patient.pids:
        for number, _ in OUTPUTS:
            try:
                facts = Path(f"/proc/{pid}/fd/{number}").stat()
            except OSError:
                continue
            source = found.files.get((facts.st_dev, facts.st_ino))
            if source is not None and pid not in source.pids:
                source.pids.append(pid)
    return found


def _outputs(patient: Patient) -> LogPlaces:
    """Where stdout and stderr of the tree go."""
    found = LogPlaces()
    for pid in patient.pids:
        for number, name in OUTPUTS:
            path = Path(f"/proc/{pid}/fd/{number}")
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            except PermissionError:
                found.blocked.append((pid, f"{name} of pid {pid} may not be read; run llmdiag as its user or root, or give --log FILE"))
                continue
            except OSError:
                continue
            with contextlib.suppress(Vanished, Denied):
                _sort_in(found, pid, name, path, facts)
    _add_held(found, patient)
    return found


def _add_held(found: LogPlaces, patient: Patient) -> None:
    """Log files that the processes hold open, as a logging.FileHandler does."""
    held: dict[tuple[int, int], LogFile] = {}
    for pid in patient.pids:
        for log in open_logs.held(pid):
            key = (log.facts.st_dev, log.facts.st_ino)
            fresh = LogFile(log.opens, log.shown, log.facts.st_size, log.facts.st_mtime, log.facts.st_ino, is_held=True, of_library=log.of_library)
            source = found.files.get(key) or held.setdefault(key, fresh)
            if pid not in source.pids:
                source.pids.append(pid)
    latest = sorted(held.items(), key=lambda item: (item[1].of_library, -item[1].mtime))
    found.files |= dict(latest[:MAX_HELD])
    if latest[MAX_HELD:]:
        more = ", ".join(source.shown for _, source in latest[MAX_HELD:][:3])
        found.blocked.append((patient.root_pid, f"{len(latest)} log files are open, and {len(latest) - MAX_HELD} were not read ({more}); give --log FILE"))


def _sort_in(found: LogPlaces, pid: int, name: str, path: Path, facts: os.stat_result) -> None:
    if stat.S_ISREG(facts.st_mode):
        key = (facts.st_dev, facts.st_ino)
        if key not in found.files:
            found.files[key] = LogFile(path, procfs.link(str(path)), facts.st_size, facts.st_mtime, facts.st_ino)
        if pid not in found.files[key].pids:
            found.files[key].pids.append(pid)
        return
    if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == os.makedev(1, 3):
        return
    kind = next((text for test, text in KINDS if test(facts.st_mode)), "no file")
    cgroup = _cgroup(pid)
    unit = unit_of(cgroup) if stat.S_ISSOCK(facts.st_mode) else None
    if unit is not None:
        pids = found.journals.setdefault(unit, [])
        if pid not in pids:
            pids.append(pid)
    else:
        container = CONTAINER.search(cgroup)
        way = f"save it with `docker logs -t {container['id'][:12]} > FILE 2>&1` and give --log FILE" if container else "give --log FILE"
        found.blocked.append((pid, f"{name} of pid {pid} is {kind}; {way}"))


def _cgroup(pid: int) -> str:
    try:
        return procfs.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except CollectorError:
        return ""
