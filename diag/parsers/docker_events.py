"""`docker events` (text or JSON lines) and `docker inspect` -> who stopped, killed and started containers.

    2026-01-01T13:58:59.123456789Z container die 4f6e… (execDuration=812, exitCode=137, image=vllm/vllm-openai, name=vllm)
    {"Type":"container","Action":"die","Actor":{"ID":"4f6e…","Attributes":{"exitCode":"137","name":"vllm"}},"time":1767275939,"timeNano":…}
    [{"Id":"4f6e…","Name":"/vllm","RestartCount":0,"State":{"StartedAt":"…","FinishedAt":"…","Health":{"Log":[…]}}, …}]     docker inspect

A start that follows a death with no `kill`, `stop` or `restart` between is the restart policy's. `RestartCount` counts only
those, and `docker restart` sets it back to 0: a container that a script restarted fifty times shows 0.
"""

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diag.parsers.event_rows import Event, Said, Watchdog, signal_of
from diag.parsers.k8s_events import time_of

POLICY, HEALTH = "docker (restart policy)", "docker (healthcheck)"
TEXT = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (?P<type>container|image|network|volume|daemon|builder|plugin) "
    r"(?P<action>[a-z_]+(?:: [^(]*?)?) (?P<id>\S+)(?: \((?P<attributes>.*)\))?\s*$"
)
PAIR = re.compile(r"([\w.\-/]+)=(.*?)(?=, [\w.\-/]+=|$)")
POLICY_WAIT_S = 70.0
"""The back-off of a restart policy ends at a minute."""
NEVER = "0001-01-01"


@dataclass(frozen=True)
class _Said:
    """One event of the daemon."""

    source: str
    ts: datetime.datetime | None
    action: str
    unit: str
    attributes: Mapping[str, str]
    text: str


def looks_like_events(head: str) -> bool:
    """Lines of `docker events`, text or JSON."""
    lines = [line for line in head.splitlines() if line.strip()][:20]
    return bool(lines) and sum(_is_event(line) for line in lines) >= 0.8 * len(lines)


def looks_like_inspect(document: object) -> bool:
    """A list of containers as `docker inspect` prints it."""
    return isinstance(document, list) and bool(document) and all(isinstance(item, dict) and "State" in item and "Id" in item for item in document)


def events(lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said) -> Iterator[Event]:
    """Lines -> events in order. Lines about images, networks and volumes are left out."""
    last: dict[str, _Said] = {}
    asked: set[str] = set()
    for number, line in lines:
        found = _of_line(line, at(number))
        if found is None:
            continue
        said.seen(found.ts)
        yield from _events(found, last, asked)


def inspected(document: Sequence[Mapping[str, Any]], at: Callable[[object], str], said: Said) -> Iterator[Event | Watchdog]:
    """`docker inspect` -> the last end, the present life, what its healthcheck found, and that check's rule."""
    for item in document:
        unit = str(item.get("Name") or item.get("Id")).lstrip("/")
        state, source = item.get("State") or {}, at(f"{unit}.State")
        count, policy = item.get("RestartCount"), ((item.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name")
        begun, ended = (None if str(state.get(key, NEVER)).startswith(NEVER) else time_of(state.get(key)) for key in ("StartedAt", "FinishedAt"))
        said.seen(begun)
        said.seen(ended)
        code = state.get("ExitCode")
        if ended is not None:
            earlier = begun is not None and ended <= begun
            if state.get("OOMKilled") is True:
                yield Event(source, "oom_kill", "State.OOMKilled", ended, unit, "kernel", None, 9)
            # while it runs again, ExitCode is 0 whatever the last end was
            yield Event(source, "exit", f"State.FinishedAt, {state.get('Status')}", ended, unit, None, None, None if earlier or not isinstance(code, int) else code)
        if begun is not None:
            detail = f"State.StartedAt; RestartCount {count} (policy {policy or 'none'}; `docker restart` sets it back to 0)"
            yield Event(source, "start", detail, begun, unit, None, state.get("Pid") or None)
        for entry in (state.get("Health") or {}).get("Log") or ():
            when = time_of(entry.get("End")) or time_of(entry.get("Start"))
            said.seen(when)
            if entry.get("ExitCode") not in (0, None):
                number = entry["ExitCode"] if isinstance(entry["ExitCode"], int) else None
                yield Event(at(f"{unit}.State.Health"), "probe_failed", str(entry.get("Output", "")).strip(), when, unit, HEALTH, None, number)
        check = (item.get("Config") or {}).get("Healthcheck")
        if isinstance(check, dict) and check.get("Test") not in (None, [], ["NONE"]):
            yield _rule(check, unit, at(f"{unit}.Config.Healthcheck"))


def _rule(check: Mapping[str, Any], unit: str, source: str) -> Watchdog:
    """Absent values are the defaults of docker: 30 s, 30 s, 3 strikes."""
    def seconds(key: str, default: float) -> float:
        value = check.get(key)
        return value / 1e9 if isinstance(value, int) and value > 0 else default

    retries = check.get("Retries")
    what = " ".join(map(str, check["Test"]))[:300]
    return Watchdog(source, HEALTH, what, seconds("Interval", 30), seconds("Timeout", 30), retries if isinstance(retries, int) and retries > 0 else 3, unit,
                    seconds("StartPeriod", 0))  # fmt: skip


def _events(found: _Said, last: dict[str, _Said], asked: set[str]) -> Iterator[Event]:
    """`asked` holds containers that somebody stopped or killed and that have not been started since."""
    unit, attributes = found.unit, found.attributes

    def event(kind: str, initiator: str | None = None, code: int | None = None) -> Event:
        return Event(found.source, kind, found.text, found.ts, unit, initiator, None, code)

    match found.action:
        case "kill":
            asked.add(unit)
            yield event("killing", code=signal_of(attributes.get("signal", "")))
        case "die":
            code = attributes.get("exitCode", "")
            last[unit] = found
            yield event("exit", code=int(code) if code.isdecimal() and len(code) < 6 else None)
        case "oom":
            yield event("oom_kill", "kernel", 9)
        case "stop":
            asked.add(unit)
            yield event("stop")
        case "restart":
            yield event("restart")
        case "start":
            died = last.pop(unit, None)
            policy = died is not None and unit not in asked and (died.ts is None or found.ts is None or (found.ts - died.ts).total_seconds() <= POLICY_WAIT_S)
            if policy:
                yield event("restart", POLICY)
            asked.discard(unit)
            yield event("start", POLICY if policy else None)
        case "health_status: unhealthy":
            yield event("probe_failed", HEALTH)


def _is_event(line: str) -> bool:
    if line.startswith("{"):
        return '"Type":"' in line and ('"Action":"' in line or '"status":"' in line) and '"timeNano":' in line
    return TEXT.match(line) is not None


def _of_line(line: str, source: str) -> _Said | None:
    if line.startswith("{"):
        return _of_json(line, source)
    match = TEXT.match(line)
    if match is None or match["type"] != "container":
        return None
    attributes = dict(PAIR.findall(match["attributes"] or ""))
    return _Said(source, time_of(match["time"]), match["action"].strip(), attributes.get("name") or match["id"][:12], attributes, line)


def _of_json(line: str, source: str) -> _Said | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("Type", "container") != "container":
        return None
    actor = found.get("Actor")
    actor = actor if isinstance(actor, dict) else {}
    raw = actor.get("Attributes")
    attributes = {str(key): str(value) for key, value in raw.items()} if isinstance(raw, dict) else {}
    nanos, action = found.get("timeNano"), str(found.get("Action") or found.get("status") or "")
    ts = None
    if isinstance(nanos, int) and 0 < nanos < 1 << 62:
        ts = datetime.datetime.fromtimestamp(nanos / 1e9, datetime.UTC).replace(tzinfo=None)
    unit = attributes.get("name") or str(actor.get("ID") or found.get("id") or "unknown")[:12]
    words = ", ".join(f"{key}={attributes[key]}" for key in ("exitCode", "signal", "execDuration", "image", "name") if key in attributes)
    return _Said(source, ts, action, unit, attributes, f"{action} ({words})")
