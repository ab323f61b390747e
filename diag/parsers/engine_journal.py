"""An engine's lines inside a journal of the whole machine -> what they would be in a log of their own."""

from collections.abc import Iterator, Sequence

from diag.model import Artefact, Row
from diag.parsers import access_log_haproxy, engine_log, engine_scan, journald_entries
from diag.parsers.engine_log import Origin
from diag.parsers.log_clock import Clock


def looks_mixed(head: bytes) -> bool:
    """A journal, in any form, that is not a proxy's alone."""
    if journald_entries.structured(head) is not None:
        return True
    text = head.rpartition(b"\n")[0].decode("utf-8", "replace")
    return journald_entries.looks_like_journal(text) and not access_log_haproxy.looks_like_haproxy(text)


def rows(artefact: Artefact) -> Iterator[Row]:
    """Rows as of an engine log; none at all, not even that a log was read, where no line is an engine's."""
    found = list(_rows(artefact))
    if any(table in ("log_events", "http_events") for table, _ in found):
        yield "collected", {"table_name": "log_events", "status": "ok"}
        yield from found


def _rows(artefact: Artefact) -> Iterator[Row]:
    origin = Origin(artefact.path, artefact.at)
    with artefact.opener() as stream:
        form = journald_entries.structured(stream.read(64 << 10))
    with artefact.opener() as stream:
        if form == "export":
            lines = journald_entries.as_log_lines(journald_entries.of_export(stream))
            yield from engine_log.rows(lines, origin, year=artefact.year, tz=artefact.zone)
        else:
            texts = _of_json if form == "json" else _of_text
            yield from engine_scan.rows(stream, origin, year=artefact.year, tz=artefact.zone, texts=texts)


def _of_json(raw: bytes) -> Sequence[str]:
    entry = journald_entries.of_json(0, raw)
    return [] if entry is None else [text for _, text, _ in journald_entries.as_log_lines([entry])]


def _of_text(raw: bytes) -> Sequence[str]:
    """A further line of somebody's message has no head: it is nobody's, and an engine's traceback has heads in a journal."""
    found = []
    for text in engine_log.texts_of(raw):
        entry = journald_entries.of_text(0, text, _ANY)
        if entry is None or entry.ident not in journald_entries.NOT_ENGINES:
            found.append(text)
    return found


_ANY = Clock(None, "UTC", None)
"""Only who wrote a line is asked here, not when."""
