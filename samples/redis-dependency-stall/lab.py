"""An asyncio service that asks Redis with a blocking client, and a Redis that takes connections and never answers.

    python lab.py --port 8080
    curl localhost:8080/health          # answered
    curl localhost:8080/embedding       # waits for Redis without a limit, and everybody waits with it

With `--in-thread` the call is made in a thread of its own, as it should be: that request waits, all others are answered.
The Redis is a port of this program that listens and says nothing, as one behind a firewall that swallows packets.
"""

import argparse
import asyncio
import json
import os
import socket

import redis
from aiohttp import web

BLACK_HOLE = socket.create_server(("127.0.0.1", 0))
CACHE = redis.Redis(port=BLACK_HOLE.getsockname()[1], socket_timeout=None, protocol=2)


def cached_embedding(key: str) -> bytes | None:
    """No timeout: the answer will come, will it not?"""
    found = CACHE.get(key)
    return found if isinstance(found, bytes) else None


KEY = "clip:9e107d9d372bb6826bd81d3542a419d6"


async def embedding(request: web.Request) -> web.Response:
    return web.Response(body=cached_embedding(KEY))


async def embedding_in_thread(request: web.Request) -> web.Response:
    return web.Response(body=await asyncio.to_thread(cached_embedding, KEY))


async def health(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def serve(port: int, ready_fd: int | None, *, in_thread: bool) -> None:
    app = web.Application()
    app.router.add_get("/embedding", embedding_in_thread if in_thread else embedding)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    if ready_fd is not None:
        ready = {"port": runner.addresses[0][1], "pid": os.getpid(), "redis": f"redis://127.0.0.1:{BLACK_HOLE.getsockname()[1]}/0"}
        os.write(ready_fd, json.dumps(ready).encode() + b"\n")
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--in-thread", action="store_true", help="ask Redis outside the event loop")
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.ready_fd, in_thread=options.in_thread))


if __name__ == "__main__":
    main()
