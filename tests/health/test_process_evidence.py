"""What real processes prove when no counter moves: at work, stopped, dead, gone. Nobody is stopped by looking."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diag import procfs
from diag.health.budget import Budget
from diag.health.checking import SUCCEEDED, Checker, Settings
from diag.health.polling import backend_of
from diag.health.process_evidence import Watch, stack_text
from diag.parsers.pyspy import JsonFrame
from diag.repro.http_post import Wire
from tests.conftest import ROOT
from tests.health.toy import Toy
from tests.live.run import llmdiag
from tests.repro.endpoint import Response, serving


@dataclass(frozen=True)
class Engine:
    url: str
    root: int
    core: int
    worker: int
    process: subprocess.Popen[str]


@contextmanager
def engine(worker: str) -> Iterator[Engine]:
    """A service of three processes; all of them are ended afterwards."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.health.engine_process", worker], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        url, core, below = process.stdout.readline().split()
        try:
            yield Engine(url, process.pid, int(core), int(below), process)
        finally:
            with suppress(ProcessLookupError):  # a test may have done it
                os.killpg(process.pid, signal.SIGKILL)


def health(found: Engine, *more: str):  # type: ignore[no-untyped-def]
    return llmdiag("health", found.url, "--pid", str(found.worker), "--interval", "0.7", "-f", "json", *more)


def test_a_worker_that_works_is_progress_though_no_counter_moves() -> None:
    with engine("works") as found:
        said = health(found, "--patience", "20")  # two looks may find it at the same step
        states = {pid: procfs.stat(pid).state for pid in (found.root, found.core, found.worker)}
    (backend,) = said.json["backends"]
    assert (backend["state"], said.code) == ("progressing", 0), said.out
    assert f"worker {found.worker} ran and changed its stack" in backend["reason"]
    assert not {"T", "t"} & set(states.values()), "a look stopped somebody"


def test_a_worker_that_was_stopped_is_proof() -> None:
    with engine("works") as found:
        os.kill(found.worker, signal.SIGSTOP)
        said = health(found)
    (backend,) = said.json["backends"]
    assert (backend["state"], said.code) == ("stalled", 1), said.out
    assert f"worker {found.worker} is stopped by a signal" in backend["reason"]


def test_a_worker_that_only_sleeps_proves_nothing_yet() -> None:
    with engine("sleeps") as found:
        said = health(found)
    (backend,) = said.json["backends"]
    assert (backend["state"], said.code) == ("busy-unproven", 3), said.out


def test_a_service_that_ended_is_unreachable_and_gone() -> None:
    """Seen alive by the run that says so, which keeps what it saw; who comes later cannot know whose pid it was."""
    with engine("sleeps") as found, tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept"
        with subprocess.Popen(
            [sys.executable, "-m", "diag.cli", "health", found.url, "--pid", str(found.worker), "--interval", "0.5", "-f", "json", "--watch", "--record", str(kept)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        ) as watcher:
            assert watcher.stdout is not None
            watcher.stdout.readline()
            os.killpg(found.root, signal.SIGKILL)
            found.process.wait()
            said = [json.loads(watcher.stdout.readline())["backends"][0] for _ in range(4)][-1]
            watcher.send_signal(signal.SIGINT)
            watcher.stdout.read()
        recorded = llmdiag("health", str(kept), "-f", "json")
        late = health(found)
        alone = llmdiag("health", found.url, "--interval", "0.05", "-f", "json")
    assert (said["state"], said["exit"], watcher.returncode) == ("unreachable", 1, 1), said
    assert "its process is gone" in said["reason"]
    assert (recorded.json["backends"][0]["state"], recorded.code) == ("unreachable", 1), recorded.out
    assert (late.json["backends"][0]["state"], late.code) == ("unreachable", 3), "nobody saw that process alive"
    assert (alone.json["backends"][0]["state"], alone.code) == ("unreachable", 3), "nobody said whose process it was"


def test_a_pid_that_never_was_is_no_proof() -> None:
    said = llmdiag("health", "http://127.0.0.1:9", "--pid", "4194304", "--interval", "0.05")
    assert said.code == 3, said.out
    assert "gone" not in said.out.splitlines()[0]
    assert "there is no process 4194304" in said.out


STOPS = """
import http.server, sys
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
"""


@contextmanager
def stopped_server() -> Iterator[tuple[int, int]]:
    """(pid, port) of a server of no known kind that was stopped by a signal."""
    with subprocess.Popen([sys.executable, "-c", STOPS], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            yield process.pid, port
        finally:
            os.kill(process.pid, signal.SIGKILL)


def test_a_stopped_process_that_listens_there_is_proof_and_another_one_is_not() -> None:
    with stopped_server() as (pid, port), stopped_server() as (other, _):
        owner, stranger = (
            llmdiag("health", f"http://127.0.0.1:{port}", "--pid", str(asked), "--interval", "0.2", "--timeout", "0.3") for asked in (pid, other)
        )
    assert owner.code == 1, owner.out
    assert owner.out.startswith("STALLED ")
    assert f"process {pid} (not recognised as part of an engine) is stopped by a signal at both looks, and listens on its port" in owner.out
    assert stranger.code == 3, stranger.out
    assert f"process {other} (not recognised as part of an engine) is stopped" in stranger.out
    assert "does not listen on its port" in stranger.out


def test_a_process_that_was_stopped_for_a_moment_is_no_proof() -> None:
    with stopped_server() as (pid, port):
        os.kill(pid, signal.SIGCONT)
        said = llmdiag("health", f"http://127.0.0.1:{port}", "--pid", str(pid), "--interval", "0.2")
    assert said.code == 3 and "stopped by a signal" not in said.out, said.out


def test_a_worker_that_computes_behind_gauges_of_0_is_asked_when_the_budget_is_over_and_not_before() -> None:
    budget = Budget(floor_s=2.0, probe_s=20.0)
    with engine("loops") as found, serving(Toy()) as server:
        for patience_s, states in ((0.0, {"busy-unproven"}), (60.0, {"idle-proven", "progressing"})):
            watch = Watch(found.worker)
            try:
                settings = Settings(reads=3, interval_s=0.4, patience_s=patience_s, probe_timeout_s=20.0, budget=budget)
                (said,) = Checker(Wire(), [backend_of(server.url)], settings, threading.Event(), watch=watch).once()
            finally:
                watch.close()
            assert said.verdict.state in states, (said, watch.evidence().looks)
            assert len(server.questions) == (0 if patience_s == 0 else 1)


def test_what_answers_after_the_service_of_the_pid_has_ended_is_judged_by_its_reads_alone() -> None:
    with engine("sleeps") as found:
        toy = Toy()

        def handler(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
            if toy.reads == 2 and path == "/metrics":
                os.killpg(found.root, signal.SIGKILL)
                found.process.wait()
            return toy(path, body, headers)

        watch = Watch(found.worker)
        try:
            with serving(handler) as server:
                settings = Settings(reads=5, interval_s=0.3, probe=False)
                (said,) = Checker(Wire(), [backend_of(server.url)], settings, threading.Event(), watch=watch).once()
        finally:
            watch.close()
    assert any(seen.role == "engine_core" for seen in watch.evidence().looks[0].processes), watch.evidence().looks[0]
    assert all(seen.state in "ZX" for seen in watch.evidence().looks[-1].processes), watch.evidence().looks[-1]
    assert (said.verdict.state, said.verdict.exit) == ("idle-unproven", 0), said
    assert said.notes[-1] == SUCCEEDED


def test_a_process_that_lives_while_nobody_listens_is_not_gone() -> None:
    said = llmdiag("health", "http://127.0.0.1:9", "--pid", str(os.getpid()), "--interval", "0.05", "-f", "json")
    assert said.code in (0, 3), said.out


@pytest.mark.parametrize(("which", "role"), [("core", "engine_core"), ("worker", "worker")])
def test_roles_states_and_times_of_the_whole_service(which: str, role: str) -> None:
    with engine("works") as found:
        watch = Watch(found.core)
        try:
            watch.look()
            watch.look()
            evidence = watch.evidence()
        finally:
            watch.close()
    assert not evidence.gone
    first, last = ({seen.pid: seen for seen in look.processes} for look in evidence.looks)
    pid = getattr(found, which)
    assert {found.root, found.core, found.worker} <= set(last)
    assert last[pid].role == role
    assert last[pid].started_at == first[pid].started_at is not None
    assert last[pid].stack, watch.notes
    assert (last[found.worker].cpu_s or 0) > (first[found.worker].cpu_s or 0)


def test_a_pid_that_is_not_there_is_said() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    watch = Watch(process.pid)
    watch.look()
    watch.close()
    assert not watch.evidence().gone, "it was never seen"
    assert len(watch.notes) == 1 and watch.notes[0].startswith(f"there is no process {process.pid}")


def frames(*names: str) -> list[JsonFrame]:
    """Outermost first, as one reads them."""
    return [JsonFrame(name=name, filename="x.py", line=7) for name in reversed(names)]


def test_a_stack_that_only_waits_is_one_stack() -> None:
    polls = stack_text(frames("worker_busy_loop", "MessageQueue.dequeue", "acquire_read", "sched_yield"))
    assert polls == stack_text(frames("worker_busy_loop", "MessageQueue.dequeue", "time"))
    assert polls != stack_text(frames("worker_busy_loop", "execute_model"))
    assert stack_text([]) == ""
