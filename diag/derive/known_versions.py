"""Versions of engines of which it is known how they search their prefix cache."""

from typing import TYPE_CHECKING

from diag.lookups import affected
from diag.tables import Table, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

NEEDS = ("versions",)
GIVES: tuple[Table, ...] = (
    table(
        "known_versions",
        "Versions in the evidence of which it is known whether holes deceive their prefix cache lookup",
        "component VARCHAR: package or part", "version VARCHAR: version",
        "status VARCHAR: affected | possible (depends on the engine that was chosen) | fixed",
        "about VARCHAR: what such versions do",
    ),
)  # fmt: skip


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """versions -> known_versions."""
    import pandas as pd

    rows = frames["versions"].dropna(subset=["component", "version"]).drop_duplicates(["bundle", "host", "capture", "component", "version"])
    given = [
        {name: row[name] for name in ("bundle", "host", "capture", "source", "component", "version")} | {"status": found.status, "about": found.says}
        for row in rows.to_dict("records")
        if (found := affected.known(str(row["component"]), str(row["version"]))) is not None
    ]
    return {"known_versions": pd.DataFrame(given)} if given else {}
