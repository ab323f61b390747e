"""Does py-spy read stacks here? It is tried, without stopping anybody: that also meets seccomp filters and security modules."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

from diag import procfs
from diag.doctor.ground import Check, Ground
from diag.errors import Absent, CollectorError
from diag.instruments import dumper
from diag.parsers.pyspy_errors import RETRY, Probe, classify

ORDER = 30
TRIES, PATIENCE_S = 5, 4.0
BINDINGS = re.compile(rb"python_bindings\.\.v(\d+)_(\d+)_\d+")
"""Names in py-spy's executable: a module a version of Python that it knows."""
PYTHON = re.compile(r"^Python v?(\d+\.\d+\S*)", re.MULTILINE)


def check(ground: Ground) -> Iterator[Check]:
    """py-spy itself, then a dump."""
    try:
        program = dumper.executable()
        version = dumper.version(program)
    except Absent as error:
        yield Check("py-spy", False, error.message, "pip install py-spy")
        return
    yield Check("py-spy", True, f"{version or 'of an unknown version'}, {_reads(Path(program))}")
    if not _is_python(ground.subject):
        yield Check("stacks", None, f"{ground.whose} is no Python: stacks of its Python children are read, of itself threads and system calls")
        return
    yield _tried(program, ground)


def _tried(program: str, ground: Ground) -> Check:
    for _ in range(TRIES):
        answer = dumper.run((program, "dump", "--nonblocking", "--pid", str(ground.subject)), PATIENCE_S, threading.Event())
        text = answer.output.decode("utf-8", "replace")
        if answer.code == 0:
            found = PYTHON.search(text)
            return Check("stacks", True, f"read from {ground.whose}{f', Python {found[1]}' if found else ''}, without stopping it")
        failure = classify(answer.error, _probe(ground.subject))
        if failure.kind not in RETRY:
            break
    fix = ground.with_rights("CAP_SYS_PTRACE") if failure.kind == "denied" else failure.remedy
    return Check("stacks", False, f"not read from {ground.whose}: {failure.reason}", fix)


def _reads(program: Path) -> str:
    """The newest Python that it reads, by its own tables: those of old ones have no names in it."""
    try:
        known = {(int(major), int(minor)) for major, minor in BINDINGS.findall(program.read_bytes())}
    except OSError:
        known = set()
    if not known:
        return "which does not say what versions of Python it reads"
    return "reads up to Python {}.{}".format(*max(known))


def _is_python(pid: int) -> bool:
    """What may not be looked at is tried all the same: the failure says why."""
    try:
        return procfs.is_python(pid)
    except CollectorError:
        return True


def _probe(pid: int) -> Probe:
    try:
        stat = procfs.stat(pid)
    except CollectorError:
        return Probe(exists=False)
    return Probe(True, stat.state, int(procfs.status(pid).get("TracerPid", "0")), stat.ppid)
