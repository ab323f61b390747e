"""A cache server whose clean-up thread calls native code without letting go of the GIL, and that call never returns.

    python lab.py --port 8080
    curl localhost:8080/health      # answered
    curl localhost:8080/release     # answered; from then on nobody is, and no thread of the process runs

`PyDLL` calls a C function with the GIL held, as a careless extension does; `CDLL` (`--polite`) lets go of it, and all goes on.
"""

import argparse
import ctypes
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOR_EVER_S = 1_000_000
released = threading.Event()


def release_entries(unmap: ctypes.CDLL) -> None:
    """Waits until it is told, then hands its memory back: in C, and until events have completed that never will."""
    released.wait()
    unmap.sleep(FOR_EVER_S)


class Handler(BaseHTTPRequestHandler):
    """GET /health, GET /release"""

    def do_GET(self) -> None:
        body = json.dumps({"ok": True}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if self.path == "/release":
            released.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--polite", action="store_true", help="let go of the GIL for the call, as one should")
    options = parser.parse_args()
    library = ctypes.CDLL(None) if options.polite else ctypes.PyDLL(None)
    threading.Thread(target=release_entries, args=(library,), name="reaper", daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    if options.ready_fd is not None:
        os.write(options.ready_fd, json.dumps({"port": server.server_port, "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
