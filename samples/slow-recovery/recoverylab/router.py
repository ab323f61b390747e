"""The router: one front, one engine behind it, HAProxy's log. Requests wait in its queue while no server is up.

A new engine gets traffic on ready, or when the grace period of the old server is over (a graceful drain, though that
server is dead). What waited is released at once, or 30 % first and the rest when that went well. Without `abortonclose`
(HAProxy's old default) it does not notice that a client left the queue, and the engine works for nobody.
"""

import asyncio
import contextlib
import math
import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent.parent))
from recoverylab.place import Place, begin

DRAIN_S = 20.0
"""The grace period of the old server."""
FIRST_SHARE, WATCH_S = 0.3, 3.0
"""What is admitted first, and how long it is watched before the rest is."""
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@dataclass
class Asked:
    """A request on its way. Lab seconds; `ahead`: how many waited before it."""

    client: str
    came_s: float
    ahead: int = 0
    sent_s: float | None = None
    answered_s: float | None = None
    server: str = "<NOSRV>"


class Router:
    """The queue and the switch."""

    def __init__(self, place: Place) -> None:
        self.place, self.clock = place, place.clock
        self.log, self.access = place.log("router.log"), place.log("haproxy.log")
        self.port: int | None = None
        self.server = self.answered = 0
        self.open = False
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.peak = 0
        self.active = 0
        self.session: aiohttp.ClientSession | None = None
        self.switching: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0, force_close=True))
        front, admin = web.Application(), web.Application()
        front.router.add_post("/v1/chat/completions", self._complete)
        admin.router.add_post("/down", self._down)
        admin.router.add_post("/up", self._up)
        ports = [await _listen(front, cancel=self.place.setup.abort_on_close), await _listen(admin, cancel=False)]
        self.place.tell("router", port=ports[0], admin=ports[1])
        await asyncio.Event().wait()

    # --- what the manager says ---

    async def _down(self, request: web.Request) -> web.Response:
        if self.open:
            self._close("the manager says so")
        return web.Response()

    async def _up(self, request: web.Request) -> web.Response:
        """The manager has a new engine."""
        port = int(request.query["port"])
        if self.switching is not None:
            self.switching.cancel()
        self.switching = asyncio.create_task(self._switch(port))
        return web.Response()

    def _close(self, why: str) -> None:
        self.open = False
        self.log.say(f"router: server vllm/engine-{self.server} is DOWN ({why}); requests wait")
        self.place.remember("router", "down", server=self.server, why=why)

    async def _switch(self, port: int) -> None:
        first = self.port is None
        if self.place.setup.drain and not first:
            begun_s = self.clock.now_s
            self.log.say(f"router: drain of vllm/engine-{self.server} begins, grace period {DRAIN_S:.0f} s")
            await self.clock.sleep(DRAIN_S)
            self.log.say(f"router: drain of vllm/engine-{self.server} is over")
            self.place.remember("router", "drained", begin=round(begun_s, 3), end=round(self.clock.now_s, 3))
        self.port = port
        self.server += 1
        self.log.say(f"router: traffic goes to vllm/engine-{self.server} at 127.0.0.1:{port}")
        self.place.remember("router", "switched", server=self.server, waiting=len(self.waiting))
        if self.place.setup.share and not first:
            share = math.ceil(FIRST_SHARE * len(self.waiting))
            self.log.say(f"router: admitted 30 percent: {share} of {len(self.waiting)} waiting requests")
            self._release(share)
            await self.clock.sleep(WATCH_S)
        self.log.say(f"router: queue released: {len(self.waiting)} requests at once")
        if self.place.setup.share and not first:
            self.log.say("router: admitted 100 percent")
        self.open = True
        self._release(len(self.waiting))
        self.place.tell("switched", server=self.server, second=self.clock.now_s)

    def _release(self, count: int) -> None:
        while count and self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    # --- requests ---

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.active += 1
        peer = request.transport.get_extra_info("peername") if request.transport is not None else ("127.0.0.1", 0)
        asked = Asked(f"{peer[0]}:{peer[1]}", self.clock.now_s)
        try:
            body = await request.read()
            while True:
                await self._turn(asked)
                try:
                    return await self._forwarded(request, asked, body)
                except aiohttp.ClientConnectorError:  # refused: the server is dead, and the request can wait for another one
                    if self.open:
                        self._close("connection refused")
        except asyncio.CancelledError:
            self._write(asked, 503 if asked.sent_s is None else -1, "CQ--" if asked.sent_s is None else "CH--")
            raise
        finally:
            self.active -= 1

    async def _turn(self, asked: Asked) -> None:
        """Until there is a server for it."""
        if self.open and self.port is not None:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked.ahead = len(self.waiting)
        self.waiting.append(turn)
        if len(self.waiting) > self.peak:
            self.peak = len(self.waiting)
            self.place.tell("queue", peak=self.peak)
        try:
            await turn
        finally:
            with contextlib.suppress(ValueError):
                self.waiting.remove(turn)

    async def _forwarded(self, request: web.Request, asked: Asked, body: bytes) -> web.StreamResponse:
        assert self.session is not None
        sent_s = self.clock.now_s
        server = f"engine-{self.server}"
        try:
            async with self.session.post(f"http://127.0.0.1:{self.port}{request.path}", data=body, headers={"Content-Type": "application/json"}) as answer:
                asked.sent_s, asked.server = sent_s, server
                content, status = await answer.read(), answer.status
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientError, OSError):
            asked.sent_s, asked.server = sent_s, server
            self._write(asked, 502, "SH--")
            return web.Response(status=502)
        except asyncio.CancelledError:
            asked.sent_s, asked.server = sent_s, server
            raise
        asked.answered_s = self.clock.now_s
        left = request.transport is None or request.transport.is_closing()
        self._write(asked, status, "CD--" if left else "----", len(content))
        if status == 200 and not left and self.answered != self.server:
            self.answered = self.server
            self.place.remember("router", "first_answer", server=self.server)
        return web.Response(status=status, body=content, content_type="application/json")

    def _write(self, asked: Asked, status: int, flags: str, size: int = 0) -> None:
        """A line of HAProxy's, when a request ends."""
        now_s, came = self.clock.now_s, self.clock.at(asked.came_s)
        queue_ms = round(1000 * ((asked.sent_s if asked.sent_s is not None else now_s) - asked.came_s))
        first_ms = -1 if asked.answered_s is None or asked.sent_s is None else round(1000 * (asked.answered_s - asked.sent_s))
        times = f"0/{queue_ms}/{-1 if asked.sent_s is None else 0}/{first_ms}/{round(1000 * (now_s - asked.came_s))}"
        head = self.clock.at(now_s)
        self.access.line(
            f"{MONTHS[head.month - 1]} {head.day:2d} {head:%H:%M:%S} lab haproxy[{os.getpid()}]: {asked.client} "
            f"[{came.day:02d}/{MONTHS[came.month - 1]}/{came:%Y:%H:%M:%S}.{came.microsecond // 1000:03d}] llm vllm/{asked.server} {times} {status} {size} - - {flags} "
            f'{self.active}/{self.active}/{self.active}/{0 if asked.sent_s is None else 1}/0 0/{asked.ahead} "POST /v1/chat/completions HTTP/1.1"'
        )


async def _listen(app: web.Application, *, cancel: bool) -> int:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=cancel)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return port


async def _main() -> None:
    place, _ = begin()
    await Router(place).run()


if __name__ == "__main__":
    asyncio.run(_main())
