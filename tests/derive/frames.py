"""Rows -> frames as a derivation gets them: out of DuckDB, with the column types of the evidence tables."""

from collections.abc import Mapping, Sequence
from types import ModuleType

import duckdb
import pandas as pd

from diag.collectors import discover
from diag.evidence import Extras, derivations_of, views_of
from diag.tables import Table, merged, table

Row = Mapping[str, object]
ACTIVITY = table(
    "thread_activity", "Columns of the view that derivations use", "pid BIGINT: ", "started_at TIMESTAMP: ", "tid BIGINT: ",
    "name VARCHAR: ", "class VARCHAR: ", "runnable_pct DOUBLE: ", "vol_per_s DOUBLE: ",
)
TABLES: Mapping[str, Table] = merged((
    ACTIVITY, *(declared for collector in discover() for declared in collector.TABLES),
    *(given for derivation in derivations_of(Extras()).values() for given in derivation.GIVES),
))
ORIGIN = {"bundle": "b", "host": "h", "capture": "1"}


def frames(**rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """Table -> frame. Rows come from bundle b, host h, capture 1 unless they say otherwise; what they leave out is NULL."""
    connection = duckdb.connect(":memory:")
    found = {}
    for name, given in rows.items():
        columns = TABLES[name].columns
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(f"{column.name} {column.type}" for column in columns)})')
        values = [[{**ORIGIN, **row}.get(column.name) for column in columns] for row in given]
        assert {key for row in given for key in row} <= {column.name for column in columns}
        if values:
            connection.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" for _ in columns)})', values)
        found[name] = connection.execute(f'SELECT * FROM "{name}"').df()
    if "stack_frames" in rows:
        found["stacks"] = connection.execute(views_of(Extras())["stacks"].sql).df()
    return found


def derived(module: ModuleType, **rows: Sequence[Row]) -> dict[str, list[dict[str, object]]]:
    """What a derivation gives for these rows, table -> rows with None for unknown; tables that are not named are empty."""
    needed = (*module.NEEDS, *getattr(module, "WANTS", ()))
    given = module.derive(frames(**{name: rows.get(name, ()) for name in ("stack_frames" if name == "stacks" else name for name in needed)}))
    out: dict[str, list[dict[str, object]]] = {}
    for declared in module.GIVES:
        frame = given.get(declared.name, pd.DataFrame())
        assert set(frame.columns) <= set(declared.column_names)
        out[declared.name] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return out


def stack(text: str, sample: int | None = 0, *, tid: int | None = 11, pid: int | None = 10, **more: object) -> list[Row]:
    """`main > work@/app/w.py > get@redis/client.py`, outermost first -> rows of stack_frames; files are app.py unless named."""
    places = [place.strip().partition("@") for place in text.split(" > ")]
    return [
        {
            "sample": sample, "pid": pid, "tid": tid, "thread": "worker-0", "depth": depth, "func": func, "file": file or "app.py",
            "whole": True, "native": False, "tool": "py-spy", "source": f"stacks/{sample}.json#{depth}", **more,
        }
        for depth, (func, _, file) in enumerate(reversed(places))
    ]
