"""The JSON Schema of every document that a command prints, against what it really prints: full, empty and inconclusive."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest

from diag import cli, rules
from diag.report import schemas
from tests.conftest import ROOT, SAMPLES
from tests.live.run import Said, llmdiag

OF_COMMAND = {
    "analyze": ("diagnosis", "explain"), "report": ("diagnosis",), "snapshot": ("diagnosis", "snapshot"), "query": ("rows",), "schema": ("tables_of_evidence",),
    "rules list": ("rules",), "rules show": ("rule",), "rules test": ("rule_tests",), "scan-cache": ("cache",), "restore-cache": ("cache",),
    "compare-dumps": ("tensors",), "repro-prefix": ("repro", "repro_plan"), "health": ("health",), "recovery": ("recovery",), "doctor": ("doctor",),
}
ELSEWHERE = {
    "cache": "tests/cache/test_cli.py and tests/cache/test_offline_cli.py", "repro": "tests/repro/test_cli.py", "doctor": "tests/doctor/test_doctor.py",
    "recovery": "tests/recovery/test_cli.py", "health": "tests/health/test_cli.py", "tensors": "tests/tensors/test_compare_cli.py",
}
"""Whose documents are checked beside the servers and files that they need."""
SMALL = str(SAMPLES / "process-ended" / "incident.zip")

Check = Callable[..., Said]


def fits(name: str, document: object) -> None:
    schema = schemas.of(name)
    assert schema is not None, name
    jsonschema.Draft202012Validator(schema).validate(document)


def printed(name: str, code: int, *args: str) -> Any:
    """What a command printed, which its schema describes."""
    said = llmdiag(*args, cwd=ROOT)
    assert said.code == code, said.err
    fits(name, said.json)
    return said.json


def with_json(group: click.Group = cli.cli, before: str = "") -> Iterator[str]:
    """Commands that can print JSON."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from with_json(command, f"{name} ")
        elif any(isinstance(option.type, click.Choice) and "json" in option.type.choices for option in command.params):
            yield before + name


def test_every_command_has_a_schema_and_every_schema_a_command() -> None:
    assert set(OF_COMMAND) == set(with_json())
    assert {name for names in OF_COMMAND.values() for name in names} == set(schemas.names())


@pytest.mark.parametrize("name", schemas.names())
def test_a_schema_is_one_and_says_which(name: str) -> None:
    schema = schemas.of(name)
    assert schema is not None
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:llmdiag:{name}:1"
    assert "llmdiag." in str(schema["title"])
    assert schema["description"]


def test_the_command_prints_them() -> None:
    listed = llmdiag("schema", "--json").out
    assert all(f"\n{name} " in listed for name in schemas.names())
    assert json.loads(llmdiag("schema", "--json", "diagnosis").out) == schemas.of("diagnosis")
    assert json.loads(llmdiag("schema", "--json", "restore").out) == schemas.of("cache"), "restore-cache's is described with scan-cache's"
    refused = llmdiag("schema", "--json", "nonsense")
    assert (refused.code, "llmdiag schema --json lists them" in refused.err) == (2, True)


@pytest.mark.parametrize(("code", "paths"), [(1, [SMALL, SMALL]), (3, ["{odd}"])], ids=str)
def test_a_diagnosis(tmp_path: Path, code: int, paths: list[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing that anybody knows\n")
    document = printed("diagnosis", code, "analyze", *(path.format(odd=tmp_path) for path in paths), "-f", "json")
    assert {1: "matched", 3: "inconclusive"}[code] == document["verdict"]
    assert len(document.get("captures", ())) == (2 if len(paths) == 2 else 0)


def test_an_explanation(tmp_path: Path) -> None:
    printed("explain", 1, "analyze", SMALL, "--explain", "process-ended", "-f", "json")
    blind = printed("explain", 3, "analyze", str(tmp_path), "--explain", "cpu-spin", "-f", "json")
    assert blind["verdict"] == "inconclusive"


def test_rows_and_tables() -> None:
    found = printed("rows", 0, "query", SMALL, "SELECT pid, ts, source FROM threads a, range(1000)", "-f", "json")
    assert (len(found["rows"]), found["more"]) == (1000, True)
    assert printed("rows", 0, "query", SMALL, "SELECT pid FROM threads WHERE pid < 0", "-f", "json") == {
        "schema": "llmdiag.rows/1", "columns": ["pid"], "rows": [], "more": False,
    }
    printed("tables_of_evidence", 0, "schema", "-f", "json")


def test_rules(tmp_path: Path) -> None:
    printed("rules", 0, "rules", "list", "-f", "json")
    shown = printed("rule", 0, "rules", "show", "cpu-spin", "-f", "json")
    assert shown == json.loads(msgspec.json.encode(rules.read(ROOT / "rules" / "cpu-spin.toml")))
    shutil.copy(ROOT / "rules" / "cpu-spin.toml", tmp_path)
    text = (tmp_path / "cpu-spin.toml").read_text()
    (tmp_path / "cpu-spin.toml").write_text(text.partition("[[tests]]")[0] + '[[tests]]\nsample = "cpu-spin/incident"\nexpect = "not matched"\n')
    wrong = printed("rule_tests", 1, "rules", "test", str(tmp_path), "-f", "json")
    assert {result["ok"] for result in wrong} == {False}


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.toml")), ids=lambda path: path.stem)
def test_the_schema_of_rules_holds_for_every_rule(path: Path) -> None:
    fits("rule", json.loads(msgspec.json.encode(rules.read(path))))


def test_the_schema_of_rules_knows_every_key_of_one() -> None:
    mine = schemas.of("rule")
    assert mine is not None
    structs = msgspec.json.schema(rules.Rule)["$defs"]
    known: dict[str, Any] = {"Rule": mine, "Signal": mine["$defs"]["signal"], "ActionTemplate": mine["$defs"]["action"],  # type: ignore[index]
                             "Runbook": mine["properties"]["runbook"], "RuleTest": mine["properties"]["tests"]["items"]}  # type: ignore[index]
    assert {name: sorted(struct["properties"]) for name, struct in structs.items()} == {name: sorted(known[name]["properties"]) for name in structs}
    assert {name: sorted(struct["required"]) for name, struct in structs.items()} == {name: sorted(known[name]["required"]) for name in structs}


def test_a_plan_of_the_experiment(tmp_path: Path) -> None:
    lines = [{"prompt": "a b c d e f g h"}, {"messages": [{"role": "user", "content": "one two three"}]}]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    plan = printed("repro_plan", 0, "repro-prefix", "http://127.0.0.1:9", str(tmp_path / "prompts.jsonl"), "--dry-run", "-f", "json")
    assert {variant["of"] for variant in plan["variants"]} == {0, 1}


@pytest.mark.live
def test_a_snapshot_that_does_not_diagnose(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "\n"
        assert printed("snapshot", 0, "snapshot", str(process.pid), "--dry-run", "-f", "json")["pid"] == process.pid
        kept = printed("snapshot", 0, "snapshot", str(process.pid), "--collect-only", "--window", "0.5", "-o", str(tmp_path / "b.zip"), "-f", "json")
        assert Path(kept["bundle"]).is_file()
        process.communicate("\n")


@pytest.mark.parametrize(("name", "places"), ELSEWHERE.items())
def test_what_is_checked_elsewhere_is(name: str, places: str) -> None:
    assert [place for place in places.split(" and ") if "jsonschema" not in (ROOT / place).read_text(encoding="utf-8")] == [], name
