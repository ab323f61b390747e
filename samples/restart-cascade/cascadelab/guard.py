"""In place of the watchdogs: `llmdiag health --watch`, whose verdicts alone decide. Restarts what it calls stalled, and nothing else."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cascadelab.clock import Clock, Log
from cascadelab.supervisor import UNIT, Supervisor

NAME, LOG = "llmdiag-health", "guard.log"
INTERVAL_S, FLOOR_S = 300.0, 300.0
"""Looks as often as the chat watchdog did; how long a busy engine may show no progress at least."""
TIMEOUT_S = 2.0
"""Real seconds for one read."""
STUCK = 1
"""Exit code of `llmdiag health` for what is proved."""


def events_map() -> str:
    """How to read its log: TOML for --events-map."""
    return f"[[event]]\nfile = \"{LOG}\"\nkind = \"restart\"\ninitiator = \"{NAME}\"\nregex = '^(?P<ts>\\S+ \\S+) {NAME}: .*restarting (?P<unit>\\w+)'\n"


@dataclass(frozen=True)
class Guard:
    """`command`: the words that start llmdiag. `record` holds what the tool said, a line each round with the lab's time."""

    command: Sequence[str]
    clock: Clock
    supervisor: Supervisor
    log: Log
    record: Log

    async def run(self) -> None:
        """Until cancelled."""
        interval_s, floor_s = (f"{seconds / self.clock.scale:g}" for seconds in (INTERVAL_S, FLOOR_S))
        options = ["--watch", "--interval", interval_s, "--floor", floor_s, "--timeout", f"{TIMEOUT_S:g}", "--format", "json"]
        argv = [*self.command, "health", self.supervisor.url, *options]
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, limit=1 << 20)
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                await self._judge(json.loads(line))
            raise RuntimeError(f"{' '.join(argv)} ended with {await process.wait()}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _judge(self, found: dict[str, Any]) -> None:
        (backend,) = found["backends"]
        self.record.line(json.dumps({"second": round(self.clock.now_s, 1), "ts": self.clock.stamp(), "said": found}))
        if found["exit"] == STUCK:
            self.log.say(f"{NAME}: {backend['state']}: {backend['reason']}, restarting {UNIT}")
            await self.supervisor.restart(NAME)
