"""What a comparison of dumps found, as JSON (`llmdiag.tensors/1`: tensors.schema.json), piece by piece: there may be many pairs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice

import msgspec

from diag.tensors.measure import Figures
from diag.tensors.result import Alias, Comparison, Result, Side, Who

SCHEMA = "llmdiag.tensors/1"
PIECE = 256
"""Pairs in one piece of text."""


def schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of the document."""
    found: dict[str, object] = json.loads(resources.files("diag.report").joinpath("tensors.schema.json").read_text(encoding="utf-8"))
    return found


def document(found: Comparison, lookups: Sequence[Mapping[str, object]] = (), diagnosis: Mapping[str, object] | None = None) -> Iterator[bytes]:
    """The whole document in pieces, a pair a line. NaN and infinity are null."""
    head = _encoded(_head(found))
    yield head[:-1] + b',"pairs":['
    for number, part in enumerate(pieces(found.results)):
        yield (b",\n" if number else b"\n") + part
    rest = {"lookups": list(lookups), "diagnosis": diagnosis}
    yield b"]," + _encoded(rest)[1:] + b"\n"


def pieces(results: Iterable[Result]) -> Iterator[bytes]:
    """Pairs as they stand in the document, some at a time, without what encloses them."""
    rest = iter(results)
    while some := [_encoded(pair(item)) for item in islice(rest, PIECE)]:
        yield b",\n".join(some)


def _encoded(value: object) -> bytes:
    """JSON. Names of files may hold bytes that are no UTF-8: those become escapes that can be read."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(value), enc_hook=str)


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _head(found: Comparison) -> dict[str, object]:
    first, scope = found.first, found.scope
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "first_divergence": None if first is None else {**_place(first.result), "kind": first.kind, "says": first.says},
        "scope": None if scope is None else {
            "points_at": scope.points_at, "blocks": scope.blocks, "layers": scope.layers, "ranks": scope.ranks, "says": scope.says,
        },
        "counts": counts(found),
        "good": _who(found.good), "bad": _who(found.bad), "control": None if found.control is None else _who(found.control),
        "donors": [_who(item) for item in found.donors],
        "block_tokens": found.block_tokens,
        "tolerances": found.tolerances,
        "seconds": round(found.seconds, 3),
        "twins": [
            {"name": t.name, "rank": t.rank, "layer": t.layer, "request": t.request, "blocks": t.blocks, "physical": t.physical} for t in found.twins
        ],
        "unpaired": [
            {
                "side": item.side, "name": item.tensor.name, "rank": item.tensor.rank, "step": item.tensor.step, "layer": item.tensor.layer, "why": item.why,
            }
            for item in found.unpaired
        ],
        "unread": [{"side": side, "source": item.source, "reason": item.reason} for side, item in found.unread],
        "notes": list(found.notes),
        "hidden_blocks": found.hidden_blocks,
    }  # fmt: skip


def counts(found: Comparison) -> dict[str, int]:
    """Pairs by verdict; `suspicious`, `follows` and `nan_in_both` are among them. `tensors` those they are of, `not_compared` those left out."""
    numbers: Counter[str] = Counter({"pairs": 0})
    suspicious = follows = both = 0
    compared: set[tuple[str, int | None, int | None]] = set()
    for item in found.results:
        numbers["pairs"] += 1
        numbers[item.verdict] += 1
        suspicious += item.is_suspicious
        follows += item.follows
        both += item.has_nan_in_both
        compared.add((_whole(item.name), item.rank, item.step))
    lone = {(item.side, _whole(item.tensor.name), item.tensor.rank, item.tensor.step, item.tensor.layer) for item in found.unpaired}
    left = sum((name, rank, step) not in compared for _, name, rank, step, _ in lone) + len(found.unread)
    return {**numbers, "suspicious": suspicious, "follows": follows, "nan_in_both": both, "tensors": len(compared), "not_compared": left}


def _whole(name: str) -> str:
    """Keys and values that lie in one tensor are parts of it."""
    return name[:-3] if name.endswith(("[k]", "[v]")) else name


def pair(item: Result) -> dict[str, object]:
    """One tensor or block."""
    told = item.difference
    return {
        **_place(item),
        "role": item.role, "op": item.op or None, "direction": item.direction, "ord": item.ord,
        "verdict": item.verdict, "doubt": item.doubt, "detail": item.detail,
        "good": side(item.good), "bad": side(item.bad),
        "cosine": None if told is None else told.cosine,
        "one_minus_cosine": None if told is None else told.one_minus_cosine,
        "rel_l2": None if told is None else told.rel_l2,
        "max_abs": None if told is None else told.max_abs,
        "max_abs_index": None if told is None else told.max_abs_index,
        "max_rel": None if told is None else told.max_rel,
        "max_rel_index": None if told is None else told.max_rel_index,
        "mismatch_pct": None if told is None or not item.bad.figures or not item.bad.figures.count else 100.0 * told.mismatch / item.bad.figures.count,
        "equal_bits": None if told is None else told.equal_bits,
        "rows_differ": item.rows_differ, "rows_of": item.rows_of, "first_row": item.first_row, "shift": item.shift,
        "alias_of": None if item.alias is None else _alias(item.alias),
        "control_rel_l2": item.control_rel_l2,
        "is_first": item.is_first, "follows": item.follows,
    }  # fmt: skip


def side(item: Side) -> dict[str, object]:
    """Figures of one side; null where its content was not measured."""
    found: Figures | None = item.figures
    figures = {name: None if found is None else getattr(found, name) for name in ("min", "max", "mean", "std", "norm", "zeros", "nan", "inf")}
    return {"dtype": item.dtype, "shape": item.shape, "physical": item.physical, **figures}


def _place(item: Result) -> dict[str, object]:
    return {"name": item.name, "rank": item.rank, "layer": item.layer, "block": item.block, "step": item.step, "request": item.request}


def _alias(item: Alias) -> dict[str, object]:
    return {
        "dump": item.dump, "name": item.name, "block": item.block, "request": item.request, "by": item.by, "rows": item.rows,
        "physical": item.physical, "step": item.step,
        "others": [{"dump": other.dump, "request": other.request, "block": other.block} for other in item.others],
    }  # fmt: skip


def _who(item: Who) -> dict[str, object]:
    return {"name": item.name, "root": item.root, "layout": item.layout, "tensors": item.tensors}
