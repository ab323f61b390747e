"""Recorded prefix cache lookups, done again: the answer of a walk, of a binary search, and the engine's own.

Where the log says of each block whether it was cached and computed, that is the mask; else what recorded KV events say
was there at that moment; else the two lists that the engine logged are compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diag.lookups.events import key_of
from diag.lookups.followed import Answers, Used, used
from diag.lookups.frames import asked_of, event_of, flag, look_of, number, records, seconds
from diag.lookups.invariants import Look, at_lookups, windowed
from diag.lookups.replay import blind_spots, linear, lower_bound
from diag.lookups.ties import Trials
from diag.tables import Table, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

NEEDS = ("block_lookups",)
WANTS = ("kv_events", "lookup_hits", "prefix_trials", "known_versions")
GIVES: tuple[Table, ...] = (
    table(
        "lookup_replay",
        "Every recorded lookup with the answers of a linear walk and of a binary search over the same blocks",
        "lookup VARCHAR: which lookup, artefact:line where it begins",
        "request VARCHAR: id of the request; NULL = the log does not say",
        "ts TIMESTAMP: when it was logged; NULL = not dated",
        "basis VARCHAR: flags (logged per block) | events (KV events) | lists (only the ids that were found)",
        "blocks BIGINT: blocks whose state is known, from the first on; NULL = lists",
        "mask VARCHAR: 1 = cached and computed, 0 = not, per block; at most 64 of them; NULL = lists",
        "linear_hit BIGINT: blocks that a walk to the first miss reuses; at least, where no miss is known",
        "binary_hit BIGINT: blocks that the binary search reuses, as logged, else as replayed",
        "binary_by VARCHAR: logged (a search of the engine answered so, which need not be the one it follows) | replayed (it would have answered that)",
        "engine_hit BIGINT: blocks that the engine says it reused; NULL = neither logged nor told by an experiment",
        "engine_by VARCHAR: logged | cached_tokens (of the answer to this request, where the two searches disagree); NULL = not known",
        "reused BOOLEAN: the engine used an answer with a block that is not there; NULL = nothing says which of two answers it used",
        "known_by VARCHAR: how that is known, in words; NULL = not known, or no dispute",
        "disagrees BOOLEAN: the binary search reuses a block that is not there, or the two lists differ",
        "follows VARCHAR: binary | linear | neither: which answer the engine's own one equals; NULL = not known, or both are the same",
        "hole BIGINT: position of the first block that is not there and that the binary search or the engine reuses; NULL = none, or lists",
        "why VARCHAR: not cached | not computed, of that block; NULL = no hole",
        "behind BIGINT: blocks that are reused behind the hole; NULL = no hole",
        "blind VARCHAR: positions that a binary search over so many blocks does not look at when all are there; NULL = none",
        "binary_ids VARCHAR: physical blocks of the binary answer; NULL = not logged",
        "linear_ids VARCHAR: physical blocks of the walk's answer; NULL = not logged",
        "exempt VARCHAR: why blocks behind a missing one may be reused here; NULL = they may not",
        "wrong BOOLEAN: an answer has a block that is not there, or the two lists differ, and it is not exempt",
    ),
)

CAPTURE = ["bundle", "host", "capture"]
MASK_SHOWN = 64
BLIND_SHOWN = 16


@dataclass
class _Lookup:
    """The rows of one lookup, by method."""

    first: dict[str, Any]
    blocks: dict[str, list[Look]] = field(default_factory=dict)
    hits: dict[str, list[bool | None]] = field(default_factory=dict)
    """Method -> what it logged about counting each block."""
    lists: dict[str, str] = field(default_factory=dict)


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """block_lookups (+ kv_events, lookup_hits, prefix_trials, known_versions) -> lookup_replay."""
    import pandas as pd

    rows = frames["block_lookups"]
    if rows.empty:
        return {}
    given, asked = [], frames.get("prefix_trials")
    trials = Trials([] if asked is None or asked.empty else [asked_of(row) for row in records(asked)])
    for capture, here in rows.groupby(CAPTURE, dropna=False, sort=False):
        lookups = _lookups(records(here))
        masks = _event_masks(lookups, _of(frames.get("kv_events"), capture))
        hits = _hits(_of(frames.get("lookup_hits"), capture))
        found = [row for lookup in lookups if (row := _row(lookup, masks.get(str(lookup.first["lookup"])), hits)) is not None]
        versions = {f"{row['component']} {row['version']} {row['about']}": str(row["status"]) for row in _of(frames.get("known_versions"), capture)}
        settled = used([_answers(row, trials) for row in found], versions)
        given += [{**dict(zip(CAPTURE, capture, strict=True)), **row, **_settled(row, answer)} for row, answer in zip(found, settled, strict=True)]
    return {"lookup_replay": pd.DataFrame(given)} if given else {}


def _answers(row: "Mapping[str, Any]", trials: Trials) -> Answers:
    request = row["request"]
    trial = None if request is None else trials.named(str(request), seconds(row["ts"]))
    return Answers(
        f"the lookup at {row['lookup']}" if request is None else f"request {request}", row["binary_hit"], row["linear_hit"],
        _wrong(row), row["engine_hit"], None if trial is None else trial.cached_tokens, row["binary_by"] == "logged",
    )


def _wrong(row: "Mapping[str, Any]") -> bool:
    return row["exempt"] is None and (row.get("hole") is not None or bool(row["disagrees"]))


def _settled(row: "Mapping[str, Any]", answer: Used) -> dict[str, object]:
    followed = row["follows"] if answer.by != "cached_tokens" else _follows(answer.engine, row["binary_hit"], row["linear_hit"])
    return {"wrong": _wrong(row), "engine_hit": answer.engine, "engine_by": answer.by, "reused": answer.reused, "known_by": answer.says, "follows": followed}


def _of(frame: "pd.DataFrame | None", capture: Sequence[object]) -> list[dict[str, Any]]:
    """Rows of one capture."""
    if frame is None or frame.empty:
        return []
    return [row for row in records(frame) if [row[name] for name in CAPTURE] == [None if value != value else value for value in capture]]


def _lookups(rows: list[dict[str, Any]]) -> list[_Lookup]:
    found: dict[str, _Lookup] = {}
    for row in rows:
        lookup = found.setdefault(str(row["lookup"]), _Lookup(row))
        method = str(row["method"])
        if row["position"] is None:
            lookup.lists[method] = str(row["listed"] or "")
        else:
            lookup.blocks.setdefault(method, []).append(look_of(row))
            lookup.hits.setdefault(method, []).append(flag(row["hit"]))
    return list(found.values())


def _event_masks(lookups: list[_Lookup], events: list[dict[str, Any]]) -> dict[str, tuple[list[bool], str | None]]:
    """Lookup without flags -> which of its blocks were there, up to the first that cannot be told, and why it may skip some."""
    bare = [look for lookup in lookups for look in lookup.blocks.get("engine", ()) if look.cached is None and look.block_hash is not None]
    if not bare or not events:
        return {}
    told = [event_of(row) for row in events]
    kinds = {event.key: event.spec_kind for event in told if event.spec_kind is not None}
    there: dict[str, dict[int, bool | None]] = {}
    exempt: dict[str, str | None] = {}
    for look, cache in at_lookups(told, bare):
        there.setdefault(look.lookup, {})[look.position] = cache.holds(look.block_hash or "")
        exempt[look.lookup] = exempt.get(look.lookup) or windowed(kinds.get(key_of(look.block_hash or "")))
    return {lookup: (_leading(states), exempt[lookup]) for lookup, states in there.items()}


def _leading(states: "Mapping[int, bool | None]") -> list[bool]:
    """Position -> state, up to the first position that is missing or unknown."""
    mask: list[bool] = []
    while (state := states.get(len(mask))) is not None:
        mask.append(state)
    return mask


def _hits(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Request -> blocks that the engine took from its own cache, where it says so in tokens."""
    return {
        str(row["request"]): int(row["hit_tokens"]) // int(row["block_size"])
        for row in rows
        if row["request"] is not None and row["block_size"] and row["cache"] in ("vllm", "own")
    }


def _row(lookup: _Lookup, by_events: tuple[list[bool], str | None] | None, hits: "Mapping[str, int]") -> dict[str, object] | None:
    states, reasons = _flags(lookup)
    mask, basis, exempt = _leading(states), "flags", None
    if not mask and by_events is not None:
        (mask, exempt), basis = by_events, "events"
    first = lookup.first
    about = {"lookup": first["lookup"], "request": first["request"], "ts": first["ts"], "source": first["source"]}
    about |= {"binary_ids": _ids(lookup, "binary"), "linear_ids": _ids(lookup, "linear"), "exempt": exempt}
    engine = _engine(lookup, hits)
    if not mask:
        return _of_lists(lookup, about, engine)
    walk, (binary, binary_by) = linear(mask), _binary(lookup, mask)
    # beyond the blocks whose state is known nobody can tell who is right
    hole = walk if walk < len(mask) and walk < max(binary, engine or 0) else None
    lists_differ = len(lookup.lists) == 2 and hole is None and lookup.lists["binary"] != lookup.lists["linear"]
    blind = blind_spots(max(len(mask), binary))
    return {
        **about, "basis": basis, "blocks": len(mask), "mask": "".join("1" if there else "0" for there in mask[:MASK_SHOWN]),
        "linear_hit": walk, "binary_hit": binary, "binary_by": binary_by, "engine_hit": engine,
        "disagrees": binary > walk or lists_differ, "follows": None if walk == len(mask) else _follows(engine, binary, walk), "hole": hole,
        "why": None if hole is None else reasons.get(hole, "not cached"), "behind": None if hole is None else max(binary, engine or 0) - hole - 1,
        "blind": ", ".join(map(str, blind[:BLIND_SHOWN])) + (", …" if len(blind) > BLIND_SHOWN else "") or None,
        "source": _source(lookup, hole),
    }


def _flags(lookup: _Lookup) -> tuple[dict[int, bool | None], dict[int, str]]:
    """Position -> is the block cached and computed, by all methods that looked; and why it is not."""
    states: dict[int, bool | None] = {}
    reasons: dict[int, str] = {}
    for looks in lookup.blocks.values():
        for look in looks:
            if look.cached is None:
                continue
            there = look.cached and look.computed is not False
            states[look.position] = there and states.get(look.position, True)
            if not there:
                reasons[look.position] = "not cached" if not look.cached and look.computed is None else "not computed" if look.computed is False else "not cached"
    return states, reasons


def _binary(lookup: _Lookup, mask: list[bool]) -> tuple[int, str]:
    """The binary answer as logged: blocks that the search counts as hits; where nothing is logged, as replayed."""
    looks, hits = lookup.blocks.get("binary", []), lookup.hits.get("binary", [])
    if looks and all(hit is not None for hit in hits):
        return max((look.position + 1 for look, hit in zip(looks, hits, strict=True) if hit), default=0), "logged"
    if "binary" in lookup.lists and not looks:
        return 0, "logged"  # no lines for its blocks, because it answered none
    return lower_bound(mask), "replayed"


def _engine(lookup: _Lookup, hits: "Mapping[str, int]") -> int | None:
    looks, counted = lookup.blocks.get("engine", []), lookup.hits.get("engine", [])
    if looks and all(hit is not None for hit in counted):
        return max((look.position + 1 for look, hit in zip(looks, counted, strict=True) if hit), default=0)
    request = lookup.first["request"]
    return None if request is None else hits.get(str(request))


def _follows(engine: int | None, binary: int, walk: int) -> str | None:
    if engine is None or binary == walk:
        return None
    return "binary" if engine == binary else "linear" if engine == walk else "neither"


def _of_lists(lookup: _Lookup, about: dict[str, object], engine: int | None) -> dict[str, object] | None:
    """Only the lists are known: they differ or they do not."""
    if len(lookup.lists) < 2:
        return None
    binary, walk = (len(lookup.lists[method].split()) for method in ("binary", "linear"))
    differs = lookup.lists["binary"] != lookup.lists["linear"]
    return {
        **about, "basis": "lists", "linear_hit": walk, "binary_hit": binary, "binary_by": "logged", "engine_hit": engine, "disagrees": differs,
        "follows": _follows(engine, binary, walk),
    }


def _ids(lookup: _Lookup, method: str) -> str | None:
    """Physical blocks of an answer: the list as logged, else those of its blocks."""
    if method in lookup.lists:
        return lookup.lists[method]
    known = [str(number(look.block_id)) for look in lookup.blocks.get(method, ()) if look.hit and look.block_id is not None]
    return " ".join(known) or None


def _source(lookup: _Lookup, hole: int | None) -> str:
    """The line of the hole, else the first line."""
    return next((source for source in _sources(lookup, hole)), str(lookup.first["source"]))


def _sources(lookup: _Lookup, hole: int | None) -> Iterator[str]:
    for method in ("binary", "engine", "linear"):
        yield from (look.source for look in lookup.blocks.get(method, ()) if look.position == hole)
