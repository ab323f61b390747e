"""Two threads of a service take the same two mutexes in opposite order: each holds one and waits for the other, for ever.

    python lab.py --port 8080
    curl localhost:8080/health      # answered
    curl localhost:8080/swap        # never answered; two threads hold a mutex each and wait for each other's

With `--ordered` both take them in the same order: one of them holds both for a while (here: for ever), the other waits for it.
"""

import argparse
import ctypes
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIBC = ctypes.CDLL(None)
MUTEX_BYTES = 64
"""More than a pthread_mutex_t anywhere; all zero is an unlocked one."""


class Mutex:
    """A pthread mutex, as native code has: Python lets go of the GIL while it waits for one."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(MUTEX_BYTES)

    def __enter__(self) -> None:
        LIBC.pthread_mutex_lock(self._memory)

    def __exit__(self, *error: object) -> None:
        LIBC.pthread_mutex_unlock(self._memory)


BLOCKS, INDEX = Mutex(), Mutex()
both_hold_one = threading.Barrier(2)
ordered = False


def evict() -> None:
    """Blocks first, then their index."""
    with BLOCKS:
        meet()
        with INDEX:
            work()


def insert() -> None:
    """The index first, then blocks."""
    with BLOCKS if ordered else INDEX:
        meet()
        with INDEX if ordered else BLOCKS:
            work()


def work() -> None:
    """What is done with both: long, when nothing is wrong with the locks."""
    if ordered:
        threading.Event().wait()


def meet() -> None:
    """Until the other one holds its first mutex, too: chance brings this about once in a long time."""
    if not ordered:
        both_hold_one.wait()


class Handler(BaseHTTPRequestHandler):
    """GET /health, GET /swap"""

    def do_GET(self) -> None:
        if self.path == "/swap":
            threads = [threading.Thread(target=target, name=target.__name__, daemon=True) for target in (evict, insert)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        body = json.dumps({"ok": True}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    global ordered
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--ordered", action="store_true", help="take them in one order")
    options = parser.parse_args()
    ordered = options.ordered
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    if options.ready_fd is not None:
        os.write(options.ready_fd, json.dumps({"port": server.server_port, "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
