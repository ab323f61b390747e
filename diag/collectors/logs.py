"""What the engine wrote, and since when it writes nothing: logs given, else stdout, stderr, journal and log files held open.

Silence is measured live, against the last change of the file; lines that only answer llmdiag's own probes do not count
as a sign of life. The raw tail is kept as `0-server.log`, what is known of it in `index.json`:

    {"artefact":"logs","logs":[{"n":0,"kind":"file","file":"/var/log/vllm/server.log","inode":7,"size":16296,
     "mtime":1796007298.3,"collected_at":1796007311.0,"cut":false,"pids":[29677],"zone":"UTC", …}]}

Loose: any file in which three of the first fifty lines are engine or access lines, or a Python traceback, and a few lines
of which half are an engine's own. The time of a loose file says when it was copied and is not used.
"""

import datetime
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from diag.bundle import Door
from diag.errors import CollectorError
from diag.instruments import beside, log_places
from diag.instruments.process_zone import zone_of_process
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import engine_journal, engine_log, engine_scan, log_access, log_index, log_versions
from diag.parsers.log_clock import zone_of
from diag.parsers.log_index import INDEX, Log
from diag.tables import Table

NAME = "logs"
FEEDS = ("log_events", "http_events", "log_files")
NEEDS = ("processes",)
TABLES: tuple[Table, ...] = ()
BUDGET_S = 8.0
BUDGET_BYTES = 96 << 20
HINT = "llmdiag snapshot {pid}"

JOURNAL_LINES = 5000
HEAD_BYTES = 64 << 10
PROBED = frozenset({"/metrics", "/health", "/v1/models", "/ping", "/"})
def collect(patient: Patient, door: Door) -> Collecting:
    """Sizes and times before the window; contents, and how they have grown, after it."""
    found = log_places.of(patient)
    tools = _start_journals(found)
    try:
        while True:
            tick = yield
            for tool in tools.values():
                beside.drain(tool)
            if tick.last:
                break
        logs: list[Log] = []
        for source in found.files.values():
            _take_file(source, patient, door, logs, found)
        for unit, tool in tools.items():
            _take_journal(unit, tool, found, door, logs)
    finally:
        for tool in tools.values():
            beside.stop(tool)
    _enrich(logs, patient)
    door.json(INDEX, log_index.as_json(logs))
    _note(found, bool(logs), patient, door)


def would_read(patient: Patient, door: Door) -> list[str]:
    """The files and journals that would be read; what cannot be is noted. Files held open are looked into, whether they are logs."""
    found = log_places.of(patient)
    journals = [f"the journal of {unit.name}, its last {JOURNAL_LINES} lines" for unit in found.journals]
    found.is_known = bool(journals) or any(not source.of_library for source in found.files.values())
    lines = [*(source.shown for source in found.files.values()), *journals]
    _note(found, bool(lines), patient, door)
    return lines


def hint(seen: Callable[[str], Sequence[Mapping[str, object]]]) -> str:
    """Where the output of the service could not be read, a file has to be named."""
    tried = any(row.get("collector") == NAME and row.get("status") in ("partial", "failed") for row in seen("collected"))
    return f"{HINT} --log FILE" if tried else HINT


def recognise(name: str, head: bytes) -> bool:
    """An index of this collector, or a text with the shape of an engine log."""
    if name == INDEX:
        return head.startswith(b'{"artefact":"logs"')
    if head.startswith(b'{"artefact":"'):  # one of llmdiag's own, copied out of a bundle
        return False
    text = head.decode("utf-8", "replace")
    return (b"\n" in head and engine_log.looks_like_log(text)) or engine_log.is_fragment(text)


def also(owner: str, head: bytes) -> bool:
    """A journal of the whole machine, which tells first of its units: an engine's lines may stand between."""
    return owner == "events" and engine_journal.looks_mixed(head)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Raises Garbled when an index is damaged."""
    known = {key: log for artefact in artefacts if artefact.name == INDEX for key, log in log_index.read(artefact)}
    shared = [artefact for artefact in artefacts if artefact.collector != NAME]
    for artefact in shared:
        yield from engine_journal.rows(artefact)
    others: list[str] = []
    mine = [artefact for artefact in artefacts if artefact.collector == NAME and artefact.name != INDEX]
    for artefact in mine:
        folder, _, name = artefact.path.rpartition("/")
        log = known.get((folder, name.split("-", 1)[0]))
        is_engines = log is not None or not _is_json(artefact)
        with artefact.opener() as stream:
            zone = log_index.zone(log) or artefact.zone
            found = engine_scan.rows(stream, log_index.origin(artefact, log), year=artefact.year, tz=zone)
            for table, row in log_versions.beside(found) if log is None else found:  # live, the packages themselves are read
                is_engines = is_engines or row.get("event") is not None
                yield table, row
        others += [] if is_engines else [artefact.path]
    if len(others) < len(mine):
        # A log that was read and tells of nothing is not a log that was not read.
        yield "collected", {"table_name": "log_events", "status": "ok"}
    elif others:
        reason = f"{', '.join(others[:3])} tells of no engine, as logs of routers and proxies do; give the engine's own log too"
        yield "collected", {"table_name": "log_events", "status": "partial", "reason": reason}


def _is_json(artefact: Artefact) -> bool:
    """Lines of JSON, as engines write them only where they are told to."""
    with artefact.opener() as stream:
        head = stream.read(HEAD_BYTES).decode("utf-8", "replace")
    kinds = engine_log.kinds_in(head)
    return "json" in kinds and kinds <= {"json", "raw"}


def _start_journals(found: log_places.LogPlaces) -> dict[log_places.Unit, beside.Tool]:
    tools = {}
    for unit, pids in found.journals.items():
        argv = ("journalctl", "--user-unit" if unit.own else "--unit", unit.name, "-o", "short-iso-precise", "-n", str(JOURNAL_LINES), "--no-pager", "-q")
        try:
            tools[unit] = beside.start(argv, BUDGET_S)
        except CollectorError as error:
            found.blocked.append((pids[0], f"the output of pid {pids[0]} goes to the journal of {unit.name}, but {error.message}; give --log FILE"))
    return tools


def _take_file(source: log_places.LogFile, patient: Patient, door: Door, logs: list[Log], found: log_places.LogPlaces) -> None:
    limit = patient.options.log_bytes // len(found.files)
    try:
        with _open(source) as stream:
            facts = os.fstat(stream.fileno())
            stream.seek(max(0, facts.st_size - limit))
            data = stream.read(limit)
    except OSError as error:
        who = source.pids[0] if source.pids else patient.root_pid
        found.blocked.append((who, f"cannot read {source.shown}: {error.strerror}; run llmdiag as its owner or root, or give --log FILE"))
        return
    now = time.time()
    cut = facts.st_size > limit
    if cut:
        data = data.partition(b"\n")[2] or data
    grown = data[len(data) - (facts.st_size - source.size):] if 0 < facts.st_size - source.size <= len(data) else b""
    mtime = source.mtime if grown and _only_probes(grown) else facts.st_mtime
    if source.is_held and _is_copy(data, found.taken):
        return
    found.taken.append(data)
    found.is_known |= not source.of_library
    name = _base(door.redact.name(source.shown.removesuffix(" (deleted)")))  # before it is cut and its `=` is lost
    door.text(f"{len(logs)}-{name}", data.replace(b"\0", b"").decode("utf-8", "replace"))
    logs.append(Log(len(logs), "file", source.shown, now, mtime, source.inode, facts.st_size, cut, source.pids))


def _is_copy(data: bytes, others: Sequence[bytes]) -> bool:
    """Does another log end with the same lines? A service often logs to stdout and to a file: what happened once is told once."""
    last = [line for line in data[-HEAD_BYTES:].splitlines() if line.strip()][-3:]
    return bool(last) and any(all(line in other for line in last) for other in others)


def _open(source: log_places.LogFile) -> BinaryIO:
    """The file through its writer's descriptor; a writer that has died meanwhile leaves it at its path. Raises OSError."""
    try:
        return source.opens.open("rb")
    except FileNotFoundError:
        place = Path(source.shown)
        if place.stat().st_ino != source.inode:
            raise
        return place.open("rb")


def _base(path: str) -> str:
    return re.sub(r"[^\w.@\-]+", "_", path.rpartition("/")[2])[:80] or "log"


def _only_probes(grown: bytes) -> bool:
    """Has only the web server written, and only about reads that llmdiag makes itself?"""
    lines = [line for line in grown.decode("utf-8", "replace").splitlines() if line.strip()]
    return all(_is_probe(line) for line in lines)


def _is_probe(line: str) -> bool:
    request = log_access.of_line(line)
    return request is not None and request.row["method"] == "GET" and request.row["path"] in PROBED


def _take_journal(service: log_places.Unit, tool: beside.Tool, found: log_places.LogPlaces, door: Door, logs: list[Log]) -> None:
    unit, pids = service.name, found.journals[service]
    try:
        output = beside.gather(tool)
    except CollectorError as error:
        found.blocked.append((pids[0], f"{error.message} (journal of {unit}); give --log FILE"))
        return
    if output.code != 0 or not output.out.strip():
        why = output.complaint if output.code != 0 else "nothing readable there"
        found.blocked.append((pids[0], f"journal of {unit}: {why}; run llmdiag as root or in the group systemd-journal, or give --log FILE"))
        return
    cut = output.cut or output.out.count("\n") >= JOURNAL_LINES
    door.text(f"{len(logs)}-{_base(unit)}.journal", output.out)
    found.is_known = True
    logs.append(Log(len(logs), "journal", unit, output.started, cut=cut, pids=pids))


def _enrich(logs: Sequence[Log], patient: Patient) -> None:
    """Roles, pids inside containers, and the zone the writers print times in."""
    rows = [row for row in patient.seen("processes") if isinstance(row.get("pid"), int)]
    for log in logs:
        for row in rows:
            pid, inside, role = row["pid"], row.get("ns_pid"), row.get("role")
            if isinstance(pid, int) and isinstance(role, str):
                log.roles[pid] = role
            if isinstance(pid, int) and isinstance(inside, int) and inside != pid:
                log.ns_pids[inside] = pid
        log.zone = zone_of_process(log.pids[0] if log.pids else patient.root_pid)
        if log.zone is not None:
            log.offset = datetime.datetime.now(zone_of(log.zone)).strftime("%z")


def _note(found: log_places.LogPlaces, any_read: bool, patient: Patient, door: Door) -> None:
    """What could not be read. Pipes of children matter only when nothing else of the service is readable."""
    blocked = found.blocked
    if found.is_known:
        blocked = [item for item in blocked if item[0] == patient.root_pid or patient.options.logs]
    elif not blocked:
        blocked = [(patient.root_pid, _no_log(patient))]
    for _, why in blocked if found.is_known else blocked[:1]:
        for table in FEEDS:
            door.note(table, "partial" if any_read else "failed", why)


def _no_log(patient: Patient) -> str:
    """A service that logs nowhere we can see is not a service without errors."""
    return (
        f"no log of the service was found: stdout and stderr of pid {patient.root_pid} go nowhere, and no process holds one open; "
        f"llmdiag snapshot {patient.root_pid} --log FILE"
    )
