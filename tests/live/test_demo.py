"""A demo that is ended from outside leaves nothing behind, and one that cannot keep its bundle does not begin."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from diag.labs import wait_until
from tests.live.run import llmdiag

pytestmark = pytest.mark.live

WAIT_S = 60.0


def start(tmp_path: Path, *prefix: str) -> subprocess.Popen[str]:
    """A demo whose folders are in `tmp_path`, as soon as its lab is up."""
    tool = subprocess.Popen(
        [*prefix, sys.executable, "-u", "-m", "diag.cli", "demo", "ghost-key"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert tool.stdout is not None
    for line in tool.stdout:
        if "multimodal service" in line:
            return tool
    raise AssertionError(tool.communicate()[1])


def family(pid: int) -> Mapping[int, str]:
    """The processes below one -> their start times, so that a number that is used again is none of them."""
    parents = {int(entry.name): stat for entry in Path("/proc").iterdir() if entry.name.isdigit() and (stat := stat_of(int(entry.name)))}
    found: dict[int, str] = {}
    while more := {child: stat[19] for child, stat in parents.items() if int(stat[1]) in (pid, *found) and child not in found}:
        found |= more
    return found


def stat_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(processes: Mapping[int, str]) -> list[int]:
    return [pid for pid, started in processes.items() if (stat := stat_of(pid)) and stat[19] == started and stat[0] not in "ZX"]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGHUP, 2), (signal.SIGTERM, 2), (signal.SIGINT, 130)])
def test_a_demo_that_is_ended_leaves_nothing(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    tool = start(tmp_path)
    below = family(tool.pid)
    assert len(below) >= 2, below
    tool.send_signal(sent)
    _, err = tool.communicate(timeout=WAIT_S)
    assert tool.returncode == code, err
    assert "Traceback" not in err
    wait_until(lambda: not alive(below), WAIT_S)
    assert list(tmp_path.iterdir()) == []


def test_the_children_of_a_demo_that_is_killed_die_too(tmp_path: Path) -> None:
    tool = start(tmp_path)
    below = family(tool.pid)
    assert len(below) >= 2, below
    tool.kill()
    tool.communicate(timeout=WAIT_S)
    wait_until(lambda: not alive(below), WAIT_S)


def test_a_demo_under_nohup_does_not_hear_the_terminal_go(tmp_path: Path) -> None:
    tool = start(tmp_path, "nohup")
    try:
        ignored = int(next(line.split()[1] for line in Path(f"/proc/{tool.pid}/status").read_text().splitlines() if line.startswith("SigIgn")), 16)
        assert ignored >> (signal.SIGHUP - 1) & 1, hex(ignored)
    finally:
        tool.terminate()
        tool.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("name", ["demo-incident.zip", "demo-incident"])
def test_an_old_bundle_is_said_before_anything_is_started(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    said = llmdiag("demo", "ghost-key", "--keep", str(tmp_path))
    assert (said.code, said.out) == (2, "")
    assert f"{tmp_path / name} is there already" in said.err
    assert (tmp_path / name).read_text() == "mine"
