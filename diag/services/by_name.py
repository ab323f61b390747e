"""By name: what a process calls itself, what program it runs, else any word of its command line - the first that fits."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from diag import procfs
from diag.errors import BadInput, CollectorError
from diag.services.found import Found, one_service

LLMDIAG = re.compile(r"(llmdiag|diag\.cli)( |$)")


@dataclass(frozen=True)
class _Face:
    pid: int
    comm: str
    program: str
    """As procfs.program tells it: `vllm serve /models/x`."""


def find(name: str) -> Found:
    """Upper and lower case are the same. Raises BadInput (nobody, or several services)."""
    if not name.strip():
        raise BadInput("--name is empty", hint="for example --name vllm")
    faces = list(_faces())
    for what, fits in _ways(name):
        pids = [face.pid for face in faces if fits(face)]
        if pids:
            return one_service(pids, f"{what} {name!r}")
    raise BadInput(
        f"none of {len(faces)} processes has {name!r} in its name or command line",
        hint="ps -ef shows what runs; in a container whose processes are not seen from here, run llmdiag on the host or inside",
    )


def _ways(name: str) -> Sequence[tuple[str, Callable[[_Face], bool]]]:
    """From what says most to what says least."""
    wanted = name.lower()
    begins = re.compile(rf"{re.escape(wanted)}(?![a-z0-9])")
    return (
        ("is called", lambda face: wanted in (face.comm.lower(), face.program.lower().partition(" ")[0])),
        ("runs", lambda face: bool(begins.match(face.program.lower()) or begins.match(face.comm.lower()))),
        ("has in its command line", lambda face: wanted in face.program.lower()),
    )


def _faces() -> Iterator[_Face]:
    """All processes but the kernel's, any llmdiag and who started this one: their command lines hold the name as well."""
    ours = set(_own_line())
    for pid in procfs.pids():
        try:
            if pid in ours or procfs.is_kernel_thread(pid):
                continue
            face = _Face(pid, procfs.stat(pid).comm, procfs.program(procfs.argv(pid)))
            if not LLMDIAG.match(face.program):
                yield face
        except CollectorError:
            continue


def _own_line() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        yield pid
        try:
            pid = procfs.stat(pid).ppid
        except CollectorError:
            return
