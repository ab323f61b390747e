"""A toy engine behind an OpenAI-compatible endpoint: slots, a queue, vLLM's metric names, vLLM's log lines.

A process of its own, started by the supervisor: loads for minutes while nobody listens, serves, and ends on SIGTERM as
vLLM 0.33 does: the pool that prepares requests is shut down first, the web server later, and what is in flight or arrives
in between gets HTTP 500 `cannot schedule new futures after shutdown`. SIGUSR1 makes it hang: its loop stops, its web
server goes on.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from http import HTTPStatus
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent.parent))
from cascadelab.batch import GONE, METRICS, MODEL, Engine, Request, ShutDown
from cascadelab.clock import Clock, Log

TICK_S, FOLLOW_S = 0.02, 0.005
"""Real seconds between two looks at the batch, and at the clock."""
STATS_EVERY_S, LINGER_S = 10.0, 20.0
PR_SET_PDEATHSIG = 1


class Server:
    """The web server, its log, and how it begins and ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.clock = Clock.of(options.clock)
        self.log = Log(options.log, self.clock)
        self.engine = Engine(options.slots)
        self.options = options
        self.posts = 0
        self.closing = False
        self.stop = asyncio.Event()
        self.lingering: asyncio.Task[None] | None = None

    # --- its log ---

    def say(self, text: str, level: str = "INFO", where: str = "launcher.py:254", who: str = "APIServer") -> None:
        now = self.clock.at(self.clock.now_s)
        self.log.line(f"({who} pid={os.getpid()}) {level} {now:%m-%d %H:%M:%S} [{where}] {text}")

    def uvicorn(self, text: str) -> None:
        self.log.say(f"INFO:     {text}")

    def access(self, request: web.Request, status: int) -> None:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        host, port = (peer or ("127.0.0.1", 0))[:2]
        self.uvicorn(f'{host}:{port} - "{request.method} {request.path} HTTP/1.1" {status} {HTTPStatus(status).phrase}')

    # --- its life ---

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._interrupted)
        following = asyncio.create_task(self._follow())
        await self._load()
        if self.stop.is_set():
            return
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
        await runner.setup()
        await self._listen(runner)
        loop.add_signal_handler(signal.SIGTERM, self._shut_down)
        loop.add_signal_handler(signal.SIGUSR1, self._hang)
        self.uvicorn("Application startup complete.")
        tasks = [following, asyncio.create_task(self._steps()), asyncio.create_task(self._stats())]
        await self.stop.wait()
        for task in tasks:
            task.cancel()
        self.uvicorn(f"Finished server process [{os.getpid()}]")
        os._exit(0)  # at once: what an interpreter tidies up takes lab minutes on a busy machine

    async def _load(self) -> None:
        """Minutes in which nobody listens. The birth counts, not what this interpreter took to start."""
        born_s, load_s = self.options.born, self.options.load_s
        lines = (
            (4, "█▄█▀ █     █     █     █  version 0.33.0", "APIServer", "api_utils.py:347"),
            (4, f"non-default args: {{'model_tag': '/models/{MODEL}', 'port': {self.options.port}, 'max_num_seqs': {self.options.slots}}}", "APIServer", "api_utils.py:286"),
            (20, "Initializing a V1 LLM engine (v0.33.0) with config: model='/models/" + MODEL + "'", "EngineCore", "core.py:111"),
            (24, f"Starting to load model /models/{MODEL}...", "EngineCore", "gpu_model_runner.py:4120"),
            (load_s - 15, f"Loading weights took {load_s - 45:.2f} seconds", "EngineCore", "default_loader.py:501"),
            (load_s - 4, "init engine (profile, create kv cache, warmup model) took 9.10 s", "EngineCore", "core.py:402"),
        )  # fmt: skip
        for second, text, who, where in lines:
            if await self._stopped_by(born_s + second):
                return
            self.say(text, where=where, who=who)
        self.uvicorn(f"Started server process [{os.getpid()}]")
        await self._stopped_by(born_s + load_s)

    async def _stopped_by(self, second: float) -> bool:
        """Was it interrupted before that lab second?"""
        with contextlib.suppress(TimeoutError):
            await self.clock.within(second - self.clock.now_s, self.stop.wait())
        return self.stop.is_set()

    async def _follow(self) -> None:
        while True:
            self.clock.follow()
            await asyncio.sleep(FOLLOW_S)

    async def _listen(self, runner: web.AppRunner) -> None:
        """On the port that the supervisor chose; somebody's outgoing connection may hold it for a moment."""
        for _ in range(50):
            try:
                await web.TCPSite(runner, "127.0.0.1", self.options.port).start()
                return
            except OSError:
                await asyncio.sleep(0.05)
        raise SystemExit(f"port {self.options.port} stays taken")

    def _interrupted(self) -> None:
        """SIGTERM while it loads."""
        self.say("KeyboardInterrupt: terminated", "ERROR", "api_server.py:90")
        self.stop.set()

    def _shut_down(self) -> None:
        if self.closing:
            return
        self.closing = True
        self.say("[shutdown] API server: shutdown triggered")
        self.say("[shutdown] API server: stopping engine client mode=abort timeout=0s", where="launcher.py:270")
        count = self.engine.abort()
        self.say(f"[shutdown] API server: aborting in-flight requests count={count}", where="launcher.py:275")
        if self.engine.hung:  # waits for a loop that does not turn
            return
        self.say("[shutdown] EngineCore: trigger received signal=SIGTERM", where="core.py:1454", who="EngineCore")
        self.lingering = asyncio.create_task(self._linger())

    async def _linger(self) -> None:
        """The web server still accepts, though nothing can be prepared any more."""
        await self.clock.sleep(LINGER_S)
        self.stop.set()

    def _hang(self) -> None:
        self.engine.hung = True

    async def _steps(self) -> None:
        """The engine's loop, with a heartbeat for the lab's ledger (and nobody else)."""
        last_s = self.clock.now_s
        fd = os.open(self.options.heartbeat, os.O_WRONLY | os.O_CREAT, 0o600)
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self.clock.now_s
            if not self.closing:
                self.engine.step(now_s - last_s)
            if not self.engine.hung:
                os.pwrite(fd, f"{now_s:020.3f}\n".encode(), 0)
            last_s = now_s

    async def _stats(self) -> None:
        """A line every ten seconds in which something ran."""
        prompt, generated, last_s = 0, 0.0, self.clock.now_s
        while True:
            await self.clock.sleep(STATS_EVERY_S)
            engine, seconds = self.engine, self.clock.now_s - last_s
            if engine.running or engine.waiting or engine.generated > generated:
                self.say(
                    f"Engine 000: Avg prompt throughput: {(engine.prompt - prompt) / seconds:.1f} tokens/s, "
                    f"Avg generation throughput: {(engine.generated - generated) / seconds:.1f} tokens/s, Running: {len(engine.running)} reqs, "
                    f"Waiting: {len(engine.waiting)} reqs, GPU KV cache usage: {100 * engine.kv:.1f}%, Prefix cache hit rate: 0.0%",
                    where="loggers.py:335",
                )
            prompt, generated, last_s = engine.prompt, engine.generated, self.clock.now_s

    # --- its endpoints ---

    def _application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        self.access(request, 200)
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        self.access(request, 200)
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        engine = self.engine
        text = METRICS.format(
            model=MODEL, started=STARTED_AT, running=len(engine.running), waiting=len(engine.waiting), kv=round(engine.kv, 6), prompt=engine.prompt,
            generated=int(engine.generated), steps=int(engine.steps), tokens=engine.prompt + int(engine.generated), answered=engine.answered, posts=self.posts,
        )  # fmt: skip
        self.access(request, 200)
        return web.Response(text=text, content_type="text/plain")

    async def _complete(self, request: web.Request) -> web.Response:
        """A request that waits for a slot, then for its tokens."""
        self.posts += 1
        try:
            body = await request.json()
            prompt = len(str(body.get("prompt") or body.get("messages"))) // 4 + 1
            wanted = max(1, int(body.get("max_tokens") or 16))
        except (ValueError, TypeError, AttributeError):
            self.access(request, 400)
            return web.json_response({"error": {"message": "not a request", "type": "BadRequestError", "param": None, "code": 400}}, status=400)
        asked = Request(prompt, wanted, asyncio.get_running_loop().create_future())
        try:
            if self.closing:
                raise ShutDown(GONE)
            self.engine.waiting.append(asked)
            await asked.done
        except ShutDown as error:
            self.say(f"RuntimeError: {error}", "ERROR", "serving.py:310")
            self.access(request, 500)
            return web.json_response({"error": {"message": str(error), "type": "InternalServerError", "param": None, "code": 500}}, status=500)
        except asyncio.CancelledError:
            self.engine.drop(asked)
            raise
        self.access(request, 200)
        choice = {"index": 0, "finish_reason": "length", "text": "ok", "message": {"role": "assistant", "content": "ok"}}
        return web.json_response({"id": "cmpl-lab", "model": MODEL, "choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": wanted}})


STARTED_AT = time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--port", type=int, required=True)
    add("--clock", required=True)
    add("--born", type=float, required=True, metavar="S", help="lab second in which it was spawned")
    add("--load-s", type=float, required=True)
    add("--slots", type=int, required=True)
    add("--log", type=Path, required=True)
    add("--heartbeat", type=Path, required=True)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # no engine without its supervisor
    asyncio.run(_served(parser.parse_args()))


async def _served(options: argparse.Namespace) -> None:
    await Server(options).run()


if __name__ == "__main__":
    main()
