"""The lab of the fourth incident: what `llmdiag recovery` says of its logs is what its own ledger says, in each drill; and the demo."""

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diag.demos import slow_recovery
from diag.demos.steps import DemoFailed, Settings, Step
from diag.labs import start_lab, wait_until
from tests.conftest import SAMPLES
from tests.live.run import llmdiag
from tests.live.test_demo import alive, family

pytestmark = pytest.mark.live

LAB = SAMPLES / "slow-recovery" / "lab.py"
MAP = SAMPLES / "slow-recovery" / "events-map.toml"
END_S = 150.0
LABS: dict[str, tuple[str, ...]] = {
    "bad": ("--setup", "bad", "--drill", "kill-under-load"),
    "killed": ("--setup", "good", "--drill", "kill", "--after", "7"),
    "device-error": ("--setup", "good", "--drill", "device-error", "--after", "7"),
}
RUNS = ("good", *LABS)
"""`good` is that of the demo, which asks nothing there itself."""
LINE_S = 1.15
"""A time of the engine's log has whole seconds; between two of its lines it may be one more or less."""
ROUNDED_S, STATED_S = 0.75, 0.15
"""Graphs are told in whole seconds, and the pool is what they leave; other durations are told to a hundredth."""
WITHIN_S: Mapping[str, float] = {
    "detect": LINE_S, "stop": 0.2, "process": LINE_S, "device": LINE_S, "weights": STATED_S, "compile": STATED_S, "kv_pool": ROUNDED_S, "graphs": ROUNDED_S,
    "api_up": LINE_S, "traffic_switched": LINE_S,
}  # fmt: skip
BUILT = ("device", "weights", "compile", "kv_pool", "graphs", "api_up")


@dataclass(frozen=True)
class Drill:
    """What one lab left behind: its ledger, and what the tool says of its logs."""

    ledger: Sequence[dict[str, Any]]
    said: Any

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Recoveries but the first start, in order: one for each engine that was started after the fault."""
        return [item for item in self.said["recoveries"] if item["cause"] != "start"]

    def one(self, what: str, generation: int | None = None) -> dict[str, Any]:
        found = [entry for entry in self.ledger if entry["what"] == what and generation in (None, entry.get("generation"))]
        assert len(found) == 1, (what, generation, found)
        return found[0]

    def all(self, what: str) -> list[dict[str, Any]]:
        return [entry for entry in self.ledger if entry["what"] == what]

    @property
    def last(self) -> int:
        """The generation that became ready."""
        return int(self.all("ready")[-1]["generation"])

    @property
    def fault_s(self) -> float:
        return float(self.one("fault")["second"])

    @property
    def ready_s(self) -> float:
        return float(self.one("api_up", self.last)["end"])

    def truth(self, generation: int) -> dict[str, float]:
        """Seconds of the stages of one attempt."""
        started_s = self.one("started", generation)["second"]
        command_s, gone_s = self.one("command", generation - 1)["second"], self.one("gone", generation - 1)["second"]
        found = {"process": self.one("began", generation)["second"] - started_s}
        for stage in BUILT:
            for entry in self.all(stage):
                if entry["generation"] == generation:
                    found[stage] = entry["end"] - entry["begin"]
        if generation == 2:
            found |= {"detect": command_s - self.fault_s, "stop": gone_s - command_s}
            found["reclaim"] = max(0.0, min(self.one("reclaimed", 1)["end"], started_s) - gone_s)
        if generation == self.last:
            found["traffic_switched"] = self.all("first_answer")[-1]["second"] - self.ready_s
        return found

    def requests(self, outcome: str, begin_s: float, end_s: float) -> list[dict[str, Any]]:
        return [entry for entry in self.all("request") if entry["outcome"] == outcome and begin_s <= entry["second"] <= end_s]


@dataclass(frozen=True)
class Afternoon:
    """All that ran at the same time."""

    drills: Mapping[str, Drill]
    demo: Sequence[Step]
    calm: Sequence[Step]


def shown(folder: Path, settings: Settings) -> list[Step]:
    return list(slow_recovery.run(folder, settings))


def drill_of(logs: Path, ledger: Path) -> Drill:
    said = llmdiag("recovery", str(logs), "--events-map", str(MAP), "--tz", "UTC", "--format", "json")
    assert said.code == 0, said.err
    return Drill([json.loads(line) for line in ledger.read_text().splitlines()], said.json)


@pytest.fixture(scope="module")
def afternoon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Afternoon]:
    """The demo, which is two drills under full load, and two more drills beside it: all of them mostly wait."""
    folder = tmp_path_factory.mktemp("recovery")
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        demo = pool.submit(shown, folder, Settings())
        (folder / "calm").mkdir()
        calm = pool.submit(shown, folder / "calm", Settings(fault=False))
        labs = {}
        for name, options in LABS.items():
            place = folder / name
            place.mkdir()
            labs[name] = stack.enter_context(start_lab(LAB, "--logs", str(place / "logs"), "--ledger", str(place / "ledger.jsonl"), *options, log=place / "lab.log"))
        for name, lab in labs.items():
            wait_until(lambda lab=lab: lab.process.poll() is not None, END_S, every_s=0.1)
            assert lab.process.returncode == 0, f"{name}: {lab.log.read_text()}"
        steps = demo.result(END_S)
        drills = {name: drill_of(folder / name / "logs", folder / name / "ledger.jsonl") for name in LABS}
        drills["good"] = drill_of(folder / "demo-incident-good" / "logs", folder / "demo-incident-good-ledger.jsonl")
        yield Afternoon(drills, steps, calm.result(END_S))


@pytest.mark.parametrize("name", RUNS)
def test_every_stage_is_as_long_as_the_ledger_has_it(afternoon: Afternoon, name: str) -> None:
    drill = afternoon.drills[name]
    assert len(drill.attempts) == drill.last - 1, (drill.last, drill.attempts)
    for generation, found in enumerate(drill.attempts, 2):
        truth = drill.truth(generation)
        told = {stage["stage"]: stage["seconds"] for stage in found["stages"]}
        for stage, within_s in WITHIN_S.items():
            if stage in truth and (generation == drill.last or stage in ("detect", "stop", "process")):
                assert told[stage] == pytest.approx(truth[stage], abs=within_s), (name, generation, stage, told, truth)
    first = {stage["stage"]: stage["seconds"] for stage in drill.attempts[0]["stages"]}
    assert first["reclaim"] == pytest.approx(drill.truth(2)["reclaim"], abs=0.3), first


@pytest.mark.parametrize("name", RUNS)
def test_the_time_to_recover_and_its_bottleneck_are_those_of_the_ledger(afternoon: Afternoon, name: str) -> None:
    drill = afternoon.drills[name]
    begun, ready = (datetime.datetime.fromisoformat(drill.attempts[place][key]) for place, key in ((0, "started_at"), (-1, "ready_at")))
    assert (ready - begun).total_seconds() == pytest.approx(drill.ready_s - drill.fault_s, abs=LINE_S), drill.attempts
    for generation, found in enumerate(drill.attempts, 2):
        if len(drill.attempts) == 1:
            assert found["mttr_s"] == pytest.approx(drill.ready_s - drill.fault_s, abs=LINE_S), found
        truth = drill.truth(generation)
        if generation > 2:  # between its own death and the next command
            truth["detect"] = drill.one("command", generation - 1)["second"] - drill.one("died", generation - 1)["second"]
        assert truth[found["bottleneck"]] >= max(truth.values()) - LINE_S, (found["bottleneck"], truth)


@pytest.mark.parametrize(("name", "cause"), [("bad", "engine-died"), ("good", "engine-died"), ("killed", "engine-died"), ("device-error", "device-error")])
def test_the_cause_is_the_drill_and_who_acted_is_named(afternoon: Afternoon, name: str, cause: str) -> None:
    first = afternoon.drills[name].attempts[0]
    assert (first["cause"], first["detection"]["seen_by"], first["how"]) == (cause, "engine log", "self"), first
    assert (first["detection"]["probe_later_s"] is not None) == (name == "bad"), first["detection"]


def test_a_start_before_the_memory_is_back_fails_for_want_of_it(afternoon: Afternoon) -> None:
    drill = afternoon.drills["bad"]
    assert "less than desired GPU memory utilization" in drill.one("died", 2)["error"]
    assert drill.one("reclaimed", 1)["end"] > drill.one("died", 2)["second"]
    assert [item["cause"] for item in drill.attempts[1:]] == ["out-of-memory"] * (len(drill.attempts) - 1), drill.attempts


@pytest.mark.parametrize("name", RUNS)
def test_lost_requests_are_those_that_clients_saw_fail(afternoon: Afternoon, name: str) -> None:
    drill = afternoon.drills[name]
    first = drill.attempts[0]
    end_s = drill.ready_s if len(drill.attempts) == 1 else drill.one("started", 2)["second"]
    lost = len(drill.requests("failed", drill.fault_s, end_s))
    if name != "bad":  # the router knows of clients that left, and logs 503
        lost += len(drill.requests("left", drill.fault_s, end_s))
    assert first["requests_lost"] == pytest.approx(lost, abs=1), (first["requests_lost"], lost)
    assert lost > 0


@pytest.mark.parametrize("name", RUNS)
def test_the_first_requests_are_as_slow_as_clients_found_them(afternoon: Afternoon, name: str) -> None:
    drill = afternoon.drills[name]
    ready_s = drill.ready_s
    took = sorted(min(entry["second"] - entry["sent"], entry["second"] - ready_s) for entry in drill.requests("ok", ready_s, ready_s + 60.0)[:100])
    p99_s = took[-(-len(took) * 99 // 100) - 1]
    told = drill.attempts[-1]["first_request"]
    assert told["p99_s"] == pytest.approx(p99_s, abs=LINE_S + 0.35), (told, took[-5:])


def test_under_load_the_bad_set_up_is_diagnosed_and_of_the_good_one_nothing_but_its_death_is_told(afternoon: Afternoon) -> None:
    bad = {item["rule"] for item in afternoon.drills["bad"].said["diagnosis"]["findings"]}
    assert {"slow-detect", "memory-not-reclaimed", "expired-queue"} <= bad, bad
    good = afternoon.drills["good"].said["diagnosis"]
    assert (good["verdict"], good["findings"], len(good["subject"]["deaths"])) == ("inconclusive", [], 1), good["subject"]


def test_the_demo_shows_both_and_what_was_gained(afternoon: Afternoon) -> None:
    said = "\n".join(f"{step.title}\n{step.seen}" for step in afternoon.demo)
    for words in ("the question waits in the router's queue", "llmdiag recovery, of what is set up badly", "slow-detect, confirmed", "Side by side"):
        assert words in said, said
    assert "a start that failed" in said or "reclaim memory" in said, said  # on a busy machine the second start comes late enough
    assert afternoon.demo[-1].title == "Healed", said
    good = afternoon.drills["good"]
    took = re.search(r"took (\d+) s, then (\d+) s", afternoon.demo[-1].seen)
    assert took is not None, afternoon.demo[-1]
    assert float(took[2]) == pytest.approx(good.ready_s - good.fault_s, abs=LINE_S + 0.5), took


def test_a_demo_that_gains_nothing_fails(afternoon: Afternoon) -> None:
    bad = {**slow_recovery.stages(afternoon.drills["bad"].attempts), "lost": 1.0}
    with pytest.raises(DemoFailed, match="nothing is healed"):
        list(slow_recovery.compared(bad, bad))


def test_the_demo_ends_clear_where_nothing_dies(afternoon: Afternoon) -> None:
    assert afternoon.calm[-1].title.startswith("CLEAR"), afternoon.calm


def test_a_lab_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    argv = [sys.executable, str(LAB), "--logs", str(tmp_path / "logs"), "--ready-fd", str(theirs)]
    lab = subprocess.Popen(argv, pass_fds=(theirs,), stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(theirs)
    try:
        with os.fdopen(ours) as ready:
            assert json.loads(ready.readline())["ready"] is True
        below = family(lab.pid)
        assert len(below) >= 6, below  # holder, router, manager, API server, core, clients
    finally:
        lab.kill()
        lab.wait(END_S)
    wait_until(lambda: not alive(below), END_S)
