"""Starts the engine, starts it again, and writes it down like supervisord. The ledger is the lab's own memory of each restart."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from cascadelab.clock import Clock, Log

UNIT = "vllm"
STOP_S, UP_S = 150.0, 60.0
"""Lab seconds an engine has to end before SIGKILL, and after which it counts as running."""
BEAT_S = 200.0
"""Lab seconds after which a silent heartbeat is a hang: that is what the ledger calls not healthy."""


@dataclass(frozen=True)
class Place:
    """Where the lab keeps its files. `ledger` and `heartbeat` are no evidence and lie outside of `logs`."""

    logs: Path
    ledger: Path
    heartbeat: Path


class Supervisor:
    """The owner of the engine's process."""

    def __init__(self, clock: Clock, place: Place, *, slots: int, load_s: float) -> None:
        self.port = _free_port()
        self.pid: int | None = None
        self._clock, self._place = clock, place
        self._log = Log(place.logs / "supervisord.log", clock)
        self._slots, self._load_s = slots, load_s
        self._process: asyncio.subprocess.Process | None = None
        self._born_s = 0.0
        self._lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine_log(self) -> Path:
        return self._place.logs / "vllm.log"

    @property
    def restarting(self) -> bool:
        """Has somebody asked for a restart that is not done yet?"""
        return self._lock.locked()

    async def start(self) -> None:
        """A new engine."""
        self._place.heartbeat.unlink(missing_ok=True)
        self._born_s = self._clock.now_s
        self._clock.follow()  # in its place, until it does so itself
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("engine.py")), "--port", str(self.port), "--clock", str(self._clock), "--born", str(self._born_s),
            "--load-s", str(self._load_s), "--slots", str(self._slots), "--log", str(self.engine_log), "--heartbeat", str(self._place.heartbeat),
            stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self.pid = self._process.pid
        self._log.say(f"INFO spawned: '{UNIT}' with pid {self.pid}")
        self._watch = asyncio.create_task(self._look_after(self._process))

    async def restart(self, initiator: str) -> None:
        """`supervisorctl restart`, asked for by somebody. Returns when the new one is spawned."""
        async with self._lock:
            self._remember(initiator)
            process = self._process
            assert process is not None
            if self._watch is not None:
                self._watch.cancel()
            self._log.say(f"INFO waiting for {UNIT} to stop")
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await self._clock.within(STOP_S, process.wait())
            except TimeoutError:
                self._log.say(f"WARN killing '{UNIT}' ({process.pid}) with SIGKILL")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            self._log.say(_stopped(process.returncode))
            await self.start()

    def hang(self) -> None:
        """From now on the engine's loop stands still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    async def close(self) -> None:
        """The end of the recording, of which no log tells."""
        if self._watch is not None:
            self._watch.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _look_after(self, process: asyncio.subprocess.Process) -> None:
        """Starts it again when it ends by itself."""
        with contextlib.suppress(TimeoutError):
            await self._clock.within(UP_S, process.wait())
        if process.returncode is None:
            self._log.say(f"INFO success: {UNIT} entered RUNNING state, process has stayed up for > than {UP_S:.0f} seconds (startsecs)")
        code = await process.wait()
        self._remember(None)
        self._log.say(f"WARN exited: {UNIT} ({_how(code)}; not expected)")
        await self.start()

    def _remember(self, initiator: str | None) -> None:
        """A line of the ledger. Healthy: it was loading, or its loop turned a moment ago."""
        now_s, state = self._clock.now_s, self._state()
        entry = {"ts": self._clock.at(now_s).isoformat(), "second": round(now_s, 1), "initiator": initiator, "healthy": state != "stuck", "state": state}
        with self._place.ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _state(self) -> str:
        try:
            beat_s = float(self._place.heartbeat.read_text())
        except (FileNotFoundError, ValueError):
            return "loading"
        return "working" if self._clock.now_s - beat_s <= BEAT_S else "stuck"


def _stopped(code: int | None) -> str:
    return f"{'INFO' if code == 0 else 'WARN'} stopped: {UNIT} ({_how(code)})"


def _how(code: int | None) -> str:
    return f"terminated by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
