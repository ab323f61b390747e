"""The evidence tables: the data dictionary that rules, bundles and `llmdiag schema` share.

Those of every source are here; a collector or derivation declares further ones of its own, which `merged` adds.
"""

from collections.abc import Iterable, Mapping

from diag.tables import caches, dumps, events, service
from diag.tables.declare import FLAG, INT, ORIGIN, REAL, TEXT, TIME, Column, Table, table
from diag.tables.events import HOST_EVENT_KINDS

__all__ = ["CORE", "FLAG", "HOST_EVENT_KINDS", "INT", "ORIGIN", "REAL", "TEXT", "TIME", "Column", "Table", "merged", "table"]

CORE: tuple[Table, ...] = (*service.TABLES, *events.TABLES, *caches.TABLES, *dumps.TABLES)


def merged(extra: Iterable[Table]) -> Mapping[str, Table]:
    """The core tables plus those that collectors and derivations declare; a name may be declared once."""
    tables = {item.name: item for item in CORE}
    for item in extra:
        if item.name in tables and tables[item.name] != item:
            raise ValueError(f"table {item.name} is declared twice")
        tables[item.name] = item
    return tables
