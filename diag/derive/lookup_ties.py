"""Whose lookups these are: of the request whose tensors were dumped, of a question of an experiment, or somebody else's.

A log holds the lookups of every request. What one of them says proves something of another only as far as both went
through the same search; so findings prefer the lookup of the dumped or failing request, and say of others that they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.lookups import ties
from diag.lookups.frames import asked_of, flag, number, records, seconds
from diag.lookups.ties import Dumped, Looked, Tie
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("lookup_replay",)
WANTS = ("block_lookups", "tensor_pairs", "wrong_blocks", "prefix_trials")
GIVES: tuple[Table, ...] = (
    table(
        "lookup_ties",
        "Whose recorded lookups are: those that reuse a missing block, and sound ones of a request that was dumped or asked in an experiment",
        "lookup VARCHAR: which lookup, as in lookup_replay",
        "request VARCHAR: id of the request; NULL = the log does not say",
        "ord BIGINT: place of the lookup among all, in the order of the log",
        "whose VARCHAR: dumped (its tensors were dumped) | fits (only this one fits the dump) | ambiguous (several fit) | other | unknown; NULL = no dump to compare with",
        "how VARCHAR: request id | physical blocks | number | hole: what ties it to the dump; NULL = nothing does",
        "dump VARCHAR: dump of the bad run it is tied to; NULL = none",
        "whom VARCHAR: whose it is, in words",
        "reason VARCHAR: how that is known, in words; NULL = no dump to compare with",
        "reused BOOLEAN: its answer with a missing block was used: as in lookup_replay, or as the dump it is tied to shows; NULL = nothing says so",
        "known_by VARCHAR: how that is known, in words; NULL = it is not known",
        "answered VARCHAR: which question of an experiment it is and how that was answered, in words; NULL = of none that was handed in",
        "answer_class VARCHAR: how that request was answered in the experiment; NULL = none is known",
        "failed BOOLEAN: the answer was not as it should be, and not as noise; NULL = it is not of an experiment that was handed in",
    ),
)
CAPTURE = ["bundle", "host", "capture"]
KV = ("k", "v", "kv")
ALIKE = ("same", "close", "shape-mismatch", "dtype-mismatch")
"""Verdicts on token ids that do not say that the prompts differ."""

Record = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """lookup_replay (+ block_lookups, tensor_pairs, wrong_blocks, prefix_trials) -> lookup_ties."""
    import pandas as pd

    replayed = frames["lookup_replay"]
    if replayed.empty:
        return {}
    dumps, asked = list(_dumps(_all(frames, "tensor_pairs"), _all(frames, "wrong_blocks"))), [asked_of(row) for row in _all(frames, "prefix_trials")]
    ids = _physical(_all(frames, "block_lookups"))
    given = []
    for capture, here in replayed.groupby(CAPTURE, dropna=False, sort=False):
        rows = records(here)
        looked = [_looked(row, ids.get(str(row["lookup"]), {})) for row in rows]
        about = {item.lookup: (place, row) for place, (item, row) in enumerate(zip(looked, rows, strict=True))}
        given += [{**dict(zip(CAPTURE, capture, strict=True)), **_row(tie, *about[tie.lookup.lookup])} for tie in ties.ties(looked, dumps, asked)]
    return {"lookup_ties": pd.DataFrame(given)} if given else {}


def _all(frames: "Mapping[str, pd.DataFrame]", name: str) -> list[dict[str, Any]]:
    """Dumps and experiments are of no host and no capture: they go with every log that was handed in together with them."""
    frame = frames.get(name)
    return [] if frame is None or frame.empty else records(frame)


def _looked(row: Record, ids: Mapping[int, int]) -> Looked:
    hole = number(row["hole"])
    reuses = max(number(row["binary_hit"]) or 0, number(row["engine_hit"]) or 0)
    holes = frozenset(place for place, there in enumerate(str(row["mask"] or "")[:reuses]) if there == "0")
    return Looked(str(row["lookup"]), row["request"], seconds(row["ts"]), hole, flag(row["wrong"]) is True, ids, reuses, holes)


def _physical(rows: Sequence[Record]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        if row["position"] is not None and row["block_id"] is not None:
            found.setdefault(str(row["lookup"]), {})[int(row["position"])] = int(row["block_id"])
    return found


def _dumps(pairs: Sequence[Record], wrong: Sequence[Record]) -> Iterator[Dumped]:
    blocks: dict[str, set[int]] = {}
    for row in wrong:
        if row["accuses"]:
            blocks.setdefault(str(row["bad_dump"]), set()).add(int(row["block"]))
    placed: dict[str, dict[int, set[int]]] = {}
    places: dict[str, set[int]] = {}
    differing: dict[str, set[int]] = {}
    others = {str(row["bad_dump"]) for row in pairs if row["role"] == "token_ids" and row["verdict"] not in ALIKE}
    for row in pairs:
        if row["role"] in KV and row["block"] is not None:
            places.setdefault(str(row["bad_dump"]), set()).add(int(row["block"]))
            if row["verdict"] not in ("same", "close"):
                differing.setdefault(str(row["bad_dump"]), set()).add(int(row["block"]))
        mine = placed.setdefault(str(row["bad_dump"]), {})
        if row["role"] in KV and row["block"] is not None and row["bad_physical"] is not None and row["request"] is None:
            mine.setdefault(int(row["block"]), set()).add(int(row["bad_physical"]))
    for name, found in placed.items():
        ids = {block: next(iter(numbers)) for block, numbers in found.items() if len(numbers) == 1}
        counted = all(block == physical for block, physical in ids.items())  # a dump that was packed anew numbers its blocks itself
        wrong_here, here = frozenset(blocks.get(name, ())), places.get(name)
        renewed = frozenset(differing.get(name, ())) - wrong_here
        yield Dumped(name, wrong_here, {} if counted else ids, max(here) + 1 if here else None, renewed, name not in others)


def _row(tie: Tie, place: int, row: Record) -> dict[str, object]:
    return {
        "lookup": tie.lookup.lookup, "request": tie.lookup.request, "ord": place, "whose": tie.whose, "how": tie.how,
        "dump": None if tie.dump is None else tie.dump.name, "whom": ties.whom(tie), "reason": ties.reason(tie) or None,
        **_used(tie, row), "answered": ties.answered(tie) or None,
        "answer_class": None if tie.asked is None else tie.asked.answer_class, "failed": None if tie.asked is None else tie.asked.failed,
        "source": row["source"],
    }


def _used(tie: Tie, row: Record) -> dict[str, object]:
    """As the log and the experiment say; where they do not, the dump does if the missing block is wrong in it."""
    if flag(row["reused"]) is None and tie.dump is not None and tie.dump.same_input and tie.lookup.is_wrong and tie.lookup.hole in tie.dump.wrong:
        return {"reused": True, "known_by": f"block {tie.lookup.hole} is wrong in the dump {tie.dump.name}: the engine took it for a hit, as the binary search says"}
    return {"reused": flag(row["reused"]), "known_by": row["known_by"]}
