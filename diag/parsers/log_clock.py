"""Times of log lines -> naive UTC; what had to be assumed about year or zone is remembered, to be said."""

import datetime
import re
import zoneinfo

from diag.errors import BadInput
from diag.parsers.log_heads import Stamp

DAY = datetime.timedelta(days=1)
HALF_YEAR = datetime.timedelta(days=183)
BACK = datetime.timedelta(minutes=1)
"""Writers of one log are less out of step than this: further back is the hour that comes twice when summer time ends."""
LEAP_SPAN = 8
"""Years to look back for a date such as 29 February."""

OFFSET = re.compile(r"^(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>\d\d?):?(?P<minutes>\d\d)?$")


def zone_of(name: str) -> datetime.tzinfo:
    """`UTC`, `+02:00` or `Europe/Berlin` -> zone. Raises BadInput for anything else."""
    if name.upper() in ("UTC", "GMT", "Z"):
        return datetime.UTC
    if match := OFFSET.match(name):
        offset = datetime.timedelta(hours=int(match["hours"]), minutes=int(match["minutes"] or 0))
        if offset < DAY:
            return datetime.timezone(-offset if match["sign"] == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(f"{name!r} is not a time zone", hint="give UTC, an offset such as +02:00, or a name such as Europe/Berlin") from error


class Clock:
    """Completes printed times. `year` and `zone` as a person or the live collector knows them; None = to be assumed.

    `collected_at` (epoch seconds) dates lines without a year: none is from the future. Without it the present does.
    """

    def __init__(self, year: int | None, zone: str | None, collected_at: float | None) -> None:
        self._year = year
        self._zone = None if zone is None else zone_of(zone)
        self._collected = collected_at
        now = datetime.datetime.now(datetime.UTC) if collected_at is None else datetime.datetime.fromtimestamp(collected_at, datetime.UTC)
        self._latest = now.replace(tzinfo=None) + DAY
        self._before: datetime.datetime | None = None
        self._years: set[int] = set()
        self._zone_assumed = False
        self._known: tuple[Stamp, datetime.datetime | None] | None = None
        self._utc_before: datetime.datetime | None = None

    def utc(self, stamp: Stamp) -> datetime.datetime | None:
        """The time in naive UTC; None where there is no such time (month 13)."""
        if self._known is not None and self._known[0] == stamp:
            return self._known[1]
        time = self._utc(stamp)
        if time is not None and not 1 < time.year < 9999:
            time = None  # no clock shows it, and a second more or less would leave the calendar
        self._known = (stamp, time)
        return time

    def in_zone(self, zone: str) -> "Clock":
        """The same for a log whose zone is known; years that it assumes are said by this one."""
        other = Clock(self._year, zone, self._collected)
        other._years = self._years
        return other

    @property
    def assumed(self) -> str | None:
        """What was assumed, in words; None = nothing."""
        parts = []
        if self._years:
            span = f"year {min(self._years)}" if len(self._years) == 1 else f"years {min(self._years)} to {max(self._years)}"
            parts.append(f"{span} ({'the last one not in the future' if self._collected is None else 'from the time of collection'})")
        if self._zone_assumed:
            parts.append("zone UTC")
        return "; ".join(parts) or None

    def _utc(self, stamp: Stamp) -> datetime.datetime | None:
        local = self._dated(stamp) if stamp.year is None else _at(stamp, stamp.year)
        if local is None:
            return None
        if stamp.zone is None and self._zone is None:
            self._zone_assumed = True
            return local
        try:
            zone = self._zone if stamp.zone is None else zone_of(stamp.zone)
            time = _in_utc(local, zone)
            if stamp.zone is None and self._utc_before is not None and time < self._utc_before - BACK:
                time = max(time, _in_utc(local.replace(fold=1), zone))
        except (OverflowError, BadInput):
            return None
        self._utc_before = time
        return time

    def _dated(self, stamp: Stamp) -> datetime.datetime | None:
        """The year is the given one (one more after a turn of the year), else the last one that is not in the future."""
        if self._year is not None:
            time = _at(stamp, self._year)
            if time is not None and self._before is not None and self._before - time > HALF_YEAR:
                self._year += 1
                time = _at(stamp, self._year)
            self._before = time or self._before
            return time
        for year in range(self._latest.year, self._latest.year - LEAP_SPAN - 1, -1):
            time = _at(stamp, year)
            if time is not None and time <= self._latest:
                self._years.add(year)
                return time
        return None


def _in_utc(local: datetime.datetime, zone: datetime.tzinfo | None) -> datetime.datetime:
    return local.replace(tzinfo=zone).astimezone(datetime.UTC).replace(tzinfo=None)


def _at(stamp: Stamp, year: int) -> datetime.datetime | None:
    hour, minute, second = (int(part) for part in stamp.clock.split(":"))
    micro = int(stamp.fraction[:6].ljust(6, "0")) if stamp.fraction else 0
    try:
        return datetime.datetime(year, stamp.month, stamp.day, hour, minute, min(second, 59), micro)
    except ValueError:
        return None
