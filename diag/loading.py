"""Rows of a table -> a relation in DuckDB, by CREATE TABLE AS from frames that are registered only while they are copied."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb

from diag.columns import Misfit, frame
from diag.errors import BadInput
from diag.parts import PARTS, parts_of, spelled_out
from diag.tables import Column, Table

if TYPE_CHECKING:
    import pandas as pd

Rows = Sequence[Mapping[str, object]]


def declared(table: Table) -> str:
    """SQL of the table without rows."""
    columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
    return f'CREATE OR REPLACE TABLE "{table.name}" ({columns})'


def create(connection: duckdb.DuckDBPyConnection, table: Table, rows: Rows) -> list[Misfit]:
    """The table with its rows. Returns what did not fit and is NULL. Raises BadInput: a row has a column that the table has not."""
    if not rows:
        connection.execute(declared(table))
        return []
    names = set().union(*rows)
    if PARTS in names and all(PARTS in row for row in rows):
        return _create_of_parts(connection, table, rows, names - {PARTS})
    if PARTS in names:
        rows = [one for row in rows for one in spelled_out(row)]
        names = set().union(*rows)
    _check(table, names)
    incoming, misfits = frame(table, rows)
    select = ", ".join(f"{_cast(column, 'incoming')}" for column in table.columns)
    _copy(connection, table, f"SELECT {select} FROM incoming", incoming=incoming)
    return misfits


def records(made: "pd.DataFrame") -> list[dict[str, object]]:
    """Rows with None for what is missing."""
    columns, names = made.astype(object).where(made.notna(), None), [str(name) for name in made.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*(columns[name].tolist() for name in names), strict=True)]


def _create_of_parts(connection: duckdb.DuckDBPyConnection, table: Table, rows: Rows, names: set[str]) -> list[Misfit]:
    """Of rows that stand for several: what they share, and each of their different parts, are columns once; DuckDB joins them."""
    first = {id(row[PARTS]): row for row in reversed(rows)}
    number_of = {key: number for number, key in enumerate(first)}
    parts = [(number, part, row.get("source")) for number, row in enumerate(first.values()) for part in parts_of(row)]
    of_parts = set().union(*(part for _, part, _ in parts)) or {"source"}
    _check(table, names | of_parts)
    common = [column for column in table.columns if column.name not in of_parts or column.name == "source"]
    outer, misfits = frame(replace(table, columns=tuple(common)), rows)
    inner, of_some = frame(replace(table, columns=tuple(column for column in table.columns if column.name in of_parts)), [part for _, part, _ in parts])
    outer["*row"], outer["*parts"] = range(len(outer)), [number_of[id(row[PARTS])] for row in rows]
    inner["*part"], inner["*parts"] = range(len(inner)), [number for number, _, _ in parts]
    select = ", ".join(_of_both(column, of_parts) for column in table.columns)
    _copy(connection, table, f'SELECT {select} FROM outside o JOIN inside i ON o."*parts" = i."*parts" ORDER BY o."*row", i."*part"', outside=outer, inside=inner)
    return [*misfits, *(replace(item, source=f"{parts[item.at][2]}{item.source}") for item in of_some)]


def _of_both(column: Column, of_parts: set[str]) -> str:
    if column.name == "source":
        return 'o."source" || i."source" AS "source"'
    return _cast(column, "i" if column.name in of_parts else "o")


def _cast(column: Column, relation: str) -> str:
    return f'CAST({relation}."{column.name}" AS {column.type}) AS "{column.name}"'


def _check(table: Table, names: set[str]) -> None:
    stray = names - set(table.column_names)
    if stray:
        raise BadInput(f"table {table.name} has no column {', '.join(sorted(stray))}", hint="declare it in diag/tables or in TABLES")


def _copy(connection: duckdb.DuckDBPyConnection, table: Table, select: str, **frames: "pd.DataFrame") -> None:
    for name, incoming in frames.items():
        connection.register(name, incoming)
    connection.execute(f'CREATE OR REPLACE TABLE "{table.name}" AS {select}')
    for name in frames:
        connection.unregister(name)
