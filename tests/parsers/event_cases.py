"""Text -> what the collector makes of it: shared by the tests of the parsers of events."""

import datetime
from collections.abc import Sequence

from diag.collectors import events
from diag.model import Artefact

Found = dict[str, list[dict[str, object]]]


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def parsed(text: str | bytes, name: str = "x.log", *, year: int | None = 2026, tz: str | None = "UTC", more: Sequence[Artefact] = ()) -> Found:
    """Rows by table, through the same door as a file on disk: recognised first."""
    data = text.encode() if isinstance(text, str) else text
    assert events.recognise(name, data[: 64 << 10]), data[:300]
    made = Artefact.of_bytes(name, "events", data)
    artefact = Artefact(name, "events", made.opener, year, tz)
    found: Found = {"host_events": [], "http_events": [], "watchdog_rules": [], "event_files": [], "collected": []}
    for table, row in events.parse([artefact, *more]):
        found[table].append(dict(row))
    return found


def short(found: Found) -> list[tuple[object, ...]]:
    """(time, kind, unit, initiator, code) of each event; the time without its date."""
    rows = []
    for row in found["host_events"]:
        ts = row["ts"]
        clock = None if ts is None else ts.strftime("%H:%M:%S")  # type: ignore[attr-defined]
        rows.append((clock, row["kind"], row["unit"], row["initiator"], row["code"]))
    return rows
