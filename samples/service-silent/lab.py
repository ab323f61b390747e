"""A service that takes connections and answers nobody: the thread that serves the port waits for a lock that is never released.

    python lab.py --port 8080
    curl localhost:8080/reload          # never answered, and nothing is after it
    python lab.py --plain               # a port of the same kind that speaks no HTTP and waits for its clients to begin
"""

import argparse
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

MODEL_LOCK = threading.Lock()


def reload_model() -> None:
    """Takes the lock twice."""
    with MODEL_LOCK:
        swap_weights()


def swap_weights() -> None:
    with MODEL_LOCK:
        pass


class Handler(BaseHTTPRequestHandler):
    """GET /health, GET /reload"""

    def do_GET(self) -> None:
        if self.path == "/reload":
            reload_model()
        body = b'{"ok": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve_plain(listener: socket.socket) -> None:
    """Sixteen bytes in, the same back."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection:
        wanted = bytearray()
        while len(wanted) < 1 << 20:
            piece = connection.recv(4096)
            if not piece:
                return
            wanted += piece
        connection.sendall(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args()
    server = HTTPServer(("127.0.0.1", options.port), Handler) if not options.plain else None
    listener = socket.create_server(("127.0.0.1", options.port)) if server is None else server.socket
    if options.ready_fd is not None:
        os.write(options.ready_fd, json.dumps({"port": listener.getsockname()[1], "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    serve_plain(listener) if server is None else server.serve_forever()


if __name__ == "__main__":
    main()
