"""Collect from a live process tree: order, beats of the sampling window, budgets, guards. Analyses nothing.

The patient comes first: collectors only read, each has a budget, and whatever fails becomes a line of the manifest.
"""

import contextlib
import itertools
import os
import platform
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from diag import first_look, parsing, procfs
from diag.bundle import Door, Occupied, Writer
from diag.collectors import Collector
from diag.errors import BundleError, CollectorError
from diag.live import Collecting, Options, Patient, Tick
from diag.model import Artefact
from diag.redact import Redactor

BEAT_S = 0.25
PLANS_NEED = frozenset({"processes", "sockets"})
"""What is read to tell what would be read: tables that come from /proc alone."""


@dataclass(frozen=True)
class Part:
    """What became of one collector so far: `waits`, `runs`, or how it ended; `files`: artefacts that it has written."""

    name: str
    status: str
    files: int
    reason: str | None = None


@dataclass(frozen=True)
class View:
    """A moment of the snapshot: what is being done, the share of the window that is over (0..1), what was found."""

    what: str
    share: float
    parts: tuple[Part, ...]
    found: tuple[str, ...] = ()


Show = Callable[[View], None]


class Interrupted(Exception):
    """Ctrl-C during the window: analyse what there is."""


@dataclass
class _Running:
    """One collector at work."""

    module: Collector
    door: Door
    generator: Collecting | None
    seconds: float = 0.0
    status: str = "ok"
    reason: str | None = None


def in_order(collectors: Sequence[Collector]) -> list[Collector]:
    """Collectors sorted so that each comes after those that feed what it needs."""
    feeders: dict[str, list[str]] = {}
    for module in collectors:
        for table in module.FEEDS:
            feeders.setdefault(table, []).append(module.NAME)
    graph = {m.NAME: {f for need in m.NEEDS for f in feeders.get(need, ()) if f != m.NAME} for m in collectors}
    by_name = {module.NAME: module for module in collectors}
    return [by_name[name] for name in TopologicalSorter(graph).static_order() if name in by_name]


def default_name(pid: int) -> str:
    """`llmdiag-<host>-<pid>-<UTC time>`"""
    return f"llmdiag-{socket.gethostname()}-{pid}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"


def take(
    targets: Sequence[int], options: Options, archive: Path, collectors: Sequence[Collector], *, redactor: Redactor, show: Show,
    strict: bool = False, numbered: bool = False, about: Mapping[str, str] | None = None,
) -> tuple[Path, bool]:
    """Snapshot the services that the pids `targets` belong to into `archive`. Returns (the archive that was written, interrupted).

    Raises BundleError before anything is collected when the place cannot be written, and when its disk is full later on;
    LlmdiagError when a pid does not exist. `numbered` writes to `archive-2` and so on where there is one already.
    `strict` lets unexpected errors of collectors through (tests); otherwise they become a status. `about` goes into the
    manifest: how the target was found, and why now.
    """
    target, *further = dict.fromkeys(map(procfs.existing, targets))
    root, others = procfs.service_root(target), {pid: procfs.service_root(pid) for pid in further}
    chosen = [module for module in in_order(collectors) if module.NAME not in options.skip]
    pids = procfs.trees((root, *others.values()))
    _learn(redactor, pids, options)
    known = {"pid": target, "root_pid": root, **({"others": " ".join(map(str, others))} if others else {}), **(about or {})}
    archive, writer = _open(archive, redactor, known, numbered=numbered)
    running = [_Running(module, Door(writer, module.NAME, module.BUDGET_BYTES), None) for module in chosen]
    interrupted = False
    own_priority = None
    try:
        own_priority = _raise_priority() if options.allow_pause else None
        rows = _Seen(running)
        patient = Patient(target, root, pids, options, rows.of, others)
        for item in running:
            writer.log("begin", collector=item.module.NAME, feeds=item.module.FEEDS)
            show(_view(item.module.NAME, 0.0, running))
            item.generator = item.module.collect(patient, item.door)
            _step(item, None, strict)
            rows.forget()
        found = tuple(first_look.sentences(rows.of))
        for tick in beats(options):
            show(_view("sampling", tick.share, running, found))
            for item in running:
                _step(item, tick, strict)
                if tick.last:
                    rows.forget()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        _restore_priority(own_priority)
        with contextlib.ExitStack() as ends:  # each of them, whatever becomes of the others
            for item in reversed(running):
                ends.callback(_end, item, writer, interrupted, strict)
    return writer.close(archive), interrupted


def would_read(targets: Sequence[int], options: Options, collectors: Sequence[Collector]) -> dict[str, list[str]]:
    """The very files and addresses that `take` would read, by collector, and what it could not: from /proc and a look into open logs.

    Nothing stays on the disk. Raises LlmdiagError when a pid does not exist.
    """
    target, *further = dict.fromkeys(targets)
    root, others = procfs.service_root(target), {pid: procfs.service_root(pid) for pid in further}
    pids, redactor = procfs.trees((root, *others.values())), Redactor()
    _learn(redactor, pids, options)
    with tempfile.TemporaryDirectory(prefix="llmdiag-plan-") as folder:
        writer = Writer(Path(folder) / "plan", redactor, {}, {})
        chosen = [_Running(m, Door(writer, m.NAME, m.BUDGET_BYTES), None) for m in in_order(collectors) if m.NAME not in options.skip]
        patient = Patient(target, root, pids, options, _Seen(chosen).of, others)
        for item in chosen:
            if PLANS_NEED.intersection(item.module.FEEDS):
                with contextlib.suppress(CollectorError), contextlib.closing(item.module.collect(patient, item.door)) as going:
                    next(going)
        found = {item.module.NAME: _planned(item, patient) for item in chosen}
        writer.abandon()
    return {name: [redactor.text(line) for line in lines] for name, lines in found.items()}


def _planned(item: _Running, patient: Patient) -> list[str]:
    plan = getattr(item.module, "would_read", None)
    if plan is None:
        return []
    lines = list(plan(patient, item.door))
    return [*lines, *dict.fromkeys(f"not: {note.reason}" for note in item.door.notes)]


def beats(options: Options) -> Iterator[Tick]:
    """The beats of the window, each at its time; samples are spread evenly, first and last beat included."""
    last = max(1, round(options.window_s / BEAT_S), options.samples - 1)  # at most one sample falls on a beat
    due = {round(number * last / max(1, options.samples - 1)): number for number in range(options.samples)}
    start = time.monotonic()
    for number in range(last + 1):
        share = number / last
        pause = start + share * options.window_s - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        yield Tick(number, due.get(number), number == last, share)


def _view(what: str, share: float, running: Sequence[_Running], found: tuple[str, ...] = ()) -> View:
    parts = (Part(item.module.NAME, _status(item), len(item.door.artefacts), item.reason) for item in running)
    return View(what, share, tuple(parts), found)


def _status(item: _Running) -> str:
    if item.generator is not None:
        return "runs"
    return item.status if item.status != "ok" or item.seconds else "waits"


def _step(item: _Running, tick: Tick | None, strict: bool) -> None:
    if item.generator is None:
        return
    started = time.monotonic()
    try:
        if tick is None:
            next(item.generator)
        else:
            item.generator.send(tick)
    except StopIteration:
        item.generator = None
    except CollectorError as error:
        _fail(item, str(error).replace("\n  ", "; "))
    except BundleError:
        raise
    except Exception as error:
        if strict:
            raise
        _fail(item, f"internal error: {type(error).__name__}: {error}")
    item.seconds += time.monotonic() - started


def _fail(item: _Running, reason: str) -> None:
    item.generator = None
    item.status = "partial" if item.door.artefacts else "failed"
    item.reason = item.door.redact.text(reason)


def _end(item: _Running, writer: Writer, interrupted: bool, strict: bool) -> None:
    if item.generator is not None:
        _close(item, strict)
        if item.status == "ok":
            item.status = "partial"
            item.reason = "stopped by Ctrl-C before the window was over" if interrupted else "the collector did not finish"
    if item.status == "ok" and item.door.notes:
        item.status = "partial"
    writer.log(
        "end", collector=item.module.NAME, status=item.status, seconds=round(item.seconds, 4),
        reason=None if item.reason is None else item.door.redact.text(item.reason), feeds=item.module.FEEDS,
        # once more: what was no known secret when it was noted may be one now
        notes=[{"table_name": n.table_name, "status": n.status, "reason": item.door.redact.text(n.reason)} for n in item.door.notes],
    )


def _close(item: _Running, strict: bool) -> None:
    """A collector before its end writes what it has; what goes wrong there is a line of the manifest like any other."""
    if item.generator is None:
        return
    try:
        item.generator.close()
    except BundleError:
        raise
    except CollectorError as error:
        _fail(item, str(error).replace("\n  ", "; "))
    except Exception as error:
        if strict:
            raise
        _fail(item, f"internal error: {type(error).__name__}: {error}")


class _Seen:
    """Rows gathered so far, parsed on demand and remembered until the next step writes more."""

    def __init__(self, running: Sequence[_Running]) -> None:
        self._running = running
        self._parsed: dict[str, dict[str, list[Mapping[str, object]]]] = {}

    def of(self, table: str) -> list[Mapping[str, object]]:
        found: list[Mapping[str, object]] = []
        for item in self._running:
            if table in item.module.FEEDS and item.door.artefacts:
                found += self._rows(item.module, item.door.artefacts).get(table, [])
        return found

    def forget(self) -> None:
        self._parsed.clear()

    def _rows(self, module: Collector, artefacts: Sequence[Artefact]) -> dict[str, list[Mapping[str, object]]]:
        if module.NAME not in self._parsed:
            self._parsed[module.NAME] = parsing.seen_rows(module, artefacts)
        return self._parsed[module.NAME]


def _learn(redactor: Redactor, pids: Sequence[int], options: Options) -> None:
    """Secrets of all command lines and environments, and those we were given, are known before the first byte is written."""
    for pid in pids:
        with contextlib.suppress(CollectorError):
            redactor.argv(procfs.argv(pid))
            redactor.env(procfs.environ(pid))
    for url in (*options.redis_urls, os.environ.get("LLMDIAG_REDIS_URL", "")):
        redactor.url(url)
    if options.bearer:
        redactor.pair("authorization", f"Bearer {options.bearer}")


def _open(archive: Path, redactor: Redactor, target: Mapping[str, object], *, numbered: bool) -> tuple[Path, Writer]:
    """A new bundle for `archive`; where that is taken, for the next name that is free, if `numbered`."""
    for number in itertools.count(1):
        place = archive if number == 1 else archive.with_name(f"{archive.stem}-{number}{archive.suffix}")
        try:
            return place, Writer(_folder_for(place), redactor, _host(), target)
        except Occupied:
            if not numbered:
                raise
    raise AssertionError("unreachable")


def _folder_for(archive: Path) -> Path:
    if os.path.lexists(archive):
        raise Occupied(f"{archive} exists already", hint="name another file with -o")
    return archive.with_suffix("")


def _host() -> dict[str, object]:
    return {
        "hostname": socket.gethostname(), "kernel": platform.release(), "machine": platform.machine(),
        "python": platform.python_version(), "uid": os.getuid(), "cpus": os.cpu_count(),
    }


def _raise_priority() -> int | None:
    """A pause lasts until the tool gets a CPU again: where pausing is allowed, run a little ahead of the crowd.

    Without pauses it would only take CPU from the patient.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, max(-20, before - 10))
    except PermissionError:
        return None
    return before


def _restore_priority(before: int | None) -> None:
    if before is not None:
        os.setpriority(os.PRIO_PROCESS, 0, before)

