"""Bundles and loose files -> evidence tables in one locked DuckDB connection.

Parsing happens here, at analysis time, so that a better parser re-reads old incidents. Tables are loaded with
CREATE TABLE AS from frames, then views (SQL) and derivations (Python) are computed once, in the order of what they
need, and the connection is locked: no files, no settings, no extensions.
"""

import contextlib
import gc
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

import duckdb

from diag import lineage, parsing, spool
from diag.collectors import Collector, hint_of
from diag.collectors import discover as discover_collectors
from diag.columns import Misfit, summary
from diag.errors import BadInput, LlmdiagError, SqlError
from diag.loading import create, declared, records
from diag.model import Collected
from diag.sources import Dates, Source, sources_of
from diag.tables import Column, Table, merged

if TYPE_CHECKING:
    import pandas as pd


class Derivation(Protocol):
    """A module of diag/derive: a table that SQL should not compute.

    It may name further tables in WANTS: used where they are there, but their absence is no "could not look".
    """

    NEEDS: tuple[str, ...]
    GIVES: tuple[Table, ...]

    def derive(self, frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]": ...


@dataclass(frozen=True)
class View:
    """A table that SQL computes: `diag/views/NAME.sql`."""

    name: str
    about: str
    sql: str
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Extras:
    """Further folders to discover collectors, views and derivations in (empty = only the shipped ones)."""

    collectors: tuple[Path, ...] = ()
    views: tuple[Path, ...] = ()
    derivations: tuple[Path, ...] = ()
    watch: Callable[[str], None] | None = None
    """Told what runs next: the signal of a rule, or what comes after it."""
    spill: bool = True
    """What does not fit into memory may go to `.tmp` of the current folder (and stays there when llmdiag is killed)."""
    wary: bool = False
    """Run also what cannot have rows: the SQL of a stranger may be wrong."""
    spooled: spool.Spooled | None = None
    """Tables that are in a file already, instead of those that sources would fill."""


@dataclass(frozen=True)
class Found:
    """What one SELECT gave: its columns, no two of one name, also where there is no row."""

    columns: tuple[str, ...]
    rows: list[dict[str, object]]
    more: bool


class Evidence:
    """Loaded evidence: a locked connection, what each relation rests on, and what was looked at."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        columns: Mapping[str, Mapping[str, Column]],
        bases: Mapping[str, frozenset[str]],
        collected: Sequence[Collected],
        sources: Sequence[Source],
        hints: Mapping[str, str],
        empty: frozenset[str],
        watch: Callable[[str], None] | None = None,
    ) -> None:
        self.connection = connection
        self.watch = watch or (lambda where: None)
        self.columns = columns
        self.bases = bases
        self.collected = tuple(collected)
        self.sources = tuple(sources)
        self.hints = hints
        self._empty = empty
        self._blanks: dict[str, frozenset[str]] = {}
        self._incomplete = _incomplete(self.collected, {base for found in bases.values() for base in found})

    def reads(self, sql: str, where: str) -> lineage.Reads:
        """What one SELECT reads; unknown relations are an error."""
        return lineage.check_known(sql, self.bases.keys(), where)

    def base_tables(self, relations: Iterable[str]) -> frozenset[str]:
        """Relations -> the evidence tables they rest on."""
        return frozenset(base for relation in relations for base in self.bases[relation])

    def unseen(self, found: lineage.Reads) -> tuple[str, ...]:
        """Tables, or `table.column`s, that a query reads and that were not (fully) collected."""
        missing = {table for table in self.base_tables(found.relations) if table in self._incomplete}
        missing |= {f"{relation}.{name}" for relation in found.relations for name in self._blank(relation, found.columns)}
        return tuple(sorted(missing))

    def rows(self, sql: str, where: str, limit: int) -> tuple[list[dict[str, object]], bool]:
        """Run one SELECT: at most `limit` rows, and whether there were more. What cannot have rows is not run: a rule reads many tables that are empty."""
        if not self._empty.isdisjoint(self.reads(sql, where).needs):
            return [], False
        found = self.find(sql, where, limit)
        return found.rows, found.more

    def find(self, sql: str, where: str, limit: int) -> Found:
        """The same with the names of the columns; the second `a` is `a_1`. Raises SqlError, which begins with `where`."""
        self.watch(where)
        self.reads(sql, where)
        try:
            cursor = self.connection.cursor().execute(sql)
            names = distinct([str(item[0]) for item in cursor.description or ()])
            found = cursor.fetchmany(limit + 1)
        except duckdb.Error as error:
            greedy = isinstance(error, duckdb.OutOfMemoryException)
            hint = "narrow it, or join fewer tables" if greedy else "llmdiag schema lists tables and columns"
            raise SqlError(f"{where}: {str(error).splitlines()[0]}", hint=hint) from error
        self.watch(f"{where}: its texts, or the actions and the runbook after it")
        return Found(tuple(names), [dict(zip(names, row, strict=True)) for row in found[:limit]], len(found) > limit)

    def frame(self, relation: str) -> "pd.DataFrame":
        """One relation as a DataFrame."""
        if relation not in self.bases:
            raise BadInput(f"no table {relation!r}", hint="llmdiag schema lists the tables")
        return self.connection.cursor().execute(f'SELECT * FROM "{relation}"').df()

    def _blank(self, relation: str, mentioned: frozenset[str]) -> Iterator[str]:
        """Columns a query mentions that are NULL in every row though NULL only means unknown there. The evidence does not change: looked up once."""
        if relation not in self._blanks:
            self._blanks[relation] = frozenset(self._all_blank(relation))
        yield from self._blanks[relation] & mentioned

    def _all_blank(self, relation: str) -> Iterator[str]:
        columns = [column for column in self.columns[relation].values() if not column.null]
        if not columns or relation in self._empty or relation == "collected":  # what it does not say, nobody can collect
            return
        counts = ", ".join(f'count("{column.name}")' for column in columns)
        row = self.connection.cursor().execute(f'SELECT count(*), {counts} FROM "{relation}"').fetchone()
        if row is not None and row[0]:
            yield from (column.name for column, count in zip(columns, row[1:], strict=True) if count == 0)


def distinct(names: Sequence[str]) -> list[str]:
    """Names of columns, those that were there before (SQL knows no case) with a number: a, a_1, a_2."""
    taken = {name.casefold() for name in names}
    seen: set[str] = set()
    found = []
    for name in names:
        free, number = name, 0
        while free.casefold() in (taken if number else seen):
            number += 1
            free = f"{name}_{number}"
        seen.add(name.casefold())
        taken.add(free.casefold())
        found.append(free)
    return found


def open_paths(paths: Sequence[str | Path], *, extras: Extras | None = None, dates: Dates | None = None) -> Evidence:
    """Bundles, bundle folders and loose files in any mix -> evidence."""
    extras = extras or Extras()
    collectors = collectors_of(extras)
    return load(sources_of([Path(path) for path in paths], collectors, dates), collectors, extras)


def collectors_of(extras: Extras) -> tuple[Collector, ...]:
    """The shipped collectors and those of further folders."""
    return (*discover_collectors(), *(module for folder in extras.collectors for module in discover_collectors(folder)))


def load(sources: Sequence[Source], collectors: Sequence[Collector], extras: Extras | None = None) -> Evidence:
    """Parse, load, derive, lock."""
    with _no_garbage_collection():
        return _load(sources, collectors, extras or Extras())


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Rows by the hundred thousand make no cycles; to look for some again and again takes a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _load(sources: Sequence[Source], collectors: Sequence[Collector], extras: Extras) -> Evidence:
    tables = merged(table for collector in collectors for table in collector.TABLES)
    rows, collected = parsing.parse_all(sources, collectors, tables)
    connection = duckdb.connect(":memory:", config={"threads": "2", "memory_limit": "2GB", **({} if extras.spill else {"temp_directory": ""})})
    connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
    columns: dict[str, Mapping[str, Column]] = {name: {column.name: column for column in table.columns} for name, table in tables.items()}
    bases: dict[str, frozenset[str]] = {name: frozenset({name}) for name in tables}
    connection.execute("; ".join(declared(table) for name, table in tables.items() if not rows.get(name)))
    misfits = {name: create(connection, table, rows[name]) for name, table in tables.items() if rows.get(name)}
    collected = [*collected, *_unfit(misfits, collectors)]
    if extras.spooled is not None:
        collected = [*(item for item in collected if item.table_name not in extras.spooled.tables), *extras.spooled.collected]
        spool.attach(connection, extras.spooled)
    create(connection, tables["collected"], [_line(item) for item in collected])
    filled = {"collected", *(name for name, found in rows.items() if found), *(extras.spooled.tables if extras.spooled is not None else ())}
    stumbled = _compute(connection, columns, bases, extras, filled)
    if stumbled:
        collected = [*collected, *stumbled]
        create(connection, tables["collected"], [_line(item) for item in collected])
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    hints = {table: hint_of(collector, lambda table: rows.get(table, ())) for collector in collectors for table in collector.FEEDS}
    hints |= {column: hint for collector in collectors for column, hint in getattr(collector, "COLUMN_HINTS", {}).items()}
    return Evidence(connection, columns, bases, collected, sources, hints, frozenset() if extras.wary else _empty(connection), extras.watch)


def _empty(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Relations without a row; nothing is deleted from any, so the size of a table is no estimate."""
    return frozenset(name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE estimated_size = 0").fetchall())


def views_of(extras: Extras) -> dict[str, View]:
    """Shipped views and those of further folders, by name."""
    folders = (Path(__file__).parent / "views", *extras.views)
    return {path.stem: _read_view(path) for folder in folders for path in sorted(folder.glob("*.sql"))}


def derivations_of(extras: Extras) -> dict[str, Derivation]:
    """Shipped derivations and those of further folders, by name."""
    package = importlib.import_module("diag.derive")
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    found = {name: cast(Derivation, importlib.import_module(f"diag.derive.{name}")) for name in names}
    for folder in extras.derivations:
        for path in sorted(folder.glob("*.py")):
            found[path.stem] = cast(Derivation, _load_module(path))
    return found


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"diag_extra_derivations.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _read_view(path: Path) -> View:
    text = path.read_text(encoding="utf-8")
    comments = [line[2:].strip() for line in text.splitlines() if line.startswith("--")]
    about = " ".join(line for line in comments if not line.startswith("col "))
    columns = dict(line.removeprefix("col ").split(": ", 1) for line in comments if line.startswith("col "))
    return View(path.stem, about, text, columns)


def _incomplete(collected: Sequence[Collected], tables: set[str]) -> frozenset[str]:
    """Tables that were not collected: every source that exists must have been read."""
    good = {item.table_name for item in collected if item.status == "ok"} | {"collected"}
    bad = {item.table_name for item in collected if item.status != "ok"}
    return frozenset(table for table in tables if table in bad or table not in good)


def _line(item: Collected) -> dict[str, object]:
    """One row of the table `collected`."""
    said = {"collector": item.collector, "table_name": item.table_name, "status": item.status, "reason": item.reason}
    return parsing.origin_of(None) | dict(item.origin) | said | {"source": f"manifest#{item.collector}"}


def _unfit(misfits: Mapping[str, Sequence[Misfit]], collectors: Sequence[Collector]) -> Iterator[Collected]:
    """Values that are none of their column make their table not collected."""
    feeders = {table: collector.NAME for collector in reversed(collectors) for table in collector.FEEDS}
    for table, found in misfits.items():
        if found:
            yield Collected(feeders.get(table, "unknown"), table, "partial", summary(found))


def _compute(
    connection: duckdb.DuckDBPyConnection,
    columns: dict[str, Mapping[str, Column]],
    bases: dict[str, frozenset[str]],
    extras: Extras,
    filled: set[str],
) -> list[Collected]:
    """Materialise views and derivations, each after what it needs; `filled` are the relations with rows. Returns what could not be derived of this evidence."""
    stumbled: list[Collected] = []
    views = views_of(extras)
    derivations = derivations_of(extras)
    givers = {table.name: name for name, module in derivations.items() for table in module.GIVES}
    needs: dict[str, set[str]] = {name: set(lineage.reads(view.sql, f"views/{name}.sql").relations) for name, view in views.items()}
    needs |= {name: {*module.NEEDS, *_wants(module)} for name, module in derivations.items() if name not in views}
    graph = {name: {givers.get(need, need) for need in found} for name, found in needs.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise SqlError(f"views and derivations need each other: {error.args[1]}") from error
    connection.execute("; ".join(declared(table) for module in derivations.values() for table in module.GIVES))
    made: dict[str, pd.DataFrame] = {}
    for name in order:
        if name in views:
            _materialise(connection, views[name], columns, bases, needs[name], filled)
        elif name in derivations:
            stumbled += _derive(connection, derivations[name], columns, bases, name, made if extras.spooled is None else {}, filled)
        elif name not in bases:
            raise SqlError(f"a view or derivation needs the unknown table {name!r}", hint="llmdiag schema lists the tables")
    return stumbled


def _materialise(
    connection: duckdb.DuckDBPyConnection,
    view: View,
    columns: dict[str, Mapping[str, Column]],
    bases: dict[str, frozenset[str]],
    needs: set[str],
    filled: set[str],
) -> None:
    try:
        ((count,),) = connection.execute(f'CREATE TABLE "{view.name}" AS {view.sql}').fetchall()
    except duckdb.Error as error:
        raise SqlError(f"views/{view.name}.sql: {error}") from error
    filled |= {view.name} if count else set()
    described = connection.execute(f'DESCRIBE "{view.name}"').fetchall()
    columns[view.name] = {str(row[0]): _described(str(row[0]), str(row[1]), view.columns) for row in described}
    bases[view.name] = frozenset(base for need in needs for base in bases[need])


def _described(name: str, kind: str, about: Mapping[str, str]) -> Column:
    text, _, null = about.get(name, "").partition("; NULL = ")
    return Column(name, kind, text, null)


def _wants(module: Derivation) -> tuple[str, ...]:
    return tuple(getattr(module, "WANTS", ()))


def _derive(
    connection: duckdb.DuckDBPyConnection,
    module: Derivation,
    columns: dict[str, Mapping[str, Column]],
    bases: dict[str, frozenset[str]],
    name: str,
    made: "dict[str, pd.DataFrame]",
    filled: set[str],
) -> list[Collected]:
    wanted = (*module.NEEDS, *_wants(module))
    unknown = [need for need in wanted if need not in bases]
    if unknown:
        raise SqlError(f"derive/{name}.py needs the unknown table {unknown[0]!r}", hint="llmdiag schema lists the tables")
    stumbled: list[Collected] = []
    try:
        given = module.derive(spool.Frames(connection, wanted, made)) if not filled.isdisjoint(wanted) else {}  # of nothing it makes nothing, and empty frames take time
    except Exception as error:
        given, reason = {}, _odd(error, name)
        stumbled = [Collected(name, table.name, "partial", reason) for table in module.GIVES]
    for table in module.GIVES:
        made_of = records(given[table.name]) if table.name in given else []
        misfits = create(connection, table, made_of) if made_of else []
        filled |= {table.name} if made_of else set()
        if misfits and parsing.is_strict():
            raise SqlError(f"derive/{name}.py, table {table.name}: {summary(misfits)}", hint="GIVES and what derive() returns do not agree")
        if misfits:
            stumbled.append(Collected(name, table.name, "partial", summary(misfits)))
        columns[table.name] = {column.name: column for column in table.columns}
        bases[table.name] = frozenset(base for need in module.NEEDS for base in bases[need]) | {item.table_name for item in stumbled if item.table_name == table.name}
    return stumbled


def _odd(error: Exception, name: str) -> str:
    """Evidence can be made to hurt: what a derivation did not expect costs its tables, not the diagnosis. Raises `error` in tests."""
    if isinstance(error, LlmdiagError | MemoryError | duckdb.OutOfMemoryException) or parsing.is_strict():
        raise error
    return f"derive/{name}.py could not make it of this evidence: internal error: {type(error).__name__}: {error}"

