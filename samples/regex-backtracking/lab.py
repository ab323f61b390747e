"""An API server that parses tool calls with a regular expression, in its event loop: one truncated answer stops all of it.

    python lab.py --port 8080
    curl localhost:8080/health                       # answered
    curl localhost:8080/parse?text=call(a,b,c)       # answered
    curl localhost:8080/parse?text=call(a,b,c,…      # forty arguments and no closing bracket: not in this life

The expression has two ways to split every comma, and without the bracket all of them are tried.
"""

import argparse
import asyncio
import json
import os
import re

from aiohttp import web

TOOL_CALL = r"call\(((\w+,?)+)+\)$"


def parse_tool_call(text: str) -> list[str] | None:
    """Arguments of a call, or None."""
    found = re.search(TOOL_CALL, text)
    return None if found is None else found[1].split(",")


async def parse(request: web.Request) -> web.Response:
    return web.json_response({"arguments": parse_tool_call(request.query.get("text", ""))})


async def health(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def serve(port: int, ready_fd: int | None) -> None:
    app = web.Application()
    app.router.add_get("/parse", parse)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    if ready_fd is not None:
        os.write(ready_fd, json.dumps({"port": runner.addresses[0][1], "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.ready_fd))


if __name__ == "__main__":
    main()
