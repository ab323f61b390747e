"""`--events-map FILE`: which lines of one's own tools are events, told by the people who wrote those tools.

    [[event]]
    file      = "watchdog-*.log"          # glob over the name of the log, or its path as it was given
    kind      = "restart"                 # a kind of host_events
    initiator = "chat-watchdog"
    regex     = '^(?P<ts>\\S+ \\S+) .*restarting (?P<unit>\\S+)'
    period_s  = 300                       # optional, of that watchdog: how often it looks,
    timeout_s = 45                        # how long it waits for an answer,
    strikes   = 5                         # after how many failures in a row it acts
    tz        = "Europe/Berlin"           # optional: the zone of that log's times, where they name none

Named groups: ts (needed), unit, code, pid, detail, initiator. Optional keys: unit (where the line names none), what. The
expressions are Python's without look-around and back-references: they run in linear time, whatever a log holds.
"""

import datetime
import fnmatch
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
import re2

from diag.errors import BadInput
from diag.parsers.event_rows import Event, Said, Watchdog
from diag.parsers.log_clock import Clock, zone_of
from diag.parsers.log_heads import MONTHS, Stamp
from diag.tables import HOST_EVENT_KINDS

GROUPS = frozenset({"ts", "unit", "code", "pid", "detail", "initiator"})
MAX_EVENTS, MAX_BYTES, REGEX_BYTES = 500, 1 << 20, 8 << 20
MARK = re.compile(r"^\ufeff?\s*\[\[\s*event\s*\]\]\s*(?:#.*)?$", re.M)
EXAMPLE = "README.md shows one, under Restarts"
EPOCH = re.compile(r"^(?P<seconds>\d{9,10})(?P<fraction>\.\d+)?$|^(?P<millis>\d{13})$")
STAMPS = (
    re.compile(
        r"^\[?(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))? ?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)?\]?$"
    ),
    re.compile(r"^\[?(?P<day>\d\d)/(?P<name>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))? ?(?P<zone>[+-]\d\d:?\d\d)?\]?$"),
    re.compile(r"^\[?(?:[A-Z][a-z]{2} )?(?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?: (?P<zone>UTC|GMT))?(?: (?P<year>\d{4}))?\]?$"),
    re.compile(r"^\[?(?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?\]?$"),
)  # fmt: skip
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


Value = TypeVar("Value")


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    """One [[event]] as it stands in the file."""

    file: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    kind: str
    initiator: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    regex: Annotated[str, msgspec.Meta(min_length=1, max_length=5_000)]
    period_s: Positive | None = None
    timeout_s: Positive | None = None
    strikes: Annotated[int, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    unit: str | None = None
    what: str | None = None
    tz: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None


@dataclass
class Mapped:
    """One [[event]], compiled; it counts what it met."""

    number: int
    spec: _Spec
    pattern: Any
    files: set[str] = field(default_factory=set)
    matched: int = 0
    undated: list[str] = field(default_factory=list)

    def wants(self, path: str) -> bool:
        """Is this log, by its name or its path, one of those it is for?"""
        return fnmatch.fnmatchcase(path.rpartition("/")[2], self.spec.file) or fnmatch.fnmatchcase(path, self.spec.file)


@dataclass
class EventsMap:
    """A map that was read and checked."""

    path: str
    events: Sequence[Mapped]

    def watchdogs(self) -> Iterator[Watchdog]:
        """The decision rules it tells of, one per initiator that says any."""
        told: dict[str, list[Mapped]] = {}
        for item in self.events:
            told.setdefault(item.spec.initiator, []).append(item)
        for initiator, items in told.items():
            specs = [item.spec for item in items]
            period_s, timeout_s = _first(spec.period_s for spec in specs), _first(spec.timeout_s for spec in specs)
            strikes = _first(spec.strikes for spec in specs)
            if (period_s, timeout_s, strikes) != (None, None, None):
                what, unit = _first(spec.what for spec in specs) or "as the events map says", _first(spec.unit for spec in specs)
                yield Watchdog(f"{self.path}#event {items[0].number}", initiator, what, period_s, timeout_s, strikes, unit)

    def silent(self) -> Iterator[str]:
        """What it is for and did not meet: a map that is blind looks like a service where nothing happens."""
        for item in self.events:
            who = f"{self.path}: event {item.number} ({item.spec.kind} by {item.spec.initiator})"
            if not item.files:
                yield f"{who}: no file matches {item.spec.file!r}"
            elif not item.matched:
                yield f"{who}: its regex matched no line of {', '.join(sorted(item.files)[:3])}"
            if item.undated:
                yield f"{who}: {item.undated[0]!r} is no time that is known"


def _first(values: Iterable[Value | None]) -> Value | None:
    """The first that is said."""
    return next((value for value in values if value is not None), None)


def is_map(head: str) -> bool:
    """Is this a file of [[event]] entries?"""
    return MARK.search(head) is not None and re.search(r"^\s*regex\s*=", head, re.M) is not None


def read(text: str, path: str) -> EventsMap:
    """The text of a map. Raises BadInput, which names the file, the entry and the key."""
    if len(text) > MAX_BYTES:
        raise BadInput(f"{path} is larger than {MAX_BYTES >> 20} MiB: no events map", hint=EXAMPLE)
    try:
        found = tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise BadInput(f"{path}: not TOML: {error}", hint="put regexes in single quotes") from error
    unknown = sorted(found.keys() - {"event"})
    if unknown:
        raise BadInput(f"{path}: unknown key {unknown[0]!r}", hint="a map has [[event]] entries only")
    entries = found.get("event")
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"{path}: no [[event]] in it", hint=EXAMPLE)
    if len(entries) > MAX_EVENTS:
        raise BadInput(f"{path}: more than {MAX_EVENTS} events", hint="split it, and give one part at a time")
    return EventsMap(path, [_mapped(entry, number, path) for number, entry in enumerate(entries, 1)])


def events(found: EventsMap, path: str, lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said, clock: Clock) -> Iterator[Event]:
    """Lines of one log -> events, by all entries that are for it."""
    mine = [item for item in found.events if item.wants(path)]
    clocks = {item.number: clock if item.spec.tz is None else clock.in_zone(item.spec.tz) for item in mine}
    for item in mine:
        item.files.add(path)
    for number, line in lines:
        for item in mine:
            match = item.pattern.search(line)
            if match is not None:
                item.matched += 1
                groups = {name: value for name, value in match.groupdict().items() if value is not None}
                event = _event(item, groups, line, clocks[item.number])
                event.source = at(number)
                said.seen(event.ts)
                yield event


def time_of(text: str, clock: Clock) -> datetime.datetime | None:
    """A time in any of the usual spellings -> naive UTC; None = none of them, or it has no date."""
    text = text.strip()
    if match := EPOCH.match(text):
        seconds = int(match["millis"]) / 1000 if match["millis"] else float(text)
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None)
    for pattern in STAMPS:
        match = pattern.match(text)
        if match is None:
            continue
        found = match.groupdict()
        month = MONTHS.get(str(found["name"]), 0) if found.get("name") else int(str(found.get("month") or 0))
        zone = "UTC" if found.get("zone") in ("Z", "UTC", "GMT") else found.get("zone")
        year = found.get("year")
        return clock.utc(Stamp(int(year) if year else None, month, int(found["day"]), found["clock"], found.get("fraction") or "", zone))
    return None


def _mapped(entry: Any, number: int, path: str) -> Mapped:
    where = f"{path}: event {number}"
    try:
        spec = msgspec.convert(entry, _Spec, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {error}", hint=f"keys are {', '.join(_Spec.__struct_fields__)}") from error
    if spec.kind not in HOST_EVENT_KINDS:
        raise BadInput(f"{where}: kind: {spec.kind!r} is no kind of event", hint=f"one of {' '.join(HOST_EVENT_KINDS)}")
    if spec.tz is not None:
        try:
            zone_of(spec.tz)
        except BadInput as error:
            raise BadInput(f"{where}: tz: {error.message}", hint=error.hint) from error
    options = re2.Options()
    options.max_mem, options.log_errors = REGEX_BYTES, False
    try:
        pattern = re2.compile(spec.regex, options=options)
    except re2.error as error:
        raise BadInput(f"{where}: regex: {_why(error)}", hint="look-around and back-references are not there; put it in single quotes") from error
    groups = set(pattern.groupindex)
    if "ts" not in groups:
        raise BadInput(f"{where}: regex: no group (?P<ts>…)", hint="without its time an event cannot be put in order")
    if groups - GROUPS:
        raise BadInput(f"{where}: regex: unknown group {sorted(groups - GROUPS)[0]!r}", hint=f"groups are {', '.join(sorted(GROUPS))}")
    return Mapped(number, spec, pattern)


def _why(error: Exception) -> str:
    text = error.args[0] if error.args else "?"
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _event(item: Mapped, groups: Mapping[str, str], line: str, clock: Clock) -> Event:
    spec = item.spec
    ts = time_of(groups.get("ts", ""), clock)
    if ts is None and len(item.undated) < 3:
        item.undated.append(groups.get("ts", ""))
    code, pid = groups.get("code"), groups.get("pid")
    return Event(
        "", spec.kind, groups.get("detail", line), ts, groups.get("unit") or spec.unit, groups.get("initiator") or spec.initiator,
        int(pid) if pid is not None and pid.isdecimal() and len(pid) <= 10 else None,
        int(code) if code is not None and re.fullmatch(r"-?\d{1,18}", code) else None,
    )  # fmt: skip
