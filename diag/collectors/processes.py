"""Who is there: the processes of the service, their roles, states and parents, before and after the window.

A process in state T was stopped, Z is dead and not yet collected by its parent, X was there before and is gone now.
One artefact a read, `processes-0.jsonl`:

    {"artefact":"processes","read":0,"ts":1796007298.3,"target":30339,"root":29677}
    {"pid":29677,"ppid":1,"comm":"vllm","state":"S","started":1796007141.2,"threads":31,"rss_bytes":646543360,
     "argv":["/opt/venv/bin/python3","/opt/venv/bin/vllm","serve","/models/tiny"],"exe":"/usr/bin/python3.11",
     "uid":0,"ns_pid":29677,"tracer_pid":0,"python":true}

and `environ.jsonl`, the environment variables that matter to an engine. Saved `ps` output with its header is read too; `ps -eo pid,ppid,lstart,stat,rss,args` tells start times.
"""

import datetime
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from diag import procfs
from diag.bundle import Door
from diag.errors import Denied, Garbled, Vanished
from diag.instruments.freezer import frozen_by
from diag.live import Collecting, Patient, until_window_end
from diag.model import Artefact, Row
from diag.parsers import ps_text
from diag.parsers.bounds import Count, Epoch
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import MONTHS, Stamp
from diag.parsers.process_titles import SERVES, SPAWNED, role
from diag.redact import Redactor
from diag.tables import Table

NAME = "processes"
FEEDS = ("processes",)
NEEDS: tuple[str, ...] = ()
TABLES: tuple[Table, ...] = ()
BUDGET_S = 1.0
BUDGET_BYTES = 8 << 20
HINT = "llmdiag snapshot {pid}"


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    artefact: str
    read: Count
    ts: Epoch
    target: Count
    root: Count
    others: list[Count] = []
    """Further processes that were asked for."""


class _Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process as it was read; `started` is epoch seconds. Only pid and `gone` when it was not there any more."""

    pid: Count
    ppid: Count | None = None
    comm: str | None = None
    state: str | None = None
    started: Epoch | None = None
    threads: Count | None = None
    rss_bytes: Count | None = None
    argv: list[str] = []
    exe: str | None = None
    uid: Count | None = None
    ns_pid: Count | None = None
    tracer_pid: Count | None = None
    python: bool | None = None
    gone: bool = False
    frozen_by: str | None = None


def collect(patient: Patient, door: Door) -> Collecting:
    """Two reads. Raises Vanished when nothing was left to read."""
    first = [_process(pid, door) for pid in patient.pids]
    _write(patient, door, 0, first)
    _write_environments(door, [item.pid for item in first if not item.gone])
    if all(item.gone for item in first):
        raise Vanished(f"process {patient.root_pid} ended before it could be read", hint="ps -ef shows whether it was restarted")
    yield from until_window_end()
    _write(patient, door, 1, list(_second(patient, door, first)))


def recognise(name: str, head: bytes) -> bool:
    """Saved `ps` output, or an artefact of this collector."""
    text = head.decode("utf-8", "replace")
    return text.startswith('{"artefact":"processes"') or ps_text.is_list(text)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """One row per process and read; children of a server whose name says nothing are its workers."""
    commands: dict[tuple[int, float | None], str] = {}
    saved = 0
    for artefact in sorted(artefacts, key=lambda item: item.path):
        if artefact.name == "environ.jsonl":
            continue
        if _is_ours(artefact):
            rows = list(_ours(artefact, commands))
        else:
            clock = Clock(artefact.year, artefact.zone, None)
            rows = list(_saved(artefact, saved, clock))
            saved += 1
            if clock.assumed is not None:
                yield "collected", {"table_name": "processes", "status": "ok", "reason": f"{artefact.path}: start times: {clock.assumed}"}
        _name_workers(rows)
        yield from (("processes", row) for row in rows)


def _second(patient: Patient, door: Door, first: Sequence[_Process]) -> Iterator[_Process]:
    """Everything seen before, gone or not, then what was started meanwhile."""
    try:
        below = procfs.trees(patient.roots)
    except Vanished:
        below = []
    for before in first:
        now = _process(before.pid, door)
        if before.started is None or now.started == before.started:
            yield now
            continue
        yield _Process(before.pid, before.ppid, before.comm, started=before.started, gone=True)
        if not now.gone and before.pid in below:
            yield now
    known = {item.pid for item in first}
    yield from (_process(pid, door) for pid in below if pid not in known)


def _write(patient: Patient, door: Door, read: int, found: Sequence[_Process]) -> None:
    header = _Header(NAME, read, time.time(), patient.target_pid, patient.root_pid, list(patient.others))
    door.jsonl(f"processes-{read}.jsonl", [msgspec.to_builtins(item) for item in (header, *found)])


def _write_environments(door: Door, pids: Iterable[int]) -> None:
    """What the redactor lets through of each environment; one that may not be read says so."""
    lines: list[dict[str, object]] = [{"artefact": "environ", "ts": time.time()}]
    for pid in pids:
        try:
            lines.append({"pid": pid, "env": door.redact.env(procfs.environ(pid))})
        except (Vanished, Denied) as error:
            lines.append({"pid": pid, "unread": error.message})
    door.jsonl("environ.jsonl", lines)


def _process(pid: int, door: Door) -> _Process:
    """Everything about one process, all from the same life of that pid."""
    try:
        stat = procfs.stat(pid)
        status = procfs.status(pid)
        words = list(door.redact.argv(procfs.argv(pid)))
        path, python = _executable(pid, door, words)
        if not procfs.is_same(procfs.Identity(pid, stat.start_ticks)):
            return _Process(pid, gone=True)
    except (Vanished, Garbled):
        return _Process(pid, gone=True)
    except Denied as error:
        door.note("processes", "partial", f"{error.message}; {error.hint}")
        return _Process(pid, gone=False)
    resident = status.get("VmRSS", "").split()
    return _Process(
        pid, stat.ppid, stat.comm, stat.state, procfs.started_s(stat.start_ticks), stat.threads,
        int(resident[0]) * 1024 if resident else stat.rss_pages * procfs.PAGE_BYTES, words, path,
        _number(status.get("Uid")), _last(status.get("NSpid")), _number(status.get("TracerPid")), python,
        frozen_by=frozen_by(pid),
    )


def _executable(pid: int, door: Door, words: Sequence[str]) -> tuple[str | None, bool | None]:
    """Path of the executable and whether it is Python; a zombie has none, another user's is not shown."""
    try:
        return procfs.exe(pid), procfs.is_python(pid)
    except Vanished:
        return None, None
    except Denied as error:
        door.note("processes.exe", "failed", f"{error.message}; {error.hint}")
        return None, True if words and procfs.PYTHON.match(words[0].rpartition("/")[2]) else None


def _number(text: str | None) -> int | None:
    """First number of a status line."""
    return int(text.split()[0]) if text else None


def _last(text: str | None) -> int | None:
    """Last number of a status line: of NSpid the innermost namespace's."""
    return int(text.split()[-1]) if text else None


def _is_ours(artefact: Artefact) -> bool:
    return next((line for _, line in artefact.lines()), "").startswith('{"artefact":"processes"')


def _ours(artefact: Artefact, commands: dict[tuple[int, float | None], str]) -> Iterator[dict[str, object]]:
    """Rows of one read; `commands` remembers what a process was called while it lived."""
    lines = artefact.lines()
    try:
        header = msgspec.json.decode(next(lines)[1], type=_Header)
        for number, line in lines:
            item = msgspec.json.decode(line, type=_Process)
            command = " ".join(item.argv) or commands.get((item.pid, item.started)) or (f"[{item.comm}]" if item.comm else None)
            if item.argv:
                commands[(item.pid, item.started)] = " ".join(item.argv)
            yield _row(artefact.at(number), header, item, command)
    except msgspec.MsgspecError as error:
        raise Garbled(f"{artefact.path} is not a process list of llmdiag: {error}", hint="collect again") from error


def _row(source: str, header: _Header, item: _Process, command: str | None) -> dict[str, object]:
    known = command if command and not command.startswith("[") else ""
    return {
        "pid": item.pid, "ppid": item.ppid, "started_at": None if item.started is None else procfs.utc(item.started),
        "role": role(known, item.comm), "cmd": command, "comm": item.comm, "state": "X" if item.gone else item.state,
        "rss_bytes": item.rss_bytes, "threads": item.threads,
        "age_s": None if item.started is None else round(max(0.0, header.ts - item.started), 2),
        "ns_pid": item.ns_pid, "tracer_pid": item.tracer_pid, "frozen_by": item.frozen_by, "is_target": item.pid in (header.target, *header.others),
        "is_python": item.python, "exe": item.exe, "uid": item.uid, "read": header.read, "ts": procfs.utc(header.ts),
        "source": source,
    }


def _saved(artefact: Artefact, read: int, clock: Clock) -> Iterator[dict[str, object]]:
    """Rows of saved `ps` output. It says neither when it was taken nor by whom; secrets in arguments are masked here."""
    redactor = Redactor()
    if not ps_text.is_list(artefact.text()):
        raise Garbled(f"{artefact.path} is no list of processes", hint="collect again, or save one with ps -ef > ps.txt")
    for item in ps_text.processes(artefact.lines()):
        command = None if item.command is None else " ".join(redactor.argv(item.command.split()))
        words = (command or "").split()
        yield {
            "pid": item.pid, "ppid": item.ppid, "role": role(command or ""), "cmd": command, "state": item.state,
            "rss_bytes": item.rss_bytes, "threads": item.threads, "age_s": item.age_s, "uid": item.uid, "started_at": None if item.started is None else _started(item.started, clock),
            "is_python": True if words and procfs.PYTHON.match(words[0].rpartition("/")[2]) else None,
            "read": read, "source": artefact.at(item.line),
        }


def _started(printed: str, clock: Clock) -> datetime.datetime | None:
    """`Wed Jun 10 08:00:00 2026` -> UTC; the zone is the given one, else UTC."""
    _, month, day, time_of_day, year = printed.split()
    return clock.utc(Stamp(int(year), MONTHS.get(month, 0), int(day), time_of_day, "", None))


def _name_workers(rows: Sequence[dict[str, object]]) -> None:
    """Children of a server that say nothing of themselves (spawned, or forked and never named) are its workers."""
    by_pid = {row["pid"]: row for row in rows}
    for row in rows:
        parent = by_pid.get(row["ppid"])
        if parent is None or parent["role"] not in SERVES or row["role"] not in ("other", "api_server"):
            continue
        forked = row["cmd"] is not None and row["cmd"] == parent["cmd"]
        spawned = row["role"] == "other" and SPAWNED.search(procfs.program(str(row["cmd"] or "").split()))
        if forked or spawned:
            row["role"] = "worker"
