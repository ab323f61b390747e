"""The API server: starts its EngineCore, answers for it, and says what vLLM 0.33 says when the core is gone.

Killed cores end it too, as in vLLM; after an error of the device it stays and answers 500 and 503, as with
VLLM_KEEP_ALIVE_ON_ENGINE_DEATH. It owns its port from the beginning and listens when the engine is built.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from recoverylab.batch import Batch, metrics
from recoverylab.place import MODEL, SLOTS, Place, begin

if TYPE_CHECKING:
    from aiohttp import web

STATS_EVERY_S = 5.0
FIRST_LINE_S = 1.2
"""From its birth to its first line, at least: real ones import for seconds before they say anything."""
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
STARTED_AT = time.time()


class EngineDeadError(RuntimeError):
    """What requests get when there is no core."""


class Server:
    """The web server and its core."""

    def __init__(self, place: Place, generation: int) -> None:
        self.place, self.clock, self.generation = place, place.clock, generation
        self.log = place.log("vllm.log")
        self.seen: dict[str, float] = Batch().seen
        self.asked: dict[int, asyncio.Future[None]] = {}
        self.numbers = 0
        self.core: asyncio.subprocess.Process | None = None
        self.dead = False
        self.over = asyncio.Event()
        self.ready = asyncio.Event()

    def say(self, text: str, where: str, level: str = "INFO") -> None:
        for part in text.split("\n"):
            self.log.line(f"(APIServer pid={os.getpid()}) {level} {self.clock.at(self.clock.now_s):%m-%d %H:%M:%S} [{where}] {part}")

    def uvicorn(self, text: str) -> None:
        self.log.line(f"INFO:     {text}")

    def access(self, request: "web.Request", status: int) -> None:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        host, port = (peer or ("127.0.0.1", 0))[:2]
        self.uvicorn(f'{host}:{port} - "{request.method} {request.path} HTTP/1.1" {status} {HTTPStatus(status).phrase}')

    # --- its life ---

    async def run(self) -> int:
        bound = _bound()
        port = int(bound.getsockname()[1])
        await self.clock.sleep_until(self.place.told(f"born-{self.generation}")["second"] + FIRST_LINE_S)
        self.say("█▄█▀ █     █     █     █  version 0.33.0", "api_utils.py:347")
        self.say(f"non-default args: {{'model_tag': '/models/{MODEL}', 'host': '127.0.0.1', 'port': {port}, 'max_num_seqs': {SLOTS}}}", "api_utils.py:286")
        core = self.core = await asyncio.create_subprocess_exec(
            *self.place.command("engine_core.py", str(self.generation)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self.place.tell(f"engine-{self.generation}", port=port, api=os.getpid(), core=core.pid)
        from aiohttp import web  # while the core is at work already

        listening = asyncio.create_task(self._listen(core))
        waits = asyncio.create_task(self.ready.wait())
        await asyncio.wait({listening, waits}, return_when=asyncio.FIRST_COMPLETED)
        if not self.ready.is_set():
            self.say("Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}", "utils.py:988", "ERROR")
            return 1
        built_s = self.clock.now_s
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        self.say(f"Starting vLLM server on http://127.0.0.1:{port}", "entry.py:140")
        await web.SockSite(runner, bound).start()
        self.uvicorn(f"Started server process [{os.getpid()}]")
        self.uvicorn("Waiting for application startup.")
        self.uvicorn("Application startup complete.")
        self.place.remember("api", "api_up", generation=self.generation, begin=round(built_s, 3), end=round(self.clock.now_s, 3))
        stats = asyncio.create_task(self._stats())
        await listening
        await self._mourn(await core.wait())
        stats.cancel()
        await self.over.wait()
        await runner.cleanup()
        return 0

    async def _listen(self, core: asyncio.subprocess.Process) -> None:
        """What the core says, until it is gone."""
        assert core.stdout is not None
        while line := await core.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            if "ready" in said:
                self.ready.set()
                continue
            self.seen = said["seen"]
            for number in said["done"]:
                asked = self.asked.pop(number, None)
                if asked is not None and not asked.done():
                    asked.set_result(None)

    async def _mourn(self, code: int) -> None:
        """The core is gone: everybody who waits is told, and a kill ends this server too."""
        self.dead = True
        self.place.remember("api", "core_gone", generation=self.generation, code=code, in_flight=len(self.asked))
        self.say("AsyncLLM output_handler failed.\nTraceback (most recent call last):\n"
                 '  File "/opt/venv/lib/python3.11/site-packages/vllm/v1/engine/core_client.py", line 1235, in get_output_async\n'
                 "    raise self._format_exception(outputs) from None\n"
                 f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD}", "async_llm.py:906", "ERROR")  # fmt: skip
        for asked in self.asked.values():
            if not asked.done():
                asked.set_exception(EngineDeadError(DEAD))
        self.clock.leave()
        if code > 0:  # it said why; VLLM_KEEP_ALIVE_ON_ENGINE_DEATH
            return
        await asyncio.sleep(0.05)
        self.uvicorn("Shutting down")
        self.uvicorn("Waiting for application shutdown.")
        self.uvicorn("Application shutdown complete.")
        self.uvicorn(f"Finished server process [{os.getpid()}]")
        self.over.set()

    async def _stats(self) -> None:
        before, last_s = self.seen, self.clock.now_s
        while True:
            await self.clock.sleep(STATS_EVERY_S)
            seen, seconds = self.seen, self.clock.now_s - last_s
            if seen["running"] or seen["waiting"] or seen["generated"] > before["generated"]:
                self.say(
                    f"Engine 000: Avg prompt throughput: {(seen['prompt'] - before['prompt']) / seconds:.1f} tokens/s, "
                    f"Avg generation throughput: {(seen['generated'] - before['generated']) / seconds:.1f} tokens/s, Running: {seen['running']} reqs, "
                    f"Waiting: {seen['waiting']} reqs, GPU KV cache usage: {100 * seen['kv']:.1f}%, Prefix cache hit rate: {100 * seen['hit_rate']:.1f}%",
                    "loggers.py:335",
                )
            before, last_s = seen, self.clock.now_s

    # --- its endpoints ---

    def _application(self) -> "web.Application":
        from aiohttp import web

        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _health(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        status = 503 if self.dead else 200
        self.access(request, status)
        return web.Response(status=status)

    async def _models(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        self.access(request, 200)
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _metrics(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        self.access(request, 200)
        return web.Response(text=metrics(self.seen, STARTED_AT), content_type="text/plain")

    async def _complete(self, request: "web.Request") -> "web.Response":
        """A request that waits for a slot, then for its tokens."""
        from aiohttp import web

        try:
            body = await request.json()
            prefix, wanted = str(body["messages"][0]["content"]), max(1, int(body.get("max_tokens") or 16))
        except (ValueError, TypeError, LookupError, AttributeError):
            self.access(request, 400)
            return web.json_response({"error": {"message": "not a request", "type": "BadRequestError", "param": None, "code": 400}}, status=400)
        self.numbers += 1
        number, done = self.numbers, asyncio.get_running_loop().create_future()
        try:
            if self.dead:
                raise EngineDeadError(DEAD)
            self.asked[number] = done
            self._to_core({"op": "add", "number": number, "prefix": prefix, "wanted": wanted})
            await done
        except EngineDeadError as error:
            self.access(request, 500)
            return web.json_response({"error": {"message": str(error), "type": "InternalServerError", "param": None, "code": 500}}, status=500)
        except asyncio.CancelledError:
            self._to_core({"op": "drop", "number": number})
            raise
        finally:
            self.asked.pop(number, None)
        self.access(request, 200)
        choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "ok"}}
        return web.json_response({"id": "chatcmpl-lab", "model": MODEL, "choices": [choice], "usage": {"completion_tokens": wanted}})

    def _to_core(self, word: dict[str, object]) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            assert self.core is not None
            assert self.core.stdin is not None
            self.core.stdin.write(json.dumps(word).encode() + b"\n")


def _bound() -> socket.socket:
    """A port of one's own on which nobody listens yet: whoever connects is refused."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.bind(("127.0.0.1", 0))
    return bound


async def _main() -> int:
    place, (generation,) = begin()
    return await Server(place, int(generation)).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
