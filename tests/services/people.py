"""Processes to be found: they listen, bear names, sit in networks and cgroups of their own - all of it for real."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag import procfs
from tests.conftest import ROOT

LISTENS = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""
GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


@dataclass(frozen=True)
class Person:
    """A running process: its pid here, and what it said first (its port)."""

    pid: int
    said: str

    @property
    def port(self) -> int:
        return int(self.said)


@contextlib.contextmanager
def started(argv: Sequence[str], executable: str | None = None, *, hears: bool = True) -> Iterator[Person]:
    """Runs until the end of the block; `hears`: its first line is waited for."""
    child = subprocess.Popen(argv, executable=executable, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT)
    assert child.stdout is not None
    try:
        yield Person(child.pid, child.stdout.readline().strip() if hears else "")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()
        child.stdout.close()


def listening(title: str = "engine-of-tests", host: str = "127.0.0.1", port: int = 0, *more: str) -> contextlib.AbstractContextManager[Person]:
    """A process of that title that listens."""
    return started([title, "-c", LISTENS, host, str(port), *more], sys.executable)


@contextlib.contextmanager
def listening_elsewhere(port: int, setup: str = "true") -> Iterator[Person]:
    """The same in a network of its own, behind a shell that sets it up; the pid is that of who listens."""
    command = f'ip link set lo up && {setup} && exec "{sys.executable}" -c "$0" "$@"'
    with started(["unshare", "--net", "sh", "-c", command, LISTENS, "0.0.0.0", str(port)]) as person:
        if person.said == "":
            pytest.skip("a network of one's own is not allowed here")
        yield person


@contextlib.contextmanager
def in_group(name: str, *pids: int) -> Iterator[None]:
    """A cgroup of that path in a folder of this test process, and these processes in it until its end."""
    root = next((place for place in GROUPS if os.access(place, os.W_OK) and (place / "cgroup.procs").exists()), None)
    if root is None:
        pytest.skip("no cgroup can be made here")
    place = root / f"llmdiag-tests-{os.getpid()}" / name
    made = [folder for folder in (place, *place.parents) if folder.is_relative_to(root) and not folder.exists()]
    try:
        place.mkdir(parents=True)
        for pid in pids:
            (place / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield
    finally:
        for pid in (place / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)
        for folder in made:
            folder.rmdir()


def client(folder: Path, name: str, script: str) -> None:
    """A program of that name at the beginning of PATH, which the test puts there."""
    place = folder / name
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


def can_be_alone() -> bool:
    return os.getuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None


def child_of(pid: int) -> int:
    """The only child of a process."""
    (found,) = [other for other in procfs.tree(pid) if other != pid]
    return found
