"""The four watchdogs of the incident, each with its rule and a log of its own, and the map that says how to read those logs."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from cascadelab.batch import MODEL
from cascadelab.clock import Clock, Log, stamp_of
from cascadelab.supervisor import UNIT, Supervisor

WATCHERS_IP = "127.0.0.9"
ERROR = re.compile(r'^(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO: .*" 500 ')


@dataclass(frozen=True)
class Rule:
    """Lab seconds. `kind`: chat, models, health (requests of its own) or count (500s in the engine's log)."""

    name: str
    kind: str
    period_s: int
    timeout_s: int
    strikes: int
    offset_s: int
    what: str


RULES = (
    Rule("chat-watchdog", "chat", 300, 45, 5, 0, "a chat request"),
    Rule("error-counter", "count", 600, 60, 3, 240, "500s in the engine's log"),
    Rule("models-watchdog", "models", 900, 90, 1, 420, "GET /v1/models"),
    Rule("health-watchdog", "health", 1800, 90, 1, 480, "GET /health"),
)


@dataclass
class Watchdog:
    """One of them at work. `busy_flag`: a file; while it is there, the chat watchdog leaves the engine alone."""

    rule: Rule
    clock: Clock
    supervisor: Supervisor
    log: Log
    busy_flag: Path
    failures: int = 0
    since: str = ""
    read_bytes: int = 0
    errors: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Looks at fixed moments; those that it sleeps through are left out."""
        rule = self.rule
        looks: Callable[[], Awaitable[None]] = self._count if rule.kind == "count" else self._probe
        at_s = rule.offset_s or rule.period_s
        while True:
            await self.clock.sleep_until(at_s)
            await looks()
            at_s += rule.period_s
            while at_s <= self.clock.now_s:
                at_s += rule.period_s

    async def _probe(self) -> None:
        rule = self.rule
        if rule.kind == "chat" and self.busy_flag.exists():
            self.failures = 0
            self.log.say(f"{rule.name}: a batch job says that it is busy: not asked")
            return
        problem = await self._problem()
        if problem is None:
            self.failures = 0
            self.log.say(f"{rule.name}: ok")
            return
        self.failures += 1
        self.log.say(f"{rule.name}: probe failed ({problem}), {self.failures} of {rule.strikes}")
        if self.failures >= rule.strikes:
            self.failures = 0
            await self._restart(f"{rule.strikes} in a row")

    async def _problem(self) -> str | None:
        """What was wrong with one answer; None = nothing."""
        try:
            return await self.clock.within(self.rule.timeout_s, self._asked())
        except TimeoutError:
            return f"no answer within {self.rule.timeout_s} s"
        except (aiohttp.ClientError, OSError):
            return "connection refused"

    async def _asked(self) -> str | None:
        rule, url = self.rule, self.supervisor.url
        body = {"model": MODEL, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 4}
        method, path, json = ("POST", "/v1/chat/completions", body) if rule.kind == "chat" else ("GET", "/v1/models" if rule.kind == "models" else "/health", None)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(WATCHERS_IP, 0))) as session,
            session.request(method, url + path, json=json) as answer,
        ):
            await answer.read()
            return None if answer.status == 200 else f"HTTP {answer.status}"

    async def _count(self) -> None:
        """500s of the last period, without those before its own last restart was done."""
        with self.supervisor.engine_log.open("rb") as file:
            file.seek(self.read_bytes)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        self.errors += [match["ts"] for line in whole.decode().splitlines() if (match := ERROR.match(line)) is not None]
        begin = max(self.since, stamp_of(self.clock.at(self.clock.now_s - self.rule.period_s)))
        self.errors = [stamp for stamp in self.errors if stamp > begin]
        if len(self.errors) < self.rule.strikes:
            self.log.say(f"{self.rule.name}: ok, {len(self.errors)} errors in the last {self.rule.period_s} s")
            return
        await self._restart(f"{len(self.errors)} errors in the last {self.rule.period_s} s")
        self.since = self.clock.stamp()

    async def _restart(self, why: str) -> None:
        if self.supervisor.restarting:
            self.log.say(f"{self.rule.name}: {why}; a restart is under way already")
            return
        self.log.say(f"{self.rule.name}: {why}, restarting {UNIT}")
        await self.supervisor.restart(self.rule.name)


def watch(clock: Clock, supervisor: Supervisor, logs: Path, busy_flag: Path) -> list["asyncio.Task[None]"]:
    """All four, at work."""
    dogs = [Watchdog(rule, clock, supervisor, Log(logs / f"{rule.name}.log", clock), busy_flag) for rule in RULES]
    return [asyncio.create_task(dog.run(), name=dog.rule.name) for dog in dogs]


def events_map() -> str:
    """What their owner says of their lines and rules: TOML for --events-map."""
    parts = []
    for rule in RULES:
        given = f"period_s = {rule.period_s}\ntimeout_s = {rule.timeout_s}\nstrikes = {rule.strikes}\nwhat = \"{rule.what}\"\n"
        for kind, words in (("restart", r"restarting (?P<unit>\w+)"), ("probe_failed", "probe failed")):
            if kind == "restart" or rule.kind != "count":
                parts.append(
                    f'[[event]]\nfile = "{rule.name}.log"\nkind = "{kind}"\ninitiator = "{rule.name}"\n'
                    f"regex = '^(?P<ts>\\S+ \\S+) {rule.name}: .*{words}'\n{given if kind == 'restart' else ''}"
                )
    return "\n".join(parts)
