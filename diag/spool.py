"""Tables too long for rows in memory: written to a DuckDB file batch by batch, and read from there by the evidence.

    kept = spool(Path(folder, "rows.duckdb"), tables, lambda: rows, "tensors")
    evidence.load(sources, collectors, Extras(spooled=kept))            # the file may go after that: it stays open
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from diag.columns import frame, summary
from diag.model import Collected, Row
from diag.tables import Table

if TYPE_CHECKING:
    import pandas as pd

BATCH = 1_024
"""Rows of one table that are turned into columns together."""
MEMORY = ("32MB", "256MB")
"""What DuckDB may keep of the file while it is written; what needs more gets the second."""
CHECKPOINT = "4MB"
NAME = "spooled"


@dataclass(frozen=True)
class Spooled:
    """Tables in a file, and what was looked at for them."""

    path: Path
    tables: tuple[str, ...]
    collected: tuple[Collected, ...]


def spool(path: Path, tables: Sequence[Table], rows: Callable[[], Iterable[Row]], collector: str) -> Spooled:
    """Write rows (table, column -> value) to a new file; those of no table here say what could not be looked at, as parsers do.

    Values that are none of their column become NULL, and their table partly collected. Raises duckdb.Error: no space, no memory.
    """
    for limit in MEMORY[:-1]:
        try:
            return _written(path, tables, rows(), collector, limit)
        except (duckdb.OutOfMemoryException, duckdb.FatalException):
            path.unlink()
            path.with_name(path.name + ".wal").unlink(missing_ok=True)
    return _written(path, tables, rows(), collector, MEMORY[-1])


def _written(path: Path, tables: Sequence[Table], rows: Iterable[Row], collector: str, limit: str) -> Spooled:
    known = {table.name: table for table in tables}
    waiting: dict[str, list[Mapping[str, object]]] = {name: [] for name in known}
    said: dict[str, Collected] = {}
    fed: set[str] = set()
    with duckdb.connect(str(path), config={"threads": "1", "memory_limit": limit}) as connection:
        connection.execute(f"SET TimeZone = 'UTC'; SET python_enable_replacements = false; SET checkpoint_threshold = '{CHECKPOINT}'")
        for table in tables:
            connection.execute(f'CREATE TABLE "{table.name}" ({", ".join(f""" "{column.name}" {column.type}""" for column in table.columns)})')
        for name, row in rows:
            if name not in known:
                table_name = str(row["table_name"])
                said.setdefault(table_name, Collected(collector, table_name, str(row["status"]), None if row.get("reason") is None else str(row["reason"])))
                continue
            fed.add(name)
            waiting[name].append(row)
            if len(waiting[name]) == BATCH:
                _insert(connection, known[name], waiting, collector, said)
        for name, table in known.items():
            if waiting[name]:
                _insert(connection, table, waiting, collector, said)
    whole = [Collected(collector, name, "ok") for name in sorted(fed - said.keys())]
    return Spooled(path, tuple(known), (*said.values(), *whole))


def attach(connection: duckdb.DuckDBPyConnection, kept: Spooled) -> None:
    """Make its tables relations of this connection."""
    quoted = str(kept.path).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS {NAME} (READ_ONLY)")
    for name in kept.tables:
        connection.execute(f'DROP TABLE IF EXISTS "{name}"; CREATE VIEW "{name}" AS SELECT * FROM {NAME}."{name}"')


def copy_to_parquet(kept: Spooled, table: str, path: Path) -> None:
    """One of its tables as a Parquet file. Before the evidence has it. Raises duckdb.IOException."""
    quoted = str(path).replace("'", "''")
    with duckdb.connect(str(kept.path), read_only=True, config={"threads": "1"}) as connection:
        connection.execute(f"COPY \"{table}\" TO '{quoted}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 16384)")


class Frames(Mapping[str, "pd.DataFrame"]):
    """Tables as frames, each made when it is asked for: most derivations look at one table, and at the others only where it has rows.

    `made` is shared by those that look at the same tables one after the other. Nobody writes into a frame.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str], made: "dict[str, pd.DataFrame] | None" = None) -> None:
        self._connection, self._names = connection, names
        self._made = {} if made is None else made

    def __getitem__(self, name: str) -> "pd.DataFrame":
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            found = self._connection.execute(f'SELECT * FROM "{name}"').df()
            texts = [] if found.empty else [column for column, kind in found.dtypes.items() if kind == "str"]
            self._made[name] = found.astype(dict.fromkeys(texts, object)) if texts else found  # pandas' own kind of text is ten times as slow to walk over
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _insert(
    connection: duckdb.DuckDBPyConnection, table: Table, waiting: dict[str, list[Mapping[str, object]]], collector: str, said: dict[str, Collected]
) -> None:  # fmt: skip
    incoming: pd.DataFrame
    incoming, misfits = frame(table, waiting[table.name])
    waiting[table.name] = []
    if misfits:
        said.setdefault(table.name, Collected(collector, table.name, "partial", summary(misfits)))
    connection.register("incoming", incoming)
    select = ", ".join(f'CAST("{column.name}" AS {column.type}) AS "{column.name}"' for column in table.columns)
    connection.execute(f'INSERT INTO "{table.name}" SELECT {select} FROM incoming')
    connection.unregister("incoming")
