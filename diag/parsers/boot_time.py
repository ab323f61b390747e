"""When a machine was booted, which is what plain dmesg counts its seconds from.

    2026-11-29 21:13:05                                                    uptime -s
             system boot  2026-11-29 21:13                                 who -b
    btime 1796000000                                                       /proc/stat
    [    1.204712] rtc_cmos 00:01: setting system clock to 2026-11-29T21:13:06 UTC (1795986786)
    Nov 30 06:03:16 gpu-12 kernel: [31811.123456] nvidia-nvswitch0: …      kern.log: both clocks in one line
    {"__REALTIME_TIMESTAMP":"1796018596000000","__MONOTONIC_TIMESTAMP":"31811123456", …}     journalctl -o json
"""

import datetime
import io
import re
from collections.abc import Sequence
from typing import NamedTuple

from diag.model import Artefact
from diag.parsers import log_heads
from diag.parsers.log_clock import Clock

TAIL_BYTES = 1 << 20
"""Of a journal: its last lines are of the boot that counts."""
AGREE_S = 90.0
"""`who -b` tells minutes, and the clock of the kernel drifts."""
UPTIME = re.compile(r"(?:[$#] ?uptime -s\s+|\A\s*)(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*(?=\Z|[$#])")
WHO = re.compile(r"^\s*system boot +(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d)\s*$", re.M)
STAT = re.compile(r"^btime (?P<epoch>\d{9,11})$", re.M)
CLOCK_SET = re.compile(r"^.*?\[ *(?P<up>\d+\.\d{6})\].*setting system clock to \S+ UTC \((?P<epoch>\d{9,11})\)", re.M)
KERNEL = re.compile(r"^.*\bkernel: \[ *(?P<up>\d+\.\d{6})\] .*$", re.M)
MICROS = re.compile(r'"__(?P<clock>REALTIME|MONOTONIC)_TIMESTAMP"\s?:\s?"(?P<us>\d{1,17})"')


class Boot(NamedTuple):
    """When it was, in UTC, and whether a zone had to be assumed for that."""

    at: datetime.datetime
    assumed: bool


def recognise(text: str) -> bool:
    """Output of `uptime -s`, of `who -b`, or a copy of /proc/stat."""
    return UPTIME.match(text.lstrip()) is not None or WHO.match(text) is not None or (text.startswith("cpu ") and STAT.search(text) is not None)


def booted_at(artefacts: Sequence[Artefact]) -> Boot | None:
    """None = nothing tells it, or they contradict each other (of several machines, say)."""
    found = [boot for artefact in artefacts if (boot := _told(artefact)) is not None]
    times = [boot.at for boot in found]
    return found[0] if found and (max(times) - min(times)).total_seconds() <= AGREE_S else None


def _told(artefact: Artefact) -> Boot | None:
    clock, text = Clock(artefact.year, artefact.zone, None), _tail(artefact)
    tellers = (_since_1970, _printed, _syslog, _journal)
    at = next((at for teller in tellers if (at := teller(text, clock)) is not None), None)
    return None if at is None else Boot(at, clock.assumed is not None)


def _since_1970(text: str, clock: Clock) -> datetime.datetime | None:
    match = STAT.search(text) or CLOCK_SET.search(text)
    return None if match is None else _utc(float(match["epoch"]) - float(match.groupdict().get("up") or 0))


def _printed(text: str, clock: Clock) -> datetime.datetime | None:
    match = UPTIME.search(text) or WHO.search(text)
    if match is None:
        return None
    seconds = "" if match["at"].count(":") == 2 else ":00"
    stamp = log_heads.stamp_of(match["at"] + seconds)
    return None if stamp is None else clock.utc(stamp)


def _syslog(text: str, clock: Clock) -> datetime.datetime | None:
    *_, last = (None, *KERNEL.finditer(text))
    stamp = None if last is None else log_heads.split(log_heads.clean(last.group())).stamp
    at = None if stamp is None else clock.utc(stamp)
    return None if at is None or last is None else at - datetime.timedelta(seconds=float(last["up"]))


def _journal(text: str, clock: Clock) -> datetime.datetime | None:
    for record in reversed(text.splitlines()):
        both = {match["clock"]: int(match["us"]) for match in MICROS.finditer(record)}
        if len(both) == 2:
            return _utc((both["REALTIME"] - both["MONOTONIC"]) / 1e6)
    return None


def _tail(artefact: Artefact) -> str:
    with artefact.opener() as stream:
        size = stream.seek(0, io.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        return stream.read(TAIL_BYTES).decode("utf-8", "replace")


def _utc(epoch_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(epoch_s, datetime.UTC).replace(tzinfo=None)
