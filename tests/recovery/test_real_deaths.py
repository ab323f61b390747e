"""A real vLLM 0.32.0 that was killed in four ways: causes and stages, against the times that were noted when it was done."""

import datetime
import json
from functools import lru_cache
from typing import Any, cast

import pytest

from diag import evidence
from diag.report import recovery as report
from diag.sources import Dates
from tests.conftest import SAMPLES

DEATHS = SAMPLES / "vllm-0.32-deaths"
SECOND = pytest.approx(0, abs=1.1)
"""vLLM's log has whole seconds."""


@lru_cache
def recovery(name: str, *, journal: bool = True) -> dict[str, Any]:
    """The only one there is, as JSON has it."""
    dates = Dates(2026, "UTC")
    loaded = evidence.open_paths([DEATHS / name] if journal else [DEATHS / name / "server.log"], dates=dates)
    found_rows, stage_rows = (loaded.rows(f"SELECT * FROM {table}", "test", 99)[0] for table in ("recoveries", "recovery_stages"))
    said: Any = report.document(found_rows, stage_rows, {})["recoveries"]
    (found,) = json.loads(json.dumps(said))
    return cast("dict[str, Any]", found)


def since(text: str, clock: str) -> float:
    """Seconds from a noted time of the day to a time of the report."""
    noted = datetime.datetime.fromisoformat(f"2026-11-30T{clock}+00:00")
    return (datetime.datetime.fromisoformat(text.replace("Z", "+00:00")) - noted).total_seconds()


def seconds(found: dict[str, Any]) -> dict[str, float]:
    return {stage["stage"]: stage["seconds"] for stage in found["stages"] if stage["seconds"] is not None}


@pytest.mark.parametrize(("name", "cause", "how", "lost"), [
    ("core-killed", "engine-died", "self", 6), ("worker-killed", "worker-died", "self", 6),
    ("stopped-under-load", "external-stop", "external", 6), ("api-killed", "unknown", "auto", 6),
])  # fmt: skip
def test_causes(name: str, cause: str, how: str, lost: int) -> None:
    found = recovery(name)
    assert (found["cause"], found["how"], found["requests_lost"]) == (cause, how, lost), found["says"]


@pytest.mark.parametrize(("name", "cause"), [
    ("core-killed", "engine-died"), ("worker-killed", "worker-died"), ("stopped-under-load", "external-stop"), ("api-killed", "unknown"),
])  # fmt: skip
def test_causes_by_the_log_of_the_engine_alone(name: str, cause: str) -> None:
    found = recovery(name, journal=False)
    assert found["cause"] == cause, found["says"]
    seen_from = ("process", "start") if name == "api-killed" else ("unattributed", "command" if name == "stopped-under-load" else "fault")
    assert (found["bottleneck"], found["mttr_from"]) == seen_from, "what nobody wrote down is not shared out"


@pytest.mark.parametrize(("name", "killed", "ready", "stages"), [
    ("core-killed", "16:36:46.48", "16:37:14.55", {"detect": 7.676, "process": 11.321, "device": 6.0, "weights": 0.112, "kv_pool": 0.39, "api_up": 1.0, "ready": 0.0}),
    ("worker-killed", "16:38:15.97", "16:38:45.70", {"detect": 5.438, "process": 12.549, "device": 9.0, "weights": 0.113, "kv_pool": 0.37, "api_up": 1.0, "ready": 0.0}),
    ("stopped-under-load", "16:40:04.18", "16:41:36.41", {"stop": 59.683, "process": 13.313, "device": 11.0, "weights": 0.136, "kv_pool": 0.47, "api_up": 1.0, "ready": 0.0}),
    ("api-killed", "16:48:45.50", "16:50:49.12", {"detect": 23.086, "process": 80.217, "device": 16.0, "weights": 0.191, "kv_pool": 0.48, "api_up": 1.0, "ready": 0.0}),
])  # fmt: skip
def test_stages_and_the_whole_against_what_was_noted(name: str, killed: str, ready: str, stages: dict[str, float]) -> None:
    """Answers of /health are polled, so that they come a moment later than the log says."""
    found = recovery(name)
    assert seconds(found) == pytest.approx(stages, abs=0.001)
    begun = found["detection"]["fault_ts"] or (found["stages"][0]["ts"] if name == "api-killed" else found["detection"]["command_ts"])
    assert since(begun, killed) == SECOND
    assert since(begun, ready) + found["mttr_s"] == pytest.approx(0, abs=2.0), "ready, by the report and by /health"
    assert sum(stages.values()) + found["unattributed_s"] == pytest.approx(found["mttr_s"], abs=0.01)
    assert found["unattributed_s"] < 6


def test_an_api_server_that_waits_for_its_clients_is_slow_to_stop() -> None:
    found = recovery("stopped-under-load")
    assert (found["bottleneck"], found["mttr_from"]) == ("stop", "command")


def test_a_death_that_no_line_tells_is_no_hang_and_loses_nobody_knows_how_many() -> None:
    found = recovery("api-killed", journal=False)
    assert (found["cause"], found["how"], found["requests_lost"]) == ("unknown", "unknown", None)
    assert found["says"].endswith("whether it hung or died is not told; last progress at 2026-11-30 16:48:41"), found["says"]
    assert found["detection"]["fault_ts"] is None, "nobody saw it"
    assert found["why"]["requests_lost"] == "nothing tells"


def test_the_time_until_somebody_started_it_again_is_detection() -> None:
    """The script that did it saw the end at once, and then waited for the orphans."""
    found = recovery("api-killed")
    detect = found["stages"][0]
    assert (detect["stage"], detect["basis"], detect["source"]) == ("detect", "events", "supervisor.log:1"), detect
    assert (found["detection"]["seen_by"], found["detection"]["command_by"], found["mttr_from"]) == (None, "supervisor", "stop")
