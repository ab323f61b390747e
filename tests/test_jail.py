"""What strangers' SQL and templates may not do, and that the error names the rule, the signal and the bound."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from diag import jail
from diag.errors import LlmdiagError, RuleError, SqlError
from diag.sources import Dates

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c"
ROW = "SELECT 1 AS n"
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
RULE = '''
schema = 1
id = "greedy"
title = "t"
severity = "low"
about = "a"
[[signals]]
id = "first"
role = "required"
says = "x"
sql = "SELECT 1 AS n"
[[signals]]
id = "second"
role = "support"
says = "{n}"
sql = """%(sql)s"""
[runbook]
confirm = "%(confirm)s"
stop_the_bleeding = "s"
fix = "f"
prevent = "p"
[[tests]]
sample = "x"
expect = "likely"
'''
DEADLINES_S = (3.0, 6.0, 12.0, 24.0, 48.0)
"""The first that is enough to load one small file counts; what is asked for here takes for ever."""


def outrun(ask: Callable[[float], object], deadlines_s: Sequence[float] = DEADLINES_S) -> tuple[LlmdiagError, float]:
    """The error that a run ends with, and the deadline it had; a machine too busy to come so far is given more time."""
    for deadline_s in deadlines_s:
        with pytest.raises(LlmdiagError) as error:
            ask(deadline_s)
        if "loading the evidence" not in error.value.message:
            break
    return error.value, deadline_s


def caught(tmp_path: Path, sql: str = ROW, confirm: str = "c", deadlines_s: Sequence[float] = DEADLINES_S) -> tuple[LlmdiagError, float]:
    (tmp_path / "metrics1.txt").write_text("# TYPE a gauge\na 1\n")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "greedy.toml").write_text(RULE % {"sql": sql, "confirm": confirm})
    return outrun(lambda deadline_s: jail.analyse([tmp_path / "metrics1.txt"], tmp_path / "rules", Dates(), deadline_s=deadline_s), deadlines_s)


def test_endless_sql_of_a_rule_is_named(tmp_path: Path) -> None:
    error, deadline_s = caught(tmp_path, sql=ENDLESS)
    assert isinstance(error, RuleError)
    assert error.message == f"{tmp_path / 'rules' / 'greedy.toml'}: signal second did not end within {deadline_s:.0f} s and was stopped"
    assert "query" not in str(error)
    assert "llmdiag rules test" in error.hint


def test_an_endless_runbook_is_named(tmp_path: Path) -> None:
    error, _ = caught(tmp_path, confirm=NESTED)
    assert "rules/greedy.toml: signal second: its texts, or the actions and the runbook after it did not end within" in error.message


@pytest.mark.parametrize("confirm", ["{{ range(10**9)|list }}", "{{ 'a' * 10**11 }}"])
def test_a_greedy_runbook_is_named(tmp_path: Path, confirm: str) -> None:
    error, _ = caught(tmp_path, confirm=confirm, deadlines_s=[60])
    assert "rules/greedy.toml" in error.message
    assert "runbook" in error.message
    assert "query" not in str(error)


def test_a_greedy_rule_is_named(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    with contextlib.chdir(tmp_path / "cwd"):
        error, _ = caught(tmp_path, sql="SELECT list(a.range * b.range) AS n FROM range(100000) a, range(100000) b", deadlines_s=[60])
    assert list((tmp_path / "cwd").iterdir()) == []
    assert error.hint == "narrow it, or join fewer tables"
    assert "rules/greedy.toml: signal second" in error.message
    assert "query" not in str(error)


def test_a_query_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "metrics1.txt").write_text("# TYPE a gauge\na 1\n")
    error, deadline_s = outrun(lambda deadline_s: jail.query([tmp_path / "metrics1.txt"], ENDLESS, deadline_s=deadline_s))
    assert isinstance(error, SqlError)
    assert f"the query did not end within {deadline_s:.0f} s" in error.message
    assert error.hint == "narrow it, or join fewer tables"


def test_evidence_that_takes_too_long_is_not_called_a_query(tmp_path: Path) -> None:
    (tmp_path / "metrics1.txt").write_text("# TYPE a gauge\na 1\n")
    with pytest.raises(SqlError, match="loading the evidence did not end within 0 s"):
        jail.query([tmp_path / "metrics1.txt"], "SELECT 1", deadline_s=0.01)
