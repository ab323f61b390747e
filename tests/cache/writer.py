"""A service that refills its cache: `python writer.py PORT KEYS SECONDS RATE`, started once it has said "ready".

Writes keys `emb:img9NNNNN` in no order, again and again, each time a value of its own, and looks at what SET … GET says
was there before: whatever it wrote last must be. Ends with one line of JSON: writes, seconds, and how many were lost.
"""

import json
import random
import socket
import sys
import time

import hiredis

SLICE_S = 0.005


def main(port: int, keys: int, seconds: float, rate: float) -> None:
    server = socket.create_connection(("127.0.0.1", port))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()
    last: dict[int, bytes] = {}
    writes = lost = 0
    dice = random.Random(1)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        due = min(200, int(elapsed * rate) - writes)
        if due <= 0:
            time.sleep(SLICE_S / 5)
            continue
        chosen = [dice.randrange(keys) for _ in range(due)]
        values = [b"fresh %d" % (writes + index) for index in range(due)]
        server.sendall(b"".join(_set(key, value) for key, value in zip(chosen, values, strict=True)))
        for key, value in zip(chosen, values, strict=True):
            before = _answer(server, reader)
            lost += key in last and before != last[key]
            last[key] = value
        writes += due
    elapsed = time.monotonic() - started
    names = list(last)
    server.sendall(b"".join(b"*2\r\n$3\r\nGET\r\n$13\r\n%s\r\n" % _name(key) for key in names))
    lost += sum(_answer(server, reader) != last[key] for key in names)
    print(json.dumps({"writes": writes, "seconds": elapsed, "lost": lost, "keys": len(names)}))


def _name(key: int) -> bytes:
    return b"emb:img9%05d" % key


def _set(key: int, value: bytes) -> bytes:
    return b"*4\r\n$3\r\nSET\r\n$13\r\n%s\r\n$%d\r\n%s\r\n$3\r\nGET\r\n" % (_name(key), len(value), value)


def _answer(server: socket.socket, reader: hiredis.Reader) -> object:
    while (answer := reader.gets()) is False:
        reader.feed(server.recv(1 << 16))
    return answer


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
