"""A single-threaded HTTP service whose tokenizer never comes back from one input: one CPU burns, nobody is answered.

    python lab.py --port 8080
    curl localhost:8080/tokenize?text=fine        # answered
    curl localhost:8080/tokenize?text=%00         # never answered, and nothing is after it
"""

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit


def merge_pairs(text: str) -> list[str]:
    """Greedy merge of equal neighbours; an input with a NUL is never shorter after a turn, so it never ends."""
    pieces = list(text)
    while True:
        merged = _one_turn(pieces)
        if merged == pieces and "\0" not in text:
            return pieces
        pieces = merged


def _one_turn(pieces: list[str]) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if out and out[-1] == piece:
            out[-1] += piece
        else:
            out.append(piece)
    return out


class Handler(BaseHTTPRequestHandler):
    """GET /health, GET /tokenize?text=…"""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        text = parse_qs(parts.query).get("text", [""])[0]
        body = json.dumps({"pieces": merge_pairs(text)} if parts.path == "/tokenize" else {"ok": True}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args()
    server = HTTPServer(("127.0.0.1", options.port), Handler)
    if options.ready_fd is not None:
        os.write(options.ready_fd, json.dumps({"port": server.server_port, "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
