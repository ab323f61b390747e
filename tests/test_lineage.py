"""What a query reads, from its syntax tree."""

import pytest

from diag import lineage
from diag.errors import SqlError


@pytest.mark.parametrize(
    ("sql", "relations"),
    [
        ("SELECT * FROM threads", {"threads"}),
        ("FROM threads SELECT pid", {"threads"}),
        ("SELECT * FROM a JOIN b USING (pid)", {"a", "b"}),
        ("SELECT * FROM a NATURAL JOIN b", {"a", "b"}),
        ("SELECT * FROM a ASOF JOIN b USING (ts)", {"a", "b"}),
        ("PIVOT a ON depth USING count(*)", {"a"}),
        ("WITH c AS (SELECT * FROM a) SELECT * FROM c JOIN b USING (pid)", {"a", "b"}),
        ("WITH c AS (SELECT * FROM a), d AS (SELECT * FROM c) SELECT * FROM d", {"a"}),
        ("WITH d AS (SELECT * FROM c), c AS (SELECT * FROM a) SELECT * FROM d", {"a", "c"}),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", {"a"}),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT * FROM r", set()),
        ("SELECT (SELECT max(x) FROM b WHERE b.y = a.y) FROM a", {"a", "b"}),
        ("SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b)", {"a", "b"}),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", {"a", "b"}),
        ("SELECT * FROM (SELECT * FROM a) x, unnest([1, 2]) t(y)", {"a"}),
        ("SELECT * FROM range(3)", set()),
        ("SELECT * FROM (VALUES (1)) v(x)", set()),
        ("SELECT * FROM (WITH c AS (SELECT * FROM a) SELECT * FROM c) JOIN c USING (x)", {"a", "c"}),
    ],
)
def test_reads(sql: str, relations: set[str]) -> None:
    assert lineage.reads(sql).relations == relations


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2", "CREATE TABLE x AS SELECT 1", "DROP TABLE threads", "COPY threads TO 'x'", "ATTACH 'x'", "SET threads = 1",
        "INSERT INTO threads VALUES (1)", "PRAGMA version", "INSTALL httpfs", "", "this is not SQL", "DELETE FROM threads",
        "SELECT * FROM read_csv('x')", "SELECT * FROM duckdb_settings()", "SELECT * FROM glob('*')",
        "SELECT * FROM information_schema.tables", "SELECT * FROM main.threads", "EXPLAIN SELECT 1", "CALL pragma_version()",
    ],
)
def test_anything_but_one_select_is_an_error(sql: str) -> None:
    with pytest.raises(SqlError):
        lineage.reads(sql)


def test_columns_are_those_that_conditions_need() -> None:
    sql = "SELECT a.x FROM a JOIN b USING (pid) JOIN c ON c.z = a.w WHERE b.y > 1 GROUP BY x HAVING max(v) > 1 QUALIFY row_number() OVER (ORDER BY u) = 1"
    assert lineage.reads(sql).columns == {"y", "pid", "z", "w", "v", "u"}


def test_unknown_tables_are_named() -> None:
    with pytest.raises(SqlError, match=r"rules/x.toml: no such table: nonsuch"):
        lineage.check_known("SELECT * FROM nonsuch", {"threads"}, "rules/x.toml")
