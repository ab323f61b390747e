"""Lookups as llmdiag's own JSON lines: what to write from a patched engine whose log format is nobody's.

One object a line, one line per lookup, method and block:

    {"request": "r7", "method": "binary", "position": 0, "block_hash": "8721", "block_id": 12, "cached": false,
     "computed": null, "hit": true, "ts": 1796007298.3, "epoch": 3}

- `method`: `binary` and `linear` for what such a search saw, `engine` for what the engine did. Required, all else is optional.
- `position`: place of the block in the prompt, from 0. A line without it tells the whole answer: `tokens` taken from
  the cache, of `prompt_tokens`, in blocks of `block_size`.
- `block_hash`: number or text. `block_id`: physical block. `cached`: the hash is in the cache. `computed`: its content
  is. `hit`: this method counts the block as reused. `tokens`: tokens in the block.
- `epoch`: engine generation that wrote the block; `engine_epoch`: generation of the engine that looks it up.
- `ts`: seconds since 1970 or ISO 8601. `lookup`: tells two lookups of one request apart; without it a repeated
  method and position begins the next one.
"""

import datetime
from collections.abc import Iterator
from typing import Literal

import msgspec

from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.parsers.bounds import Count, Epoch

HINT = "one JSON object a line; the keys are described in diag/parsers/lookup_jsonl.py"


class Line(msgspec.Struct):
    """One line; unknown keys are ignored."""

    method: Literal["binary", "linear", "engine"]
    request: str | int | None = None
    lookup: str | int | None = None
    position: Count | None = None
    block_hash: str | int | None = None
    block_id: int | None = None
    cached: bool | None = None
    computed: bool | None = None
    hit: bool | None = None
    ts: Epoch | datetime.datetime | None = None
    tokens: Count | None = None
    prompt_tokens: Count | None = None
    block_size: Count | None = None
    epoch: Count | None = None
    engine_epoch: Count | None = None


def recognise(first: str) -> bool:
    """Is this line one of these?"""
    try:
        line = msgspec.json.decode(first, type=Line)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return line.position is not None or line.tokens is not None


def rows(artefact: Artefact) -> Iterator[Row]:
    """Rows of block_lookups and lookup_hits. Raises Garbled (names the line)."""
    begun: dict[tuple[str | None, str | None], tuple[int, set[tuple[str, int]]]] = {}
    for number, text in artefact.lines():
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
            raise Garbled(f"{artefact.at(number)} is not a lookup: {error}", hint=HINT) from error
        ts, request = naive(line.ts), _text(line.request)
        if line.position is None:
            if line.tokens is not None:
                yield "lookup_hits", {
                    "request": request, "ts": ts, "cache": "own", "hit_tokens": line.tokens, "prompt_tokens": line.prompt_tokens,
                    "block_size": line.block_size, "source": artefact.at(number),
                }
            continue
        key = (request, _text(line.lookup))
        first, seen = begun.get(key, (number, set()))
        if (line.method, line.position) in seen:
            first, seen = number, set()
        seen.add((line.method, line.position))
        begun[key] = (first, seen)
        yield "block_lookups", {
            "lookup": artefact.at(first), "request": request, "ts": ts, "method": line.method, "position": line.position,
            "block_hash": _text(line.block_hash), "block_id": line.block_id, "cached": line.cached, "computed": line.computed,
            "hit": line.hit, "tokens": line.tokens, "epoch": line.epoch, "engine_epoch": line.engine_epoch, "source": artefact.at(number),
        }


def naive(when: float | datetime.datetime | None) -> datetime.datetime | None:
    """Seconds since 1970, or a time with or without a zone -> naive UTC."""
    if when is None:
        return None
    if isinstance(when, datetime.datetime):
        return when if when.tzinfo is None else when.astimezone(datetime.UTC).replace(tzinfo=None)
    return datetime.datetime.fromtimestamp(when, datetime.UTC).replace(tzinfo=None)


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)
