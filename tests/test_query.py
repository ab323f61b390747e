"""`llmdiag query`: what a table of rows looks like when it is empty, has a name twice, or does not know a value."""

from pathlib import Path

import duckdb
import pytest

from diag import evidence
from tests.live.run import Said, llmdiag

METRICS = '# TYPE a gauge\na{b="unknown"} 1.0\n'
NONE = "SELECT name, value FROM metrics WHERE name = 'no such'"
TWICE = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS A"
NULLS = "SELECT * FROM (VALUES (1, 'unknown'), (NULL, NULL)) AS t(n, s) ORDER BY n NULLS LAST"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    (tmp_path / "metrics1.txt").write_text(METRICS)
    return tmp_path / "metrics1.txt"


def query(case: Path, sql: str, *args: str) -> Said:
    said = llmdiag("query", str(case), sql, *args)
    assert said.code == 0, said.err
    return said


def parquet(case: Path, sql: str) -> duckdb.DuckDBPyRelation:
    place = case.with_name("e.pq")
    query(case, sql, "-f", "parquet", "-o", str(place))
    return duckdb.connect().read_parquet(str(place))


def test_no_rows_keep_their_columns(case: Path) -> None:
    assert [line.split() for line in query(case, NONE).out.splitlines()] == [["name", "value"], ["0", "rows"]]
    assert query(case, NONE, "-f", "csv").out == "name,value\n"
    found = query(case, NONE, "-f", "json").json
    assert (found["columns"], found["rows"]) == (["name", "value"], [])
    stored = parquet(case, NONE)
    assert (stored.columns, stored.fetchall()) == (["name", "value"], [])


def test_a_name_that_is_there_twice_gets_a_number(case: Path) -> None:
    found = query(case, TWICE, "-f", "json").json
    assert found["columns"] == ["a", "a_2", "a_1", "A_3"]
    assert [list(row.values()) for row in found["rows"]] == [[1, 2, 3, 4]]
    stored = parquet(case, TWICE)
    assert (stored.columns, stored.fetchall()) == (["a", "a_2", "a_1", "A_3"], [(1, 2, 3, 4)])


def test_what_is_not_known_is_told_apart_from_a_text(case: Path) -> None:
    assert query(case, NULLS, "-f", "csv").out == "n,s\n1,unknown\n,\n"
    assert query(case, NULLS, "-f", "json").json["rows"] == [{"n": 1, "s": "unknown"}, {"n": None, "s": None}]
    assert parquet(case, NULLS).fetchall() == [(1, "unknown"), (None, None)]


def test_text_goes_to_the_file_as_well(case: Path) -> None:
    assert query(case, NULLS, "-o", str(case.with_name("rows.txt"))).out == ""  # the same in a file
    assert [line.split() for line in case.with_name("rows.txt").read_text().splitlines()] == [["n", "s"], ["1", "unknown"], ["NULL", "NULL"]]


@pytest.mark.parametrize(("names", "distinct"), [
    ([], []), (["a"], ["a"]), (["a", "a"], ["a", "a_1"]), (["a", "A", "a_1"], ["a", "A_2", "a_1"]), (["a", "a", "a", "b"], ["a", "a_1", "a_2", "b"]),
])
def test_distinct_names(names: list[str], distinct: list[str]) -> None:
    assert evidence.distinct(names) == distinct


def test_the_names_of_the_tables_alone() -> None:
    names = [line.split()[0] for line in llmdiag("schema", "--tables").out.splitlines() if line[:1].isalpha()]
    assert {"threads", "cache_keys", "thread_places"} <= set(names), names
    assert names[1:] == sorted(names[1:]), names
