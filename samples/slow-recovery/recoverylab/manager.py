"""The manager: notices that the engine is dead, and sees to it that there is a new one. It writes down what it does.

It notices by a slow probe that must fail several times in a row, or by a heartbeat of the engine's core. Then it tells the
router, ends what is left of the old engine, waits until the holder has its memory back (or does not), and starts anew, as
often as needed.
"""

import asyncio
import contextlib
import json
import math
import sys
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))
from recoverylab.place import UNIT, Place, begin

PERIOD_S, TIMEOUT_S, STRIKES = 8.0, 3.0, 3
BEAT_S, MISSES = 1.0, 2
PATIENCE_S = 0.5
"""How late a heartbeat may be before it counts as missed."""
BACK_OFF_S = 10.0
"""Before a start that failed is tried again."""
LOOK_S = 0.25
BIRTH_S = 2.0
"""What the clock gives two interpreters to begin in: a busy machine makes that no longer."""
MOST_STARTS = 8


class Beats(asyncio.DatagramProtocol):
    """The last heartbeat of each generation, in lab seconds."""

    def __init__(self) -> None:
        self.last_s: dict[int, float] = {}

    def datagram_received(self, data: bytes, addr: object) -> None:
        said = json.loads(data)
        self.last_s[said["generation"]] = said["second"]


class Manager:
    """The owner of the engine's process."""

    def __init__(self, place: Place) -> None:
        self.place, self.clock = place, place.clock
        self.log = place.log("manager.log")
        self.beats = Beats()
        self.generation = 0
        self.process: asyncio.subprocess.Process | None = None
        self.session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self.beats, local_addr=("127.0.0.1", 0))
        self.place.tell("manager", port=transport.get_extra_info("sockname")[1])
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        await self._start()
        while True:
            who, why = await (self._beaten() if self.place.setup.heartbeat else self._probed())
            await self._recover(who, why)

    # --- noticing ---

    async def _probed(self) -> tuple[str, str]:
        """GET /health at fixed moments, until enough of them failed in a row."""
        at_s, failed = float(math.ceil(self.clock.now_s)), 0
        while failed < STRIKES:
            at_s += PERIOD_S
            await self.clock.sleep_until(at_s)
            problem = await self._problem(TIMEOUT_S)
            failed = 0 if problem is None else failed + 1
            self.log.say("probe: ok" if problem is None else f"probe: failed ({problem}), {failed} of {STRIKES}")
        return "probe", f"{STRIKES} failures in a row"

    async def _beaten(self) -> tuple[str, str]:
        """A heartbeat each second, until two of them are missing."""
        begun_s = self.clock.now_s
        while True:
            await self.clock.sleep(LOOK_S)
            last_s = self.beats.last_s.get(self.generation, begun_s)
            if self.clock.now_s - last_s > MISSES * BEAT_S + PATIENCE_S:
                self.log.say(f"heartbeat: lost, {MISSES} in a row are missing since {self.clock.at(last_s):%H:%M:%S}")
                return "heartbeat", f"{MISSES} heartbeats missing"

    async def _problem(self, timeout_s: float) -> str | None:
        """What is wrong with one answer of /health; None = nothing."""
        try:
            return await self.clock.within(timeout_s, self._health())
        except TimeoutError:
            return f"no answer within {timeout_s:.0f} s"
        except (aiohttp.ClientError, OSError):
            return "connection refused"

    async def _health(self) -> str | None:
        assert self.session is not None
        port = self.place.told(f"engine-{self.generation}").get("port")
        if port is None:
            return "it has no port yet"
        async with self.session.get(f"http://127.0.0.1:{port}/health") as answer:
            return None if answer.status == 200 else f"HTTP {answer.status}"

    # --- recovering ---

    async def _recover(self, who: str, why: str) -> None:
        self.log.say(f"{who}: {why}, restarting {UNIT}")
        self.place.remember("manager", "command", by=who, generation=self.generation)
        await self._router("down")
        await self._end()
        if self.place.setup.wait_reclaim:
            await self._holder("wait")
            self.log.say(f"manager: memory of generation {self.generation} is free again")
        await self._start()

    async def _end(self) -> None:
        """What is left of the old engine."""
        process = self.process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
        self.clock.leave()
        self.log.say(f"manager: {UNIT} pid {process.pid} is gone, code {code if code >= 0 else 128 - code}")
        self.place.remember("manager", "gone", generation=self.generation, pid=process.pid, code=code)
        if not self.place.setup.reclaim_on_death:
            await self._holder("release")

    async def _start(self) -> None:
        """A new engine, until one is ready."""
        for _ in range(MOST_STARTS):
            self.generation += 1
            self.place.tell(f"born-{self.generation}", second=self.clock.now_s)
            self.clock.expect(BIRTH_S)
            process = self.process = await asyncio.create_subprocess_exec(
                *self.place.command("engine_api.py", str(self.generation)), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
            self.log.say(f"manager: started {UNIT} pid {process.pid}, generation {self.generation}")
            self.place.remember("manager", "started", generation=self.generation, pid=process.pid)
            if await self._is_ready(process):
                port = self.place.told(f"engine-{self.generation}")["port"]
                self.log.say(f"manager: {UNIT} generation {self.generation} is ready")
                self.place.remember("manager", "ready", generation=self.generation)
                self.place.tell("ready", generation=self.generation, second=self.clock.now_s)
                await self._router(f"up?port={port}")
                return
            await self._end()
            await self.clock.sleep(BACK_OFF_S)
            self.log.say(f"manager: the start of generation {self.generation} failed, restarting {UNIT}")
            self.place.remember("manager", "command", by="manager", generation=self.generation)
        raise SystemExit(f"no engine after {MOST_STARTS} starts")

    async def _is_ready(self, process: asyncio.subprocess.Process) -> bool:
        """False = it ended before."""
        while process.returncode is None:
            if await self._problem(TIMEOUT_S) is None:
                return True
            await self.clock.sleep(LOOK_S)
        return False

    async def _router(self, word: str) -> None:
        assert self.session is not None
        async with self.session.post(f"http://127.0.0.1:{self.place.told('router')['admin']}/{word}") as answer:
            await answer.read()

    async def _holder(self, op: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.place.told("holder")["port"])
        writer.write(json.dumps({"op": op, "generation": self.generation}).encode() + b"\n")
        await reader.readline()
        writer.close()


async def _main() -> None:
    place, _ = begin()
    await Manager(place).run()


if __name__ == "__main__":
    asyncio.run(_main())
