"""What the kernel said of killed, hung and faulting processes and of GPUs: lines of dmesg -> host_events.

    2026-11-30T06:03:16,292389+00:00 Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB, …   dmesg --time-format iso
    [Mon Nov 30 06:03:16 2026] NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.         dmesg -T
    [ 1234.567890] INFO: task python3:4711 blocked for more than 120 seconds.                                dmesg

The last form counts from the boot: its lines have a time where something beside it tells when that was (boot_time).
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from diag.model import Row
from diag.parsers.boot_time import Boot
from diag.parsers.log_heads import MONTHS

PREFIX = re.compile(r"^(?:<\d+>|[a-z]+ *:[a-z]+ *: )?")
"""What `dmesg -r` and `dmesg -x` put in front."""
ISO = re.compile(r"^(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d) ")
CTIME = re.compile(r"^\[[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d+) (?P<clock>\d\d:\d\d:\d\d) (?P<year>\d{4})\] ")
SECONDS = re.compile(r"^\[ *(?P<up>\d{1,10}\.\d{6})\](?:\[ *[TC]\d+\])? ")

CGROUP = re.compile(r"oom-kill:constraint=.*?task_memcg=(?P<unit>[^,]+),.*?pid=(?P<pid>\d{1,10})")
EVENTS = (
    ("oom_kill", re.compile(r"[Oo]ut of memory.*?: Kill(?:ed)? process (?P<pid>\d{1,10}) \(")),
    ("xid", re.compile(r"NVRM: Xid \([^)]*\): (?P<code>\d{1,6})(?:, pid='?(?P<pid>\d{1,10})\b)?")),
    ("nvrm", re.compile(r"NVRM: (?!loading NVIDIA|GPU at PCI:[0-9a-fA-F:.]+: GPU-)")),
    ("device_error", re.compile(r"amdgpu.*(?:GPU reset|ring \S+ timeout|\*ERROR\*|page fault)|GPU HANG")),
    ("hung_task", re.compile(r"INFO: task .+:(?P<pid>\d{1,10}) blocked for more than \d+ seconds")),
    ("hung_task", re.compile(r"soft lockup - CPU#\d+ stuck for \d+s! \[.+:(?P<pid>\d{1,10})\]")),
    ("segfault", re.compile(r"\[(?P<pid>\d{1,10})\]: segfault at |\[(?P<pid2>\d{1,10})\]? general protection fault")),
)
SIGNALS = {"oom_kill": 9, "segfault": 11}
CONTEXT = ("oom-kill:constraint=", "invoked oom-killer")
"""Kept because they say whose limit it was."""


class Said(NamedTuple):
    """A line taken apart; `ts` None = counted from a boot that is not known."""

    ts: datetime.datetime | None
    zone_assumed: bool
    message: str
    up_s: float | None = None
    """Seconds since the boot, where that is what is printed."""


def split(line: str) -> Said | None:
    """One line of dmesg; None = it has no stamp of dmesg."""
    line = line[PREFIX.match(line).end():]  # type: ignore[union-attr]
    if match := ISO.match(line):
        try:
            time = datetime.datetime.fromisoformat(match["iso"].replace(",", "."))
            return Said(time.astimezone(datetime.UTC).replace(tzinfo=None), False, line[match.end():])
        except (ValueError, OverflowError):
            return Said(None, False, line[match.end():])
    if (match := CTIME.match(line)) and match["month"] in MONTHS:
        hour, minute, second = (int(part) for part in match["clock"].split(":"))
        try:
            time = datetime.datetime(int(match["year"]), MONTHS[match["month"]], int(match["day"]), hour, minute, second)
        except ValueError:
            return Said(None, False, line[match.end():])
        return Said(time, True, line[match.end():])
    if match := SECONDS.match(line):
        return Said(None, False, line[match.end():], float(match["up"]))
    return None


def is_worth_keeping(line: str) -> bool:
    """Does a line concern memory, GPUs, hung or faulting processes? The rest of dmesg is nobody's business."""
    return any(text in line for text in CONTEXT) or any(pattern.search(line) for _, pattern in EVENTS)


def looks_like_dmesg(head: str, of: int = 50) -> bool:
    """Do nearly all lines carry a stamp of dmesg?"""
    lines = [line for line in head.splitlines() if line.strip()][:of]
    return bool(lines) and sum(split(line) is not None for line in lines) >= 0.8 * len(lines)


def counts_from_boot(lines: Iterable[tuple[int, str]]) -> bool:
    """Is there a line that matters and whose time is counted from the boot?"""
    return any(said is not None and said.up_s is not None and event(said.message) is not None for said in (split(line) for _, line in lines))


def rows(lines: Iterable[tuple[int, str]], at: Callable[[int], str], boot: Boot | None = None) -> Iterator[Row]:
    """(number, line) -> host_events, and last what was assumed about times. `boot` None = not known."""
    zone_assumed, undated = False, 0
    cgroups: dict[int, str] = {}
    for number, line in lines:
        said = split(line)
        if said is None:
            continue
        if said.up_s is not None and boot is not None:
            said = said._replace(ts=boot.at + datetime.timedelta(seconds=said.up_s))
        zone_assumed = zone_assumed or said.zone_assumed
        if match := CGROUP.search(said.message):
            cgroups[int(match["pid"])] = match["unit"]
        row = _event(said, cgroups)
        if row is not None:
            undated += row["ts"] is None
            yield "host_events", {**row, "source": at(number)}
    assumed = ["dmesg -T prints local times without a zone: UTC was assumed"] if zone_assumed else []
    assumed += ["the boot is told in local time without a zone: UTC was assumed"] if boot is not None and boot.assumed else []
    assumed += [f"{undated} kernel messages are dated in seconds since a boot that nothing tells: give the output of `uptime -s` with them"] if undated else []
    yield "collected", {"table_name": "host_events", "status": "ok", "reason": "; ".join(assumed) or None}


def of_kmsg(record: str, boot: float) -> str | None:
    """A record of /dev/kmsg (`6,1234,5678901,-;message`) as a line of dmesg; `boot` in epoch seconds."""
    head, semicolon, message = record.partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isdecimal():
        return None
    try:
        time = datetime.datetime.fromtimestamp(boot + int(fields[2]) / 1e6, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{time:%Y-%m-%dT%H:%M:%S},{time.microsecond:06d}+00:00 {message.splitlines()[0] if message else ''}"


def event(message: str) -> tuple[str, int | None, int | None] | None:
    """(kind, pid, code) of a kernel message that matters, without its stamp; None = it does not."""
    for kind, pattern in EVENTS:
        match = pattern.search(message)
        if match is not None:
            groups = match.groupdict()
            pid, code = groups.get("pid") or groups.get("pid2"), groups.get("code")
            return kind, None if pid is None else int(pid), SIGNALS.get(kind) if code is None else int(code)
    return None


def _event(said: Said, cgroups: dict[int, str]) -> dict[str, object] | None:
    found = event(said.message)
    if found is None:
        return None
    kind, pid, code = found
    return {
        "ts": said.ts, "origin": "dmesg", "kind": kind, "initiator": "kernel", "pid": pid, "detail": said.message[:1000],
        "unit": cgroups.get(pid) if kind == "oom_kill" and pid is not None else None, "code": code,
    }
