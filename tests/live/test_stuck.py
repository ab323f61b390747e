"""A service whose threads wait for each other's Python locks, which nobody can name the owners of: not known what it is, but never clear."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.run import snapshot

pytestmark = pytest.mark.live

SERVICE = """
import http.server, sys, threading
first, second, met = threading.Lock(), threading.Lock(), threading.Barrier(2)
crossed = sys.argv[1] == "crossed"
def encode(one, two):
    with one:
        if crossed:
            met.wait()
        refresh(two)
def refresh(lock):
    with lock:
        pass
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health":
            with first:
                pass
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
workers = [threading.Thread(target=encode, args=pair, name=name, daemon=True) for name, pair in (("encoder", (first, second)), ("evictor", (second, first)))]
for worker in workers:
    worker.start()
    if not crossed:
        worker.join()
print("ready", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(("locks", "code"), [("crossed", 3), ("in order", 0)])
def test_requests_unanswered_while_threads_wait_for_locks(locks: str, code: int, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVICE, locks], stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "ready\n"
            said = snapshot(service.pid, tmp_path / "bundle.zip")
        finally:
            service.kill()
    assert said.code == code, said
    assert ("is not answered, and 2 threads wait for locks all the time" in str(said.json)) == (code == 3), said.json["subject"]
