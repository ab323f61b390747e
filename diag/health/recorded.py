"""Recorded reads -> the sequences they are: a folder of --record, saved answers of /metrics, or single files in the order given.

A folder with `reads.jsonl` is what that says (diag/health/reads.py), with `processes.jsonl` beside it as evidence. Other
folders are read by names and head lines: `metrics1.txt` and `metrics2.txt` are two reads of one backend, made when `t1` and
`t2` say; `ps.txt` and `threads1.txt` beside them tell what its processes did. Files named one by one are reads of one backend
without times, and may be named twice: `metrics1.txt metrics2.txt metrics2.txt` asks what one more flat read would prove.
"""

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from diag.errors import BadInput, Garbled
from diag.health.budget import Budget
from diag.health.proof import Look, ProcessEvidence, ProcessSeen
from diag.health.reads import LIST, Read, Record, read_of, records
from diag.health.recording import PROCESSES
from diag.health.verdict import BackendVerdict, judge, tail
from diag.loose import Unreadable, files, head, shown
from diag.model import Artefact
from diag.parsers import metrics_files, prometheus, ps_text, thread_lists
from diag.parsers.process_titles import role

MAX_LIST_BYTES = 64 << 20
OURS = b"# llmdiag read="


@dataclass(frozen=True)
class Recorded:
    """One backend on disk."""

    name: str
    verdict: BackendVerdict
    reads: int


def judged(path: Path, budget: Budget) -> list[Recorded]:
    """A folder -> its backends. Raises BadInput when there are no reads in it, or a list that is none."""
    if os.access(path / LIST, os.F_OK):  # False in a folder that may not be entered, where Path.exists raises
        return list(_listed(path, budget))
    found = [path for path in files(path) if _is_metrics(path)]
    folders = sorted({item.parent for item in found})
    recorded = [item for folder in folders for item in _saved([file for file in found if file.parent == folder], folder, budget)]
    if not recorded:
        raise BadInput(f"{shown(path)} holds no reads of /metrics", hint="give a folder of --record, or one with saved answers of GET /metrics")
    return recorded


def judged_files(paths: Sequence[Path], budget: Budget) -> Recorded:
    """Files in the order given -> one backend. Raises BadInput."""
    reads = []
    for path in paths:
        if not _is_metrics(path):
            raise BadInput(f"{shown(path)} is no answer of GET /metrics", hint="give saved answers, or a folder of them")
        reads.append(read_of(Record(url=shown(path), outcome="answer", status=200), _body(path)))
    return Recorded(" ".join(shown(path) for path in paths), judge(reads, budget=budget), len(reads))


def _listed(folder: Path, budget: Budget) -> Iterator[Recorded]:
    where = shown(folder / LIST)
    listed = records(_bounded(folder / LIST), where)
    evidence = _recorded_processes(folder)
    sequences: dict[str, list[Read]] = {}
    counts: dict[str, int] = {}
    for record in listed:
        body = None if record.file is None else _body(folder / record.file)
        sequence = [*sequences.get(record.url, ()), read_of(record, body)]
        sequences[record.url] = list(tail(sequence, budget))
        counts[record.url] = counts.get(record.url, 0) + 1
    if not sequences:
        raise BadInput(f"{where} lists no read", hint="record again: llmdiag health URL --record DIR")
    for url, reads in sequences.items():
        verdict = judge(reads, evidence=evidence if len(sequences) == 1 else None, budget=budget)
        yield Recorded(f"{shown(folder)}: {url}", verdict, counts[url])


def _recorded_processes(folder: Path) -> ProcessEvidence | None:
    path = folder / PROCESSES
    if not path.exists():
        return None
    looks = []
    for number, line in enumerate(_bounded(path).splitlines(), start=1):
        try:
            looks.append(msgspec.json.decode(line, type=Look))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{shown(path)}:{number}: {error}", hint="record again: llmdiag health URL --pid PID --record DIR") from error
    return ProcessEvidence(tuple(looks)) if looks else None


def _saved(found: Sequence[Path], folder: Path, budget: Budget) -> Iterator[Recorded]:
    """Files of one folder, by their names and head lines."""
    times, evidence = _times(folder), _loose_processes(folder)
    by_path = {shown(path): path for path in found}
    artefacts = [_artefact(path) for path in found]
    sequences: dict[str, list[Read]] = {}
    try:
        for artefact, known in sorted(metrics_files.reads(artefacts), key=lambda pair: int(str(pair[1]["read"]))):
            target, path, ts = str(known["target"]), by_path[artefact.path], known["ts"]
            at = ts.replace(tzinfo=datetime.UTC).timestamp() if isinstance(ts, datetime.datetime) else times.get(thread_lists.number(path.name))
            read = read_of(Record(url=target, outcome="answer", status=200, ts=at), _body(path))
            sequences[target] = list(tail([*sequences.get(target, ()), read], budget))
    except Garbled as error:
        raise BadInput(error.message, hint=error.hint) from error
    for target, reads in sequences.items():
        yield Recorded(target, judge(reads, evidence=evidence if len(sequences) == 1 else None, budget=budget), len(reads))


def _times(folder: Path) -> Mapping[str, float]:
    """Of `t1`, `t2`: number -> epoch seconds."""
    found = {}
    for path in folder.iterdir():
        if thread_lists.TIME_NAME.fullmatch(path.name):
            text = _head(path).decode("utf-8", "replace")
            if thread_lists.is_time(path.name, text):
                found[thread_lists.number(path.name)] = float(text)
    return found


def _loose_processes(folder: Path) -> ProcessEvidence | None:
    """What saved lists of processes and threads say: a look for each list of threads, else one for the list of processes."""
    times = _times(folder)
    roles: dict[int, str] = {}
    states: dict[int, str] = {}
    looks: list[Look] = []
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        if ps_text.is_list(_head(folder / name).decode("utf-8", "replace")):
            for process in ps_text.processes(_lines(folder / name)):
                roles[process.pid] = role(process.command or "")
                states[process.pid] = process.state or "?"
    for name in names:
        if thread_lists.is_tasks(_head(folder / name).decode("utf-8", "replace")):
            looks.append(_look(thread_lists.tasks(_lines(folder / name)), roles, times.get(thread_lists.number(name))))
    if not looks and states:
        looks = [Look(tuple(ProcessSeen(pid, roles[pid], state) for pid, state in states.items()))]
    return ProcessEvidence(tuple(looks)) if looks else None


def _look(tasks: Iterable[thread_lists.Task], roles: Mapping[int, str], ts: float | None) -> Look:
    """Threads -> their processes: state and name of the main thread, CPU time of all."""
    mains: dict[int, thread_lists.Task] = {}
    cpu_s: dict[int, float] = {}
    for task in tasks:
        if task.pid is None:
            continue
        cpu_s[task.pid] = cpu_s.get(task.pid, 0.0) + (task.user_s or 0.0) + (task.sys_s or 0.0)
        if task.tid == task.pid:
            mains[task.pid] = task
    seen = [
        ProcessSeen(pid, roles.get(pid) or role("", task.name), task.state, cpu_s=round(cpu_s[pid], 3)) for pid, task in mains.items()
    ]
    return Look(tuple(seen), ts)


def _is_metrics(path: Path) -> bool:
    begin = _head(path)
    return begin.startswith(OURS) or prometheus.looks_like(begin)


def _head(path: Path) -> bytes:
    """Beginning of a regular file; b"" of all else."""
    try:
        return head(path, follow=False)
    except Unreadable:
        return b""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return _artefact(path).lines()


def _artefact(path: Path) -> Artefact:
    return Artefact(shown(path), "health", lambda: path.open("rb"))


def _body(path: Path) -> bytes:
    """As much of a file as the parser reads, and a byte more, so that it says when that was not all. Raises BadInput."""
    try:
        head(path, follow=False)
        with path.open("rb") as stream:
            return stream.read(prometheus.MAX_BYTES + 1)
    except (OSError, Unreadable) as error:
        raise BadInput(f"cannot read {shown(path)}: {error}", hint="record again, or leave that read out of the list") from error


def _bounded(path: Path) -> bytes:
    """A list of ours. Raises BadInput."""
    try:
        head(path, follow=False)
        with path.open("rb") as stream:
            data = stream.read(MAX_LIST_BYTES + 1)
    except (OSError, Unreadable) as error:
        raise BadInput(f"cannot read {shown(path)}: {error}", hint="give a folder of llmdiag health URL --record DIR") from error
    if len(data) > MAX_LIST_BYTES:
        raise BadInput(f"{shown(path)} is larger than {MAX_LIST_BYTES >> 20} MiB", hint="give a shorter record")
    return data
