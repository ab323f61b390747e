"""`make bench`: every bar with value and peer, measured in this run. Exit 1 when a bar is missed.

    python -m tests.bench [NAME…]     # pause wall help analyze library offline cache_scan cache_small tensors health logs page
"""

import sys

from tests.bench import cache_offline, cache_scan, commands, health, library, logs, page, pause, tensors
from tests.bench.bars import Bar, show

BENCHES = {"pause": pause.bars, "wall": commands.wall, "help": commands.help_, "analyze": commands.analyze, "library": library.bars, "offline": cache_offline.bars,
           "cache_scan": cache_scan.bars, "cache_small": cache_scan.small, "tensors": tensors.bars, "health": health.bars, "logs": logs.bars, "page": page.bars}


def main() -> int:
    bars: list[Bar] = []
    for name in sys.argv[1:] or BENCHES:
        for bar in BENCHES[name]():
            show(bar)
            bars.append(bar)
    missed = [bar for bar in bars if not bar.met]
    print(f"{len(bars) - len(missed)} of {len(bars)} bars met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
