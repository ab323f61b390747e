"""A gigabyte of cache in an RDB file, walked: names, expiry and lengths, against rdb-py; and how much memory that takes.

The file is of a real server. With less than 6 GB of memory or disk left it is 300 MB, and the bars say so.
"""

import contextlib
import pickle
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import redis

from tests.bench.bars import Bar
from tests.cache.offline_world import wait_until
from tests.cache.servers import SERVERS

KEYS = 200_000
RUNS = 5
ROOM_BYTES = 6 << 30
BATCH = 500
OK = b"+OK\r\n"
EXPIRING = 100
"""Every so many keys one is gone before the walk begins."""

WALK = ("from diag.cache.offline.contents import walk", "sum(1 for _ in walk(Path(path)))")
SCAN = ("from diag.cache.offline.scan import scan", "scan(Path(path), bytes_at_most=int(sys.argv[2])).keys")
PEER = ("import rdb", "sum(1 for _ in rdb.RdbDecoder(path))")
IN_A_PROCESS = """
import sys, time
from pathlib import Path
{imports}
path = sys.argv[1]
wall, cpu = time.perf_counter(), time.process_time()
count = {work}
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(count, cpu, wall, peak)
"""


def bars() -> Iterator[Bar]:
    """The walk in time and memory, what a scan holds, and that nothing is missed."""
    with tempfile.TemporaryDirectory() as folder:
        for name, binary in SERVERS.items():
            if binary is None:
                print(f"     no {name}: its file is not read")
        first, *others = [binary for binary in SERVERS.values() if binary is not None]
        keys = KEYS if _room(folder) else KEYS * 3 // 10
        path, lost = _file(first, Path(folder), keys)
        small, _ = _file(first, Path(folder), keys // 10)
        yield from _walks(path, small, keys, f"{path.stat().st_size / 1e9:.2f} GB")
        assert lost > 0, "no key expired"
        yield Bar(f"keys not seen, of which {lost} expired since", keys - _run(WALK, path)[0], 0, "", f"the server loads {keys - lost}")
        for binary in others:
            other, _ = _file(binary, Path(folder), 2_000)
            magic = other.read_bytes()[:9].decode()
            yield Bar(f"keys not seen in a file of {magic}", 2_000 - _run(WALK, other)[0], 0, "", _peer_reads(other))


def _walks(path: Path, small: Path, keys: int, size: str) -> Iterator[Bar]:
    ours, theirs = [], []
    for _ in range(RUNS):
        ours.append(_run(WALK, path))
        if _has_peer():
            theirs.append(_run(PEER, path))
    cpu_s, wall_s = (statistics.median(run[column] for run in ours) for column in (1, 2))
    if theirs:
        peer_s, peer_wall_s = (statistics.median(run[column] for run in theirs) for column in (1, 2))
        assert keys <= theirs[0][0] < keys + 20, f"rdb-py counts {theirs[0][0]} items"
        peer = f"rdb-py {peer_s:.2f} s CPU, {peer_wall_s:.2f} s wall, {theirs[0][3] / 1e3:.0f} MB; ours {wall_s:.2f} s wall"
        yield Bar(f"CPU of a walk over {size}, {keys} keys", cpu_s, peer_s, "s", peer)
    else:
        print(f"     rdb-py is missing (pip install rdb-py): the walk over {size} took {cpu_s:.2f} s CPU, compared with nothing")
    tenth = _run(WALK, small)[3]
    yield Bar("memory of the walk beyond that over a tenth", (ours[0][3] - tenth) / 1e3, 20, "MB", f"{tenth / 1e3:.0f} MB there")
    little, much = (_run(SCAN, path, str(part << 20))[3] for part in (20, 200))
    yield Bar("memory of a scan of 200 MB beyond one of 20 MB", (much - little) / 1e3, 30, "MB", f"{little / 1e3:.0f} MB there")


def _run(what: tuple[str, str], path: Path, *more: str) -> tuple[int, float, float, int]:
    """In a process of its own, imports not counted: keys, CPU seconds, wall seconds, peak memory in KB."""
    program = IN_A_PROCESS.format(imports=what[0], work=what[1])
    done = subprocess.run([sys.executable, "-c", program, str(path), *more], capture_output=True, text=True, check=True)
    keys, cpu, wall, peak = done.stdout.split()
    return int(keys), float(cpu), float(wall), int(peak)


def _has_peer() -> bool:
    return subprocess.run([sys.executable, "-c", "import rdb"], capture_output=True, check=False).returncode == 0


def _peer_reads(path: Path) -> str:
    if not _has_peer():
        return "rdb-py is missing"
    try:
        return f"rdb-py sees {_run(PEER, path)[0]}"
    except subprocess.CalledProcessError as error:
        return f"rdb-py: {error.stderr.splitlines()[-1][:60]}"


def _file(binary: Path, folder: Path, keys: int) -> tuple[Path, int]:
    """An RDB file of pickled arrays of 2 to 8 KB, every EXPIRING-th gone since; and how many those are."""
    unix, path = folder / "s", folder / f"{keys}-{len(list(folder.iterdir()))}.rdb"
    command = [str(binary), "--port", "0", "--save", "", "--dir", str(folder), "--dbfilename", path.name, "--unixsocket", str(unix)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with redis.Redis(unix_socket_path=str(unix), protocol=2, socket_timeout=100) as client:
            wait_until(lambda: _answers(client), "the server")
            soon = _fill(unix, keys)
            for key in soon:
                client.pexpire(key, 5_000)
            assert client.dbsize() == keys, "a key expired before the file was written"
            client.save()
            wait_until(lambda: client.exists(*soon) == 0, "keys to expire")
        return path, len(soon)
    finally:
        process.kill()
        process.wait()
        unix.unlink(missing_ok=True)


def _fill(unix: Path, keys: int) -> list[bytes]:
    """Two of three expire in a day; returns every EXPIRING-th name. Packed by hand: the client library takes a minute."""
    noise = np.random.default_rng(1)
    numbers = noise.normal(size=1 << 20).astype("f2")
    soon: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(unix))
        for first in range(0, keys, BATCH):
            batch = bytearray()
            for number in range(first, first + BATCH):
                size, start = int(noise.integers(1000, 4000)), int(noise.integers(0, 1 << 19))
                key = b"clip-vit-b-32:image:" + noise.bytes(16).hex().encode()
                words = [b"SET", key, pickle.dumps(numbers[start : start + size]), *([b"EX", b"86400"] if number % 3 else [])]
                batch += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
                if number % EXPIRING == 0:
                    soon.append(key)
            server.sendall(batch)
            answers = b""
            while len(answers) < BATCH * len(OK):
                answers += server.recv(1 << 16)
            assert answers == OK * BATCH, answers[:200]
    return soon


def _answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


def _room(folder: str) -> bool:
    memory = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")).split()[1]) << 10
    return min(memory, shutil.disk_usage(folder).free) >= ROOM_BYTES
