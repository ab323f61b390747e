"""How an evidence table is declared.

Every table also has `bundle`, `host`, `capture` and `source` (`artefact:line` or `artefact#key`). Times are UTC.
Unknown is NULL; a column whose NULL means something else says so in `null`.
"""

from dataclasses import dataclass

TEXT, INT, REAL, FLAG, TIME = "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP"


@dataclass(frozen=True)
class Column:
    """One column: DuckDB type, meaning with unit, and what NULL means where it is not "unknown"."""

    name: str
    type: str
    about: str
    null: str = ""


@dataclass(frozen=True)
class Table:
    """One evidence table. A collector or derivation may declare further ones of its own."""

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


ORIGIN = (
    Column("bundle", TEXT, "bundle or folder the row comes from"),
    Column("host", TEXT, "host the evidence was taken on"),
    Column("capture", TEXT, "which capture of the target: captures are judged each on its own"),
    Column("source", TEXT, "artefact:line or artefact#key of the raw evidence"),
)


def _column(spec: str) -> Column:
    """`name TYPE: about [; NULL = meaning]` -> Column."""
    head, _, about = spec.partition(": ")
    name, kind = head.split()
    about, _, null = about.partition("; NULL = ")
    return Column(name, kind, about, null)


def table(name: str, about: str, *specs: str) -> Table:
    """Declare a table: one text per column, `name TYPE: about[; NULL = meaning]`."""
    return Table(name, about, (*ORIGIN, *(_column(spec) for spec in specs)))


PID = "pid BIGINT: process id as the host sees it"
STARTED = "started_at TIMESTAMP: start of the process; identity is (host, pid, started_at)"
READ = "read BIGINT: number of the read, from 0"
TS = "ts TIMESTAMP: when it was read"
