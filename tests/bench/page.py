"""The HTML report of a large bundle: 9 processes of 200 threads each, 10 stack samples. How big is the page, how fast is it there?"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.bars import Bar
from tests.bench.pause import _patient
from tests.chromium import Browser, binary

LARGE = ("--parked", "200", "--children", "8")
OPENINGS = 5


def bars() -> Iterator[Bar]:
    """Size, and from the beginning of the navigation until everything is loaded; the slowest of some openings."""
    with tempfile.TemporaryDirectory() as folder:
        bundle, page, empty = (Path(folder) / name for name in ("large.zip", "report.html", "empty.html"))
        with _patient(LARGE) as (pid, _):
            _llmdiag("snapshot", str(pid), "--samples", "10", "-o", str(bundle))
        _llmdiag("report", str(bundle), "-f", "html", "-o", str(page))
        text = _llmdiag("report", str(bundle), "-f", "json")
        threads = re.search(r"What (\d+) threads did", page.read_text(encoding="utf-8"))
        yield Bar(f"HTML report, {threads[1] if threads else 'no'} threads", page.stat().st_size / 1e6, 5.0, "MB", f"the JSON report {len(text) / 1e6:.2f} MB")
        if binary() is None:
            print("     no Chromium here: how fast the page opens is not measured")
            return
        empty.write_text("<!doctype html><title>empty</title>")
        browser = Browser(Path(folder) / "profile")
        try:
            slowest = {file: max(_seconds(browser, file) for _ in range(OPENINGS)) for file in (empty, page)}
        finally:
            browser.close()
    yield Bar("it opens in headless Chromium", slowest[page], 2.0, "s", f"an empty page {slowest[empty]:.2f} s")


def _seconds(browser: Browser, file: Path) -> float:
    with browser.page(file) as shown:
        return shown.seconds()["load_s"]


def _llmdiag(*args: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "diag.cli", *args], capture_output=True, check=False)
    assert done.returncode != 2, done.stderr.decode()
    return done.stdout
