"""The live scan of a cache against `redis-cli --memkeys`, on the same real server in the same run.

Everything measured runs as a process of its own, at nice -10 where that is allowed. Each ratio is the median of the
ratios of ROUNDS rounds, in which both sides run one after the other.
"""

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import cache_keyspace
from tests.bench.bars import Bar

KEYS = 200_000
SMALL_KEYS = 1_000_000
ROUNDS = 3
NAIVE_PART = 10
HERE = Path(__file__).parent
PAUSE_S = 2.0
GENTLE_S = 6.0


@dataclass(frozen=True)
class Pass:
    """One pass over the server."""

    seconds: float
    keys: int
    kib: int


def bars() -> Iterator[Bar]:
    """200,000 keys of 2 to 8 KB: names, TTL and length; every value inspected; what another client feels."""
    with _server() as port:
        assert cache_keyspace.load(port, cache_keyspace.arrays(KEYS)) == KEYS
        cli: list[float] = []
        ours: dict[str, list[Pass]] = {"lengths": [], "full": [], "second": []}
        for _ in range(ROUNDS):
            cli.append(_cli(port, "--memkeys"))
            for mode, passes in ours.items():
                passes.append(_ours(port, mode))
        names = _cli(port, "--scan")
        naive = NAIVE_PART * _ours(port, "naive", str(KEYS // NAIVE_PART)).seconds
        peer = f"--memkeys {statistics.median(cli):.2f} s, --scan {names:.2f} s, redis-py scan_iter+get {naive:.0f} s ({NAIVE_PART} x a tenth of the keys)"
        yield _ratio("names, TTL and length of 200,000 keys", ours["lengths"], cli, 0.75, peer)
        yield _ratio("every value inspected, one process", ours["full"], cli, 1.3, peer)
        yield _ratio("every value inspected, with a second process", ours["second"], cli, 1.0, peer)
        quiet = _felt(port, None)
        scanned = _felt(port, "full")
        gently = _felt(port, "gentle")
        yield Bar("another client's ping p99 during a scan", scanned, quiet + 3.0, "ms", f"without a scan {quiet:.2f} ms")
        yield Bar("another client's ping p99 during a gentle scan", gently, quiet + 1.0, "ms", f"without a scan {quiet:.2f} ms")


def small() -> Iterator[Bar]:
    """1,000,000 small keys: memory, time against a tenth of them, whole values read."""
    with _server() as port:
        items = cache_keyspace.small(SMALL_KEYS)
        tenth = SMALL_KEYS // 10
        assert cache_keyspace.load(port, _first(items, tenth)) == tenth
        few = [_ours(port, "full") for _ in range(ROUNDS)]
        assert cache_keyspace.load(port, items) == SMALL_KEYS - tenth
        read, cli, many = _ours(port, "read"), _cli(port, "--memkeys"), _ours(port, "full")
        assert (few[0].keys, read.keys, many.keys) == (tenth, SMALL_KEYS, SMALL_KEYS)
        before = statistics.median(one.seconds for one in few)
        peer = f"--memkeys {cli:.2f} s, every value inspected {many.seconds:.2f} s"
        yield Bar("memory of a scan of 1,000,000 small keys", many.kib / 1024, 150.0, "MB", f"100,000 keys {few[0].kib / 1024:.0f} MB")
        yield Bar("time of 1,000,000 keys against 100,000", many.seconds / before, 11.0, "x", f"100,000 keys {before:.2f} s")
        yield Bar("1,000,000 whole values read, against --memkeys", read.seconds / cli, 0.6, "x", peer)


def _ratio(name: str, ours: Sequence[Pass], cli: Sequence[float], bar: float, peer: str) -> Bar:
    assert all(one.keys == KEYS for one in ours), [one.keys for one in ours]
    value = statistics.median(one.seconds / peer_s for one, peer_s in zip(ours, cli, strict=True))
    return Bar(name, value, bar, "x", f"{statistics.median(one.seconds for one in ours):.2f} s; {peer}")


def _first(items: Iterator[tuple[bytes, bytes]], count: int) -> Iterator[tuple[bytes, bytes]]:
    for _ in range(count):
        yield next(items)


def _ours(port: int, mode: str, *more: str) -> Pass:
    command = [*_nice(), sys.executable, str(HERE / "cache_child.py"), str(port), mode, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=HERE.parents[1], env={**os.environ, "PYTHONPATH": str(HERE.parents[1])})
    return Pass(**json.loads(done.stdout))


def _cli(port: int, option: str) -> float:
    program = shutil.which("redis-cli") or shutil.which("valkey-cli")
    if program is None:
        raise RuntimeError("no redis-cli to compare with: apt-get install redis-tools")
    started = time.monotonic()
    subprocess.run([*_nice(), program, "-p", str(port), option], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - started


def _felt(port: int, mode: str | None) -> float:
    """99th percentile (ms) of a client's pings while that goes on; None: nothing does."""
    command = [*_nice(), sys.executable, str(HERE / "ping_probe.py"), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        assert probe.stdout.readline() == "ready\n"
        if mode == "gentle":  # it takes its time: a part of it tells as much
            with subprocess.Popen([*_nice(), sys.executable, str(HERE / "cache_child.py"), str(port), mode], stdout=subprocess.DEVNULL, cwd=HERE.parents[1],
                                  env={**os.environ, "PYTHONPATH": str(HERE.parents[1])}) as scan:  # fmt: skip
                time.sleep(GENTLE_S)
                scan.kill()
        elif mode is not None:
            _ours(port, mode)
        else:
            time.sleep(PAUSE_S)
        probe.stdin.close()
        return float(json.loads(probe.stdout.readline())["p99_ms"])


def _nice() -> list[str]:
    """Before other work on this machine, where this user may say so."""
    return ["nice", "-n", "-10"] if os.geteuid() == 0 and shutil.which("nice") else []


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """A server of its own that saves nothing; the port."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise RuntimeError("no cache server to measure: apt-get install redis-server")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    with contextlib.suppress(OSError):  # where sessions are scheduled as groups, a nice value counts only inside of one
        Path("/proc/self/autogroup").write_text("-10")
    with tempfile.TemporaryDirectory() as folder:
        command = [*_nice(), program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError("the cache server did not start")
                time.sleep(0.05)
            yield port
        finally:
            server.kill()
            server.wait()
