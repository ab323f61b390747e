"""`llmdiag snapshot` of what a person names: one way at a time, several pids in one bundle, collected only, or armed until a stall is proved."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.collectors import processes as collector
from diag.labs import wait_until
from diag.model import Artefact
from tests.conftest import ROOT
from tests.health.toy import Toy
from tests.live.run import Said, llmdiag
from tests.services.people import can_be_alone, listening, listening_elsewhere, started
from tests.terminals import seen

pytestmark = pytest.mark.live

WAIT_S = 60.0
QUICK = ("--window", "0.5", "--samples", "2")
FAST = ("--watch", "--watch-interval", "0.3s")
SCHEMA = json.loads(resources.files("diag.report").joinpath("snapshot.schema.json").read_text(encoding="utf-8"))
HEAVY = ("duckdb", "pandas", "sqlglot")


@dataclass(frozen=True)
class Engine:
    """Three processes; the counters of its /metrics stand still with four requests running."""

    url: str
    root: int
    worker: int

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    with started([sys.executable, "-m", "tests.health.engine_process", "sleeps"]) as person:
        url, _, worker = person.said.split()
        yield Engine(url, person.pid, int(worker))


def checked(said: Said) -> dict[str, Any]:
    """JSON that its schema knows."""
    jsonschema.validate(said.json, SCHEMA)
    return said.json


def plan(*args: str) -> dict[str, Any]:
    return checked(llmdiag("snapshot", *args, "--dry-run", "-f", "json"))


def manifest(bundle: Path) -> dict[str, Any]:
    with zipfile.ZipFile(bundle) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return found


def test_a_dry_run_shows_what_was_found() -> None:
    with listening("zugvogel-engine") as person:
        for way in (["--port", str(person.port)], ["--name", "zugvogel-engine"], [str(person.pid)]):
            told = plan(*way)
            assert (told["pid"], told["root_pids"], told["pids"]) == (person.pid, [person.pid], [person.pid]), told
            assert f"pid {person.pid}, zugvogel-engine -c" in told["found"]
        text = llmdiag("snapshot", "--port", str(person.port), "--dry-run").out
    assert text.startswith(f"Found: listens on port {person.port}: pid {person.pid}, "), text
    assert "only /proc and open logs were looked at yet" in text
    assert f"metrics: GET http://127.0.0.1:{person.port}/metrics\n" in text, text
    assert "logs: not: stdout of pid" in text and "is a pipe; give --log FILE" in text, text
    assert not {"events", "lookups", "repro", "tensors"} & {item["collector"] for item in told["collectors"]}, told
    assert f"GET http://127.0.0.1:{person.port}/metrics" in next(item["named"] for item in told["collectors"] if item["collector"] == "metrics")


@pytest.mark.parametrize(("args", "says"), [
    ([], "which service? Name it: PID..., --port, --name, --unit or --container"),
    (["1", "--name", "x"], "PID and --name: name the service in one way"),
    (["--unit", "x", "--container", "y", "--port", "80"], "--unit and --container: name the service in one way"),
    (["--port", "80", "--port", "81"], "several ports name no one service"),
    (["1", "--watch-for", "1h"], "go with --watch"),
    (["1", "--watch", "--watch-for", "soon"], "'soon' is no duration: give 90s, 30m, 2h or 1d"),
    (["--port", "0"], "0 is not in the range"),
    (["vllm serve"], "'vllm serve' is not a pid; by name: --name 'vllm serve'"),
])
def test_one_way_at_a_time(args: list[str], says: str) -> None:
    said = llmdiag("snapshot", *args)
    assert (said.code, said.out) == (2, "")
    assert says in said.err


def test_a_port_beside_another_way_is_the_http_port() -> None:
    with listening("zugvogel-engine") as person:
        assert plan(str(person.pid), "--port", "8000")["pid"] == person.pid
        assert plan("--name", "zugvogel-engine", "--port", "8000")["pid"] == person.pid


def processes(bundle: Path, read: int) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The header of a list of processes in a bundle, and its lines by pid."""
    with zipfile.ZipFile(bundle) as archive:
        header, *lines = map(json.loads, archive.read(f"artefacts/processes/processes-{read}.jsonl").splitlines())
    return header, {line["pid"]: line for line in lines}


def test_several_pids_are_one_bundle_of_all_their_trees(tmp_path: Path) -> None:
    with listening("zugvogel-router") as one, engine() as other:
        said = llmdiag("snapshot", str(one.pid), str(other.worker), str(one.pid), "-o", str(tmp_path / "b.zip"), *QUICK, "--collect-only")
    assert said.code == 0, said
    for read in (0, 1):
        header, found = processes(tmp_path / "b.zip", read)
        assert {one.pid, other.root, other.worker} <= set(found), found
        assert (header["target"], header["others"]) == (one.pid, [other.worker])
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        artefact = Artefact.of_bytes("processes-1.jsonl", "processes", archive.read("artefacts/processes/processes-1.jsonl"))
    assert {row["pid"] for _, row in collector.parse([artefact]) if row["is_target"]} == {one.pid, other.worker}
    target = manifest(tmp_path / "b.zip")["target"]
    assert (target["pid"], target["root_pid"], target["others"]) == (one.pid, one.pid, str(other.worker))


def test_the_tree_of_one_that_ended_does_not_take_the_others_along(tmp_path: Path) -> None:
    command = ("snapshot", "-o", str(tmp_path / "b.zip"), "--window", "3", "--collect-only")
    with listening("zugvogel-router") as one, listening("zugvogel-cache") as other, tool_of(*command, str(one.pid), str(other.pid)) as tool:
        journal = tmp_path / "b" / "manifest.jsonl"
        wait_until(lambda: journal.exists() and "artefacts/processes/" in journal.read_text(), WAIT_S)
        os.kill(one.pid, signal.SIGKILL)
        _, err = tool.communicate(timeout=WAIT_S)
    assert tool.returncode == 0, err
    _, found = processes(tmp_path / "b.zip", 1)
    assert found[one.pid].get("gone") or found[one.pid]["state"] in ("X", "Z"), found
    assert found[other.pid]["state"] == "S"


def test_collect_only_imports_nothing_of_the_analysis(tmp_path: Path) -> None:
    with listening() as person:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "diag.cli", "snapshot", str(person.pid), "--collect-only", "-o", "there.zip", *QUICK, "-f", "json"],
            capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    said = Said(done.returncode, done.stdout, done.stderr)
    assert (said.code, checked(said)) == (0, {"schema": "llmdiag.collected/1", "bundle": "there.zip", "analyze": "llmdiag analyze there.zip"})
    assert "diag.snapshot" in imported
    assert imported.isdisjoint(HEAVY), imported.intersection(HEAVY)
    assert manifest(tmp_path / "there.zip")["collectors"]["processes"]["status"] == "ok"


def test_collect_only_prints_the_bundle_and_what_to_do_with_it(tmp_path: Path) -> None:
    with listening() as person:
        said = llmdiag("snapshot", "--port", str(person.port), "--collect-only", *QUICK, cwd=tmp_path)
    (bundle,) = tmp_path.glob("llmdiag-*.zip")
    assert (said.code, said.out) == (0, f"{bundle.name}\n")
    assert said.err.splitlines()[-1] == f"nothing was analysed; on any machine: llmdiag analyze {bundle.name}"
    assert manifest(bundle)["target"]["found"].startswith(f"listens on port {person.port}: pid {person.pid}")


def test_notes_tell_what_was_found_where_no_terminal_is(tmp_path: Path) -> None:
    with listening("zugvogel-engine") as person:
        os.kill(person.pid, signal.SIGSTOP)
        said = llmdiag("snapshot", str(person.pid), "--collect-only", *QUICK, cwd=tmp_path)
    lines = said.err.splitlines()
    assert lines[0].startswith(f"snapshot of pid {person.pid}, zugvogel-engine"), lines
    assert f"  pid {person.pid} (other) is stopped (state T)" in lines
    assert f"  listens on {person.port}" in lines


@contextlib.contextmanager
def tool_of(*args: str) -> Iterator[subprocess.Popen[str]]:
    """llmdiag while it runs; a test that fails leaves none behind."""
    tool = subprocess.Popen(
        [sys.executable, "-m", "diag.cli", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "LLMDIAG_STRICT": "1"},
    )
    try:
        yield tool
    finally:
        tool.kill()
        tool.communicate()


def test_armed_it_takes_one_snapshot_when_a_stall_is_proved(tmp_path: Path) -> None:
    with engine() as found:
        os.kill(found.worker, signal.SIGSTOP)
        said = llmdiag("snapshot", "--port", found.port, *FAST, "--watch-for", "60s", *QUICK, "-o", str(tmp_path), "-f", "json")
        state = Path(f"/proc/{found.worker}/stat").read_text().rpartition(")")[2].split()[0]
    assert (said.code, said.json["schema"]) == (1, "llmdiag.diagnosis/1"), said.err
    assert state == "T", "nothing is restarted, nothing let go"
    (bundle,) = tmp_path.glob("*.zip")
    assert f"worker {found.worker} is stopped by a signal" in manifest(bundle)["target"]["armed"]
    assert said.err.splitlines()[0].startswith("armed: listens on port")
    assert any(re.match(rf"\d\d:\d\d:\d\dZ STALLED {re.escape(found.url)}/metrics", line) for line in said.err.splitlines()), said.err


def test_armed_it_ends_with_0_when_nothing_was_proved(tmp_path: Path) -> None:
    with engine() as found:
        said = llmdiag("snapshot", str(found.root), *FAST, "--watch-for", "1.5s", "-o", str(tmp_path), "-f", "json")
    assert (said.code, checked(said)["proved"]) == (0, False), said
    assert list(tmp_path.iterdir()) == []
    assert "BUSY-UNPROVEN" in said.err


def test_where_its_metrics_are_cannot_be_told() -> None:
    with started(["sleep", "600"], hears=False) as silent:
        said = llmdiag("snapshot", str(silent.pid), *FAST)
    assert (said.code, f"pid {silent.pid} listens on no port that can be seen: where are its /metrics?" in said.err) == (2, True), said
    assert f"llmdiag snapshot {silent.pid} --watch --port PORT" in said.err


def test_a_place_that_cannot_be_written_is_told_before_the_waiting(tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_text("mine")
    with listening() as person:
        for place, says in ((tmp_path / "no" / "such" / "b.zip", "cannot be written"), (tmp_path / "b.zip", "exists already")):
            said = llmdiag("snapshot", "--port", str(person.port), *FAST, "-o", str(place))
            assert (said.code, says in said.err, "armed" in said.err) == (2, True, False), said


def test_the_successor_of_a_service_is_watched(tmp_path: Path) -> None:
    """Named by a word of its command line: the second one listens on another port."""
    argv = [sys.executable, "-m", "tests.health.engine_process", "sleeps", "zugvogel-7b"]
    command = ("snapshot", "--name", "zugvogel-7b", *FAST, "--collect-only", *QUICK, "-o", str(tmp_path))
    with contextlib.ExitStack() as running:
        with started(argv) as one:
            tool = running.enter_context(tool_of(*command))
            assert tool.stderr is not None
            assert tool.stderr.readline().startswith("armed: ")
            assert "BUSY-UNPROVEN" in tool.stderr.readline()
            os.killpg(one.pid, signal.SIGKILL)
        other = running.enter_context(started(argv))
        heard = next(line for line in tool.stderr if f"BUSY-UNPROVEN {other.said.split()[0]}" in line or "error:" in line)
        assert "error:" not in heard, heard
        os.kill(int(other.said.split()[2]), signal.SIGSTOP)
        _, err = tool.communicate(timeout=WAIT_S)
    (bundle,) = tmp_path.glob("*.zip")
    assert (tool.returncode, manifest(bundle)["target"]["pid"]) == (0, other.pid), err


def test_armed_at_what_has_no_metrics_it_could_not_look(tmp_path: Path) -> None:
    with listening("zugvogel-engine") as person:
        said = llmdiag("snapshot", str(person.pid), *FAST, "--watch-for", "1.5s", "-o", str(tmp_path), "-f", "json")
    assert (said.code, checked(said)["looked"], list(tmp_path.iterdir())) == (3, False, []), said


@pytest.mark.skipif(not can_be_alone(), reason="needs root, unshare and ip")
def test_metrics_in_another_network_are_to_be_read_from_there() -> None:
    with listening_elsewhere(18123) as inside:
        said = llmdiag("snapshot", str(inside.pid), *FAST)
    assert (said.code, f"nsenter -t {inside.pid} -n llmdiag snapshot {inside.pid} --watch" in said.err) == (2, True), said


SECURE = """
import http.server, ssl, sys
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[3].encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Metrics)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_metrics_behind_tls_are_read(tmp_path: Path) -> None:
    pem, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x", "-keyout", key, "-out", pem]
    subprocess.run(made, check=True, capture_output=True)
    with started([sys.executable, "-c", SECURE, pem, key, Toy().metrics()]) as person:
        said = llmdiag("snapshot", str(person.pid), *FAST, "--watch-for", "1.5s", cwd=tmp_path)
    assert f"IDLE-UNPROVEN https://127.0.0.1:{person.port}/metrics" in said.err, said
    assert said.code == 0


def test_ctrl_c_disarms_it(tmp_path: Path) -> None:
    with engine() as found, tool_of("snapshot", "--port", found.port, *FAST, "-o", str(tmp_path)) as tool:
        assert tool.stderr is not None
        assert tool.stderr.readline().startswith("armed: ")
        assert "BUSY-UNPROVEN" in tool.stderr.readline()
        tool.send_signal(signal.SIGINT)
        out, err = tool.communicate(timeout=WAIT_S)
    assert (tool.returncode, out, err.splitlines()[-1]) == (130, "", "interrupted")
    assert list(tmp_path.iterdir()) == []


def test_a_service_named_by_pid_that_ends_is_the_end_and_one_named_by_port_is_waited_for(tmp_path: Path) -> None:
    command = ("snapshot", *FAST, "--watch-for", "5s", "-o", str(tmp_path))
    with engine() as found, tool_of(*command, str(found.root)) as one, tool_of(*command, "--port", found.port) as other:
        for tool in (one, other):
            assert tool.stderr is not None
            assert tool.stderr.readline().startswith("armed: ")
            assert "BUSY-UNPROVEN" in tool.stderr.readline()
        os.killpg(found.root, signal.SIGKILL)
        by_pid, by_port = (tool.communicate(timeout=WAIT_S)[1] for tool in (one, other))
    assert (one.returncode, "has ended: there is nothing left to take a snapshot of" in by_pid) == (2, True), by_pid
    assert (other.returncode, "waiting for its successor" in by_port) == (2, True), by_port
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_ended_left_its_logs(tmp_path: Path) -> None:
    log = tmp_path / "engine server.log"
    argv = ["bash", "-c", 'exec 2>"$0"; exec "$@"', str(log), sys.executable, "-m", "tests.health.engine_process", "sleeps"]
    with started(argv) as found, tool_of("snapshot", str(found.pid), *FAST) as tool:
        assert tool.stderr is not None
        assert tool.stderr.readline().startswith("armed: ")
        assert "BUSY-UNPROVEN" in tool.stderr.readline()
        os.killpg(found.pid, signal.SIGKILL)
        _, err = tool.communicate(timeout=WAIT_S)
    assert (tool.returncode, f"llmdiag analyze '{log}'" in err) == (2, True), err


def test_in_a_terminal_it_shows_what_it_found_while_it_runs(tmp_path: Path) -> None:
    with listening("zugvogel-engine") as person:
        shown = seen("snapshot", str(person.pid), "--collect-only", *QUICK, "-o", str(tmp_path), term="xterm")
        dumb = seen("snapshot", str(person.pid), "--collect-only", *QUICK, "-o", str(tmp_path / "dumb.zip"))
    for text in (f"snapshot of pid {person.pid}", f"listens on {person.port}", "processes", "stacks", "sampling"):
        assert text in shown, shown
    assert "\x1b" not in dumb
    assert f"listens on {person.port}" in dumb


