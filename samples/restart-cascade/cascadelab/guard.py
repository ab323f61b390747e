"""In place of the watchdogs: `llmdiag health --watch`, whose verdicts alone decide. Restarts what it calls stalled, and nothing else."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascadelab.clock import Clock, Log
from cascadelab.supervisor import UNIT, Supervisor

NAME = "llmdiag-health"
INTERVAL_S, FLOOR_S = 300.0, 300.0
"""Looks as often as the chat watchdog did; how long a busy engine may show no progress at least."""
LEAST_TIMEOUT_S = 2.0
STUCK = 1
"""Exit code of `llmdiag health` for what is proved."""


@dataclass(frozen=True)
class Guard:
    """`command`: the words that start llmdiag."""

    command: Sequence[str]
    clock: Clock
    supervisor: Supervisor
    logs: Path

    async def run(self) -> None:
        """Until cancelled. `guard.jsonl` holds what the tool said, each round with the lab's time."""
        interval_s, floor_s = (f"{self.clock.real_s(seconds):g}" for seconds in (INTERVAL_S, FLOOR_S))
        argv = [*self.command, "health", self.supervisor.url, "--watch", "--interval", interval_s, "--floor", floor_s, "--timeout", f"{LEAST_TIMEOUT_S:g}", "--format", "json"]
        with (self.logs / "guard.err").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=1 << 20)
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                await self._judge(json.loads(line))
            raise SystemExit(f"llmdiag health ended with {await process.wait()}: {(self.logs / 'guard.err').read_text()[-500:]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _judge(self, found: dict[str, Any]) -> None:
        (backend,) = found["backends"]
        Log(self.logs / "guard.jsonl", self.clock).line(json.dumps({"second": round(self.clock.now_s, 1), "ts": self.clock.stamp(), "said": found}))
        if found["exit"] == STUCK:
            Log(self.logs / "guard.log", self.clock).say(f"{NAME}: {backend['state']}: {backend['reason']}, restarting {UNIT}")
            await self.supervisor.restart(NAME)
