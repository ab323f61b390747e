"""What a query reads, from its syntax tree."""

import duckdb
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


@pytest.mark.parametrize(
    ("sql", "needs"),
    [
        ("FROM a", "a"), ("SELECT * FROM a, b", "a b"), ("SELECT * FROM a NATURAL JOIN b", "a b"), ("SELECT * FROM a JOIN b USING (x) LEFT JOIN c USING (x)", "a b"),
        ("SELECT * FROM a ASOF JOIN b USING (x)", "a b"), ("SELECT * FROM a ASOF LEFT JOIN b USING (x)", "a"), ("SELECT * FROM a RIGHT JOIN b USING (x)", ""),
        ("SELECT * FROM a FULL JOIN b USING (x)", ""), ("SELECT * FROM a SEMI JOIN b USING (x)", "a b"), ("SELECT * FROM a ANTI JOIN b USING (x)", "a"),
        ("SELECT * FROM a POSITIONAL JOIN b", ""), ("SELECT * FROM a, unnest([1]) t(y)", "a"), ("SELECT * FROM a, LATERAL (SELECT count(*) FROM b WHERE b.x = a.x)", "a"),
        ("SELECT count(*) FROM a", ""), ("SELECT list(x) FROM a", ""), ("SELECT mode(x) FROM a", ""), ("SELECT 1 FROM a HAVING count(*) < 9", ""),
        ("SELECT CASE WHEN count(*) < 9 THEN 1 END FROM a", ""), ("SELECT sum(count(*)) OVER () FROM a", ""), ("SELECT sum(x) OVER () FROM a", "a"),
        ("SELECT coalesce(x, 0) FROM a", "a"), ("SELECT (SELECT max(x) FROM b) FROM a", "a"), ("SELECT x, count(*) FROM a GROUP BY x", "a"),
        ("SELECT count(*) FROM a GROUP BY ALL", ""), ("SELECT count(*) FROM a GROUP BY ROLLUP (x)", ""), ("SELECT count(*) FROM a GROUP BY GROUPING SETS ((x), ())", ""),
        ("SELECT count(*) FROM a GROUP BY ()", ""), ("FROM a UNION FROM b", ""), ("FROM a INTERSECT FROM b", "a b"), ("FROM a EXCEPT FROM b", "a"),
        ("SELECT * FROM (FROM a UNION ALL FROM a) u JOIN b USING (x)", "a b"), ("WITH c AS (SELECT count(*) AS x FROM a) SELECT * FROM c, b", "b"), ("WITH a AS (FROM b) FROM a", "b"),
        ("WITH RECURSIVE r AS (SELECT 1 AS n FROM a UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT * FROM r, b", "b"), ("PIVOT a ON x USING count(*)", ""), ("SELECT 1", ""),
    ],
)  # fmt: skip
def test_what_must_have_rows(sql: str, needs: str) -> None:
    """And so it is: with one of them empty and all others full there is no row."""
    assert lineage.reads(sql).needs == set(needs.split())
    for empty in needs.split():
        with duckdb.connect() as connection:
            for name in "abc":
                connection.execute(f"CREATE TABLE {name} AS SELECT 1 AS x WHERE '{name}' <> '{empty}'")
            assert connection.execute(sql).fetchall() == [], empty
