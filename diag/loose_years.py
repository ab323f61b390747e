"""Logs without years beside files that have them: the year of a day that both tell of. Pure."""

import re
from collections.abc import Mapping

MONTHS = {name: number for number, name in enumerate((b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"), 1)}
ISO = re.compile(rb"(?m)^[^\n]{0,30}?(?<!\d)(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ]\d\d:\d\d")
CTIME = re.compile(rb"(?m)^\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<name>" + b"|".join(MONTHS) + rb") +(?P<day>\d{1,2}) \d\d:\d\d:\d\d (?P<year>\d{4})\b")
NUMBERS = re.compile(rb"(?m)^[^\n]{0,60}?(?<![\d-])(?P<month>\d\d)-(?P<day>\d\d) \d\d:\d\d:\d\d")
SYSLOG = re.compile(rb"(?m)^(?P<name>" + b"|".join(MONTHS) + rb") +(?P<day>\d{1,2}) \d\d:\d\d:\d\d (?!\d{4}\b)")
Day = tuple[int, int]


def years_beside(heads: Mapping[str, bytes]) -> dict[str, int]:
    """First bytes of each file -> files without years, and the one year in which the others tell of a day of theirs."""
    dated = {name: {(_month(found), int(found["day"])): int(found["year"]) for form in (ISO, CTIME) for found in form.finditer(begin)} for name, begin in heads.items()}
    return {name: year for name, begin in heads.items() if not dated[name] and (year := _year(_days(begin), dated)) is not None}


def _year(days: set[Day], dated: Mapping[str, Mapping[Day, int]]) -> int | None:
    found = {year for known in dated.values() for day, year in known.items() if day in days}
    return found.pop() if len(found) == 1 else None


def _days(begin: bytes) -> set[Day]:
    return {(_month(found), int(found["day"])) for form in (NUMBERS, SYSLOG) for found in form.finditer(begin)}


def _month(found: re.Match[bytes]) -> int:
    named = found.groupdict().get("name")
    return int(found["month"]) if named is None else MONTHS[named]
