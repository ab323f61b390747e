"""One incident, its dumps spelled as every py-spy and every container log spells them: one diagnosis, down to the rows of each signal."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path, PurePosixPath

import pytest

from diag import engine, evidence, rules
from diag.model import SignalState, Verdict
from diag.sources import sources_of
from tests.conftest import SAMPLES

COLLECTORS = evidence.collectors_of(evidence.Extras())
RULES = {rule.id: rule for rule in rules.load(rules.shipped())}
INCIDENTS = {
    "lost-worker-reply": "lost-worker-reply/text-dumps", "device-wedge": "signatures/device-wedge/busy-device", "regex-backtracking": "regex-backtracking/text-dumps",
}  # fmt: skip
"""Four processes that wait; native frames above Python's; a thread that holds the GIL."""
Frame = tuple[str, str, int | None]
"""Function, file, line; None = a native one."""


@dataclass(frozen=True)
class Thread:
    tid: int
    state: str
    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Dump:
    """One process in one sample."""

    pid: int
    sample: int
    title: str
    threads: tuple[Thread, ...]


def dump_in(path: Path) -> Dump:
    """A sample's file, spelled as py-spy 0.3.14 to 0.4.2 do."""
    lines = path.read_text().splitlines()
    head = re.fullmatch(r"Process (\d+): (.*)", lines[0])
    sample = re.fullmatch(r"pyspy-\d+-(\d)\.txt", path.name)
    assert head and sample, path
    threads: list[Thread] = []
    for line in lines[3:]:
        if found := re.fullmatch(r'Thread (\d+) \((.*)\): "(.*)"', line):
            threads.append(Thread(int(found[1]), found[2], found[3], ()))
        else:
            frame = re.fullmatch(r"    (.+) \(([^()]+?)(?::(\d+))?\)", line)
            assert frame, f"{path}: {line}"
            threads[-1] = replace(threads[-1], frames=(*threads[-1].frames, (frame[1], frame[2], int(frame[3]) if frame[3] else None)))
    return Dump(int(head[1]), int(sample[1]), head[2], tuple(threads))


# --- spellings: the dumps of an incident -> files ---

Files = Iterator[tuple[str, str]]
Spelling = Callable[[Sequence[Dump]], Files]


def text(dump: Dump, *, parent: int | None = None, python: str = "3.12.9", tid: str = "{}", name: Callable[[Frame], str] = lambda frame: frame[0]) -> str:
    lines = [f"Process {dump.pid}: {dump.title}", f"Python v{python} (/opt/venv/bin/python3)"]
    lines += [f"Parent Process {parent}: /opt/venv/bin/vllm serve /models/one"] if parent is not None else []
    lines.append("")
    for thread in dump.threads:
        lines.append(f'Thread {tid.format(thread.tid)} ({thread.state}): "{thread.name}"')
        lines += [f"    {name(frame)} ({frame[1]}" + (")" if frame[2] is None else f":{frame[2]})") for frame in thread.frames]
    return "\n".join(lines) + "\n"


def each(spell: Callable[[Dump], str]) -> Spelling:
    """One file per process and sample."""
    return lambda dumps: ((f"pyspy-{dump.pid}-{dump.sample}.txt", spell(dump)) for dump in dumps)


def every_line(before: str, end: str = "\n") -> Spelling:
    """The plain text with something before each of its lines (`%S`: a second, of samples that are 30 s apart), and other ends of them."""
    return each(lambda dump: "".join(f"{before.replace('%S', str(10 + 30 * (dump.sample % 2)))}{line}{end}" for line in text(dump).splitlines()))


def qualified(frame: Frame) -> str:
    """`Condition.wait`: py-spy 0.4.3 on Python 3.11 and later. The module's name stands for that of the class."""
    name, file, line = frame
    return name if name.startswith("<") or line is None else f"{PurePosixPath(file).stem.title().replace('_', '')}.{name}"


def one_file_a_sample(dumps: Sequence[Dump]) -> Files:
    """--subprocesses: the first process, then those below it, each after a line of dashes."""
    for sample in sorted({dump.sample for dump in dumps}):
        first, *rest = (dump for dump in dumps if dump.sample == sample)
        yield f"pyspy-tree-{sample}.txt", ("\n" + "-" * 80 + "\n").join([text(first), *(text(dump, parent=first.pid) for dump in rest)])


def as_json(dumps: Sequence[Dump]) -> Files:
    """Newest thread first, and no head: the names of the processes stand in ps.txt."""
    for dump in dumps:
        threads = [
            {
                "pid": dump.pid, "thread_id": 140_000_000_000_000 + thread.tid, "thread_name": thread.name, "os_thread_id": thread.tid,
                "active": thread.state != "idle", "owns_gil": thread.state == "active+gil", "process_info": None,
                "frames": [
                    {"name": qualified(frame), "filename": f"/usr/lib/python3.12/{frame[1]}", "module": f"/usr/lib/{frame[1]}" if frame[2] is None else None,
                     "short_filename": frame[1], "line": frame[2] or 0, "locals": None, "is_entry": frame is thread.frames[-1], "is_shim_entry": False}
                    for frame in thread.frames
                ],
            }
            for thread in reversed(dump.threads)
        ]  # fmt: skip
        yield f"pyspy-{dump.pid}-{dump.sample}.json", json.dumps(threads, indent=2)


BARE = "bare names, 0.3.14 to 0.4.2"
SPELLINGS: dict[str, Spelling] = {
    BARE: each(text),
    "qualified names, 0.4.3": each(lambda dump: text(dump, name=qualified)),
    "pthread ids, --nonblocking before Python 3.11": each(lambda dump: text(dump, python="3.10.12", tid="0x7F51A{:07X}")),
    "below a parent process": each(lambda dump: text(dump, parent=1)),
    "one file for the whole tree": one_file_a_sample,
    "JSON": as_json,
}
LINES: dict[str, Spelling] = {
    "CRLF": every_line("", "\r\n"),
    "a blank line after each": every_line("", "\n\n"),
    "docker compose": every_line("vllm-1  | "),
    "pod and container": every_line("pod/vllm-0 | "),
    "kubectl logs --prefix": every_line("[pod/vllm-0/server] "),
    "timestamps": every_line("2026-11-30T04:12:%S.118204311Z "),
    "timestamps of the container runtime": every_line("2026-11-30T04:12:%S.118204311Z stdout F "),
    "journal": every_line("Nov 30 04:12:%S gpu-12 vllm[88]: "),
    "timestamps behind a container": every_line("vllm-1  | 2026-11-30T04:12:%S.118Z "),
}
CASES = [*((rule, spelling) for spelling in SPELLINGS for rule in INCIDENTS if spelling != BARE), *zip(cycle(INCIDENTS), LINES, strict=False)]
"""What py-spy prints differently, of every incident; what others put around its lines, of one incident each."""


def written(rule: str, spelling: Spelling, folder: Path) -> Path:
    """The sample of a rule, its dumps spelled anew, everything else as it is; the titles of its processes as ps prints them."""
    folder.mkdir(exist_ok=True)
    dumps = []
    for path in sorted((SAMPLES / INCIDENTS[rule]).iterdir()):
        if path.name.startswith("pyspy-"):
            dumps.append(dump_in(path))
        else:
            shutil.copy(path, folder)
    if not (folder / "ps.txt").exists():
        rows = sorted({(dump.pid, dump.title) for dump in dumps})
        (folder / "ps.txt").write_text("    PID    PPID STAT %CPU     RSS ELAPSED COMMAND\n" + "".join(f"{pid:7d} {1:7d} Sl    0.4  812340   11270 {title}\n" for pid, title in rows))
    for name, content in spelling(dumps):
        (folder / name).write_bytes(content.encode())
    return folder


def said(rule: str, folder: Path) -> tuple[Verdict, dict[str, tuple[SignalState, list[dict[str, object]]]]]:
    """Verdict, and of each signal its state and rows, whatever file and line they are from; how far samples are apart only lines with times tell."""
    found = engine.judge(evidence.load(sources_of([folder], COLLECTORS), COLLECTORS), RULES[rule], {})
    where = ("source", "bundle", "host", "span_s")
    return found.verdict, {
        signal.id: (signal.state, sorted(({k: v for k, v in row.items() if k not in where} for row in signal.rows), key=repr)) for signal in found.signals
    }


@cache
def plainly(rule: str, folder: Path) -> tuple[Verdict, object]:
    return said(rule, written(rule, SPELLINGS[BARE], folder / rule))


@pytest.mark.parametrize(("rule", "spelling"), CASES)
def test_the_spelling_of_a_dump_changes_nothing(rule: str, spelling: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    plain = plainly(rule, tmp_path_factory.getbasetemp())
    assert plain[0] in (Verdict.CONFIRMED, Verdict.LIKELY), f"no incident to compare with: {plain}"
    assert said(rule, written(rule, (SPELLINGS | LINES)[spelling], tmp_path / "spelled")) == plain
