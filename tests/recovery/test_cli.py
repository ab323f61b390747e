"""`llmdiag recovery` as a person runs it: real captures, JSON by its schema, 80 columns, bad input."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.recovery.markers import OUTAGE
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

SCHEMA = json.loads(resources.files("diag.report").joinpath("recovery.schema.json").read_text(encoding="utf-8"))
REAL = SAMPLES / "vllm-0.32-cpu"


def document(*paths: Path | str) -> dict[str, Any]:
    said = llmdiag("recovery", *map(str, paths), "--date", "2026", "--tz", "UTC", "-f", "json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def test_a_real_start_has_its_stages_and_no_end() -> None:
    (found,) = document(REAL / "idle" / "server.log")["recoveries"]
    stages = {stage["stage"]: stage["seconds"] for stage in found["stages"]}
    assert stages == pytest.approx({
        "detect": None, "stop": None, "reclaim": None, "process": 53.0, "device": 19.0, "weights": 0.548335, "compile": None, "kv_pool": 2.81, "graphs": None,
        "api_up": 1.0, "ready": 0.0, "traffic_switched": None, "warm": None,
    })  # fmt: skip
    assert (found["cause"], found["bottleneck"], found["mttr_s"], found["engine_version"]) == ("start", "process", 79.0, "0.32.0")
    assert sum(stages[stage] or 0 for stage in OUTAGE) + found["unattributed_s"] == pytest.approx(79.0)
    assert {stage["why"] for stage in found["stages"] if stage["stage"] in ("detect", "stop")} == {"no end is seen before this start"}
    assert found["first_request"] is None
    assert found["why"]["first_request"]


def test_a_real_stop_with_requests_in_flight_is_no_crash() -> None:
    start, stop = document(REAL / "sigterm-in-flight.log")["recoveries"]
    assert start["cause"] == "start"
    assert (stop["cause"], stop["how"], stop["requests_lost"], stop["mttr_s"]) == ("external-stop", "external", 6, None)
    assert stop["detection"]["fault_ts"] is None
    assert "6 requests in flight" in stop["says"]


def test_a_real_drill_kill_9_of_the_engine_core_then_a_deploy_under_load() -> None:
    """vLLM 0.32.0 on CPU with six clients; the supervisor's own log says when it restarted. Lines about routes are left out."""
    drill = Path(__file__).parent / "drill"
    first, killed, deployed, _ = document(drill / "server.log", drill / "supervisor.log", "--events-map", drill / "events-map.toml")["recoveries"]
    seconds = {stage["stage"]: stage["seconds"] for stage in killed["stages"]}
    assert first["cause"] == "start"
    assert (killed["cause"], killed["how"], killed["requests_lost"], killed["bottleneck"]) == ("engine-died", "self", 6, "process")
    assert (killed["detection"]["seen_by"], killed["detection"]["command_by"]) == ("engine log", "supervisor")
    assert (seconds["detect"], seconds["process"], killed["mttr_s"]) == pytest.approx((4.87, 56.084, 76.0))
    assert killed["unattributed_s"] < 1.0
    assert (deployed["cause"], deployed["how"], deployed["requests_lost"], deployed["detection"]["command_by"]) == ("external-stop", "external", 6, "deploy")


def test_a_hang_is_counted_from_its_last_progress_and_the_probe_said_later() -> None:
    found = document(SAMPLES / "restarts" / "true-hang")["recoveries"][1]
    assert (found["cause"], found["bottleneck"], found["mttr_from"]) == ("stuck", "detect", "fault")
    assert found["detection"]["probe_later_s"] > 0
    assert found["detection"]["command_by"] == "chat-watchdog"


def test_crashes_have_a_fault_and_kills_have_none() -> None:
    crashes = document(SAMPLES / "restarts" / "crashes")["recoveries"][1:]
    assert {item["cause"] for item in crashes} == {"device-error"}
    kills = document(SAMPLES / "restarts" / "cascade")["recoveries"]
    assert [item["cause"] for item in kills if item["how"] == "external"] == ["external-stop"] * 8


@pytest.mark.parametrize("columns", ["80", "48"])
def test_several_side_by_side_fit_the_terminal(columns: str) -> None:
    said = llmdiag("recovery", str(SAMPLES / "restarts" / "crashes"), COLUMNS=columns, NO_COLOR="1", LC_ALL="C")
    assert said.code == 0, said.err
    assert "\x1b" not in said.out
    assert [line for line in said.out.splitlines() if len(line) > int(columns)] == []
    assert re.search(r"^ +#1 +#2", said.out, re.M)
    assert re.search(r"^  weights +168\.4 s  #+$", said.out, re.M)
    assert "UNATTRIBUTED" in said.out


def test_markdown_for_a_ticket(tmp_path: Path) -> None:
    said = llmdiag("recovery", str(REAL / "idle" / "server.log"), "-f", "md", "-o", str(tmp_path / "recovery.md"))
    assert (said.code, said.out) == (0, "")
    text = (tmp_path / "recovery.md").read_text()
    assert text.startswith("# Recoveries\n\n```text\n")
    assert re.search(r"^  process +53\.0 s  #+$", text, re.M)


@pytest.mark.parametrize(("form", "columns"), [("text", "100"), ("text", "44"), ("md", "100")])
def test_the_bars_are_in_the_report_of_a_diagnosis(form: str, columns: str) -> None:
    said = llmdiag("report", str(SAMPLES / "restarts" / "true-hang"), "-f", form, COLUMNS=columns)
    assert "Where the time of recoveries went" in said.out, said.err
    assert re.search(r"^ +detect +1,376 s" + ("$" if columns == "44" else "  #{40,}$"), said.out, re.M)
    if form == "md":
        assert "- recovery 1: `2026-06-10 08:30:04Z a start; no end is seen before it`\n" in said.out


def test_no_recovery_is_said(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"INFO 06-19 10:00:0{second} [a.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s\n" for second in range(5)))
    said = llmdiag("recovery", str(log))
    assert said.code == 0, said.err
    assert "no start and no end of an engine" in said.out


@pytest.mark.parametrize("content", [b"", b"<html>not a log</html>\n", b"\x00\xff" * 4000])
def test_what_is_no_log_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "what.txt"
    file.write_bytes(content)
    said = llmdiag("recovery", str(file))
    assert said.code == 2, said.out
    assert "Traceback" not in said.err
    assert said.err.startswith("error: "), said.err


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    said = llmdiag("recovery", str(tmp_path / "nothing.log"))
    assert said.code == 2
    assert "nothing.log" in said.err
