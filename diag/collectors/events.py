"""Who stopped, killed and started the service, and what its clients got: journals of supervisors, logs of proxies.

Nothing of its own is read from a live service: other people's journals need rights that a diagnosis should not need, and
what systemd says of the service's own unit is in the journal that the collector `logs` takes along (read here too). Save
and hand in to `llmdiag analyze`, whole and not filtered to the service (who restarted it may stand in other lines):

    journalctl -o json --since … > journal.json        kubectl get events -A -o json > events.json
    docker events --since … --until … > docker.txt      kubectl get pod POD -o json > pod.json   (or: kubectl describe pod)
    docker inspect NAME > inspect.json                  supervisord.log, haproxy.log, nginx's access.log as they are

Raw text it reads (each form in its parser): journald short*, json, export; syslog; tables and JSON of Kubernetes events;
pods; docker events and inspect; supervisord; HAProxy's HTTP log; nginx combined; any log that an events map names:

    Nov 30 03:05:52 gpu-1 systemd[1]: vllm.service: Scheduled restart job, restart counter is at 3.
    2026-11-30T03:05:52.123456789Z container die 4f6e0d (execDuration=812, exitCode=137, name=vllm)

Rows of `host_events` (ts UTC; NULL = an age without a time), by kind; what stands after the dash is the initiator:

    killing       somebody wants it to end: systemd Stopping (who asked, if found: a sudo user, `cron (USER): COMMAND`, the unit
                  of a timer; else NULL = from outside, not known), signals of systemd (`systemd`, `systemd (watchdog)`, `systemd
                  (stop timeout)`), docker kill (NULL), Kubernetes Killing (`kubelet (liveness probe)`, `kubelet (startup probe)`,
                  `kubelet (definition changed)`, `kubernetes (pod removal)`, `kubelet (eviction)`, …), supervisord (`supervisorctl`,
                  `supervisord (stop timeout)`), a kill by sudo; code = signal where one is told
    exit          the process ended; code = exit code, 128 + signal - who had asked for it, `kernel` (OOM), NULL = by itself
    stop          the supervisor calls it stopped - who asked; `systemd (start limit)`, `supervisord (gave up)` = nobody starts it again
    start         one per start, of its beginning - who had asked; `systemd`, `docker (restart policy)`, `supervisord` = after a death
    restart       somebody decided to start it again: `systemd` (Scheduled restart job), `docker (restart policy)`, `supervisord`, a
                  user (sudo systemctl/docker/kubectl … restart), `kubernetes (rollout)`, `host boot`; NULL = `docker restart` by
                  somebody (comes after the start). A stop and start by systemctl has no `restart` row where nobody is named
    probe_failed  `kubelet (liveness|readiness|startup probe)`, `docker (healthcheck)`, `systemd (watchdog)`; code = HTTP status or exit code
    back_off      the kubelet waits before it starts a container again (repeated while it waits: not one per restart) - `kubelet`
    oom_kill      `kernel` or `systemd-oomd`; code 9
    left_over     a process of the life before was still there when the unit was started; pid
    heartbeat_lost  a node is gone - `kubernetes`
    xid, nvrm, device_error, hung_task, segfault   kernel lines inside a journal, as in dmesg

    unit is `vllm.service`, `POD/CONTAINER` (POD where the container is not told), the container's name, the program's name; a command by
    sudo may name none. Kubernetes counts equal events: the first and the last of N are rows, `[last of N since …]` in detail.

`http_events` of proxies have origin `haproxy` or `nginx` (the engine's own have NULL: one request may be in both), ts = the end
of the request, and backend, ended, queue_s, first_byte_s, queued where the format tells them. `watchdog_rules` holds the
rule of each prober, from pod specs, docker healthchecks, WatchdogSec= and the events map. `event_files` says which journals
were read at all, from when to when, and what had to be assumed: a restart outside of them is not known not to have been.
"""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from diag.bundle import Door
from diag.errors import Garbled
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import (
    access_log_haproxy,
    access_log_nginx,
    docker_events,
    engine_log,
    events_map,
    journal_scan,
    journald_entries,
    k8s_describe,
    k8s_events,
    supervisord,
)
from diag.parsers.event_rows import Event, Said, Watchdog
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import clean
from diag.tables import CORE, Table

NAME = "events"
FEEDS = ("watchdog_rules", "event_files")
NEEDS: tuple[str, ...] = ()
BUDGET_S = 1.0
BUDGET_BYTES = 1 << 20
HINT = "llmdiag snapshot {pid}"
LIVE = False
COLUMN_HINTS = {
    "host_events.initiator": "llmdiag analyze PATHS JOURNAL WATCHDOG_LOG --events-map MAP", "watchdog_rules": "llmdiag analyze PATHS WATCHDOG_LOG --events-map MAP",
    "event_files": "llmdiag analyze PATHS JOURNAL",
    "http_events.status": "llmdiag analyze PATHS ACCESS_LOG", "log_events.event": "llmdiag analyze PATHS ENGINE_LOG",
}  # fmt: skip
"""What somebody has to hand in, because no snapshot finds it."""
BESIDE = ("logs",)
"""A journal that was taken for the engine's own lines tells of its unit too."""
HEAD_BYTES = 64 << 10

TABLES: tuple[Table, ...] = tuple(item for item in CORE if item.name in ("host_events", "http_events", "watchdog_rules", "event_files"))

JSON_START = (b"{", b"[")


def collect(patient: Patient, door: Door) -> Collecting:
    """Nothing of its own: what a live service's unit did is in the journal that `logs` collects, who did it often is not."""
    for table in FEEDS:
        door.note(table, "skipped", f"no supervisor's journal is taken from a live process: {COLUMN_HINTS[table]}")
    return
    yield


def recognise(name: str, head: bytes) -> bool:
    """A journal of a supervisor, Kubernetes or docker, an access log of a proxy, or an events map; never an engine's log."""
    return _format(head) is not None


def wanted(mine: Sequence[Artefact]) -> Callable[[str], bool]:
    """Which further files the maps among my artefacts are for. Raises BadInput for a map that is wrong."""
    entries = [item for found in _maps(mine) for item in found.events]
    return lambda path: any(item.wants(path) for item in entries)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Rows of host_events, http_events, watchdog_rules and event_files. Raises BadInput (a wrong map), Garbled (torn JSON)."""
    maps = _maps(artefacts)
    fed: dict[str, list[str]] = {}
    for artefact in artefacts:
        for format_, reader in _readers(artefact, maps):
            said, count = Said(), 0
            for item in reader(artefact, said):
                count += 1
                yield _row(item, format_)
            fed.setdefault("http_events" if format_ in ("haproxy", "nginx") else "host_events", []).extend(said.notes)
            yield "event_files", {
                "file": artefact.path, "format": format_, "events": count, "first_ts": said.first, "last_ts": said.last,
                "assumed": "; ".join(said.notes) or None, "source": artefact.at(1),
            }  # fmt: skip
    for found in maps:
        for rule in found.watchdogs():
            yield rule.row()
        fed.setdefault("host_events", []).extend(found.silent())
    for name in sorted(fed.keys() & {"host_events", "http_events"}):
        yield "collected", {"table_name": name, "status": "ok", "reason": "; ".join(dict.fromkeys(fed[name])) or None}


def _row(item: "Event | Watchdog | Row", format_: str) -> Row:
    if isinstance(item, Event):
        return item.row("kubernetes" if format_ == "pod" else format_.partition(" ")[0])
    return item.row() if isinstance(item, Watchdog) else item


_Reader = Callable[[Artefact, Said], Iterator["Event | Watchdog | Row"]]


def _readers(artefact: Artefact, maps: Sequence[events_map.EventsMap]) -> Iterator[tuple[str, _Reader]]:
    """(format, reader) of each way an artefact is to be read: by what it is, and by every map that names it."""
    head = _head(artefact)
    kind = _format(head) if artefact.collector == NAME else journal_scan.format_of(artefact, head)
    if kind is not None and kind != "map":
        yield kind, READERS[kind]
    for found in maps:
        if kind != "map" and any(item.wants(artefact.path) for item in found.events):
            yield "map", lambda artefact, said, found=found: _mapped(found, artefact, said)  # type: ignore[misc]


def _format(head: bytes) -> str | None:
    """What a file is, from its first 64 KiB; None = nothing of this collector."""
    if journald_entries.structured(head) is not None:
        return "journald"
    text = head.rpartition(b"\n")[0].decode("utf-8", "replace") if head.count(b"\n") > 1 else head.decode("utf-8", "replace")
    if events_map.is_map(text):
        return "map"
    if head.lstrip().startswith(JSON_START):
        return _json_format(text)
    if k8s_describe.looks_like_describe(text):
        return "pod"
    if k8s_events.looks_like_events(text):
        return "kubernetes"
    if docker_events.looks_like_events(text):
        return "docker"
    if supervisord.looks_like_supervisord(text):
        return "supervisord"
    if access_log_haproxy.looks_like_haproxy(text):
        return "haproxy"
    if access_log_nginx.looks_like_nginx(text):
        return "nginx"
    if journald_entries.looks_like_journal(text) and not engine_log.looks_like_log(text):
        return "journald"
    return None


def _json_format(text: str) -> str | None:
    if docker_events.looks_like_events(text):
        return "docker"
    start = text[:4000]
    if '"apiVersion"' in start and any(f'"kind": "{kind}"' in text or f'"kind":"{kind}"' in text for kind in ("Event", "EventList", "Pod", "PodList")):
        return "kubernetes"
    if text.lstrip().startswith("[") and '"RestartCount"' in text and '"State"' in text:
        return "docker inspect"
    return None


def _head(artefact: Artefact) -> bytes:
    with artefact.opener() as stream:
        return stream.read(HEAD_BYTES)


def _maps(artefacts: Sequence[Artefact]) -> list[events_map.EventsMap]:
    own = [artefact for artefact in artefacts if artefact.collector == NAME]
    return [events_map.read(artefact.text(), artefact.path) for artefact in own if _format(_head(artefact)) == "map"]


def _lines(artefact: Artefact) -> Iterator[tuple[int, str]]:
    return ((number, clean(line)) for number, line in artefact.lines())


def _clock(artefact: Artefact) -> Clock:
    return Clock(artefact.year, artefact.zone, None)


# --- readers ---


def _journald(artefact: Artefact, said: Said) -> Iterator[Event | Watchdog]:
    clock = _clock(artefact)
    yield from journal_scan.read(artefact, clock, said)
    said.note(clock.assumed)


def _kubernetes(artefact: Artefact, said: Said) -> Iterator[Event | Watchdog]:
    if _head(artefact).lstrip().startswith(JSON_START):
        yield from _objects(artefact, said)
    else:
        yield from k8s_events.events(_lines(artefact), artefact.at, said)


def _objects(artefact: Artefact, said: Said) -> Iterator[Event | Watchdog]:
    """Lists, single objects, and streams of both (`--watch`, `-o json` of several commands in one file)."""
    seen: list[Iterator[Event]] = []
    pods: list[Event | Watchdog] = []
    for item in _items(artefact):
        meta = found if isinstance(found := item.get("metadata"), dict) else {}
        source = artefact.key(f"{meta.get('namespace', 'default')}/{meta.get('name', 'unknown')}")
        if item.get("kind") == "Event":
            seen.append(k8s_events.of_seen(k8s_events.of_object(item, source), said))
        elif item.get("kind") == "Pod":
            pods += k8s_describe.of_object(item, source, said)
    yield from pods
    events = k8s_events.named(seen)
    yield from sorted(events, key=lambda event: (event.ts is None, event.ts or datetime.datetime.min))


def _items(artefact: Artefact) -> Iterator[Mapping[str, Any]]:
    text, decoder, place = artefact.text().lstrip("\ufeff"), json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            document, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", place)) + 1
            raise Garbled(f"{artefact.path}:{line}: torn or damaged JSON", hint="save it again, whole") from error
        found = document.get("object", document) if isinstance(document, dict) else None
        if isinstance(found, dict):
            kind = str(found.get("kind", "")).removesuffix("List")
            items = found.get("items")
            yield from ({"kind": kind, **item} for item in (items if isinstance(items, list) else [found]) if isinstance(item, dict))


def _pod(artefact: Artefact, said: Said) -> Iterator[Event | Watchdog]:
    return k8s_describe.read(_lines(artefact), artefact.at, said)


def _docker(artefact: Artefact, said: Said) -> Iterator[Event]:
    return docker_events.events(_lines(artefact), artefact.at, said)


def _inspect(artefact: Artefact, said: Said) -> Iterator[Event | Watchdog]:
    try:
        document = json.loads(artefact.text())
    except (ValueError, RecursionError) as error:
        raise Garbled(f"{artefact.path}: torn or damaged JSON", hint="save `docker inspect NAME` again, whole") from error
    if not docker_events.looks_like_inspect(document):
        raise Garbled(f"{artefact.path} is not a list of containers", hint="save `docker inspect NAME`")
    yield from docker_events.inspected(document, artefact.key, said)


def _supervisord(artefact: Artefact, said: Said) -> Iterator[Event]:
    clock = _clock(artefact)
    yield from supervisord.events(_lines(artefact), artefact.at, said, clock)
    said.note(clock.assumed)


def _haproxy(artefact: Artefact, said: Said) -> Iterator[Row]:
    clock = _clock(artefact)
    yield from access_log_haproxy.rows(_lines(artefact), artefact.at, said, clock)
    said.note(clock.assumed)


def _nginx(artefact: Artefact, said: Said) -> Iterator[Row]:
    return access_log_nginx.rows(_lines(artefact), artefact.at, said, _clock(artefact))


def _mapped(found: events_map.EventsMap, artefact: Artefact, said: Said) -> Iterator[Event]:
    clock = _clock(artefact)
    yield from events_map.events(found, artefact.path, _lines(artefact), artefact.at, said, clock)
    said.note(clock.assumed)


READERS: Mapping[str, _Reader] = {
    "journald": _journald, "kubernetes": _kubernetes, "pod": _pod, "docker": _docker, "docker inspect": _inspect,
    "supervisord": _supervisord, "haproxy": _haproxy, "nginx": _nginx,
}  # fmt: skip
