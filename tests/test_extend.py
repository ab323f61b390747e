"""A collector, a view and a rule dropped into folders of their own work together; no existing file is touched."""

from pathlib import Path

import pytest

from diag import engine, evidence, rules
from diag.errors import SqlError
from diag.evidence import Extras
from tests.test_rules import GOOD

COLLECTOR = '''
"""Fans of the machine.

Sample: fan1 4200
"""
from diag.tables import table
NAME = "fans"
FEEDS = ("fans",)
NEEDS = ()
TABLES = (table("fans", "Fans", "fan VARCHAR: name", "rpm BIGINT: turns per minute"),)
BUDGET_S = 1.0
BUDGET_BYTES = 1000
HINT = "llmdiag snapshot {pid}"
def collect(patient, door):
    door.text("fans.txt", "fan1 4200")
    return
    yield
def recognise(name, head):
    return name == "fans.txt"
def parse(artefacts):
    for artefact in artefacts:
        for number, line in artefact.lines():
            fan, rpm = line.split()
            yield "fans", {"source": artefact.at(number), "fan": fan, "rpm": int(rpm)}
'''
VIEW = "-- Fans that run too fast\n-- col rpm: turns per minute\nSELECT bundle, host, capture, source, fan, rpm FROM fans WHERE rpm > 4000\n"
DERIVATION = '''
from diag.tables import table
NEEDS = ("fast_fans",)
GIVES = (table("fan_count", "How many", "fans BIGINT: number"),)
def derive(frames):
    import pandas as pd
    return {"fan_count": pd.DataFrame([{"fans": len(frames["fast_fans"])}])}
'''


STUMBLES = """
from diag.tables import table
NEEDS = ("processes",)
GIVES = (table("odd", "Odd", "n BIGINT: number"),)
def derive(frames):
    import pandas as pd
    {}
"""


@pytest.mark.parametrize(("body", "says"), [
    ("raise ValueError('1.2.3')", "internal error: ValueError: 1.2.3"), ('return {"odd": pd.DataFrame([{"n": 10**30}], dtype=object)}', "1 values of n cannot be"),
])  # fmt: skip
def test_a_derivation_that_stumbles_over_evidence_costs_its_tables_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str) -> None:
    """Not in tests: there (LLMDIAG_STRICT) it is a failure."""
    (tmp_path / "derivations").mkdir()
    (tmp_path / "derivations" / "odd.py").write_text(STUMBLES.replace("{}", body, 1))
    (tmp_path / "ps.txt").write_text("PID PPID STAT COMMAND\n7 1 S python\n")
    extras = Extras(derivations=(tmp_path / "derivations",))
    monkeypatch.delenv("LLMDIAG_STRICT", raising=False)
    case = evidence.open_paths([tmp_path / "ps.txt"], extras=extras)
    assert [item.reason for item in case.collected if item.table_name == "odd" and says in (item.reason or "")], case.collected
    assert case.rows("SELECT pid FROM processes", "test", 9)[0] == [{"pid": 7}]
    assert "odd" in case.unseen(case.reads("SELECT n FROM odd", "test"))
    assert case.rows("SELECT status FROM collected WHERE table_name = 'odd'", "test", 9)[0] == [{"status": "partial"}]
    monkeypatch.setenv("LLMDIAG_STRICT", "1")
    with pytest.raises((ValueError, SqlError)):
        evidence.open_paths([tmp_path / "ps.txt"], extras=extras)


def test_collector_view_derivation_and_rule(tmp_path: Path) -> None:
    for folder, name, text in (
        ("collectors", "fans.py", COLLECTOR), ("views", "fast_fans.sql", VIEW), ("derivations", "fan_count.py", DERIVATION),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "fans.txt").write_text("fan1 4200\nfan2 900\n")
    extras = Extras((tmp_path / "collectors",), (tmp_path / "views",), (tmp_path / "derivations",))
    case = evidence.open_paths([tmp_path / "loose"], extras=extras)
    assert list(case.frame("fast_fans")["fan"]) == ["fan1"]
    assert list(case.frame("fan_count")["fans"]) == [1]
    assert case.base_tables(["fan_count"]) == {"fans"}
    rule_path = tmp_path / "mine.toml"
    rule_path.write_text(GOOD.replace("SELECT name, source FROM threads", "SELECT fan AS name, source FROM fast_fans"))
    found = engine.judge(case, rules.read(rule_path), {})
    assert found.signals[0].says == ("fan1",)
    assert found.signals[0].rows[0]["source"] == "fans.txt:1"
