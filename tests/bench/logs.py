"""Huge logs: an engine's of 2 GB and a million lines of a journal, of which one line in a hundred matters, against `grep -E`.

grep gets the same alternatives and only counts. Measured are the search alone (which lines matter, and their numbers) and all
of it: rows of what was found. In a short journal, where grep's automaton is at its smallest and quickest, rows may take four
times as long as grep; everywhere else, and for the search, it is two times: at least half as fast. Every kept line is known when the log is
written, dirt included: bad UTF-8, NULs, colours inside words, CR, lines of a megabyte; one lost line is a miss.
LLMDIAG_BENCH_LOG_MB=200 is a quick look. The files are written to a temporary folder and removed.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from diag.parsers import engine_scan, journal_scan
from tests.bench.bars import Bar

MB = int(os.environ.get("LLMDIAG_BENCH_LOG_MB", "2048"))
JOURNAL_LINES = 1_000_000
EVERY = 500
"""Of so many lines of a journal one tells of the unit: five hundred restarts in a million."""
RUNS = 3
HOUR = b"@@-@@ @@"
"""Stands for month, day and hour of a line."""
ENGINE = "from diag.parsers import engine_scan as scan, engine_log as log", (
    "sum(table == 'log_events' for table, _ in scan.rows(open(path, 'rb'), log.Origin('x', lambda line: f'x:{line}'), year=2026, tz='UTC'))"
)
JOURNAL = "from diag.collectors import events; from diag.model import Artefact", (
    "sum(table == 'host_events' for table, _ in events.parse([Artefact('j', 'events', lambda: open(path, 'rb'), 2026, 'UTC')]))"
)
SEARCH = "from diag.parsers import engine_scan, journal_scan, log_scan", (
    "sum(len(block.hits) for block in log_scan.blocks(open(path, 'rb'), {finder}))"
)
IN_A_PROCESS = """
import sys, time
{imports}
path = sys.argv[1]
wall, cpu = time.perf_counter(), time.process_time()
count = {work}
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(count, cpu, wall, peak)
"""


def bars() -> Iterator[Bar]:
    """Speed against grep, memory, and that no line is lost."""
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < (MB << 20) * 3:
            raise RuntimeError(f"{folder} has no room for {3 * MB} MB; set LLMDIAG_BENCH_LOG_MB or TMPDIR")
        log = Path(folder) / "engine.log"
        kept = _engine_log(log, MB << 20)
        yield from _against_grep("engine log", log, ENGINE, "engine_scan.finder()", (*engine_scan.alternatives(), *engine_scan.OTHERS[:-2]), kept)
        log.unlink()
        for form, write in (("short", _short), ("json", _json)):
            journal = Path(folder) / f"journal-{form}"
            kept = _journal(journal, write)
            yield from _against_grep(f"journal, {form}", journal, JOURNAL, f"journal_scan.finder({form!r})", journal_scan.JSON if form == "json" else journal_scan.TEXT, kept)
            journal.unlink()


def _against_grep(what: str, path: Path, work: tuple[str, str], finder: str, alternatives: Sequence[bytes], kept: int) -> Iterator[Bar]:
    patterns = path.with_suffix(".patterns")
    patterns.write_bytes(b"|".join(map(extended, alternatives)) + b"\n")
    small = path.with_suffix(".small")
    with path.open("rb") as stream:
        small.write_bytes(stream.read(path.stat().st_size // 10))
    search = SEARCH[0], SEARCH[1].format(finder=finder)
    ours: list[tuple[int, float, float, int]] = []
    searches: list[tuple[int, float, float, int]] = []
    greps: dict[str, list[tuple[float, float]]] = {"yours": [], "C": []}
    for _ in range(RUNS):
        ours.append(run(work, path))
        searches.append(run(search, path))
        greps["yours"].append(_grep(patterns, path, None))
        greps["C"].append(_grep(patterns, path, "C"))
    size, grep_s = path.stat().st_size / 1e9, min(wall for wall, _ in greps["yours"])
    locale = os.environ.get("LC_ALL") or os.environ.get("LANG") or "C"
    peer = ", ".join(f"{min(wall for wall, _ in times):.2f} s wall, {min(cpu for _, cpu in times):.2f} s CPU with LC_ALL={name}"
                     for name, times in ((locale, greps["yours"]), ("C", greps["C"])))  # fmt: skip
    for name, measured, bar in (("search", searches, 2.0), ("rows", ours, 4.0 if what == "journal, short" else 2.0)):
        cpu_s, wall_s = (min(one[column] for one in measured) for column in (1, 2))
        said = f"grep -E {peer}; ours {wall_s:.2f} s wall, {cpu_s:.2f} s CPU"
        yield Bar(f"{what} of {size:.2f} GB, {name}: times as long as grep -E", wall_s / grep_s, bar, "x", said)
    yield Bar(f"{what}: lines lost of {kept}", abs(kept - ours[0][0]), 0, "", "what was written")
    tenth = run(work, small)[3]
    yield Bar(f"{what}: memory beyond that over a tenth", (ours[0][3] - tenth) / 1e3, 25 if what == "engine log" else 60, "MB", f"{tenth / 1e3:.0f} MB there")
    small.unlink()


def run(work: tuple[str, str], path: Path) -> tuple[int, float, float, int]:
    """In a process of its own, imports not counted: rows, CPU seconds, wall seconds, peak memory in KB."""
    program = IN_A_PROCESS.format(imports=work[0], work=work[1])
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    rows, cpu, wall, peak = done.stdout.split()
    return int(rows), float(cpu), float(wall), int(peak)


def _grep(patterns: Path, path: Path, locale: str | None) -> tuple[float, float]:
    """Wall and CPU seconds."""
    begin, before = time.perf_counter(), _children_s()
    env = os.environ if locale is None else {**os.environ, "LC_ALL": locale}
    done = subprocess.run(["grep", "-acE", "-f", str(patterns), str(path)], capture_output=True, text=True, env=env, check=False)
    if done.returncode > 1 or int(done.stdout) == 0:
        raise RuntimeError(f"grep found nothing: {done.stderr}")
    return time.perf_counter() - begin, _children_s() - before


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def extended(alternative: bytes) -> bytes:
    """RE2's syntax -> POSIX extended, for the few things that are used."""
    text = alternative.replace(rb"\d", b"[0-9]").replace(rb"[^\n]", b".").replace(rb"\n", b"").replace(rb"\s?", b" ?")
    return re.sub(rb"\\([^\w\[\](){}.*+?|^$\\])", rb"\1", text).replace(b"(?:", b"(").replace(b"(?i)", b"")


# --- what is searched ---

ORDINARY = (
    "(EngineCore_0 pid=4712) DEBUG {} [scheduler.py:{}] Scheduling step {} took 4 ms: 12 running, 3 waiting, tokens in flight {}",
    "(EngineCore_0 pid=4712) DEBUG {} [block_pool.py:{}] prefix lookup of {} blocks: {} found, the rest is new",
    "(APIServer pid=4711) INFO {} [async_llm.py:{}] Added chatcmpl-{:032x} with {} prompt tokens",
    "(Worker_TP0 pid=4713) DEBUG {} [gpu_model_runner.py:{}] sampled {} sequences, {} characters after detokenising",
)
WORTH = (
    "(EngineCore_0 pid=4712) WARNING {} [scheduler.py:{}] sequence group {} has waited for {} s",
    "(APIServer pid=4711) ERROR {} [serving.py:{}] stream {} ended after {} chunks",
    "(EngineCore_0 pid=4712) INFO {} [core.py:{}] [shutdown] EngineCore: step {} of {}",
)
DIRT = (
    b"(APIServer pid=4711) ERR\x1b[31mOR @@-@@ @@:00:00 [x.py:1] a colour in a word\n", b"(APIServer pid=4711) ERROR @@-@@ @@:00:00 [x.py:1] bad \xff\xfe UTF-8 \xe2\x96\n",
    b"WARN\x00ING:app:a NUL in a word\n", b"12%|#  |\r57%|## |\rWARNING:app:behind a progress bar\r\n", b"WARNING:app:" + b"long " * 200_000 + b"\n",
    b"\x1b[1;36m(APIServer pid=4711)\x1b[0;0m ERROR @@-@@ @@:00:00 [x.py:1] coloured writer\n",
)  # fmt: skip


def _engine_log(path: Path, size: int) -> int:
    """Hours that differ in their date alone. Returns how many lines are worth keeping."""
    lines, kept = [], 0
    for number in range(240_000 if size > 1 << 28 else 24_000):
        stamp = f"{HOUR.decode()}:{number // 4000 % 60:02d}:{number // 67 % 60:02d}"
        worth = number % 125 == 0
        form = (WORTH if worth else ORDINARY)[number * 7 % (3 if worth else 4)]
        lines.append(form.format(stamp, number % 900, number * 2654435761 % 2**31, number % 97).encode() + b"\n")
        kept += worth
    hour = b"".join((*lines, *DIRT))
    kept += len(DIRT)
    hours = max(1, size // len(hour))
    with path.open("wb") as stream:
        for number in range(hours):
            stream.write(hour.replace(HOUR, b"%02d-%02d %02d" % (1 + number // 672 % 12, 1 + number // 24 % 28, number % 24)))
    return kept * hours


NOISE = (("sshd", 812, "Accepted publickey for ops from 10.0.0.{} port 40{} ssh2"), ("vllm", 4711, "step {} took {} ms"), ("node_exporter", 77, "scrape {} took {} ms"))
UNIT = ("Stopping vllm.service - Chat model...", "vllm.service: Main process exited, code=killed, status=9/KILL", "vllm.service: Scheduled restart job, restart counter is at 3.",
        "Started vllm.service - Chat model.")  # fmt: skip


def _journal(path: Path, line: Callable[[int, str, int, str], str]) -> int:
    kept = 0
    with path.open("w") as stream:
        for number in range(JOURNAL_LINES):
            if number % EVERY == 0:
                stream.write(line(number, "systemd", 1, UNIT[number // EVERY % 4]))
                kept += 1
            else:
                ident, pid, message = NOISE[number % 3]
                stream.write(line(number, ident, pid, message.format(number % 250, number % 99)))
    return kept


def _short(number: int, ident: str, pid: int, message: str) -> str:
    return f"2026-08-{1 + number // 40_000:02d}T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}+0000 gpu-7 {ident}[{pid}]: {message}\n"


def _json(number: int, ident: str, pid: int, message: str) -> str:
    more = ',"UNIT":"vllm.service"' if ident == "systemd" else ""
    return (
        f'{{"__CURSOR":"s=6b5f;i={number:x};b=77;m=9f;t=64;x=1","__REALTIME_TIMESTAMP":"{1787225871000000 + number * 1000000}","__MONOTONIC_TIMESTAMP":"{number}",'
        f'"_BOOT_ID":"0123456789abcdef0123456789abcdef","_MACHINE_ID":"fedcba9876543210fedcba9876543210","_HOSTNAME":"gpu-7","PRIORITY":"6","SYSLOG_FACILITY":"3",'
        f'"_UID":"0","_GID":"0","_SYSTEMD_CGROUP":"/system.slice/{ident}.service","SYSLOG_IDENTIFIER":"{ident}","_PID":"{pid}","MESSAGE":"{message}"{more}}}\n'
    )  # fmt: skip
