"""Rows of the evidence tables -> the values that the checks speak of; unknown stays unknown."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diag.lookups.events import Event
from diag.lookups.invariants import Hit, Look
from diag.lookups.ties import Asked

if TYPE_CHECKING:
    import pandas as pd

Record = Mapping[str, Any]


def records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Rows as dicts, every kind of missing value as None."""
    whole = frame.astype(object)
    found: list[dict[str, Any]] = whole.where(frame.notna(), None).to_dict("records")  # type: ignore[assignment]
    return found


def look_of(row: Record) -> Look:
    """A row of block_lookups that is a block."""
    return Look(
        lookup=str(row["lookup"]), source=str(row["source"]), position=int(row["position"]), hit=row["hit"] is True or row["hit"] == 1,
        request=row["request"], ts=seconds(row["ts"]), block_hash=row["block_hash"], block_id=number(row["block_id"]),
        cached=flag(row["cached"]), computed=flag(row["computed"]), epoch=number(row["epoch"]), engine_epoch=number(row["engine_epoch"]),
    )


def hit_of(row: Record) -> Hit:
    """A row of lookup_hits."""
    return Hit(
        source=str(row["source"]), hit_tokens=int(row["hit_tokens"]), cache=str(row["cache"]), request=row["request"],
        prompt_tokens=number(row["prompt_tokens"]), block_size=number(row["block_size"]),
    )


def event_of(row: Record) -> Event:
    """A row of kv_events."""
    tokens = row["tokens"]
    return Event(
        kind=str(row["kind"]), source=str(row["source"]), block_hash=row["block_hash"], parent=row["parent_hash"],
        tokens=None if tokens is None else tuple(int(token) for token in str(tokens).split()),
        seq=number(row["seq"]), ts=seconds(row["ts"]), origin=row["origin"] or "", position=number(row["position"]) or 0,
        event_tokens=number(row["event_tokens"]), event_blocks=number(row["event_blocks"]), block_size=number(row["block_size"]),
        lora=row["lora"], extra=row["extra_keys"], medium=row["medium"] or "", group=number(row["group_idx"]) or 0, spec_kind=row["spec_kind"],
    )


def asked_of(row: Record) -> Asked:
    """A row of prefix_trials."""
    failed = flag(row["suspicious"]) is True and flag(row["reproduced"]) is not False
    names = tuple(str(row[name]) for name in ("request", "sent") if row.get(name) is not None)
    return Asked(
        names, seconds(row["ts"]), float(row["seconds"] or 0.0), f"request {row['ordinal']} of the {row['arm']} arm", failed, str(row["answer_class"]),
        number(row.get("cached_tokens")),
    )


def number(value: object) -> int | None:
    """A whole number, which frames hold as a float beside missing ones."""
    return None if value is None else int(value)  # type: ignore[call-overload]


def flag(value: object) -> bool | None:
    """A flag, likewise."""
    return None if value is None else bool(value)


def seconds(value: Any) -> float | None:
    return None if value is None else float(value.timestamp())
