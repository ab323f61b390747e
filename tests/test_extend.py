"""A collector, a view and a rule dropped into folders of their own work together; no existing file is touched."""

from pathlib import Path

from diag import engine, evidence, rules
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
