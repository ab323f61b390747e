"""An asyncio service that makes a blocking call in a handler: the loop never gets back to its selector.

    python lab.py --port 8080
    curl localhost:8080/health     # answered
    curl localhost:8080/lookup     # waits on a backend that never speaks, and everybody waits with it
"""

import argparse
import asyncio
import json
import os
import socket

from aiohttp import web

# A backend that accepts a connection and never says a word.
BLACK_HOLE = socket.create_server(("127.0.0.1", 0))


def fetch_feature(name: str) -> bytes:
    """The blocking client: connects, asks, and reads without a timeout."""
    with socket.create_connection(BLACK_HOLE.getsockname()) as connection:
        connection.sendall(name.encode() + b"\n")
        return connection.recv(1024)


async def lookup(request: web.Request) -> web.Response:
    """A coroutine that forgets that it is one."""
    return web.Response(body=fetch_feature("user"))


async def health(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def serve(port: int, ready_fd: int | None) -> None:
    app = web.Application()
    app.router.add_get("/lookup", lookup)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    if ready_fd is not None:
        os.write(ready_fd, json.dumps({"port": runner.addresses[0][1], "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.ready_fd))


if __name__ == "__main__":
    main()
