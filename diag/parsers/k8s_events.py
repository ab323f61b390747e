"""Kubernetes events -> what was probed, killed, started and why: tables that `kubectl` prints, and its JSON.

    LAST SEEN   TYPE      REASON      OBJECT      MESSAGE
    25m (x3 over 28m)   Warning   Unhealthy   pod/llm-0   Liveness probe failed: HTTP probe failed with statuscode: 503
    2026-01-01T13:58:59Z   Killing   Container server failed liveness probe, will be restarted

Kubernetes counts equal events instead of listing them: of several, the first and the last one are rows, and `detail` says
how many there were. A relative age ("25m") is a time only where a line above the table tells when it was printed (`date -u`).
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from diag.parsers.event_rows import Event, Said, span_s

REMOVAL = "kubernetes (pod removal)"
REMOVERS = {"Evicted": "kubelet (eviction)", "TaintManagerEviction": "kubernetes (taint)", "Preempted": "scheduler (preemption)"}
COUNTED = re.compile(r" \(x(?P<count>\d+) over (?P<span>[^)]+)\)$")
RFC3339 = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$")
DATES = (
    # the output of `date -u`, `date -uIseconds`, `date -R` above a table
    re.compile(r"^\w{3},? (?P<day>\d{1,2}) (?P<month>\w{3}) (?P<year>\d{4}) (?P<clock>\d\d:\d\d:\d\d) (?P<zone>[+-]\d{4})$"),
    re.compile(r"^\w{3} (?P<month>\w{3}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)(?: [AP]M)? (?P<zone>UTC|GMT) (?P<year>\d{4})$"),
)
HEADER = re.compile(r"\b(?:LAST SEEN|FIRST SEEN|REASON|Reason)\b")
PASTED = re.compile(
    r"^\s*(?:(?P<namespace>[a-z0-9][a-z0-9-]*)\s{2,})?(?P<seen>(?:\d+[dhms])+(?: \(x\d+ over [^)]+\))?|<unknown>|\d{4}-\d\d-\d\dT\S+)\s+"
    r"(?:(?P<type>Normal|Warning)\s+)?(?P<reason>[A-Z][A-Za-z]+)\s+(?:(?P<object>(?:pods?|node|deployment|replicaset|statefulset|daemonset|job)/\S+)\s+)?(?P<message>\S.*)?$"
)
DESCRIBED = re.compile(
    r"^\s*(?P<type>Normal|Warning)\s+(?P<reason>[A-Z][A-Za-z]+)\s+(?P<seen>(?:\d+[dhms])+(?: \(x\d+ over [^)]+\))?|<unknown>|<invalid>)\s+"
    r"(?P<source>[a-z][\w.-]*(?:, \S+)?)(?:\s+(?P<message>.*))?$"
)
COLUMNS = {
    "LAST SEEN": "seen", "LASTSEEN": "seen", "LAST": "seen", "LAST_SEEN": "seen", "TIME": "seen", "TIMESTAMP": "seen", "AGE": "seen", "WHEN": "seen",
    "FIRST SEEN": "first", "FIRSTSEEN": "first", "FIRST": "first", "COUNT": "count", "TYPE": "type", "REASON": "reason", "OBJECT": "object", "NAME": "name",
    "KIND": "kind", "SUBOBJECT": "part", "SOURCE": "source", "FROM": "source", "MESSAGE": "message", "NAMESPACE": "namespace", "POD": "pod",
}  # fmt: skip

PROBE = re.compile(r"(?P<probe>Liveness|Readiness|Startup) probe (?:failed|errored|warning)", re.I)
PROBE_KILL = re.compile(r"failed (?P<probe>liveness|startup) probe", re.I)
CONTAINER = re.compile(r"\b[Cc]ontainer (?P<name>[a-z0-9][a-z0-9.-]*?)(?: failed (?:liveness|startup) probe| definition changed|$|,)")
BACK_OFF = re.compile(r"restarting failed container(?:[ =](?P<name>[a-z0-9][\w.-]*) in pod (?P<pod>[\w.-]+))?")
MADE = re.compile(r"^(?:Created|Started) container:? (?P<name>[a-z0-9][\w.-]*)$")
PART = re.compile(r"spec\.(?:init)?[cC]ontainers\{(?P<name>[^}]+)\}")
STATUS = re.compile(r"statuscode: (?P<code>\d{3})")
OOM = re.compile(r"victim process: (?P<name>.*?), pid: (?P<pid>\d{1,10})")
POD_OF = re.compile(r"\b(?:[Pp]od:? )(?P<pod>[a-z0-9][\w.-]*)")


class Seen(NamedTuple):
    """One event as Kubernetes keeps it: how often, first and last time (None = not known)."""

    source: str
    reason: str
    message: str
    kind: str
    """Kind of object it is about, lower case (`pod`, `node`, `deployment`)."""
    name: str | None
    container: str | None
    last: datetime.datetime | None
    first: datetime.datetime | None
    times: int
    age: str
    """What was printed where a time should be; "" = a time."""


def looks_like_events(head: str) -> bool:
    """A table of events, as `kubectl get events` prints it with any columns, or lines pasted from one."""
    lines = [line for line in head.splitlines() if line.strip()][:30]
    if any(_header(line) is not None for line in lines[:3]):
        return True
    return bool(lines) and sum(_is_pasted(line) for line in lines) >= max(1, 0.8 * len(lines))


def events(lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said) -> Iterator[Event]:
    """A table -> events. `said` learns what could not be dated."""
    yield from named(of_seen(seen, said) for seen in table(lines, at))


def table(lines: Iterable[tuple[int, str]], at: Callable[[int], str], now: datetime.datetime | None = None) -> Iterator[Seen]:
    """Lines of a table -> events as Kubernetes keeps them. `now` = when it was printed, where that is known."""
    columns: dict[str, tuple[int, int]] | None = None
    for number, line in lines:
        printed = _date(line.strip())
        if printed is not None:
            now = printed
            continue
        header = _header(line)
        if header is not None:
            columns = header
            continue
        cells = _cells(line, columns) if columns is not None else None
        cells = cells if cells is not None and cells.get("reason", "").isalpha() else _pasted(line)
        if cells is not None and cells.get("reason"):
            yield _of_cells(cells, at(number), now)


def of_object(found: Mapping[str, Any], source: str) -> Seen:
    """One object of kind Event, v1 or events.k8s.io."""
    about = found.get("involvedObject") or found.get("regarding") or {}
    series = found.get("series") or {}
    last = series.get("lastObservedTime") or found.get("lastTimestamp") or found.get("deprecatedLastTimestamp") or found.get("eventTime")
    first = found.get("firstTimestamp") or found.get("deprecatedFirstTimestamp") or found.get("eventTime")
    count = series.get("count") or found.get("count") or found.get("deprecatedCount") or 1
    part = PART.search(str(about.get("fieldPath") or ""))
    message = str(found.get("message") or found.get("note") or "")
    created = (found.get("metadata") or {}).get("creationTimestamp")
    return Seen(
        source, str(found.get("reason") or ""), message, str(about.get("kind") or "").lower(), about.get("name"), part["name"] if part else None,
        time_of(last or first or created), time_of(first), count if isinstance(count, int) and 0 < count < 1 << 31 else 1, "",
    )  # fmt: skip


def of_seen(seen: Seen, said: Said) -> Iterator[Event]:
    """One event as Kubernetes keeps it -> none, one, or (counted) the first and the last of them."""
    said.seen(seen.last)
    said.seen(seen.first)
    event = _event(seen)
    if event is None:
        return
    if seen.last is None and seen.age:
        said.note("ages such as 25m are no times: when the table was printed is not known (print `date -u` above it, or save it with -o json)")
        event.detail += f" [{seen.age} before it was printed]"
    if seen.times > 1 and seen.first is not None and seen.first != seen.last:
        yield Event(**{**vars(event), "ts": seen.first, "detail": f"{event.detail} [first of {seen.times}, the last at {seen.last}]"})
    event.detail += "" if seen.times == 1 else f" [last of {seen.times}{'' if seen.first is None else f' since {seen.first}'}]"
    yield event


def named(found: Iterable[Iterator[Event]]) -> Iterator[Event]:
    """Where a pod has one container by name, also the events that name none are about that one."""
    every = [event for events in found for event in events]
    containers: dict[str, set[str]] = {}
    for event in every:
        pod, _, container = (event.unit or "").partition("/")
        if container:
            containers.setdefault(pod, set()).add(container)
    for event in every:
        if event.unit is not None and len(only := containers.get(event.unit, set())) == 1:
            event.unit = f"{event.unit}/{next(iter(only))}"
    yield from every


def time_of(value: object) -> datetime.datetime | None:
    """RFC3339 -> naive UTC."""
    if not isinstance(value, str) or not RFC3339.match(value):
        return None
    try:
        text = re.sub(r"\.(\d{1,6})\d*", lambda match: "." + match[1].ljust(6, "0"), value)
        return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _event(seen: Seen) -> Event | None:
    message, name = seen.message, seen.name
    container = seen.container

    def event(kind: str, initiator: str | None, *, unit: str | None = None, code: int | None = None, pid: int | None = None) -> Event:
        whole = unit if unit is not None else f"{name}/{container}" if name and container else name
        return Event(seen.source, kind, f"{seen.reason}: {message}", seen.last, whole, initiator, pid, code)

    match seen.reason:
        case "Unhealthy" | "ProbeWarning" | "ProbeError":
            probe, status = PROBE.search(message), STATUS.search(message)
            who = f"kubelet ({probe['probe'].lower()} probe)" if probe else "kubelet"
            return event("probe_failed", who, code=int(status["code"]) if status else None)
        case "Killing":
            inside, probe = CONTAINER.search(message), PROBE_KILL.search(message)
            container = container or (inside["name"] if inside and inside["name"] != "with" else None)
            if probe is not None:
                return event("killing", f"kubelet ({probe['probe'].lower()} probe)")
            return event("killing", "kubelet (definition changed)" if "definition changed" in message else REMOVAL)
        case "BackOff":
            found = BACK_OFF.search(message)
            if found is None:
                return None  # Back-off pulling image
            container = container or found["name"]
            return event("back_off", "kubelet")
        case "Started" | "Created":
            made = MADE.match(message)
            container = container or (made["name"] if made else None)
            return event("start", "kubelet") if seen.reason == "Started" else None
        case "OOMKilling" | "SystemOOM":
            victim = OOM.search(message)
            return event("oom_kill", "kernel", pid=int(victim["pid"]) if victim else None, code=9)
        case "Evicted" | "Preempted" | "Preempting" | "TaintManagerEviction" | "Deleted" | "SuccessfulDelete":
            if "Cancelling" in message:
                return None
            pod = POD_OF.search(message) if seen.kind not in ("pod", "") else None
            return event("killing", REMOVERS.get(seen.reason, f"{seen.kind}/{name}"), unit=pod["pod"] if pod else None)
        case "NodeNotReady":
            return event("heartbeat_lost", "kubernetes")
        case "Rebooted":
            return event("restart", "host boot")
        case "ScalingReplicaSet":
            return event("restart", "kubernetes (rollout)") if "down" in message else None
        case _:
            return None


def _date(line: str) -> datetime.datetime | None:
    if RFC3339.match(line):
        return time_of(line)
    if re.match(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}$", line):
        return time_of(f"{line[:-2]}:{line[-2:]}")
    for pattern in DATES:
        if match := pattern.match(line):
            zone = "+0000" if match["zone"] in ("UTC", "GMT") else match["zone"]
            return rfc1123(f"{match['day']} {match['month']} {match['year']} {match['clock']} {zone}")
    return None


def rfc1123(text: str) -> datetime.datetime | None:
    """`01 Feb 2022 13:36:17 +0100`, a weekday before it or not -> naive UTC."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _header(line: str) -> dict[str, tuple[int, int]] | None:
    """A header -> column -> (begin, end) in the lines below it."""
    if HEADER.search(line) is None or not line.strip():
        return None
    names = [(match.start(), match.group().strip().upper()) for match in re.finditer(r"\S+(?: \S+)*", line)]
    known = [(begin, COLUMNS.get(name, name)) for begin, name in names]
    if {"reason", "message"} - {name for _, name in known}:
        return None
    ends = [begin for begin, _ in known[1:]] + [1 << 20]
    return {name: (begin, end) for (begin, name), end in zip(known, ends, strict=True)}


def _cells(line: str, columns: Mapping[str, tuple[int, int]]) -> dict[str, str] | None:
    """A line cut where its header is; None = it does not stand below it (tabs, blanks lost in copying)."""
    begins = [begin for begin, _ in columns.values() if 0 < begin <= len(line)]
    if "\t" in line or any(line[begin - 1] != " " for begin in begins):
        return None
    return {name: line[begin:end].strip() for name, (begin, end) in columns.items()}


def _is_pasted(line: str) -> bool:
    return PASTED.match(line) is not None or DESCRIBED.match(line) is not None


def _pasted(line: str) -> dict[str, str] | None:
    match = DESCRIBED.match(line) or PASTED.match(line)
    return None if match is None else {name: value or "" for name, value in match.groupdict().items()}


def _of_cells(cells: Mapping[str, str], source: str, now: datetime.datetime | None) -> Seen:
    seen = cells.get("seen", "")
    counted = COUNTED.search(seen)
    age, last = seen[: counted.start()] if counted else seen, time_of(seen)
    count = counted["count"] if counted else cells.get("count", "")
    first = time_of(cells.get("first", ""))
    if last is None and now is not None and (ago := span_s(age)) is not None:
        last = now - datetime.timedelta(seconds=ago)
    span = span_s(counted["span"] if counted else cells.get("first", ""))
    if first is None and now is not None and span is not None:
        first = now - datetime.timedelta(seconds=span)
    kind, slash, name = cells.get("object", "").rpartition("/")
    name = name if slash else cells.get("object") or cells.get("pod") or (cells.get("name", "").partition(".")[0] if "name" in cells else "")
    part = PART.search(cells.get("part", ""))
    container = part["name"] if part else None
    number = int(count) if count.isdecimal() and len(count) < 9 else 1
    kind = (kind or cells.get("kind", "") or "pod").lower().removesuffix("s")
    return Seen(source, cells["reason"], cells.get("message", ""), kind, name or None, container, last, first if number > 1 else None, number,
                "" if RFC3339.match(seen) else seen)  # fmt: skip
