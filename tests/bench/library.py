"""`analyze` over a large incident: 100 rules, 9 processes with 200 threads and 10 samples of their stacks, 100,000 lines of log.

What further dumps add is counted in times of `json.loads` of them: the start of Python, a hundred rules that have something to
look at, and the log are no JSON, and would take as long if json.loads took no time at all (the whole is more than 20 times
json.loads). Against itself with half of each: what grows faster than its evidence shows there.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from diag.analysis import analyse
from diag.rules import Rule, load, shipped
from tests.bench.bars import Bar

RUNS, PAIRS = 3, 9
SECONDS = 8.0
TIMES_JSON = 5.0
LINEAR = 2.3
"""Of twice the evidence: its parse is two times the work, and the sorting in it a little more."""
ENTRY = ("Thread.run (threading.py:982)", "Thread._bootstrap_inner (threading.py:1045)", "Thread._bootstrap (threading.py:1002)")
STACKS = (
    ("Condition.wait (threading.py:327)", "Queue.get (queue.py:171)", "worker (pool.py:83)"),
    ("select (selectors.py:468)", "BaseEventLoop._run_once (asyncio/base_events.py:1883)", "run_forever (asyncio/base_events.py:608)"),
    ("dequeue (vllm/distributed/device_communicators/shm_broadcast.py:571)", "worker_busy_loop (vllm/v1/executor/multiproc_executor.py:842)"),
    ("recv (zmq/sugar/socket.py:1146)", "process_input_sockets (vllm/v1/engine/core.py:1120)"),
)
ACCESS = '(APIServer pid=4000) INFO:     127.0.0.1:{port} - "POST /v1/completions HTTP/1.1" 200 OK'
STATISTICS = (
    "(APIServer pid=4000) INFO 11-30 {clock} [loggers.py:257] Engine 000: Avg prompt throughput: {x}.0 tokens/s, Avg generation throughput: {x}.5 tokens/s, "
    "Running: 8 reqs, Waiting: 2 reqs, GPU KV cache usage: 31.{x}%, Prefix cache hit rate: 12.5%"
)
WARNING = "(EngineCore pid=4001) WARNING 11-30 {clock} [scheduler.py:812] request req-{x} preempted, recompute"


@dataclass(frozen=True)
class Size:
    """How much of what."""

    rules: int = 100
    threads: int = 200
    samples: int = 10
    lines: int = 100_000
    processes: int = 9

    def halves(self) -> Iterator[tuple[str, "Size"]]:
        for name in ("rules", "threads", "samples", "lines"):
            yield name, replace(self, **{name: getattr(self, name) // 2})


def bars() -> Iterator[Bar]:
    """The whole, what the dumps add as multiples of json.loads, and against halves."""
    whole = Size()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "whole", whole)
        peer = min(_json_s(folder / "whole") for _ in range(RUNS))
        once, none = replace(whole, samples=1), replace(whole, samples=0)
        write(folder / "once", once)
        write(folder / "none", none)
        pairs = [(_once(folder / "whole", whole), _once(folder / "once", once)) for _ in range(PAIRS)]
        ours, added = min(one for one, _ in pairs), statistics.median(one - other for one, other in pairs)
        told = f"json.loads of its {sum(file.stat().st_size for file in (folder / 'whole').glob('*.json')) / 1e6:.0f} MB of dumps {peer:.2f} s"
        yield Bar("analyze, 100 rules over a large incident", ours, SECONDS, "s", f"without dumps {_seconds(folder / 'none', none):.2f} s; {told}, {ours / peer:.0f} times less")
        further = peer - min(_json_s(folder / "once") for _ in range(RUNS))
        about = f"{added:.2f} s, median of {PAIRS} pairs; json.loads of them {further:.2f} s"
        yield Bar("what nine further samples of all stacks add, in times of json.loads", added / further, TIMES_JSON, "x", about)
        for what, half in whole.halves():
            write(folder / what, half)
            less = _seconds(folder / what, half)
            yield Bar(f"analyze, all against half the {what}", ours / less, LINEAR, "x", f"half the {what} {less:.2f} s")


def write(folder: Path, size: Size) -> None:
    """py-spy's JSON of each process and sample, and one engine log."""
    folder.mkdir()
    chance = random.Random(1)
    for process in range(size.processes):
        for sample in range(size.samples):
            (folder / f"dump-{4000 + process}-{sample:02}.json").write_text(json.dumps([_thread(4000 + process, number) for number in range(size.threads)], indent=2))
    with (folder / "engine.log").open("w") as log:
        for number in range(size.lines):
            line = {7: WARNING, 8: STATISTICS}.get(number % 100, ACCESS)
            second = number // 40
            clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
            log.write(line.format(port=chance.randrange(30000, 60000), clock=clock, x=chance.randrange(100)) + "\n")


def _thread(pid: int, number: int) -> dict[str, object]:
    frames = [*STACKS[number % len(STACKS)], *(f"layer_{depth} (service.py:{depth})" for depth in range(6)), *ENTRY]
    return {
        "pid": pid, "thread_id": 140000000000000 + number, "thread_name": "MainThread" if number == 0 else f"worker-{number}", "os_thread_id": pid * 1000 + number,
        "active": False, "owns_gil": False, "frames": [_frame(text) for text in frames], "process_info": None,
    }  # fmt: skip


def _frame(text: str) -> dict[str, object]:
    name, place = text[:-1].split(" (")
    file, line = place.rsplit(":", 1)
    return {
        "name": name, "filename": f"/opt/app/{file}", "module": None, "short_filename": file, "line": int(line),
        "locals": None, "is_entry": name == "Thread._bootstrap", "is_shim_entry": False,
    }  # fmt: skip


def _seconds(folder: Path, size: Size) -> float:
    """Of whole processes, the best of some runs."""
    return min(_once(folder, size) for _ in range(RUNS))


def _once(folder: Path, size: Size) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tests.bench.library", str(folder), str(size.rules)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _json_s(folder: Path) -> float:
    texts = [file.read_bytes() for file in sorted(folder.glob("*.json"))]
    began = time.perf_counter()
    for text in texts:
        json.loads(text)
    return time.perf_counter() - began


def many(count: int) -> list[Rule]:
    """The rules there are, and as many of them again under other names as it takes."""
    own = load(shipped())
    copies = [msgspec.structs.replace(rule, id=f"{rule.id}-again", explains=(), explained_by=(), tests=()) for rule in own]
    return [*own, *copies][:count]


if __name__ == "__main__":
    print(analyse([Path(sys.argv[1])], many(int(sys.argv[2])), pictures=False)[0].verdict)
