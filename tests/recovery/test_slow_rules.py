"""The rules about what was slow in a recovery: what they print can be used, their borders, and that they never hide a cause."""

import datetime
import re
import runpy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from diag import engine, evidence, rules
from diag.evidence import Evidence
from diag.model import RuleResult
from diag.parsers import events_map
from tests.conftest import SAMPLES, MakeCase

MINE = ("expired-queue", "recovered-not-warm", "slow-compile", "slow-detect", "slow-traffic-switch", "slow-weights", "thundering-readmission")
OWN_LOGS = ("router.log", "watchdog.log", "events-map.toml")
RULES = {rule.id: rule for rule in rules.load(rules.shipped())}
SNIPPET = re.compile(r"^```toml\n(.*?)^```$", re.M | re.S)
EXAMPLE = re.compile(r"^ {7}(\d{4}-.*)$", re.M)
IN_A_LINE = re.compile(r"each key on a line of its own: \[\[event\]\] (.*?) for lines such as: (\d{4}-\S+ \S+ [^;.]*)")


def opened(sample: str, tmp_path: Path, without: Sequence[str] = ()) -> Evidence:
    """A sample of samples/recoveries, some of its files left out."""
    folder = tmp_path / sample
    folder.mkdir()
    for path in (SAMPLES / "recoveries" / sample).iterdir():
        if path.name not in without:
            (folder / path.name).write_bytes(path.read_bytes())
    return evidence.open_paths([folder])


def judged(found: Evidence, rule: str) -> RuleResult:
    return engine.judge(found, RULES[rule], {"evidence": ("EVIDENCE",), "bundle": "EVIDENCE"})


def read_back(snippet: str, examples: Sequence[str], tmp_path: Path) -> list[str]:
    """Kinds of the events that the examples are, by the map, as a user would hand both in."""
    mapped = tomllib.loads(snippet)["event"]
    log = tmp_path / mapped[0]["file"].replace("*", "-1")
    log.write_text("".join(f"{line}\n" for line in examples))
    (tmp_path / "map.toml").write_text(snippet)
    rows, _ = evidence.open_paths([log, tmp_path / "map.toml"]).rows("SELECT kind, ts, source FROM host_events ORDER BY source", "test", 100)
    assert all(row["ts"] is not None for row in rows), rows
    return sorted(str(row["kind"]) for row in rows)


@pytest.mark.parametrize(
    ("rule", "sample"),
    [
        ("slow-detect", "slow-detect"), ("slow-traffic-switch", "slow-switch"), ("thundering-readmission", "thundering"), ("expired-queue", "expired-queue"),
        ("recovered-not-warm", "not-warm"),
    ],
)  # fmt: skip
def test_the_map_in_a_runbook_reads_the_lines_beside_it(rule: str, sample: str, tmp_path: Path) -> None:
    """Printed where the log of the site's own router or manager was not handed in, and only there."""
    found = judged(opened(sample, tmp_path, without=OWN_LOGS), rule)
    assert found.verdict.value in ("confirmed", "likely"), found.verdict
    confirm = found.runbook["confirm"]
    (snippet,) = SNIPPET.findall(confirm)
    kinds = [item.spec.kind for item in events_map.read(snippet, "map.toml").events]
    assert read_back(snippet, EXAMPLE.findall(confirm), tmp_path) == sorted(kinds)
    assert [kind for kind in kinds if kind not in confirm.split("```")[0]] == []
    (tmp_path / "whole").mkdir()
    assert "```" not in judged(opened(sample, tmp_path / "whole"), rule).runbook["confirm"]


@pytest.mark.parametrize(("rule", "without"), [("slow-traffic-switch", ("access.log", *OWN_LOGS)), ("slow-detect", ("journal.log", *OWN_LOGS))])
def test_the_map_in_a_reason_reads_its_line(rule: str, without: Sequence[str], tmp_path: Path) -> None:
    """What could not be looked at says how to make it so."""
    found = judged(opened("slow-detect" if rule == "slow-detect" else "slow-switch", tmp_path, without), rule)
    assert found.verdict.value == "inconclusive"
    because = " ".join(signal.because for signal in found.signals if signal.role == "required")
    ((keys, example),) = IN_A_LINE.findall(because)
    snippet = "[[event]]\n" + re.sub(r", (?=\w+ = )", "\n", keys) + "\n"
    assert read_back(snippet, [example], tmp_path) == [tomllib.loads(snippet)["event"][0]["kind"]]


def test_the_samples_are_what_their_generator_writes(tmp_path: Path) -> None:
    folder = SAMPLES / "recoveries"
    runpy.run_path(str(folder / "write.py"))["main"](tmp_path)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    shipped = {path.relative_to(folder): path.read_bytes() for path in folder.glob("*/*") if path.parent.name != "__pycache__"}
    assert written == shipped
    assert {path.parts[0] for path in written} == set(tomllib.loads((folder / "sample.toml").read_text())["samples"])


def test_they_are_advice_and_come_after_any_cause() -> None:
    for rule in MINE:
        assert RULES[rule].severity in ("medium", "low"), rule
        assert "false-positive-probe" in RULES[rule].explained_by, rule


def test_a_cause_comes_first_and_takes_them_along() -> None:
    found = evidence.open_paths([SAMPLES / "restarts" / "crashes"])
    result = engine.diagnose(found, list(RULES.values()), {}, {})
    assert [item.rule for item in result.findings] == ["cuda-illegal-access"]  # what it dies of, again and again
    assert "crash-loop" in result.folded["cuda-illegal-access"]
    assert "slow-weights" in result.folded["crash-loop"]


def test_two_slow_things_are_both_told_the_likelier_to_help_first(make_case: MakeCase) -> None:
    rows = recovery(detect_s=40.0, weights_s=120.0, mttr_s=200.0)
    case = make_case(rows, ("log_events", "http_events", "host_events"))
    found = engine.diagnose(case, [RULES[rule] for rule in MINE], {}, {})
    assert [item.rule for item in found.findings] == ["slow-detect", "slow-weights"]


AT = datetime.datetime(2026, 6, 10, 9, 30)


def recovery(detect_s: float, weights_s: float, mttr_s: float, other_s: float = 1.0) -> dict[str, list[Mapping[str, object]]]:
    """Log and journal of one engine that died with a device error, so that its stages take so long."""
    def line(second: float, event: str, message: str) -> Mapping[str, object]:
        return {"ts": str(AT + datetime.timedelta(seconds=second)), "file": "vllm.log", "line": int(second * 10) + 1000, "event": event, "message": message, "pid": 7}

    def happened(second: float, kind: str, initiator: str | None) -> Mapping[str, object]:
        return {"ts": str(AT + datetime.timedelta(seconds=second)), "origin": "journald", "kind": kind, "unit": "vllm.service", "initiator": initiator, "detail": kind}

    begun = detect_s + 1
    lines = [
        line(-60, "startup", "non-default args: {}"), line(-50, "ready", "Application startup complete."),
        line(-1, "engine_stats", "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs"),
        line(0, "cuda_error", "CUDA error: unspecified launch failure"), line(0, "fatal", "EngineCore encountered a fatal error."),
        line(begun, "startup", "non-default args: {}"), line(begun + 1, "engine_init", "Initializing a V1 LLM engine (v0.18.1) with config: x"),
        line(begun + 1 + other_s, "weights_loading", "Starting to load model x..."),
        line(begun + 2 + other_s + weights_s, "weights_loaded", f"Loading weights took {weights_s} seconds"),
        line(mttr_s, "ready", "Application startup complete."),
    ]  # fmt: skip
    events = [happened(detect_s, "killing", None), happened(detect_s + 0.5, "stop", None), happened(begun, "start", None)]
    return {"log_events": lines, "host_events": events}


@pytest.mark.parametrize(
    ("detect_s", "mttr_s", "held"),
    [
        (10.0, 60.0, False), (10.5, 60.0, True),  # looks every 5 s take more than 10 s
        (20.0, 201.0, False), (20.0, 199.0, True),  # below a tenth it hardly matters
        (3.0, 5.5, False), (3.5, 6.9, True), (3.5, 7.1, False),  # three seconds will do, where nothing else takes longer
    ],
)  # fmt: skip
def test_when_noticing_is_slow(make_case: MakeCase, detect_s: float, mttr_s: float, held: bool) -> None:
    found = judged(make_case(recovery(detect_s, 0.2, mttr_s, 0.2), ("log_events", "host_events")), "slow-detect")
    assert (found.verdict.value == "confirmed") is held, [signal.near for signal in found.signals]


def test_a_back_off_is_no_slow_noticing(make_case: MakeCase) -> None:
    rows = recovery(40.0, 0.2, 60.0, 0.2)
    rows["host_events"].append({**rows["host_events"][0], "ts": str(AT + datetime.timedelta(seconds=10)), "kind": "back_off", "initiator": "kubelet"})
    assert judged(make_case(rows, ("log_events", "host_events")), "slow-detect").verdict.value == "not matched"


@pytest.mark.parametrize(
    ("weights_s", "mttr_s", "other_s", "held"),
    [(51.0, 100.0, 1.0, True), (49.0, 100.0, 1.0, False), (10.0, 19.0, 1.0, True), (9.5, 18.0, 1.0, False), (30.0, 70.0, 31.0, False)],
)
def test_when_loading_weights_is_slow(make_case: MakeCase, weights_s: float, mttr_s: float, other_s: float, held: bool) -> None:
    found = judged(make_case(recovery(2.5, weights_s, mttr_s, other_s), ("log_events", "host_events")), "slow-weights")
    assert (found.verdict.value == "likely") is held, [signal.near for signal in found.signals]


@pytest.mark.parametrize("rule", ["slow-weights", "slow-compile", "slow-detect"])
def test_a_stop_that_somebody_asked_for_is_not_judged(make_case: MakeCase, rule: str) -> None:
    rows = recovery(1.0, 80.0, 100.0)
    rows["log_events"] = [line for line in rows["log_events"] if line["event"] not in ("fatal", "cuda_error")]
    found = judged(make_case(rows, ("log_events", "host_events")), rule)
    assert found.verdict.value == "not matched"
    assert make_case(rows, ("log_events", "host_events")).rows("SELECT cause FROM recoveries WHERE ready_ts IS NOT NULL AND cause <> 'start'", "test", 9)[0] == [{"cause": "external-stop"}]
