"""Maps that runbooks and open signals print for logs that were not given: each is read, and each of its example lines is an event."""

import re
import tomllib
from pathlib import Path

import pytest

from diag import rules
from diag.parsers import events_map
from diag.parsers.event_rows import Said
from diag.parsers.log_clock import Clock
from diag.tables import HOST_EVENT_KINDS
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

OF_MEMORY = {
    "memory-not-reclaimed": "orphan-holds", "fragmented-after-restart": "fragmented", "standby-contends": "standby-same-card", "manager-single-point": None,
}  # fmt: skip
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"\[\[event\]\] (.*?strikes = \d+)", re.S)


def fences(rule: str) -> list[str]:
    """As they stand in the rule: nothing of them comes from evidence."""
    (found,) = [item for item in rules.load(rules.shipped()) if item.id == rule]
    return FENCE.findall(found.runbook.confirm)


def fenced(report: str) -> list[str]:
    """Code blocks of a report, as a person copies them."""
    found: list[list[str]] = []
    inside = False
    for line in report.splitlines():
        if line.strip().startswith("```"):
            inside = not inside
            found += [[]] if inside else []
        elif inside:
            found[-1].append(line.strip())
    return ["\n".join(lines) + "\n" for lines in found]


def read(text: str, lines: list[str]) -> list[object]:
    """Rows of these lines by this map."""
    found = events_map.read(text, "map.toml")
    file = found.events[0].spec.file.replace("*", "-1")
    assert all(item.wants(file) for item in found.events)
    rows = list(events_map.events(found, file, enumerate(lines, 1), lambda number: f"{file}:{number}", Said(), Clock(2026, "UTC", None)))
    assert list(found.silent()) == []
    return list(rows)


@pytest.mark.parametrize("rule", OF_MEMORY)
def test_a_map_in_a_runbook_is_read_and_its_example_lines_are_events(rule: str) -> None:
    example, text = fences(rule)
    lines = example.splitlines()
    rows = read(text, lines)
    assert len(rows) == len(lines)
    assert all(row.ts is not None and row.kind in HOST_EVENT_KINDS for row in rows)  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 74, "a terminal of 80 columns must not break it"


@pytest.mark.parametrize(("rule", "sample"), [(rule, sample) for rule, sample in OF_MEMORY.items() if sample is not None])
def test_a_report_prints_it_whole_where_the_log_is_missing(rule: str, sample: str, tmp_path: Path) -> None:
    text = fences(rule)[1]
    wanted = tomllib.loads(text)
    for form in ("md", "text") if rule == "memory-not-reclaimed" else ("text",):
        said = llmdiag("report", str(SAMPLES / "device-memory" / sample), "-f", form, COLUMNS="80")
        shown = [tomllib.loads(block) for block in fenced(said.out) if "[[event]]" in block]
        assert wanted in shown, said.out
    if rule != "standby-contends":
        return  # where the log is given nothing is asked for: once is enough
    mapped = tmp_path / "map.toml"
    mapped.write_text(text)
    (tmp_path / "manager-1.log").write_text(fences(rule)[0])
    said = llmdiag("report", str(SAMPLES / "device-memory" / sample), str(tmp_path / "manager-1.log"), "--events-map", str(mapped), "-f", "md")
    assert "Not looked at" not in said.out, said.out


def test_the_one_for_a_missing_manager_is_printed_where_nothing_names_one(tmp_path: Path) -> None:
    said = llmdiag("analyze", str(SAMPLES / "device-memory" / "manager-not-given"), "-f", "json")
    because = [item for rule in said.json["inconclusive"] if rule["rule"] == "manager-single-point" for item in rule["missing"] if item["tables"] == ["host_events.initiator"]]
    assert because, said.json["inconclusive"]
    (found,) = [item for item in rules.load(rules.shipped()) if item.id == "manager-single-point"]
    sql = next(item.sql for item in found.signals if item.id == "manager_gone").replace("''", "'")
    match = INLINE.search(sql)
    assert match is not None
    text = "[[event]]\n" + re.sub(r", (?=\w+ = )", "\n", match[1]) + "\n"
    rows = read(text, ["2026-06-10 10:00:44 engine-manager: starting vllm"])
    assert [row.unit for row in rows] == ["vllm"]  # type: ignore[attr-defined]
