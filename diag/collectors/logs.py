"""What the engine wrote, and since when it writes nothing: logs given, else stdout, stderr, journal and log files held open.

Silence is measured live, against the last change of the file; lines that only answer llmdiag's own probes do not count
as a sign of life. The raw tail is kept as `0-server.log`, what is known of it in `index.json`:

    {"artefact":"logs","logs":[{"n":0,"kind":"file","file":"/var/log/vllm/server.log","inode":7,"size":16296,
     "mtime":1796007298.3,"collected_at":1796007311.0,"cut":false,"pids":[29677],"zone":"UTC", …}]}

Loose: any file in which three of the first fifty lines are engine or access lines, or a Python traceback, and a few lines
of which half are an engine's own. The time of a loose file says when it was copied and is not used.
"""

import contextlib
import datetime
import os
import re
import stat
import time
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from diag import procfs
from diag.bundle import Door
from diag.errors import BadInput, CollectorError, Denied, Vanished
from diag.instruments import beside, open_logs
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import engine_journal, engine_log, engine_scan, log_access, log_index, log_versions
from diag.parsers.log_clock import OFFSET, zone_of
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
MAX_HELD = 12
"""Log files that are read beside stdout and stderr, those written last first."""
HEAD_BYTES = 64 << 10
OUTPUTS = ((1, "stdout"), (2, "stderr"))
SERVICE = re.compile(r"/(?P<unit>[^/\n]+\.service)(?=/|$)", re.M)
CONTAINER = re.compile(r"[-/](?P<id>[0-9a-f]{64})(?:\.scope)?$", re.M)
PROBED = frozenset({"/metrics", "/health", "/v1/models", "/ping", "/"})
KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a terminal"))


class Unit(NamedTuple):
    """A systemd service; `own` = of a user's own manager."""

    name: str
    own: bool


@dataclass
class _Source:
    """A log found before the window: where it can be opened, who writes to it, how it was."""

    opens: Path
    shown: str
    size: int
    mtime: float
    inode: int
    pids: list[int] = field(default_factory=list)
    is_held: bool = False
    """Found among the open files of a process: it may repeat what stdout has."""
    of_library: bool = False
    """Tells of one library only: to have read it is not to have read the log of the service."""


@dataclass
class _Found:
    """What the search for logs brought."""

    files: dict[tuple[int, int], _Source] = field(default_factory=dict)
    journals: dict[Unit, list[int]] = field(default_factory=dict)
    """Unit -> pids whose output goes there."""
    blocked: list[tuple[int, str]] = field(default_factory=list)
    """(pid, why its output cannot be read)"""
    taken: list[bytes] = field(default_factory=list)
    """What the logs read so far end with."""
    is_known: bool = False
    """The log of the service was read, not only that of a library."""


def collect(patient: Patient, door: Door) -> Collecting:
    """Sizes and times before the window; contents, and how they have grown, after it."""
    found = _given(patient) if patient.options.logs else _outputs(patient)
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
    found = _given(patient) if patient.options.logs else _outputs(patient)
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


def unit_of(cgroup: str) -> Unit | None:
    """`/proc/PID/cgroup` -> the service it names; None = no service (a session, a container)."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        units = [match["unit"] for match in SERVICE.finditer(path)]
        if units:
            return Unit(units[-1], units[0].startswith("user@") and len(units) > 1)
    return None


def _given(patient: Patient) -> _Found:
    """The logs a person named, with the processes that write to them."""
    found = _Found()
    for name in patient.options.logs:
        path = Path(name)
        try:
            facts = path.stat()
        except OSError as error:
            found.blocked.append((patient.root_pid, f"cannot read {name}: {error.strerror}; check --log"))
            continue
        if not stat.S_ISREG(facts.st_mode):
            found.blocked.append((patient.root_pid, f"{name} is not a file; check --log"))
            continue
        found.files[facts.st_dev, facts.st_ino] = _Source(path, name, facts.st_size, facts.st_mtime, facts.st_ino)
    for pid in patient.pids:
        for number, _ in OUTPUTS:
            try:
                facts = Path(f"/proc/{pid}/fd/{number}").stat()
            except OSError:
                continue
            source = found.files.get((facts.st_dev, facts.st_ino))
            if source is not None and pid not in source.pids:
                source.pids.append(pid)
    return found


def _outputs(patient: Patient) -> _Found:
    """Where stdout and stderr of the tree go."""
    found = _Found()
    for pid in patient.pids:
        for number, name in OUTPUTS:
            path = Path(f"/proc/{pid}/fd/{number}")
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            except PermissionError:
                found.blocked.append((pid, f"{name} of pid {pid} may not be read; run llmdiag as its user or root, or give --log FILE"))
                continue
            except OSError:
                continue
            with contextlib.suppress(Vanished, Denied):
                _sort_in(found, pid, name, path, facts)
    _add_held(found, patient)
    return found


def _add_held(found: _Found, patient: Patient) -> None:
    """Log files that the processes hold open, as a logging.FileHandler does."""
    held: dict[tuple[int, int], _Source] = {}
    for pid in patient.pids:
        for log in open_logs.held(pid):
            key = (log.facts.st_dev, log.facts.st_ino)
            fresh = _Source(log.opens, log.shown, log.facts.st_size, log.facts.st_mtime, log.facts.st_ino, is_held=True, of_library=log.of_library)
            source = found.files.get(key) or held.setdefault(key, fresh)
            if pid not in source.pids:
                source.pids.append(pid)
    latest = sorted(held.items(), key=lambda item: (item[1].of_library, -item[1].mtime))
    found.files |= dict(latest[:MAX_HELD])
    if latest[MAX_HELD:]:
        more = ", ".join(source.shown for _, source in latest[MAX_HELD:][:3])
        found.blocked.append((patient.root_pid, f"{len(latest)} log files are open, and {len(latest) - MAX_HELD} were not read ({more}); give --log FILE"))


def _sort_in(found: _Found, pid: int, name: str, path: Path, facts: os.stat_result) -> None:
    if stat.S_ISREG(facts.st_mode):
        key = (facts.st_dev, facts.st_ino)
        if key not in found.files:
            found.files[key] = _Source(path, procfs.link(str(path)), facts.st_size, facts.st_mtime, facts.st_ino)
        if pid not in found.files[key].pids:
            found.files[key].pids.append(pid)
        return
    if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == os.makedev(1, 3):
        return
    kind = next((text for test, text in KINDS if test(facts.st_mode)), "no file")
    cgroup = _cgroup(pid)
    unit = unit_of(cgroup) if stat.S_ISSOCK(facts.st_mode) else None
    if unit is not None:
        pids = found.journals.setdefault(unit, [])
        if pid not in pids:
            pids.append(pid)
    else:
        container = CONTAINER.search(cgroup)
        way = f"save it with `docker logs -t {container['id'][:12]} > FILE 2>&1` and give --log FILE" if container else "give --log FILE"
        found.blocked.append((pid, f"{name} of pid {pid} is {kind}; {way}"))


def _cgroup(pid: int) -> str:
    try:
        return procfs.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except CollectorError:
        return ""


def _start_journals(found: _Found) -> dict[Unit, beside.Tool]:
    tools = {}
    for unit, pids in found.journals.items():
        argv = ("journalctl", "--user-unit" if unit.own else "--unit", unit.name, "-o", "short-iso-precise", "-n", str(JOURNAL_LINES), "--no-pager", "-q")
        try:
            tools[unit] = beside.start(argv, BUDGET_S)
        except CollectorError as error:
            found.blocked.append((pids[0], f"the output of pid {pids[0]} goes to the journal of {unit.name}, but {error.message}; give --log FILE"))
    return tools


def _take_file(source: _Source, patient: Patient, door: Door, logs: list[Log], found: _Found) -> None:
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


def _open(source: _Source) -> BinaryIO:
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


def _take_journal(service: Unit, tool: beside.Tool, found: _Found, door: Door, logs: list[Log]) -> None:
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


def zone_of_process(pid: int) -> str | None:
    """Zone a process prints times in: its TZ, else its /etc/localtime, else UTC. None = cannot be told."""
    try:
        name = procfs.environ(pid).get("TZ")
    except (Denied, Vanished):
        return None
    place = Path(f"/proc/{pid}/root/etc/localtime")
    if name is not None and name.lstrip(":") not in ("/etc/localtime",):
        name = name.lstrip(":").rpartition("zoneinfo/")[2] or "UTC"
    elif place.is_symlink():
        name = str(place.readlink()).rpartition("zoneinfo/")[2]
    else:
        return _offset_of(place)
    if OFFSET.match(name):
        return None  # POSIX turns the sign around: TZ=UTC+1 is one hour behind
    try:
        zone_of(name)
    except BadInput:
        return None
    return name


def _offset_of(localtime: Path) -> str | None:
    """A copied zone file has no name: its offset of today, as `+02:00`."""
    try:
        with localtime.open("rb") as stream:
            zone = zoneinfo.ZoneInfo.from_file(stream)
    except FileNotFoundError:
        return "UTC"
    except (OSError, ValueError):
        return None
    return datetime.datetime.now(zone).strftime("%z") or None


def _note(found: _Found, any_read: bool, patient: Patient, door: Door) -> None:
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
