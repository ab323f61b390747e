"""Errors that a cache hands out as answers: by the values it holds, or by an access log in which an error's size comes back with every hit."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("cache_keys",)
WANTS = ("http_events",)
GIVES: tuple[Table, ...] = (
    table(
        "cached_errors",
        "Errors that are stored as answers: families of keys, and paths whose cache answers with the size of an error",
        "target VARCHAR: server or file of the keys; NULL = by an access log", "db BIGINT: database of the keys; NULL = by an access log",
        "family VARCHAR: family of the keys, or path of the requests", "keys BIGINT: keys, or answers from the cache", "bytes BIGINT: of all keys, or of one answer",
        "what VARCHAR: in words",
    ),
)  # fmt: skip
LEAST_HITS = 3
"""Answers of exactly an error's size: one may be chance."""
SAME = ("bundle", "capture", "path")
ORIGIN = ("bundle", "host", "capture", "source")
Row = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """cache_keys (+ http_events) -> cached_errors."""
    import pandas as pd

    found = [*_stored(frames["cache_keys"]), *_replayed(frames["http_events"])]
    return {"cached_errors": pd.DataFrame(found)} if found else {}


def _stored(keys: "pd.DataFrame") -> Iterator[dict[str, object]]:
    """Families with keys that hold an error."""
    bad = keys[(keys["verdict"] == "ghost") & keys["reasons"].str.contains("error-cached", na=False)].sort_values("key")
    for _, group in bad.groupby(["bundle", "capture", "target", "db", "family"], dropna=False, sort=False):
        first = _plain(group.iloc[[0]])[0]
        what = f"{len(group)} stored errors in {first['family']} ({first['target']} db {first['db']}), for example {first['key']}"
        yield {**{name: first[name] for name in (*ORIGIN, "target", "db", "family")}, "keys": len(group), "bytes": int(group["bytes"].sum()), "what": what}


def _replayed(requests: "pd.DataFrame") -> Iterator[dict[str, object]]:
    """Paths on which an error was answered by the service, and later successes by the cache that are of its size to the byte."""
    told = requests[requests["bytes"].notna() & requests["ts"].notna() & requests["status"].notna()].sort_values("ts", kind="stable")
    cached = told["cached"].eq(True).fillna(False).astype(bool)
    errors, successes = told[~cached & (told["status"] >= 400)], told[cached & (told["status"] < 300)]
    for row in _plain(errors.drop_duplicates([*SAME, "bytes"])):
        hits = successes[(successes["ts"] > row["ts"]) & successes["bytes"].eq(row["bytes"])]
        hits = hits[[all(one == row[name] for name, one in zip(SAME, values, strict=True)) for values in zip(*(hits[name] for name in SAME), strict=True)]]
        if len(hits) >= LEAST_HITS:
            what = (
                f"{row['path']} was answered with {row['status']} and {row['bytes']} bytes at {row['ts']:%H:%M:%S}; since then the cache gave "
                f"{len(hits)} answers of exactly {row['bytes']} bytes, with status {int(hits['status'].iloc[0])}"
            )
            yield {**{name: row[name] for name in ORIGIN}, "family": row["path"], "keys": len(hits), "bytes": row["bytes"], "what": what}

def _plain(frame: "pd.DataFrame") -> list[Row]:
    """Rows with None for what is unknown."""
    return cast("list[Row]", frame.astype(object).where(frame.notna(), None).to_dict("records"))
