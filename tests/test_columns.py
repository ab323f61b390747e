"""Values that are not what a column says become unknown, and are said; all others stay as they are."""

import datetime

import duckdb
import pytest

from diag import columns, evidence
from diag.model import Artefact
from diag.sources import Source
from diag.tables import table
from tests.conftest import MakeCase

TABLE = table("t", "test", "n BIGINT: a number", "x DOUBLE: a number", "ok BOOLEAN: a flag", "ts TIMESTAMP: a time", "name VARCHAR: a text")
NOON = datetime.datetime(2026, 11, 30, 12)


def loaded(column: str, values: list[object]) -> tuple[list[object], int]:
    """What DuckDB holds of one column, and how many values did not fit."""
    frame, misfits = columns.frame(TABLE, [{column: value, "source": f"a:{number}"} for number, value in enumerate(values)])
    kind = {item.name: item.type for item in TABLE.columns}[column]
    with duckdb.connect(":memory:") as connection:
        connection.register("incoming", frame)
        found = connection.execute(f'SELECT CAST("{column}" AS {kind}) FROM incoming').fetchall()
    return [row[0] for row in found], sum(item.count for item in misfits)


@pytest.mark.parametrize(("column", "good", "bad"), [
    ("n", [0, 1, -5, 2**63 - 1, -(2**63), None, 3.0, True], [2**63, -(2**63) - 1, 1e300, float("inf"), 1.5, "many", [1], {}, b"1", 10**400]),
    ("x", [0, 1.5, -1e308, 2**63, None], [10**400, "long", [1.0], {}]),
    ("ok", [True, False, None], ["maybe", 2, [], 1e300]),
    ("ts", [NOON, NOON.replace(tzinfo=datetime.UTC), None, "2026-11-30T12:00:00"], ["yesterday", "2026-13-45", 7, [], "9" * 30, datetime.datetime.min, datetime.datetime.max, "0001-01-01T00:00:00"]),
    ("name", ["", "x", "é", "\0", None], [[1], {"a": 1}, b"x"]),
])
def test_what_fits_stays_and_what_does_not_is_unknown(column: str, good: list[object], bad: list[object]) -> None:
    alone, none = loaded(column, good)
    assert none == 0
    for value in bad:
        found, misfits = loaded(column, [*good, value])
        assert (found, misfits) == ([*alone, None], 1), value
    assert loaded(column, [*bad, *good]) == ([*[None] * len(bad), *alone], len(bad))


def test_texts_that_are_no_unicode_are_shown_by_their_escapes() -> None:
    assert loaded("name", ["a\ud800", "b"]) == (["a\\ud800", "b"], 0)
    assert loaded("name", [7, True, 1.5, "x"]) == (["7", "true", "1.5", "x"], 0)


def test_times_are_utc() -> None:
    east = datetime.timezone(datetime.timedelta(hours=5))
    assert loaded("ts", [NOON.replace(tzinfo=east), "no"]) == ([datetime.datetime(2026, 11, 30, 7), None], 1)


def test_a_misfit_makes_its_table_not_collected_and_names_the_place(make_case: MakeCase) -> None:
    case = make_case({"threads": [{"pid": 1, "tid": 1}, {"pid": 2**70, "tid": 2}]}, collected=["threads"])
    assert case.rows("SELECT pid FROM threads ORDER BY tid", "test", 9)[0] == [{"pid": 1}, {"pid": None}]
    said = [item for item in case.collected if item.status != "ok"]
    assert [(item.table_name, item.status) for item in said] == [("threads", "partial")]
    assert "rows.jsonl:2" in (said[0].reason or "")
    assert case.unseen(case.reads("SELECT pid FROM threads", "test")) == ("threads",)


@pytest.mark.parametrize(("error", "words"), [(RecursionError(), "nested too deep"), (MemoryError(), "more memory"), (KeyError("x"), "internal error: KeyError")])
def test_a_parser_that_stumbles_costs_its_tables_only(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    """Not in tests: there (LLMDIAG_STRICT) it is a failure."""

    class Stumbles:
        NAME, FEEDS, NEEDS, TABLES, BUDGET_S, BUDGET_BYTES, HINT = "stumbles", ("threads",), (), (), 1.0, 1, "llmdiag snapshot {pid}"

        @staticmethod
        def parse(artefacts: object) -> object:
            yield "threads", {"pid": 1, "source": "a:1"}
            raise error

    source = Source("b", "h", "1", {"stumbles": [Artefact.of_bytes("stumbles/a", "stumbles", b"")]}, None)
    monkeypatch.delenv("LLMDIAG_STRICT", raising=False)
    case = evidence.load([source], [Stumbles])  # type: ignore[list-item]
    assert case.rows("SELECT pid FROM threads", "test", 9)[0] == [{"pid": 1}]
    assert [item.status for item in case.collected] == ["partial"]
    assert words in (case.collected[0].reason or "")
    if words.startswith("internal"):
        monkeypatch.setenv("LLMDIAG_STRICT", "1")
        with pytest.raises(KeyError):
            evidence.load([source], [Stumbles])  # type: ignore[list-item]
