"""Artefacts -> rows per table, and what was looked at: collected, partly, or not at all."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diag.collectors import Collector
from diag.errors import BadInput, CollectorError, LlmdiagError
from diag.manifest import CollectorRun
from diag.model import Artefact, Collected
from diag.parts import spelled_out
from diag.sources import Source
from diag.tables import Table


def parse_all(
    sources: Sequence[Source], collectors: Sequence[Collector], tables: Mapping[str, Table]
) -> tuple[dict[str, list[dict[str, object]]], list[Collected]]:
    """All artefacts of all sources -> rows per table, and what was looked at."""
    rows: dict[str, list[dict[str, object]]] = {}
    collected: list[Collected] = []
    for source in sources:
        mine: dict[str, list[dict[str, object]]] = {}
        for collector in collectors:
            collected += [replace(item, origin=origin_of(source)) for item in _parse_one(source, collector, mine)]
        _fill_starts(mine, tables)
        for name, found in mine.items():
            if name not in tables:
                raise BadInput(f"a collector fills the table {name!r}, which nobody declares", hint="declare it in TABLES of the collector")
            rows.setdefault(name, []).extend(found)
    return rows, _never_looked(collected, collectors)


def seen_rows(collector: Collector, artefacts: Sequence[Artefact]) -> dict[str, list[Mapping[str, object]]]:
    """Rows of one collector's artefacts during a snapshot (for the collectors after it)."""
    rows: dict[str, list[Mapping[str, object]]] = {}
    try:
        for table, row in collector.parse(artefacts):
            rows.setdefault(table, []).extend(spelled_out(row))
    except CollectorError:
        pass
    return rows


def _parse_one(source: Source, collector: Collector, rows: dict[str, list[dict[str, object]]]) -> list[Collected]:
    """One collector's artefacts of one source -> rows (added to `rows`) and what was looked at."""
    beside = [artefact for name in getattr(collector, "BESIDE", ()) for artefact in source.artefacts.get(name, ())]
    own = source.artefacts.get(collector.NAME, ())
    had = {artefact.path for artefact in own}
    artefacts = [*own, *(artefact for artefact in beside if artefact.path not in had)]
    run = source.runs.get(collector.NAME) if source.runs is not None else None
    said: list[Collected] = []
    fed: set[str] = set()
    origin = origin_of(source)
    try:
        for table, row in collector.parse(artefacts) if artefacts else ():
            if table == "collected":
                said.append(_said(collector.NAME, row))
                continue
            fed.add(table)
            rows.setdefault(table, []).append({**origin, **row})
    except CollectorError as error:
        said += [Collected(collector.NAME, table, "partial", error.message) for table in collector.FEEDS]
    except LlmdiagError:
        raise
    except Exception as error:
        reason = _damaged(error, artefacts)
        said += [Collected(collector.NAME, table, "partial", reason) for table in collector.FEEDS]
    if run is not None:
        return _judge_run(collector, run, said)
    looked = fed & set(collector.FEEDS) - {item.table_name for item in said}
    return said + [Collected(collector.NAME, table, "ok") for table in sorted(looked)]


def is_strict() -> bool:
    """In tests a stumble is a failure."""
    return os.environ.get("LLMDIAG_STRICT") == "1"


def _damaged(error: Exception, artefacts: Sequence[Artefact]) -> str:
    """Evidence can be made to hurt: what a parser did not expect costs its tables, not the diagnosis. Raises `error` in tests."""
    named = ", ".join(artefact.path for artefact in artefacts[:3])
    if isinstance(error, MemoryError):
        return f"{named} needs more memory than there is"
    if isinstance(error, RecursionError):
        return f"{named} is nested too deep to be read"
    if isinstance(error, OSError):
        return f"{named}: {error.strerror}"
    if is_strict():
        raise error
    return f"{named} could not be read: internal error: {type(error).__name__}: {error}"


def _judge_run(collector: Collector, run: CollectorRun, said: list[Collected]) -> list[Collected]:
    notes = said + [
        Collected(collector.NAME, table, note.status, note.reason)
        for note in run.notes
        for table in (collector.FEEDS if note.table_name == "*" else (note.table_name,))
    ]
    spoken = {item.table_name for item in notes if item.status != "ok"}
    # with notes alone it came to its end and said all that is missing; with a reason it broke off, and the rest is open
    status = "ok" if run.status == "ok" or (run.status == "partial" and run.notes and run.reason is None) else run.status
    rest = [Collected(collector.NAME, table, status, run.reason if status != "ok" else None) for table in collector.FEEDS if table not in spoken]
    return [item for item in notes if item.status != "ok" or item.table_name not in collector.FEEDS] + rest


def _said(collector: str, row: Mapping[str, object]) -> Collected:
    reason = row.get("reason")
    return Collected(collector, str(row["table_name"]), str(row["status"]), None if reason is None else str(reason))


def _never_looked(collected: list[Collected], collectors: Sequence[Collector]) -> list[Collected]:
    """Tables that no source fed at all are listed as skipped, so that a report can name them."""
    known = {item.table_name for item in collected}
    return collected + [
        Collected(collector.NAME, table, "skipped", "not handed in")
        for collector in collectors
        for table in collector.FEEDS
        if table not in known
    ]


def origin_of(source: Source | None) -> dict[str, object]:
    if source is None:
        return {"bundle": None, "host": None, "capture": None}
    return {"bundle": source.name, "host": source.host, "capture": source.capture}


def _fill_starts(rows: dict[str, list[dict[str, object]]], tables: Mapping[str, Table]) -> None:
    """Give every row with a pid the start time of that process, where exactly one process had that pid."""
    starts: dict[object, set[object]] = {}
    for row in rows.get("processes", ()):
        if row.get("started_at") is not None:
            starts.setdefault(row.get("pid"), set()).add(row["started_at"])
    only = {pid: next(iter(found)) for pid, found in starts.items() if len(found) == 1}
    for name, found in rows.items():
        if name in tables and {"pid", "started_at"} <= set(tables[name].column_names):
            for row in found:
                if row.get("started_at") is None:
                    row["started_at"] = only.get(row.get("pid"))
