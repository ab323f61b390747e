"""Artefacts of the stacks collector, and saved output of other tools, -> rows: stacks, locals, what became of each dump."""

import dataclasses
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.parsers import faulthandler, gdb_bt, log_dumps, log_index, perf, pyspy, pystack, strace
from diag.parsers.dump_times import Times
from diag.parsers.log_clock import Clock
from diag.parsers.process_titles import role
from diag.parsers.pyspy import Count, JsonThread, RawThread, Stacks
from diag.parsers.stack_dumps import Dump, numbered, rows
from diag.parsers.stack_formats import format_of, order_in, pid_in
from diag.redact import Redactor
from diag.tables import Table, table

LOGS = "logs"
"""Collector whose files are looked through, too."""
SAMPLE_HEAD = '{"artefact":"stacks"'
HEAD_BYTES = 64 << 10
MAX_LINE_CHARS = 16 << 10
INDEX_HEAD = '{"artefact":"stacks-index"'

TABLES: tuple[Table, ...] = (
    table(
        "stack_dumps",
        "What became of every attempt to read a process's stacks",
        "sample BIGINT: number of the sample, from 0; NULL = no sample was tried",
        "ts TIMESTAMP: when it was begun; NULL = the dump does not say",
        "pid BIGINT: process id as the host sees it",
        "started_at TIMESTAMP: start of the process; identity is (host, pid, started_at)",
        "tool VARCHAR: py-spy | faulthandler | pystack | gdb",
        "outcome VARCHAR: ok, or why there are no stacks: denied ended zombie stopped traced torn timeout behind not python …",
        "reason VARCHAR: what happened and what to do; NULL = nothing to say",
        "threads BIGINT: threads read",
        "torn BIGINT: threads whose stack was torn in every try",
        "tries BIGINT: dumps it took; NULL = not known",
        "seconds DOUBLE: all tries together; NULL = not known",
        "locals BOOLEAN: local variables were read",
        "blocking BOOLEAN: the process was stopped for it; NULL = not known",
    ),
    *strace.TABLES,
    *perf.TABLES,
)


_Read = TypeVar("_Read", JsonThread, RawThread)


class OneSample(msgspec.Struct, Generic[_Read], omit_defaults=True):
    """One artefact: one sample of one process."""

    artefact: str
    read: Count
    ts: float
    tool: str
    pid: Count
    threads: list[_Read]
    version: str | None = None
    started: float | None = None
    locals: str | None = None
    blocking: bool = False


class Attempt(msgspec.Struct, omit_defaults=True):
    """One line of `dumps.jsonl`; the first one has the time at which it was written."""

    artefact: str = ""
    read: Count = 0
    ts: float | None = None
    tool: str = "py-spy"
    version: str | None = None
    pid: Count | None = None
    started: float | None = None
    sample: Count | None = None
    outcome: str = ""
    reason: str | None = None
    threads: Count = 0
    torn: Count = 0
    tries: Count | None = None
    seconds: float | None = None
    locals: bool = False
    blocking: bool = False


def rows_of(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Artefacts -> rows. Dumps without a sample number are numbered per process, in order of time or else of their names.

    Loose logs are looked through for dumps that the engine's watchdog wrote; in a bundle those are older than its own samples.
    """
    dumps: list[Dump] = []
    stacks = Stacks()
    indexed = any(artefact.name == log_index.INDEX for artefact in artefacts)
    clocks = {artefact.path: Clock(artefact.year, artefact.zone, None) for artefact in artefacts}
    for artefact in sorted(artefacts, key=lambda artefact: artefact.collector == LOGS):
        if artefact.collector == LOGS:
            dumps += [] if indexed else _ordered(log_dumps.dumps(artefact, clocks[artefact.path]), artefact)
            continue
        try:
            with artefact.opener() as stream:
                head = stream.read(64)
            if head.startswith(INDEX_HEAD.encode()):
                indexed = True
                yield from _attempts(artefact)
            elif head.startswith(SAMPLE_HEAD.encode()):
                dumps.append(_live_dump(artefact, stacks))
            else:
                found = _loose(artefact, Times(clocks[artefact.path]), stacks)
                dumps += [item for item in found if isinstance(item, Dump)]
                yield from _counted(item for item in found if not isinstance(item, Dump))
        except Garbled as error:
            for name in ("stack_frames", "stack_locals", "stack_dumps"):  # nobody knows which of them it held
                yield "collected", {"table_name": name, "status": "partial", "reason": str(error).replace("\n  ", "; ")}
    samples = numbered(dumps)
    yield from rows(samples)
    for dump in samples:
        if not (dump.checked and indexed):
            yield "stack_dumps", _dump_row(dump)
    yield from _named(samples)
    yield from _missing(samples)
    yield from _assumed(clocks)


def _named(dumps: Sequence[Dump]) -> Iterator[Row]:
    """Processes that a dump is of. No list of all there are: the table counts as looked at only if such a list is there, too."""
    redactor = Redactor()
    seen: set[tuple[int, str | None]] = set()
    titled = {dump.pid for dump in dumps if dump.title}
    for dump in dumps:
        title = dump.title or None
        if dump.pid is None or dump.checked or (title is None and dump.pid in titled) or (dump.pid, title) in seen:
            continue
        seen.add((dump.pid, title))
        command = None if title is None else " ".join(redactor.argv(title.split()))
        yield "processes", {
            "pid": dump.pid, "ppid": dump.ppid, "role": None if command is None else role(command), "cmd": command, "is_python": True, "ts": dump.ts,
            "source": dump.source,
        }


def _live_dump(artefact: Artefact, stacks: Stacks) -> Dump:
    try:
        ours = msgspec.json.decode(artefact.bytes(), type=OneSample[RawThread])
        threads, _ = stacks.threads(ours.threads, artefact.key)
        ts, started = _utc(ours.ts), None if ours.started is None else _utc(ours.started)
    except (msgspec.DecodeError, ValueError, OverflowError, OSError, RecursionError) as error:
        raise Garbled(f"{artefact.path} is not an artefact of the stacks collector: {error}", hint="collect again") from error
    return Dump(
        ours.pid, ours.tool, threads, artefact.key("threads"), None, ours.locals is not None, ours.read, ts, started, structured=True, checked=True,
    )


def _attempts(artefact: Artefact) -> Iterator[Row]:
    for number, line in artefact.lines():
        try:
            item = msgspec.json.decode(line, type=Attempt)
            ts, started = (None if at is None else _utc(at) for at in (item.ts, item.started))
        except (msgspec.DecodeError, ValueError, OverflowError, OSError) as error:
            raise Garbled(f"{artefact.at(number)} is not a line of the stacks collector: {error}", hint="collect again") from error
        if item.pid is not None:
            yield "stack_dumps", {
                "sample": item.sample, "ts": ts, "pid": item.pid, "started_at": started, "tool": item.tool, "outcome": item.outcome,
                "reason": item.reason, "threads": item.threads, "torn": item.torn, "tries": item.tries, "seconds": item.seconds,
                "locals": item.locals, "blocking": item.blocking, "source": artefact.at(number),
            }


def _loose(artefact: Artefact, times: Times, stacks: Stacks) -> Sequence[Dump | Row]:
    """Dumps or rows of one saved file. Raises Garbled."""
    with artefact.opener() as stream:
        head = stream.read(HEAD_BYTES).decode("utf-8", "replace")
    lines = times.watched((number, line[:MAX_LINE_CHARS]) for number, line in artefact.lines())
    pid = pid_in(artefact.name)
    found: list[Dump | Row] = []
    match format_of(artefact.name, head):
        case "py-spy json":
            named, threads, has_locals = pyspy.read(artefact, stacks)
            found = [Dump(pid if named is None else named, pyspy.TOOL, threads, artefact.key("threads"), locals_read=has_locals, structured=True)]
        case "py-spy":
            found = [*pyspy.from_text(lines, artefact.at, pid)]
        case "faulthandler":
            found = [*faulthandler.from_text(lines, artefact.at, pid)]
        case "pystack":
            found = [*pystack.from_text(lines, artefact.at, pid)]
        case "gdb":
            found = [*gdb_bt.from_text(lines, artefact.at, pid)]
        case "strace":
            found = [*strace.rows(lines, artefact.at, pid)]
        case "perf report":
            found = [*perf.report_rows(lines, artefact.at, pid)]
        case "perf script":
            found = [*perf.script_rows(lines, artefact.at, pid)]
        case _:
            raise Garbled(f"{artefact.path} is no dump of stacks, no strace and no perf output", hint="leave the file out")
    dumps = [item for item in found if isinstance(item, Dump)]
    return _ordered(times.dated(dumps), artefact) if dumps else found


def _ordered(dumps: Sequence[Dump], artefact: Artefact) -> list[Dump]:
    """Dumps of one file with their places among those of others."""
    order, seen = order_in(artefact.path), Counter[int | None]()
    found = []
    for dump in dumps:
        found.append(dataclasses.replace(dump, order=(*order, "#", seen[dump.pid])))
        seen[dump.pid] += 1
    return found


def _counted(found: Iterable[Row]) -> Iterator[Row]:
    """Rows of strace and perf; what a file holds of them is all there is."""
    tables = set()
    for name, row in found:
        tables.add(name)
        yield name, row
    for name in sorted(tables):
        yield "collected", {"table_name": name, "status": "ok"}


def _dump_row(dump: Dump) -> dict[str, object]:
    failure = dump.failure
    return {
        "sample": dump.sample, "ts": dump.ts, "pid": dump.pid, "started_at": dump.started_at, "tool": dump.tool,
        "outcome": "ok" if failure is None else failure.kind, "reason": None if failure is None else str(failure),
        "threads": len(dump.threads), "torn": sum(thread.torn for thread in dump.threads), "locals": dump.locals_read, "source": dump.source,
    }


def _missing(dumps: Sequence[Dump]) -> Iterator[Row]:
    """Processes of which every dump failed: their stacks could not be looked at."""
    read = {dump.pid for dump in dumps if dump.failure is None}
    reasons = {(dump.pid, str(dump.failure)) for dump in dumps if dump.failure is not None and dump.pid not in read}
    for pid, reason in sorted(reasons, key=str):
        who = "an unnamed process" if pid is None else f"pid {pid}"
        yield "collected", {"table_name": "stack_frames", "status": "partial", "reason": f"{who}: {reason}"}


def _assumed(clocks: Mapping[str, Clock]) -> Iterator[Row]:
    """What was taken for granted of the times of dumps."""
    for path, clock in clocks.items():
        if clock.assumed is not None:
            yield "collected", {"table_name": "stack_dumps", "status": "ok", "reason": f"{path}: {clock.assumed} assumed (--date, --tz)"}


def _utc(epoch_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(epoch_s, datetime.UTC).replace(tzinfo=None)
