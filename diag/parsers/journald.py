"""What a journal says of units: who stopped, killed and started them, and who asked for it. Entries -> events.

    vllm.service: Scheduled restart job, restart counter is at 3.          systemd's own Restart=, after a death
    Stopping vllm.service - vLLM server... / Stopped … / Started …         somebody else, when no restart was scheduled
    vllm.service: Watchdog timeout (limit 3min)!                           WatchdogSec=
    ops : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/bin/systemctl restart vllm          (sudo)
    (root) CMD (/opt/watch/check.sh)                                       (CRON), a suspect when it ran just before

A stop gets an initiator where exactly one suspect is there: a command that names the unit within two minutes before,
else a unit of a timer that was running at that moment, else a cron job within ten seconds. Otherwise it stays unknown.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from diag.parsers import kernel_log
from diag.parsers.event_rows import Event, Said, Watchdog, signal_of, span_s
from diag.parsers.journald_entries import Entry
from diag.parsers.stop_suspects import Asked, Run, begin_of, suspect, when

WATCHDOG, STOP_TIMEOUT, START_LIMIT, SYSTEMD = "systemd (watchdog)", "systemd (stop timeout)", "systemd (start limit)", "systemd"
IDS = {
    "7d4958e842da4a758f6c1cdc7b36dcc5": "starting", "39f53479d3a045ac8e11786248231fbf": "started", "de5b426a63be47a7b6ac3eaac82e2f6f": "stopping",
    "9d1aaa27d60140bd96365438aad20286": "stopped", "5eb03494b6584870a536b337290809b3": "scheduled", "98e322203f7a4ed290d09fe03c09fe15": "exited",
    "7ad2d189f7e94e70a38c781354912448": "ended", "fe6faa94e7774663a0da52717891d8ef": "oom", "fc2e22bc6ee647b6b90729ab34a250b1": "dumped",
}  # fmt: skip
"""MESSAGE_ID -> what happened; the texts below say the same."""
OF_UNIT = re.compile(r"^(?P<unit>[\w.@:\\-]+\.service): (?P<rest>.*)", re.S)
STATUS = re.compile(r"^(?P<verb>Starting|Started|Stopping|Stopped|Finished) (?P<what>.+?)\.{1,3}$")
NAMED = re.compile(r"^(?P<unit>[\w.@:\\-]+\.(?:service|scope|slice|target|timer|socket|mount|automount|swap|path|device))(?: - .*)?$")
NO_SERVICES = frozenset({"scope", "slice", "target", "timer", "socket", "mount", "automount", "swap", "path", "device"})
NO_SERVICE = re.compile(r"^(?:Session \S+ of |User (?:Manager|Runtime|Login|Slice)|target |Kernel |/)", re.I)
VERBS = {"Starting": "starting", "Started": "started", "Stopping": "stopping", "Stopped": "stopped", "Finished": "finished"}
TEXTS = tuple((op, re.compile(pattern)) for op, pattern in (
    ("scheduled", r"^Scheduled restart job, restart counter is at (?P<count>\d+)"),
    ("due", r"^Service (?:RestartSec=\S+ expired|hold-off time over|has no hold-off time)\b.*scheduling restart"),
    ("watchdog", r"^Watchdog timeout(?: \(limit (?P<limit>[^)]+)\))?"),
    ("killing", r"^Killing process (?P<pid>\d{1,10}) \(.*\) with signal SIG(?P<signal>\w+)"),
    ("timeout", r"^State '(?P<state>[\w-]+)' timed out\.|^(?:Stopping|Start operation|stop-sig\w+) timed out\."),
    ("exited", r"^Main process exited, code=(?P<how>\w+), status=(?P<status>\d{1,3})"),
    ("ended", r"^(?:Deactivated successfully|Succeeded)\."),
    ("stuck", r"^Processes still around after (?:final )?SIGKILL"),
    ("oom", r"killed by the OOM killer"),
    ("limit", r"^Start request repeated too quickly"),
    ("left_over", r"^Found left-over process (?P<pid>\d{1,10}) \("),
))  # fmt: skip
SUDO = re.compile(r"^\s*(?P<user>\S+) : (?:.* ; )?COMMAND=(?P<command>.+)", re.S)
CRON = re.compile(r"^\((?P<user>[^)]+)\) CMD \((?P<command>.*)\)\s*$", re.S)
RESTARTS = re.compile(
    r"\bsystemctl\s+(?:-\S+\s+)*(?P<verb>restart|try-restart|stop|kill|start|reload-or-restart)\s+(?:-\S+\s+)*(?P<unit>[\w.@:\\-]+)"
    r"|\bservice\s+(?P<unit2>[\w.@-]+)\s+(?P<verb2>restart|stop|start)\b"
    r"|\b(?:docker|podman|nerdctl)\s+(?:-\S+\s+)*(?:container\s+)?(?P<verb3>restart|stop|kill|start)\s+(?:-\S+(?:\s+\d+)?\s+)*(?P<unit3>[\w.-]+)"
    r"|\bsupervisorctl\s+(?:-\S+\s+)*(?P<verb4>restart|stop|start)\s+(?P<unit4>[\w.:-]+)"
    r"|\bkubectl\s+(?:\S+\s+)*?(?P<verb5>delete)\s+pods?[ /](?P<unit5>[\w.-]+)"
)
KILLS = re.compile(r"\b(?P<tool>kill|pkill|killall)\s+(?:-(?:s\s+)?(?P<signal>[A-Z]+|\d+)\s+)?(?P<rest>.+)", re.S)
DUMPED = re.compile(r"^Process (?P<pid>\d{1,10}) \([^)]*\) of user \d+ (?:dumped core|terminated abnormally with signal (?P<signal>\d+))")
OOMD = re.compile(r"^Killed (?P<group>\S+) due to (?:memory|swap)")
DOCKERD = re.compile(r'msg="?restarting container"?.*?\b(?:container=(?P<id>[0-9a-f]{12,64}))?', re.S)
KUBELET = re.compile(r'"(?P<what>Probe failed|Killing container with a grace period)"(?P<rest>.*)', re.S)
FIELD = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
KINDS_OF_VERB = {"stop": "killing", "kill": "killing", "delete": "killing", "start": "start"}
"""All other verbs are a restart."""


@dataclass
class Journal:
    """One journal being read: feed it entries in order, then take the events."""

    at: Callable[[int], str]
    said: Said
    events: list[Event] = field(default_factory=list)
    watchdogs: dict[str, Watchdog] = field(default_factory=dict)
    _asked: list[Asked] = field(default_factory=list)
    _runs: list[Run] = field(default_factory=list)
    _open: dict[str, Run] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)
    """Unit -> number of the event `restart` that its counter may still complete."""
    _killer: dict[str, str] = field(default_factory=dict)
    _before: datetime.datetime | None = None

    def entry(self, entry: Entry) -> None:
        """One message; most are of no interest."""
        self._watch_clock(entry)
        self.said.seen(entry.ts)
        match entry.ident:
            case "systemd":
                self._systemd(entry)
            case "sudo":
                self._command(entry, SUDO, "{user}")
            case "CRON" | "cron" | "crond":
                self._command(entry, CRON, "cron ({user}): {command}")
            case "kernel":
                self._kernel(entry)
            case "systemd-coredump":
                self._dumped(entry)
            case "journal":
                self._add(entry, "restart", None, initiator="host boot")
            case _:
                self._other(entry)

    def end(self) -> list[Event]:
        """All events, units named alike and stops attributed."""
        self._name_units()
        self._attribute()
        return self.events

    def _watch_clock(self, entry: Entry) -> None:
        """A journal is in the order of writing: a time that goes back tells of a clock that was set."""
        if entry.ts is None:
            return
        if self._before is not None and (back := (self._before - entry.ts).total_seconds()) > 1.0 and entry.ident != "kernel":
            self.said.note(f"the clock goes back {back:.0f} s at line {entry.number}: it was set, or the zone changed its offset")
        self._before = entry.ts

    def _add(self, entry: Entry, kind: str, unit: str | None, **more: object) -> Event:
        event = Event(self.at(entry.number), kind, entry.message, entry.ts, unit, **more)  # type: ignore[arg-type]
        self.events.append(event)
        return event

    # --- systemd ---

    def _systemd(self, entry: Entry) -> None:
        unit = entry.fields.get("UNIT") or entry.fields.get("USER_UNIT")
        op, found, rest = IDS.get(entry.fields.get("MESSAGE_ID", "")), OF_UNIT.match(entry.message), entry.message
        if found is not None:
            unit, rest = unit or found["unit"], found["rest"]
        groups: dict[str, str | None] = {}
        for name, pattern in TEXTS if found is not None else ():
            match = pattern.search(rest)
            if match is not None:
                op, groups = op or name, match.groupdict()
                break
        if found is None and (status := STATUS.match(entry.message)) is not None:
            op = op or VERBS[status["verb"]]
            if unit is None:
                named = NAMED.match(status["what"])
                if named is None and NO_SERVICE.match(status["what"]):
                    return
                unit = named["unit"] if named is not None else status["what"]
        if op is not None and unit is not None and unit.rpartition(".")[2] not in NO_SERVICES:
            self._unit(op, entry, unit, groups)

    def _unit(self, op: str, entry: Entry, unit: str, groups: dict[str, str | None]) -> None:
        fields, killer = entry.fields, self._killer.get(unit)
        match op:
            case "starting" | "started":
                self._started(op, entry, unit)
            case "finished" | "stopped":
                self._ended(unit, entry.ts)
                if op == "stopped":
                    self._add(entry, "stop", unit, initiator=killer)
            case "stopping":
                self._add(entry, "killing", unit)
            case "due":
                self._due[unit] = len(self.events)
                self._add(entry, "restart", unit, initiator=SYSTEMD)
            case "scheduled":
                due = self._due.pop(unit, None)
                if due is None:
                    self._add(entry, "restart", unit, initiator=SYSTEMD)
                else:
                    self.events[due].detail = entry.message
            case "watchdog":
                self._killer[unit] = WATCHDOG
                limit = span_s(groups.get("limit") or "")
                self._add(entry, "probe_failed", unit, initiator=WATCHDOG)
                if limit is not None:
                    self.watchdogs.setdefault(unit, Watchdog(self.at(entry.number), WATCHDOG, "sd_notify WATCHDOG=1", limit, limit, 1, unit))
            case "timeout":
                if (groups.get("state") or "stop").startswith("stop"):
                    self._killer[unit] = STOP_TIMEOUT
                    self._add(entry, "killing", unit, initiator=STOP_TIMEOUT, code=9)
            case "killing":
                self._add(entry, "killing", unit, initiator=killer or SYSTEMD, pid=_number(groups["pid"]), code=signal_of(groups["signal"] or ""))
            case "stuck":
                self._add(entry, "killing", unit, initiator=killer or SYSTEMD, code=9)
            case "exited":
                how, status = groups.get("how") or fields.get("EXIT_CODE"), _number(groups.get("status") or fields.get("EXIT_STATUS"))
                code = status if how == "exited" or status is None else 128 + status
                self._ended(unit, entry.ts)
                self._add(entry, "exit", unit, initiator=killer, code=code, pid=_number(fields.get("_SYSTEMD_MAINPID")))
            case "ended":
                self._ended(unit, entry.ts)
                self._add(entry, "exit", unit, initiator=killer, code=0)
            case "oom":
                self._killer[unit] = "kernel"
                self._add(entry, "oom_kill", unit, initiator="kernel", code=9)
            case "limit":
                self._add(entry, "stop", unit, initiator=START_LIMIT)
            case "left_over":
                self._add(entry, "left_over", unit, pid=_number(groups["pid"]))
            case "dumped":
                self._dumped(entry)

    def _started(self, op: str, entry: Entry, unit: str) -> None:
        """One `start` for each start: of its beginning where both are told."""
        going = self._open.get(unit)
        if op == "started" and going is not None and going.activating:
            going.activating = False
            return
        self._killer.pop(unit, None)
        self._due.pop(unit, None)
        self._add(entry, "start", unit)
        if entry.ts is not None:
            self._open[unit] = run = Run(unit, entry.ts, activating=op == "starting")
            self._runs.append(run)

    def _ended(self, unit: str, ts: datetime.datetime | None) -> None:
        run = self._open.pop(unit, None)
        if run is not None:
            run.end = ts

    # --- everybody else ---

    def _command(self, entry: Entry, pattern: re.Pattern[str], who: str) -> None:
        match = pattern.match(entry.message)
        if match is None:
            return
        command = match["command"].strip()
        initiator = who.format(user=match["user"], command=command)[:200]
        found = RESTARTS.search(command)
        if found is not None:
            verb, unit = (next((text for name, text in found.groupdict().items() if name.startswith(part) and text), "") for part in ("verb", "unit"))
            if found["unit"] and "." not in unit:
                unit += ".service"
            self._asked.append(Asked(entry.ts, initiator, unit))
            if pattern is SUDO:
                self._add(entry, KINDS_OF_VERB.get(verb, "restart"), unit, initiator=initiator)
        elif pattern is SUDO and (kill := KILLS.search(command)) is not None:
            pid = kill["rest"].split()[-1] if kill["tool"] == "kill" else ""
            code = signal_of(kill["signal"]) if kill["signal"] else 15
            self._add(entry, "killing", None, initiator=initiator, pid=_number(pid), code=code)
        elif pattern is CRON:
            self._asked.append(Asked(entry.ts, initiator, None))

    def _kernel(self, entry: Entry) -> None:
        found = kernel_log.event(entry.message)
        if found is not None:
            kind, pid, code = found
            self._add(entry, kind, None, initiator="kernel", pid=pid, code=code)

    def _dumped(self, entry: Entry) -> None:
        match, fields = DUMPED.match(entry.message), entry.fields
        if match is None and "COREDUMP_PID" not in fields:
            return
        number = _number(fields.get("COREDUMP_SIGNAL") or (match["signal"] if match else None))
        pid = _number(fields.get("COREDUMP_PID") or (match["pid"] if match else None))
        self._add(entry, "exit", fields.get("COREDUMP_UNIT"), pid=pid, code=None if number is None else 128 + number)

    def _other(self, entry: Entry) -> None:
        if entry.ident == "systemd-oomd" and (match := OOMD.match(entry.message)) is not None:
            self._add(entry, "oom_kill", match["group"].rpartition("/")[2], initiator="systemd-oomd", code=9)
        elif entry.ident == "dockerd" and (match := DOCKERD.search(entry.message)) is not None:
            self._add(entry, "restart", match["id"], initiator="docker (restart policy)")
        elif entry.ident == "kubelet" and (match := KUBELET.search(entry.message)) is not None:
            said = dict(FIELD.findall(match["rest"]))
            pod = said.get("pod", "").rpartition("/")[2] or None
            unit = f"{pod}/{said['containerName']}" if pod and said.get("containerName") else pod
            probe = said.get("probeType", "").lower()
            kind = "probe_failed" if match["what"] == "Probe failed" else "killing"
            self._add(entry, kind, unit, initiator=f"kubelet ({probe} probe)" if probe else "kubelet")

    # --- after the last line ---

    def _name_units(self) -> None:
        """Old systemd prints descriptions: where one service is named and one described, they are the same."""
        units = {event.unit for event in self.events if event.unit is not None}
        services = {unit for unit in units if unit.endswith(".service")}
        described = {unit for unit in units - services if any(event.unit == unit and event.kind in ("start", "stop", "killing") for event in self.events)}
        if len(services) == 1 and len(described) == 1:
            (old,), (new,) = described, services
            for event in self.events:
                event.unit = new if event.unit == old else event.unit
            for run in self._runs:
                run.unit = new if run.unit == old else run.unit

    def _attribute(self) -> None:
        """Who asked for each stop, and with that for the exit and the start that follow it."""
        going: dict[str, str | None] = {}
        runs = sorted(self._runs, key=begin_of)
        asked = sorted((item for item in self._asked if item.ts is not None), key=when)
        for event in self.events:
            if event.unit is None:
                continue
            if event.kind == "killing" and event.initiator is None:
                event.initiator = going[event.unit] = None if event.ts is None else suspect(event, event.ts, runs, asked)
            elif event.kind in ("stop", "exit", "start") and event.initiator is None:
                event.initiator = going.get(event.unit)
            elif event.kind == "restart" and event.initiator == SYSTEMD:
                going[event.unit] = SYSTEMD
            if event.kind == "start":
                going.pop(event.unit, None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 10 else None


def read(entries: Iterable[Entry], at: Callable[[int], str], said: Said) -> Iterator[Event | Watchdog]:
    """Entries in order -> events in order, then the watchdog rules they tell of."""
    journal = Journal(at, said)
    for entry in entries:
        journal.entry(entry)
    yield from journal.end()
    yield from journal.watchdogs.values()
