"""How long another client waits for an answer: a PING every millisecond until standard input ends.

    python ping_probe.py PORT      prints {"p50_ms": …, "p99_ms": …, "max_ms": …, "pings": …}
"""

import json
import select
import socket
import sys
import time

EVERY_S = 0.001


def main() -> None:
    waits: list[float] = []
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            started = time.perf_counter()
            wire.sendall(b"PING\r\n")
            wire.recv(64)
            waits.append(1000 * (time.perf_counter() - started))
            time.sleep(EVERY_S)
    waits.sort()
    print(json.dumps({"p50_ms": waits[len(waits) // 2], "p99_ms": waits[int(0.99 * len(waits))], "max_ms": waits[-1], "pings": len(waits)}))


if __name__ == "__main__":
    main()
