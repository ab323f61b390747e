"""The patient of the pause bench: a heartbeat every millisecond, parked threads, and what else it is told to do.

    python patient.py HEARTBEATS.bin --parked 20 [--churn 4] [--children 2]

Appends monotonic nanoseconds to a ring in a memory-mapped file: slot 0 is the count, the others are the beats.
"""

import argparse
import mmap
import struct
import subprocess
import sys
import threading
import time

SLOTS = 1 << 17


def park(depth: int) -> None:
    if depth:
        park(depth - 1)
    else:
        threading.Event().wait()


def churn_a(n: int) -> int:
    return churn_b(n + 1)


def churn_b(n: int) -> int:
    return churn_c(n + 1)


def churn_c(n: int) -> int:
    return n * 3 % 7


def churn() -> None:
    n = 0
    while True:
        n = churn_a(n)


def beat(path: str) -> None:
    with open(path, "r+b") as stream:  # noqa: PTH123
        ring = mmap.mmap(stream.fileno(), 8 * (SLOTS + 1))
    count = 0
    while True:
        time.sleep(0.001)
        ring[8 * (1 + count % SLOTS) : 8 * (2 + count % SLOTS)] = struct.pack("<q", time.monotonic_ns())
        count += 1
        ring[0:8] = struct.pack("<q", count)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ring")
    parser.add_argument("--parked", type=int, default=20)
    parser.add_argument("--churn", type=int, default=0)
    parser.add_argument("--children", type=int, default=0)
    options = parser.parse_args()
    for _ in range(options.parked):
        threading.Thread(target=park, args=(12,), daemon=True).start()
    for _ in range(options.churn):
        threading.Thread(target=churn, daemon=True).start()
    for number in range(options.children):
        subprocess.Popen([sys.executable, __file__, f"{options.ring}.{number}", "--parked", str(options.parked)], stdout=subprocess.DEVNULL)
    print("ready", flush=True)
    beat(options.ring)


if __name__ == "__main__":
    main()
