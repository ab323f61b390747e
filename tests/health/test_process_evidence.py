"""What real processes prove when no counter moves: at work, stopped, dead, gone. Nobody is stopped by looking."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    with engine("sleeps") as found:
        os.killpg(found.root, signal.SIGKILL)
        found.process.wait()
        gone = health(found)
        alone = llmdiag("health", found.url, "--interval", "0.05", "-f", "json")
    assert (gone.json["backends"][0]["state"], gone.code) == ("unreachable", 1), gone.out
    assert "its process is gone" in gone.json["backends"][0]["reason"]
    assert (alone.json["backends"][0]["state"], alone.code) == ("unreachable", 3), "nobody said whose process it was"


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
    assert watch.evidence().gone
    assert watch.notes == [f"there is no process {process.pid}"]


def frames(*names: str) -> list[JsonFrame]:
    """Outermost first, as one reads them."""
    return [JsonFrame(name=name, filename="x.py", line=7) for name in reversed(names)]


def test_a_stack_that_only_waits_is_one_stack() -> None:
    polls = stack_text(frames("worker_busy_loop", "MessageQueue.dequeue", "acquire_read", "sched_yield"))
    assert polls == stack_text(frames("worker_busy_loop", "MessageQueue.dequeue", "time"))
    assert polls != stack_text(frames("worker_busy_loop", "execute_model"))
    assert stack_text([]) == ""
