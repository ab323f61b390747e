"""The keyspaces of the cache bench: real pickles of float16 arrays, or small values, sent as fast as a server takes them."""

import pickle
import socket
from collections.abc import Iterator

import numpy as np

WIDTH = 512
"""Of one row; a value has 2 to 7 rows: 2 to 8 KB with its pickle."""
POOL = 1 << 22
SMALL = 80
"""Elements of a small value: about 190 bytes pickled."""
TTL_MS = 86_400_000
CHUNK_BYTES = 1 << 20
SEED = 7


def arrays(count: int) -> Iterator[tuple[bytes, bytes]]:
    """`count` keys of an image cache and their values."""
    random = np.random.default_rng(SEED)
    pool = random.standard_normal(POOL).astype(np.float16)
    rows = random.integers(2, 8, count)
    starts = random.integers(0, POOL - 8 * WIDTH, count)
    names = random.bytes(16 * count)
    for number in range(count):
        size = int(rows[number]) * WIDTH
        start = int(starts[number])
        value = pickle.dumps(pool[start : start + size].reshape(-1, WIDTH))
        yield b"clip-vit-b-32:image:" + names[16 * number : 16 * number + 16].hex().encode(), value


def small(count: int) -> Iterator[tuple[bytes, bytes]]:
    """`count` short keys of small values."""
    random = np.random.default_rng(SEED)
    pool = random.standard_normal(POOL).astype(np.float16)
    for number in range(count):
        start = number * 13 % (POOL - SMALL)
        yield b"emb:%08d" % number, pickle.dumps(pool[start : start + SMALL])


def load(port: int, items: Iterator[tuple[bytes, bytes]]) -> int:
    """Writes every item, all with a TTL as caches have it; returns how many. The answers are counted, so nothing is lost."""
    sent = answered = 0
    with socket.create_connection(("127.0.0.1", port)) as wire:
        waiting: list[bytes] = []
        size = 0
        for key, value in items:
            command = (b"SET", key, value, b"PX", b"%d" % TTL_MS)
            waiting.append(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command))
            size += len(waiting[-1])
            sent += 1
            if size >= CHUNK_BYTES:
                wire.sendall(b"".join(waiting))
                waiting, size = [], 0
                answered += _answers(wire, sent - answered)
        wire.sendall(b"".join(waiting))
        answered += _answers(wire, sent - answered)
    return answered


def _answers(wire: socket.socket, wanted: int) -> int:
    """Reads that many +OK."""
    seen = b""
    while seen.count(b"\n") < wanted:
        more = wire.recv(1 << 16)
        if not more or b"-" in more:
            raise RuntimeError(f"the server refused a value: {more[:100]!r}")
        seen += more
    return wanted
