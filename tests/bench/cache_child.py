"""One measured pass over a server, in a process of its own.

    python cache_child.py PORT lengths|full|second|gentle|read|naive [KEYS]

Prints one line of JSON: seconds of the pass (the start of Python is not in it, that of a second process is), keys, KiB held at most.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    port, mode = int(sys.argv[1]), sys.argv[2]
    url = f"redis://127.0.0.1:{port}/0"
    if mode == "naive":
        import redis

        client = redis.Redis(port=port)
        started = time.monotonic()
        keys = _naive(client, int(sys.argv[3]))
        seconds = time.monotonic() - started
    elif mode == "read":
        from diag.cache.scanning.wire import Wire
        from diag.cache.servers.connection import connect

        wire = Wire(connect(url))
        started = time.monotonic()
        keys = _read(wire)
        seconds = time.monotonic() - started
    else:
        from diag.cache.scanning.how import How
        from diag.cache.scanning.pace import Pace, gentle
        from diag.cache.scanning.server import connect, scan

        how = How(pace=gentle() if mode == "gentle" else Pace(), values=mode != "lengths", workers=int(mode == "second"))
        found = scan(connect(url), url, how=how)
        keys, seconds = found.keys, found.seconds
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    print(json.dumps({"seconds": seconds, "keys": keys, "kib": int(peak[1]) if peak else 0}))


def _naive(client: Any, most: int) -> int:
    """What people write first."""
    keys = 0
    for key in client.scan_iter():
        client.get(key)
        keys += 1
        if keys == most:
            break
    return keys


def _read(wire: Any) -> int:
    """Every whole value, looked at by nobody; the next names are asked for behind this page's values."""
    from diag.cache.scanning.pace import BATCH_KEYS
    from diag.cache.scanning.wire import pack

    keys = 0
    wire.send([pack(b"SCAN", b"0", b"COUNT", b"%d" % BATCH_KEYS)])
    cursor = -1
    while cursor:
        cursor, names = wire.page()
        ahead = [pack(b"SCAN", b"%d" % cursor, b"COUNT", b"%d" % BATCH_KEYS)] if cursor else []
        wire.send([pack(b"MGET", *names), *ahead])
        keys += sum(value is not None for value, _ in wire.values(len(names)))
    return keys


if __name__ == "__main__":
    main()
