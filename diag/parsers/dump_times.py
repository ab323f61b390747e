"""When a saved dump was taken: by the output of `date` before it, or by the stamp of the line that announces or carries it.

    Mon Nov 30 02:41:10 UTC 2026                        date, in the spellings of several locales, also `=== … ===`
    2026-11-30T02:41:10+00:00                           date -Is
    [2026-11-30 02:41:10 TP0] Pyspy dump for PID 88:    SGLang's watchdog
    2026-11-30T02:41:10.5Z     read (libc.so.6)         kubectl logs --timestamps
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from diag.parsers import log_heads
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import MONTHS, Stamp
from diag.parsers.stack_dumps import Dump

CLOCK = re.compile(r"\d\d:\d\d:\d\d")
RULED = re.compile(r"^[=#*~\-\s]+|[=#*~\-\s]+$")
DATE = re.compile(
    r"[A-Z][a-z]{2},? (?:(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2})|(?P<day2>\d{1,2}) (?P<month2>[A-Z][a-z]{2}))(?: (?P<year2>\d{4}))?,? "
    r"(?P<hour>\d\d)(?P<rest>:\d\d:\d\d)(?: (?P<half>[AP]M))?(?: (?P<zone>[A-Z]{1,5}|[+-]\d\d(?::?\d\d)?))?(?: (?P<year>\d{4}))?$"
)


def date_in(line: str) -> Stamp | None:
    """The time that a line of the output of `date` tells; names of zones other than UTC and GMT say nothing."""
    match = DATE.match(RULED.sub("", line))
    if match is None:
        return None
    month, year = match["month"] or match["month2"], match["year"] or match["year2"]
    if month not in MONTHS:
        return None
    hour = int(match["hour"])
    hour = hour % 12 + (12 if match["half"] == "PM" else 0) if match["half"] else hour
    zone = match["zone"]
    known = zone if zone is not None and zone[0] in "+-" else "Z" if zone in ("UTC", "GMT", "Z") else None
    return Stamp(None if year is None else int(year), MONTHS[month], int(match["day"] or match["day2"]), f"{hour:02d}{match['rest']}", "", known)


@dataclass
class Times:
    """Notes the times in lines that pass by, and afterwards dates the dumps found in them."""

    clock: Clock
    numbers: list[int] = field(default_factory=list)
    moments: list[datetime] = field(default_factory=list)

    def watched(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """The same lines."""
        for number, line in lines:
            self.see(number, line)
            yield number, line

    def see(self, number: int, line: str) -> bool:
        """Does this line tell a time?"""
        if CLOCK.search(line) is None:
            return False
        text = log_heads.clean(line)
        stamp = log_heads.split(text).stamp or date_in(text) or log_heads.split(RULED.sub("", text)).stamp
        moment = None if stamp is None else self.clock.utc(stamp)
        if moment is not None:
            self.numbers.append(number)
            self.moments.append(moment)
        return moment is not None

    def dated(self, dumps: Sequence[Dump]) -> list[Dump]:
        """Each with the last time told before its first line, or in it; a second dump of a process after it was taken who knows when."""
        found: list[Dump] = []
        used: set[tuple[int | None, int]] = set()
        for dump in dumps:
            place = bisect_right(self.numbers, dump.line) - 1
            known = place >= 0 and (dump.pid, place) not in used
            used.add((dump.pid, place))
            found.append(replace(dump, ts=self.moments[place]) if known else dump)
        return found
