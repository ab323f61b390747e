"""Rows that stand for several: what a stack's frames have in common is told, and turned into columns, once.

    {"pid": 7, "thread": "MainThread", "source": "a.json#threads/0",
     PARTS: ({"depth": 0, "func": "wait", "source": "/frames/0"}, {"depth": 1, "func": "get", "source": "/frames/1"})}

are two rows. The source of a part goes on from that of its row. Parts that many rows have (a stack that is seen again and
again) are one object, and are looked at once.
"""

from collections.abc import Iterator, Mapping
from typing import cast

PARTS = "*parts"
"""No column has such a name."""


def parts_of(row: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    """What the rows that a row stands for have besides."""
    return cast("tuple[Mapping[str, object], ...]", row[PARTS])


def spelled_out(row: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The rows that a row stands for; itself when it has no parts."""
    if PARTS not in row:
        yield row
        return
    common = {name: value for name, value in row.items() if name != PARTS}
    for part in parts_of(row):
        yield {**common, **part, "source": f"{row['source']}{part['source']}"}
