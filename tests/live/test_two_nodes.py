"""Two nodes of one engine, each with a host name, pids and - where veth pairs can be made - a network of its own.

Two bundles, one incident, and the rank that is missing is named.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.labs import wait_until
from tests.conftest import ROOT, SAMPLES
from tests.live.run import llmdiag

pytestmark = [
    pytest.mark.live, pytest.mark.torch,
    pytest.mark.skipif(os.getuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))), reason="needs root, unshare and ip to make two nodes"),
]
LAB = SAMPLES / "lost-worker-reply" / "lab.py"
WAIT_S = 90.0
START = 'hostname "$0" && read connected && exec "$@"'
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=200).read().decode())"
WIRE = "engine0"
"""Name of the interface of each node."""


@dataclass(frozen=True)
class Node:
    """`pid` is its first process as this machine sees it, `port` that of the lab in it."""

    host: str
    pid: int
    port: int
    log: Path
    spaces: tuple[str, ...]

    def runs(self, *argv: str) -> subprocess.Popen[str]:
        """A program on the node, started by somebody who is logged in there."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", *self.spaces]
        return subprocess.Popen([*enter, sys.executable, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def asks(self, path: str) -> subprocess.Popen[str]:
        return self.runs("-c", GET, f"http://127.0.0.1:{self.port}{path}")

    def snapshot(self, bundle: Path) -> subprocess.Popen[str]:
        return self.runs("-m", "diag.cli", "snapshot", "--port", str(self.port), "-o", str(bundle), "--collect-only", "--window", "2")

    def waits(self) -> bool:
        """Has it a request that it does not answer?"""
        return 'running{engine="0",model_name="tiny"} 1.0' in self.asks("/metrics").communicate(timeout=WAIT_S)[0]


def connected(pids: list[int]) -> bool:
    """A cable between the networks of two processes; False: none can be made here."""
    ends = [f"llmdiag{number}" for number in range(len(pids))]
    if subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], capture_output=True, check=False).returncode != 0:
        return False
    for number, (end, pid) in enumerate(zip(ends, pids, strict=True), 1):
        subprocess.run(["ip", "link", "set", end, "netns", str(pid), "name", WIRE], check=True)
        for command in (["addr", "add", f"10.213.9.{number}/24", "dev", WIRE], ["link", "set", WIRE, "up"], ["link", "set", "lo", "up"]):
            subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", *command], check=True)
    return True


def can_connect() -> bool:
    made = subprocess.run(["ip", "link", "add", "llmdiag0", "type", "veth", "peer", "name", "llmdiag1"], capture_output=True, check=False).returncode == 0
    return made and subprocess.run(["ip", "link", "del", "llmdiag0"], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def nodes(folder: Path, **ranks: str) -> Iterator[list[Node]]:
    """`node_a="0-2"`: a node of that name with the workers 0 and 1."""
    own_network = can_connect()
    spaces = ("--uts", "--pid", *(["--net"] if own_network else []))
    started = []
    try:
        for name, mine in ranks.items():
            ours, theirs = os.pipe()
            host, log = name.replace("_", "-"), folder / f"{name}.log"
            lab = [sys.executable, str(LAB), "--ready-fd", str(theirs), "--node", f"{mine}{folder}/group"]
            with log.open("wb") as out:
                process = subprocess.Popen(
                    ["unshare", *spaces, "--fork", "--mount-proc", "sh", "-c", START, host, *lab], pass_fds=[theirs], stdin=subprocess.PIPE,
                    stdout=out, stderr=out, start_new_session=True, env={**os.environ, "GLOO_SOCKET_IFNAME": WIRE if own_network else "lo"},
                )
            os.close(theirs)
            started.append((host, process, ours, log))
        firsts = [wait_until(lambda process=process: first_child(process.pid), WAIT_S) for _, process, _, _ in started]  # type: ignore[misc]
        assert not own_network or connected(firsts), "the cable could be made a moment ago"
        for _, process, _, _ in started:
            assert process.stdin is not None
            process.stdin.write(b"yes\n")
            process.stdin.flush()
        ready = [json.loads(line_of(ours, log)) for _, _, ours, log in started]
        yield [Node(host, pid, int(lab["port"]), log, spaces) for (host, _, _, log), pid, lab in zip(started, firsts, ready, strict=True)]
    finally:
        for _, process, ours, _ in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            os.close(ours)


def first_child(pid: int) -> int:
    """0 while there is none."""
    return int((Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or ["0"])[0])


def line_of(fd: int, log: Path) -> bytes:
    line, end = b"", time.monotonic() + WAIT_S
    while not line.endswith(b"\n"):
        chunk = os.read(fd, 4096) if select.select([fd], [], [], max(0.0, end - time.monotonic()))[0] else b""
        assert chunk, f"the node did not come up: {log.read_text()}"
        line += chunk
    return line


def test_the_missing_rank_is_named_across_two_nodes(tmp_path: Path) -> None:
    """Rank 1 of node-a stays away; from either node alone that cannot be told: there, as many wait as do not."""
    with nodes(tmp_path, node_a="0-2", node_b="2-3") as (one, other):
        asked = [one.asks("/generate?absent=1"), other.asks("/generate")]
        wait_until(lambda: "stays away" in one.log.read_text() and one.waits() and other.waits(), WAIT_S)
        tools = [node.snapshot(tmp_path / f"{node.host}.zip") for node in (one, other)]
        said = [tool.communicate(timeout=WAIT_S)[1] for tool in tools]
        assert [tool.returncode for tool in tools] == [0, 0], said
    for client in asked:
        client.communicate(timeout=WAIT_S)  # the end of its node is the end of it
    together = llmdiag("analyze", str(tmp_path / "node-a.zip"), str(tmp_path / "node-b.zip"), "-f", "json")
    (first, *_) = together.json["findings"]
    assert (first["rule"], first["verdict"], together.code) == ("collective-desync", "confirmed", 1), together.json["findings"]
    (apart,) = [item for item in first["evidence"] if item["signal"] == "apart"]
    assert [(row["rank"], row["host"]) for row in apart["rows"]] == [("TP1", "node-a")]
    (says,) = apart["says"]
    assert says.startswith("rank TP1 of pid "), says
    assert " on node-a stands at " in says
    assert says.endswith(", while 2 of 3 wait in a collective"), says
    assert "captures" not in together.json, "one incident, not two"
    alone = llmdiag("analyze", str(tmp_path / "node-b.zip"), "-f", "json").json
    assert "collective-desync" not in [finding["rule"] for finding in alone["findings"]]
