"""A scheduler whose main loop dies of an exception while a thread that is no daemon goes on: the process lives, and works no more.

    python lab.py --port 8080
    curl localhost:8080/health      # answered, before and after
    curl localhost:8080/step        # answered by the loop
    curl localhost:8080/poison      # the loop fails; /step is never answered again, /health still is
"""

import argparse
import json
import os
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

requests: "queue.Queue[tuple[str, threading.Event]]" = queue.Queue()


def event_loop() -> None:
    """Takes requests one by one; one that it does not expect ends it."""
    while True:
        path, done = requests.get()
        if path == "/poison":
            raise RuntimeError("draft tokens do not match the batch")
        done.set()


class Handler(BaseHTTPRequestHandler):
    """GET /health is answered by the front end, everything else by the loop."""

    def do_GET(self) -> None:
        if self.path != "/health":
            done = threading.Event()
            requests.put((self.path, done))
            done.wait()
        body = json.dumps({"ok": True}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    threading.Thread(target=server.serve_forever, name="http").start()
    if options.ready_fd is not None:
        os.write(options.ready_fd, json.dumps({"port": server.server_port, "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    event_loop()


if __name__ == "__main__":
    main()
