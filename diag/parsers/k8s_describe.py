"""`kubectl describe pod` and `kubectl get pod -o json` -> how containers ended and began, and the exact rule of each probe.

        State:          Waiting
          Reason:       CrashLoopBackOff
        Last State:     Terminated
          Reason:       OOMKilled
          Exit Code:    137
          Started:      Tue, 01 Feb 2022 13:36:17 +0100
          Finished:     Tue, 01 Feb 2022 14:02:40 +0100
        Restart Count:  6
        Liveness:       http-get http://:8000/health delay=60s timeout=1s period=10s #success=1 #failure=3

Only the last end and the present life of a container are kept by Kubernetes: of `Restart Count: 6` five are not here.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from diag.parsers import k8s_events
from diag.parsers.event_rows import Event, Said, Watchdog, span_s

POD = re.compile(r"^Name: +(?P<name>[a-z0-9][a-z0-9.-]*)\s*$")
SECTION = re.compile(r"^(?P<name>[A-Z][A-Za-z ]+):(?:\s+(?P<value>.*))?$")
CONTAINER = re.compile(r"^  (?P<name>[a-z0-9][a-z0-9-]*):\s*$")
FIELD = re.compile(r"^ {4}(?P<name>[A-Z][A-Za-z ]+?): +(?P<value>\S.*?)\s*$")
OF_STATE = re.compile(r"^ {6}(?P<name>Reason|Exit Code|Signal|Started|Finished|Message): +(?P<value>.*?)\s*$")
PROBE = re.compile(r"^(?P<what>\S+(?: \S+)*?) delay=(?P<delay>\S+) timeout=(?P<timeout>\S+) period=(?P<period>\S+) #success=\d+ #failure=(?P<strikes>\d+)")
PROBES = ("Liveness", "Readiness", "Startup")


def looks_like_describe(head: str) -> bool:
    """`kubectl describe pod`, also from its middle (containers)."""
    return re.search(r"^Name: +\S+\s*$", head, re.M) is not None and re.search(r"^(?:Containers|Events|Controlled By|Node-Selectors):", head, re.M) is not None


def read(lines: Iterable[tuple[int, str]], at: Callable[[int], str], said: Said) -> Iterator[Event | Watchdog]:
    """Pods one after the other -> events and probe rules; the table of events at their end is read too."""
    found: list[Event | Watchdog] = []
    pod, section = None, ""
    container: _Container | None = None
    table: list[tuple[int, str]] = []
    now = None
    for number, line in lines:
        if now is None and pod is None:
            now = k8s_events._date(line.strip())
        if (match := POD.match(line)) is not None:
            found += _closed(container, table, pod, at, said, now)
            pod, section, container, table = match["name"], "", None, []
        elif (match := SECTION.match(line)) is not None:
            found += _closed(container, [], pod, at, said, now)
            section, container = match["name"], None
        elif section == "Events":
            table.append((number, line))
        elif section in ("Containers", "Init Containers") and (match := CONTAINER.match(line)) is not None:
            found += _closed(container, [], pod, at, said, now)
            container = _Container(f"{pod}/{match['name']}")
        elif container is not None:
            container.line(number, line)
    found += _closed(container, table, pod, at, said, now)
    yield from found


def of_object(pod: Mapping[str, Any], source: str, said: Said) -> Iterator[Event | Watchdog]:
    """One object of kind Pod."""
    meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    name = str(meta.get("name") or "unknown")
    for item in spec.get("containers") or ():
        for kind in PROBES:
            probe = item.get(f"{kind.lower()}Probe")
            if isinstance(probe, dict):
                yield _of_spec(kind, probe, f"{name}/{item.get('name')}", source)
    for item in status.get("containerStatuses") or ():
        container = _Container(f"{name}/{item.get('name')}")
        container.restarts = item.get("restartCount")
        for which, states in (("Last State", item.get("lastState") or {}), ("State", item.get("state") or {})):
            for state, facts in states.items():
                words = {"exitCode": "Exit Code", "startedAt": "Started", "finishedAt": "Finished", "reason": "Reason", "signal": "Signal"}
                container.states[which] = {"": state.capitalize()} | {words[key]: str(value) for key, value in facts.items() if key in words}
        yield from container.events(lambda _: source, said)
    if meta.get("deletionTimestamp"):
        ts = k8s_events.time_of(meta["deletionTimestamp"])
        yield Event(source, "killing", f"the pod is to be gone by {meta['deletionTimestamp']}", ts, name, k8s_events.REMOVAL)


def _closed(
    container: "_Container | None", table: list[tuple[int, str]], pod: str | None, at: Callable[[int], str], said: Said, now: datetime.datetime | None
) -> list[Event | Watchdog]:  # fmt: skip
    """What a container, and the table of events at the end of a pod, tell."""
    found: list[Event | Watchdog] = [] if container is None else list(container.events(at, said))
    seen = (item._replace(name=pod, kind="pod") for item in k8s_events.table(table, at, now))
    found += k8s_events.named(k8s_events.of_seen(item, said) for item in seen)
    return found


class _Container:
    """One container being read: its states and probes."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.states: dict[str, dict[str, str]] = {}
        self.lines: dict[str, int] = {}
        self.probes: list[tuple[int, str, str]] = []
        self.restarts: object = None
        self._state = ""

    def line(self, number: int, line: str) -> None:
        if (match := FIELD.match(line)) is not None:
            name, value = match["name"], match["value"]
            self._state = name if name in ("State", "Last State") else ""
            if self._state:
                self.states[name], self.lines[name] = {"": value}, number
            elif name == "Restart Count":
                self.restarts = int(value) if value.isdecimal() and len(value) < 10 else None
            elif name in PROBES:
                self.probes.append((number, name, value))
        elif self._state and (match := OF_STATE.match(line)) is not None:
            self.states[self._state][match["name"]] = match["value"]

    def events(self, at: Callable[[int], str], said: Said) -> Iterator[Event | Watchdog]:
        restarts = "" if self.restarts is None else f"; restart count {self.restarts}"
        for which in ("Last State", "State"):
            facts = self.states.get(which)
            if facts is None:
                continue
            source, state, reason = at(self.lines.get(which, 0)), facts[""], facts.get("Reason", "")
            begun, ended = (_time(facts.get(part)) for part in ("Started", "Finished"))
            said.seen(begun)
            said.seen(ended)
            if state in ("Running", "Terminated") and begun is not None:
                yield Event(source, "start", f"{which} {state}{restarts}", begun, self.unit, "kubelet")
            if state == "Terminated":
                code = facts.get("Exit Code", "")
                number = int(code) if code.isdecimal() and len(code) < 6 else None
                if reason == "OOMKilled":
                    yield Event(source, "oom_kill", f"{which} {state}: {reason}", ended, self.unit, "kernel", None, 9)
                yield Event(source, "exit", f"{which} {state}: {reason}{restarts}", ended, self.unit, "kernel" if reason == "OOMKilled" else None, None, number)
            if state == "Waiting" and reason == "CrashLoopBackOff":
                yield Event(source, "back_off", f"{which} {state}: {reason}{restarts}", None, self.unit, "kubelet")
        for number, kind, text in self.probes:
            rule = _of_text(kind, text, self.unit, at(number))
            if rule is not None:
                yield rule


def _time(text: str | None) -> datetime.datetime | None:
    if text is None:
        return None
    return k8s_events.time_of(text) or k8s_events.rfc1123(text)


def _of_text(kind: str, text: str, unit: str, source: str) -> Watchdog | None:
    match = PROBE.match(text)
    if match is None:
        return None
    period, timeout, delay = (span_s(match[part]) for part in ("period", "timeout", "delay"))
    return Watchdog(source, f"kubelet ({kind.lower()} probe)", match["what"], period, timeout, int(match["strikes"][:6]), unit, delay)


def _of_spec(kind: str, probe: Mapping[str, Any], unit: str, source: str) -> Watchdog:
    """Absent values are the defaults of Kubernetes: 10 s, 1 s, 3 strikes."""
    def number(key: str, default: float) -> float:
        value = probe.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    get, command, grpc = (probe.get(part) for part in ("httpGet", "exec", "grpc"))
    if isinstance(get, dict):
        what = f"http-get {str(get.get('scheme', 'HTTP')).lower()}://{get.get('host', '')}:{get.get('port')}{get.get('path', '/')}"
    elif isinstance(command, dict):
        what = f"exec {' '.join(map(str, command.get('command') or ()))}"
    elif isinstance(grpc, dict):
        what = f"grpc :{grpc.get('port')}"
    else:
        what = f"tcp-socket :{(probe.get('tcpSocket') or {}).get('port')}"
    return Watchdog(source, f"kubelet ({kind.lower()} probe)", what[:300], number("periodSeconds", 10), number("timeoutSeconds", 1),
                    int(number("failureThreshold", 3)), unit, number("initialDelaySeconds", 0))  # fmt: skip
