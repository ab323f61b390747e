"""In which time zone a process prints its times."""

import datetime
import zoneinfo
from pathlib import Path

from diag import procfs
from diag.errors import BadInput, Denied, Vanished
from diag.parsers.log_clock import OFFSET, zone_of


def zone_of_process(pid: int) -> str | None:
    """Zone a process prints times in: its TZ, else its /etc/localtime, else UTC. None = cannot be told."""
    try:
        name = procfs.environ(pid).get("TZ")
    except (Denied, Vanished):
        return None
    place = Path(f"/proc/{pid}/root/etc/localtime")
    if name is not None and name.lstrip(":") not in ("/etc/localtime",):
        name = name.lstrip(":").rpartition("zoneinfo/")[2] or "UTC"
    elif place.is_symlink():
        name = str(place.readlink()).rpartition("zoneinfo/")[2]
    else:
        return _offset_of(place)
    if OFFSET.match(name):
        return None  # POSIX turns the sign around: TZ=UTC+1 is one hour behind
    try:
        zone_of(name)
    except BadInput:
        return None
    return name


def _offset_of(localtime: Path) -> str | None:
    """A copied zone file has no name: its offset of today, as `+02:00`."""
    try:
        with localtime.open("rb") as stream:
            zone = zoneinfo.ZoneInfo.from_file(stream)
    except FileNotFoundError:
        return "UTC"
    except (OSError, ValueError):
        return None
    return datetime.datetime.now(zone).strftime("%z") or None
