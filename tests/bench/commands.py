"""How long the commands take, as whole processes."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.bars import Bar
from tests.bench.pause import KINDS, _patient

SAMPLE = Path(__file__).parents[2] / "samples" / "ghost-key-retry-loop" / "incident.zip"
WINDOW_S = 5.0


def seconds(command: Sequence[str], runs: int) -> float:
    """Median wall time after one warm-up."""
    times = []
    for number in range(runs + 1):
        started = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if number:
            times.append(time.monotonic() - started)
    return statistics.median(times)


def help_() -> Iterator[Bar]:
    """`--help` against importing the two libraries it needs."""
    peer = seconds([sys.executable, "-c", "import click, rich"], 9)
    value = seconds([sys.executable, "-m", "diag.cli", "--help"], 9)
    yield Bar("llmdiag --help", value, 2 * peer, "s", f"import click, rich {peer:.2f} s")


def analyze() -> Iterator[Bar]:
    """A typical bundle, against reading its JSON."""
    with zipfile.ZipFile(SAMPLE) as packed:
        texts = [packed.read(name) for name in packed.namelist() if name.endswith(".json")]
    started = time.monotonic()
    for text in texts:
        json.loads(text)
    peer = time.monotonic() - started
    value = seconds([sys.executable, "-m", "diag.cli", "analyze", str(SAMPLE)], 5)
    yield Bar("llmdiag analyze of a typical bundle", value, 3.0, "s", f"json.loads of its artefacts {peer:.3f} s")


def wall() -> Iterator[Bar]:
    """A default snapshot: the window and at most 3 s for one process, 1 s more for each further one over 100 threads."""
    for name, further in (("20 threads", 0), ("200 threads", 0), ("tree of three processes", 0)):
        with _patient(KINDS[name]) as (pid, _), tempfile.TemporaryDirectory() as folder:
            times = []
            for number in range(3):
                command = [sys.executable, "-m", "diag.cli", "snapshot", str(pid), "-o", f"{folder}/{number}.zip"]
                started = time.monotonic()
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
                times.append(time.monotonic() - started)
        yield Bar(f"llmdiag snapshot, {name}", statistics.median(times), WINDOW_S + 3 + further, "s", f"the window alone {WINDOW_S:.0f} s")
