"""Rows that stand for several are loaded as if each had been told alone, whatever else comes with them."""

import datetime
from collections.abc import Mapping, Sequence

import duckdb
import pytest

from diag.errors import BadInput
from diag.loading import create
from diag.parts import PARTS, spelled_out
from diag.tables import table

TABLE = table("t", "test", "pid BIGINT: a number", "thread VARCHAR: a text", "depth BIGINT: a number", "func VARCHAR: a text", "ts TIMESTAMP: a time")
SHARED = ({"depth": 0, "func": "wait", "source": "/frames/0"}, {"depth": 1, "func": "get", "source": "/frames/1"})
Row = Mapping[str, object]


def row(pid: object, number: int, parts: object = SHARED, **more: object) -> dict[str, object]:
    return {"bundle": "b", "host": None, "capture": "1", "pid": pid, "source": f"a.json#threads/{number}", PARTS: parts, **more}


def loaded(rows: Sequence[Row]) -> tuple[list[tuple[object, ...]], list[tuple[str, int, str]]]:
    """The rows of the table in their order, and what did not fit."""
    with duckdb.connect(":memory:") as connection:
        misfits = create(connection, TABLE, rows)
        return connection.execute("SELECT pid, depth, thread, func, ts, bundle, host, capture, source FROM t").fetchall(), [(item.column, item.count, item.source) for item in misfits]


@pytest.mark.parametrize("rows", [
    [row(1, 0), row(2, 1, thread="x"), row(3, 2, ({"depth": 0, "func": "recv", "source": "/frames/0"},)), row(1, 3)],
    [row(1, 0), row(2, 1, ()), row(3, 2)],
    [row(None, 0, ({"depth": None, "func": None, "source": ""},))],
    [row(1, number, tuple(dict(part) for part in SHARED)) for number in range(3)],
    [row(1, 0), {"bundle": "b", "host": None, "capture": "1", "pid": 2, "depth": 7, "func": "alone", "source": "x:1"}, row(3, 1)],
    [row(1, number % 200, ts=datetime.datetime(2026, 12, 1)) for number in range(5000)],
])
def test_as_if_each_row_were_told_alone(rows: list[Row]) -> None:
    told = [one for row in rows for one in spelled_out(row)]
    assert PARTS not in set().union(*told)
    assert loaded(rows) == loaded(told)
    assert len(loaded(rows)[0]) == len(told)


def test_nothing_but_rows_without_parts() -> None:
    assert loaded([row(1, 0, ()), row(2, 1, ())]) == ([], [])


def test_a_value_that_does_not_fit_is_unknown_wherever_it_stands_and_its_place_is_named() -> None:
    odd = ({"depth": 0, "func": "wait", "source": "/frames/0"}, {"depth": 2**70, "func": "get", "source": "/frames/1"})
    found, misfits = loaded([row(1, 0), row(2**70, 1), row(3, 2, odd), row(4, 3, odd)])
    assert [line[:2] for line in found] == [(1, 0), (1, 1), (None, 0), (None, 1), (3, 0), (3, None), (4, 0), (4, None)]
    assert misfits == [("pid", 1, "a.json#threads/1"), ("depth", 1, "a.json#threads/2/frames/1")]


@pytest.mark.parametrize("rows", [[row(1, 0, stray=1)], [row(1, 0, ({"depth": 0, "stray": 1, "source": ""},))]])
def test_a_column_that_nobody_declared_is_an_error(rows: list[Row]) -> None:
    with pytest.raises(BadInput, match="table t has no column stray"):
        loaded(rows)
