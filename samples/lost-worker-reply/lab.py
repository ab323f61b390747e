"""An engine as vLLM builds it: a front end, an engine core that schedules, two workers; each is a process with vLLM's title.

    python lab.py --port 8080
    python lab.py --node 0-2/shared/group      # on another host of the same engine: workers 2 to 3, --node 2-3/shared/group
    curl localhost:8080/health            # always answered: by the front end
    curl localhost:8080/generate          # answered after eight steps of the engine
    curl localhost:8080/generate?drop=1        # the answer of one worker is lost: the core waits for it, the workers for an order
    curl localhost:8080/generate?compute=1     # a worker computes and does not come to an end
    curl localhost:8080/generate?stuck=1       # a worker sleeps in the kernel (state D)
    curl localhost:8080/generate?unsplittable=9000   # a request that never fits: the scheduler tries for ever
    curl localhost:8080/generate?absent=1      # a worker does not come to the barrier (with --collective)
    curl localhost:8080/generate?grow=1        # a worker takes all memory it can get: limit it first
    curl localhost:8080/generate?transfer=1    # both workers wait for each other in their KV connector
    curl localhost:8080/generate?grammar=40    # a regular expression whose automaton has 2^41 states
    curl localhost:8080/observe           # a tracer stops the engine core and leaves it so; with ?stop=0 it lets it run
    curl localhost:8080/metrics           # as vLLM has them

Also the lab of worker-dead-or-stopped, scheduler-stall, observer-is-the-incident, collective-desync, oom-killed,
kv-connector-hang and grammar-compile-stall.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

sys.path.insert(0, str(Path(__file__).parent / "enginelab"))
import shm_broadcast

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {tokens}.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="length",model_name="tiny"}} {done}.0
"""
STEPS = 8


class Front:
    """What the front end knows of its requests."""

    def __init__(self, ranks: range, of: int, group: str) -> None:
        mine = ("--first", str(ranks.start), "--end", str(ranks.stop))
        self.core_process, self.core = shm_broadcast.child(sys.executable, "VLLM::EngineCore", "core.py", *mine, "--of", str(of), "--group", group)
        self.waiting: dict[int, threading.Event] = {}
        self.asked = self.tokens = self.done = 0
        self.lock = threading.Lock()

    def generate(self, **how: int) -> None:
        with self.lock:
            self.asked += 1
            number, finished = self.asked, threading.Event()
            self.waiting[number] = finished
        self.core.enqueue(**{"drop": 0, "compute": 0, "stuck": 0, "absent": 0, "grow": 0, "transfer": 0, "grammar": 0, "unsplittable": 0, **how}, request=number, left=STEPS)
        finished.wait()

    def output_handler(self) -> None:
        while True:
            said = self.core.dequeue()
            with self.lock:
                self.tokens += 1
                if said["done"]:
                    self.done += 1
                    self.waiting.pop(said["request"]).set()

    def metrics(self) -> str:
        with self.lock:
            return METRICS.format(running=len(self.waiting), tokens=self.tokens, done=self.done)


class Handler(BaseHTTPRequestHandler):
    """GET only; see the beginning of this file."""

    front: Front

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        body, how = json.dumps({"ok": True}), dict(parse_qsl(path.query))
        if path.path == "/generate":
            self.front.generate(**{name: int(value) for name, value in how.items()})
        elif path.path == "/observe":
            subprocess.Popen([sys.executable, "-B", str(shm_broadcast.HERE / "tracer.py"), str(self.front.core_process.pid), how.get("stop", "1")])
        elif path.path == "/metrics":
            body = self.front.metrics()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--collective", action="store_true", help="three workers that meet in a barrier of torch.distributed in every step (needs torch)")
    parser.add_argument("--node", metavar="FIRST-END/FILE", help="of those three only the workers FIRST to before END; the labs of the others share FILE to find each other")
    options = parser.parse_args()
    if options.collective or options.node:
        # processes with a title of their own do not find the environment of this one
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    if options.node:
        mine, _, group = options.node.partition("/")
        serve(server, options.ready_fd, range(*map(int, mine.split("-"))), 3, f"/{group}")
    with tempfile.TemporaryDirectory() as folder:
        of = 3 if options.collective else 2
        serve(server, options.ready_fd, range(of), of, f"{folder}/group" if options.collective else "")


def serve(server: ThreadingHTTPServer, ready_fd: int | None, ranks: range, of: int, group: str) -> None:
    Handler.front = Front(ranks, of, group)
    threading.Thread(target=Handler.front.output_handler, name="output_handler", daemon=True).start()
    Handler.front.generate()  # ready once the engine has answered
    if ready_fd is not None:
        os.write(ready_fd, json.dumps({"port": server.server_port, "pid": os.getpid(), "redis": ""}).encode() + b"\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
