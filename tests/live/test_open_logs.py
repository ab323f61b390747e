"""A service that logs to a file of its own, and one that logs nowhere: an unread log is never a clean one."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diag.labs import wait_until
from tests.live.run import llmdiag, snapshot

pytestmark = pytest.mark.live

SERVICE = """
import logging, sys
log = logging.getLogger("engine")
if len(sys.argv) > 2:
    handler = logging.FileHandler(sys.argv[2])
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [core.py:%(lineno)d] %(message)s", "%m-%d %H:%M:%S"))
    log.addHandler(handler)
    log.error("EngineCore encountered a fatal error.")
    log.error("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
open(sys.argv[1], "w").close()
sys.stdin.read()
"""


@contextmanager
def service(ready: Path, *log: Path) -> Iterator[int]:
    """A process whose stdout and stderr go to /dev/null."""
    argv = [sys.executable, "-c", SERVICE, str(ready), *map(str, log)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, 30)
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def of_logs(document: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {item["table_name"]: (item["status"], item["reason"]) for item in document["collected"] if item["collector"] == "logs"}


def ruled_out(document: dict[str, Any]) -> set[str]:
    return {item["rule"] for item in document["ruled_out"]}


def test_the_log_of_a_file_handler_is_found(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with service(tmp_path / "ready", log) as pid:
        plan = llmdiag("snapshot", str(pid), "--dry-run").out
        said = snapshot(pid, tmp_path / "b.zip", "--window", "0.5", "--samples", "2").json
    assert str(log) in plan, plan
    assert said["findings"] and said["findings"][0]["rule"] == "cuda-illegal-access", said["verdict"]
    assert "cuda-illegal-access" not in ruled_out(said)
    assert of_logs(said)["log_events"] == ("ok", None), of_logs(said)
    assert str(log) in llmdiag("query", str(tmp_path / "b.zip"), "SELECT file FROM log_files").out


def test_without_a_log_the_rules_on_logs_stay_open(tmp_path: Path) -> None:
    with service(tmp_path / "ready") as pid:
        plan = llmdiag("snapshot", str(pid), "--dry-run").out
        said = snapshot(pid, tmp_path / "b.zip", "--window", "0.5", "--samples", "2").json
    assert f"no log of the service was found: stdout and stderr of pid {pid} go nowhere" in " ".join(plan.split()), plan
    for table, (status, reason) in of_logs(said).items():
        assert status == "failed" and reason is not None and f"llmdiag snapshot {pid} --log FILE" in reason, (table, status, reason)
    assert not {"cuda-illegal-access", "engine-core-dead"} & ruled_out(said), ruled_out(said)
    page = llmdiag("analyze", str(tmp_path / "b.zip")).out
    assert f"llmdiag snapshot {pid} --log FILE" in page, page
