"""What recorded lookups and cache events show that no sound prefix cache would do, each with a harmless cause where one applies."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from diag.lookups import hash_check, invariants
from diag.lookups.frames import event_of, flag, hit_of, look_of, records
from diag.lookups.invariants import Violation
from diag.tables import Table, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

NEEDS = ("block_lookups",)
WANTS = ("kv_events", "lookup_hits", "lookup_replay")
GIVES: tuple[Table, ...] = (
    table(
        "lookup_violations",
        "What a sound prefix cache would not do, found in recorded lookups and events",
        f"invariant VARCHAR: {' | '.join(invariants.NAMES)}",
        "holds VARCHAR: what is true of a sound cache",
        "says VARCHAR: what was seen",
        "benign VARCHAR: a harmless cause that applies here; NULL = none is known",
        "request VARCHAR: id of the request; NULL = not about one, or not logged",
        "position BIGINT: place of the block in its prompt; NULL = not about one",
        "block_hash VARCHAR: hash of the block; NULL = not about one",
    ),
)

CAPTURE = ["bundle", "host", "capture"]
TABLES = ("block_lookups", *WANTS)
UNKNOWN = "nothing says whether the engine used this answer or that of the walk, which was logged beside it"


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """block_lookups, kv_events, lookup_hits, lookup_replay -> lookup_violations."""
    import pandas as pd

    captures: dict[tuple[object, ...], dict[str, list[dict[str, Any]]]] = {}
    for name in TABLES:
        frame = frames.get(name)
        for row in records(frame) if frame is not None and not frame.empty else ():
            captures.setdefault(tuple(row[column] for column in CAPTURE), {}).setdefault(name, []).append(row)
    given = [
        {**dict(zip(CAPTURE, capture, strict=True)), **_row(violation)}
        for capture, tables in captures.items()
        for violation in _all(tables)
    ]
    return {"lookup_violations": pd.DataFrame(given)} if given else {}


def _row(found: Violation) -> dict[str, object]:
    return {
        "invariant": found.invariant, "holds": invariants.NAMES[found.invariant], "says": found.says, "benign": found.benign,
        "request": found.request, "position": found.position, "block_hash": found.block_hash, "source": found.source,
    }


def _all(tables: "Mapping[str, list[dict[str, Any]]]") -> Iterator[Violation]:
    looks = [look_of(row) for row in tables.get("block_lookups", ()) if row["position"] is not None]
    events = [event_of(row) for row in tables.get("kv_events", ())]
    sizes = {event.block_size for event in events if event.block_size}
    yield from invariants.of_events(events)
    yield from hash_check.check(events)
    yield from (_across_hole(row) for row in tables.get("lookup_replay", ()) if _crosses(row))
    yield from invariants.of_looks(looks)
    yield from invariants.of_reuse(events, looks)
    yield from invariants.of_hits((hit_of(row) for row in tables.get("lookup_hits", ())), sizes.pop() if len(sizes) == 1 else None)


def _crosses(row: "Mapping[str, Any]") -> bool:
    """Did this lookup reuse a block behind a missing one, or may it have?"""
    is_answered = row["engine_hit"] is not None or row["binary_by"] == "logged"
    return row["hole"] is not None and is_answered and (row["exempt"] is not None or flag(row["reused"]) is not False)


def _across_hole(row: "Mapping[str, Any]") -> Violation:
    answer = int(row["engine_hit"] if row["engine_hit"] is not None else row["binary_hit"])
    hole = int(row["hole"])
    says = f"{answer} blocks are reused, but block {hole} is {row['why'] or 'not there'}: a walk reuses {hole}"
    benign = row["exempt"] or (UNKNOWN if flag(row["reused"]) is None else None)
    return Violation("hit-after-miss", says, str(row["source"]), benign, row["request"], hole)
