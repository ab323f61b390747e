"""The lab of the third incident: what the tool says of its logs is what its own ledger says, under watchdogs and under `llmdiag health`."""

import datetime
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diag.demos import restart_cascade
from diag.demos.steps import DemoFailed, Settings, Step
from diag.labs import start_lab, wait_until
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

pytestmark = pytest.mark.live

LAB = SAMPLES / "restart-cascade" / "lab.py"
HOURS = 0.65
"""Four restarts, one by each watchdog."""
HANG_S, INTERVAL_S = 900.0, 300.0
END_S = 120.0
KINDS: dict[str, tuple[str, ...]] = {
    "watchdogs": (),
    "calm": ("--no-batch",),
    "flagged": ("--busy-flag",),
    "guarded": ("--health", shlex.join([sys.executable, "-m", "diag.cli"]), "--hang-at", f"{HANG_S:g}"),
}
RESTARTS = "SELECT initiator, how, epoch(killed_at) AS killed_s FROM restarts ORDER BY killed_at"


@dataclass(frozen=True)
class Hours:
    """What one lab left behind."""

    place: Path
    told: Sequence[str]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        return lines(self.place / "ledger.jsonl")

    @property
    def restarts(self) -> list[dict[str, Any]]:
        said = llmdiag("query", str(self.place / "logs"), RESTARTS, *self.told, "--format", "json")
        assert said.code == 0, said.err
        rows: list[dict[str, Any]] = said.json["rows"]
        return rows

    def analysed(self) -> Any:
        return llmdiag("analyze", str(self.place / "logs"), *self.told, "--format", "json").json


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shown(folder: Path, settings: Settings, hours: float) -> list[Step]:
    return list(restart_cascade.show(folder, settings, hours))


@dataclass(frozen=True)
class Afternoon:
    """All that ran at the same time."""

    hours: dict[str, Hours]
    demo: list[Step]
    unhealed: str


@pytest.fixture(scope="module")
def afternoon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Afternoon]:
    """Labs and demos side by side: they mostly wait."""
    folder = tmp_path_factory.mktemp("cascade")
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        places = {name: folder / name for name in ("demo", "unhealed", *KINDS)}
        for place in places.values():
            place.mkdir()
        demo = pool.submit(shown, places["demo"], Settings(), HOURS)
        unhealed = pool.submit(shown, places["unhealed"], Settings(heal=False), HOURS)
        labs = {}
        for name, options in KINDS.items():
            place = places[name]
            args = ("--logs", str(place / "logs"), "--ledger", str(place / "ledger.jsonl"), "--hours", f"{HOURS:g}", *options)
            labs[name] = stack.enter_context(start_lab(LAB, *args, log=place / "lab.log"))
        for name, lab in labs.items():
            wait_until(lambda lab=lab: lab.process.poll() is not None, HOURS * 36 + END_S, every_s=0.1)
            assert lab.process.returncode == 0, f"{name}: {lab.log.read_text()}"
        with pytest.raises(DemoFailed) as failed:
            unhealed.result(END_S)
        told = {name: ("--tz", "UTC", "--events-map", str(places[name] / "events-map.toml")) for name in KINDS}
        yield Afternoon({name: Hours(places[name], told[name]) for name in KINDS}, demo.result(END_S), str(failed.value))


def test_every_restart_is_attributed_as_the_ledger_has_it(afternoon: Afternoon) -> None:
    hours = afternoon.hours["watchdogs"]
    ledger, found = hours.ledger, hours.restarts
    assert len({entry["initiator"] for entry in ledger}) >= 3, ledger
    assert all(entry["healthy"] for entry in ledger), ledger
    assert [row["initiator"] for row in found] == [entry["initiator"] for entry in ledger], (found, ledger)
    assert {row["how"] for row in found} == {"external"}, found
    for row, entry in zip(found, ledger, strict=True):
        asked_s = datetime.datetime.fromisoformat(entry["ts"]).timestamp()
        assert abs(row["killed_s"] - asked_s) < 60, (row, entry)
    diagnosis = hours.analysed()
    assert [(item["rule"], item["verdict"]) for item in diagnosis["findings"]][:1] == [("restart-cascade", "confirmed")], diagnosis["findings"]


@pytest.mark.parametrize("name", ["calm", "flagged"])
def test_nobody_restarts_it_without_the_batch_or_with_its_flag(afternoon: Afternoon, name: str) -> None:
    hours = afternoon.hours[name]
    assert (hours.ledger, hours.restarts) == ([], []), hours.ledger
    assert hours.analysed()["verdict"] == "clear", hours.analysed()["findings"]


def test_under_health_only_a_real_hang_is_restarted(afternoon: Afternoon) -> None:
    hours = afternoon.hours["guarded"]
    (entry,) = hours.ledger
    assert (entry["initiator"], entry["healthy"], entry["state"]) == ("llmdiag-health", False, "stuck"), entry
    rounds = lines(hours.place / "rounds.jsonl")
    after = [item["said"]["exit"] for item in rounds if item["second"] >= HANG_S]
    assert 1 in after[:3] and entry["second"] > HANG_S, rounds
    (row,) = hours.restarts
    assert (row["initiator"], row["how"]) == ("llmdiag-health", "external"), row
    assert not any(item["rule"] == "restart-cascade" and item["verdict"] == "confirmed" for item in hours.analysed()["findings"])


def test_health_asked_a_busy_engine_for_nothing_but_its_metrics(afternoon: Afternoon) -> None:
    place = afternoon.hours["guarded"].place
    before = (place / "logs" / "vllm.log").read_text().partition("[shutdown]")[0]
    asked = re.findall(r'127\.0\.0\.1:\d+ - "(\w+ \S+) HTTP/1\.1" (\d+)', before)
    assert len(asked) > 2, before[-2000:]
    assert set(asked) <= {("GET /metrics", "200"), ("GET /health", "200")}, set(asked)


def test_the_demo_shows_the_cascade_its_diagnosis_and_the_healing(afternoon: Afternoon) -> None:
    said = "\n".join(f"{step.title}\n{step.seen}" for step in afternoon.demo)
    for words in ("no answer within 45 lab seconds", "progressing, exit 0", "Diagnosis: restart-cascade, confirmed", "nobody was restarted", "Then its loop really stopped"):
        assert words in said, said
    assert "Restarted once, for a reason" in afternoon.demo[-1].title, said
    assert "restarted by chat-watchdog" in said and "restarted by error-counter" in said, said


def test_the_demo_fails_where_nothing_is_healed(afternoon: Afternoon) -> None:
    assert "its watchdogs are the old ones" in afternoon.unhealed


def test_the_demo_ends_clear_where_nothing_is_planted(tmp_path: Path) -> None:
    steps = shown(tmp_path, Settings(fault=False), 0.15)
    assert steps[-1].title.startswith("CLEAR"), steps
