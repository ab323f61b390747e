"""The lookups that a patched MindIE logs: each block before the answer of its binary search, then a linear walk, then both lists.

    … 二分IsBlockCached: 0                                     the binary search answered 2: two blocks, the first is
    … 二分IsBlockCached: 1                                     not cached
    … ===> PrefixCacheBlockAllocator blockHash=8721 blockIDs =12 is computed:1
    … 遍历IsBlockCached: 0                                     the walk stops at the first miss
    … 二分:[12]                                                ids that were found in the map
    … 遍历:[]

A line of the same writer shortly before that names a request (`requestId=cmpl-7`) tells whose lookup it is. The binary
list holds only ids that were in the map and may be shorter than the answer: blocks are told by their own
lines. A lookup whose beginning is not in the file (cut, rotated) is left out and said.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from diag.model import Artefact, Row
from diag.parsers.log_clock import Clock
from diag.parsers.lookup_lines import Marked, marked, time_of

PROOF = ("二分IsBlockCached", "遍历IsBlockCached", "===> PrefixCacheBlockAllocator")
"""A log that has one of these is one with lookups."""
MARKS = ("requestId", *PROOF, "二分:", "遍历:", "二分:", "遍历:")
CACHED = re.compile(r"(?P<how>二分|遍历)IsBlockCached\s*[::]\s*(?P<flag>[01])\b")
BLOCK = re.compile(
    r"===>\s*PrefixCacheBlockAllocator\s+blockHash\s*[=:]\s*(?P<hash>-?\d{1,20})\s*,?\s*blockIDs?\s*[=:]\s*(?P<id>-?\d{1,18})\s*,?\s*"
    r"is computed\s*[::]\s*(?P<computed>[01])\b"
)
LIST = re.compile(r"(?P<how>二分|遍历)\s*[::](?P<ids>[\s\d,;、-]*|\s*[\[({<][^\])}>]*[\])}>]\s*)$")
REQUEST = re.compile(r"requestId\s*[=:]\s*\"?(?P<request>[^\s\",;)\]]{1,200})")
NEAR = 20
"""Lines from the one that names a request to the lookup."""
ID = re.compile(r"-?\d{1,18}")
MAX_BLOCKS = 1 << 16
"""Of one lookup; a prompt has fewer."""

Phase = Literal["binary", "linear", "lists"]


@dataclass
class _Block:
    line: int
    cached: bool
    block_hash: str | None = None
    block_id: int | None = None
    computed: bool | None = None


@dataclass
class _Lookup:
    """One lookup of one writer, as far as it was read."""

    first: Marked
    request: str | None = None
    phase: Phase = "binary"
    binary: list[_Block] = field(default_factory=list)
    linear: list[_Block] = field(default_factory=list)
    lists: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """二分, 遍历 -> (line, ids)"""


@dataclass
class Count:
    """How a log was read."""

    lookups: int = 0
    torn: list[int] = field(default_factory=list)
    """Lines at which lookups begin that contradict themselves: their real beginning is not in the file."""


def rows(artefact: Artefact, clock: Clock, count: Count) -> Iterator[Row]:
    """Rows of block_lookups. `count` is filled in."""
    going: dict[tuple[str, ...], _Lookup] = {}
    named: dict[tuple[str, ...], tuple[int, str]] = {}
    for line in marked(artefact, MARKS):
        if (match := REQUEST.match(line.text)) is not None:
            named[line.writer] = (line.number, match["request"])
            continue
        before = going.get(line.writer)
        found = _next(before, line)
        if found is before:
            continue
        if before is not None:
            yield from _told(before, artefact, clock, count)
        if found is not None:
            at, request = named.pop(line.writer, (0, None))
            found.request = request if line.number - at <= NEAR else None
            going[line.writer] = found
    for lookup in going.values():
        yield from _told(lookup, artefact, clock, count)


def _next(going: _Lookup | None, line: Marked) -> _Lookup | None:
    """The lookup that a line belongs to: the one that is going on, or a new one."""
    if (match := CACHED.match(line.text)) is not None:
        phase: Phase = "binary" if match["how"] == "二分" else "linear"
        if going is None or (going.phase, phase) not in (("binary", "binary"), ("binary", "linear"), ("linear", "linear")):
            going = _Lookup(line)
        going.phase = phase
        blocks = going.binary if phase == "binary" else going.linear
        if len(blocks) < MAX_BLOCKS:
            blocks.append(_Block(line.number, match["flag"] == "1"))
    elif (match := BLOCK.match(line.text)) is not None:
        blocks = [] if going is None else going.binary if going.phase == "binary" else going.linear
        if blocks and blocks[-1].block_hash is None:
            block = blocks[-1]
            block.block_hash, block.block_id, block.computed = match["hash"], int(match["id"]), match["computed"] == "1"
    elif (match := LIST.match(line.text)) is not None:
        if going is None or match["how"] in going.lists:
            going = _Lookup(line)
        going.phase = "lists"
        going.lists[match["how"]] = (line.number, [int(found) for found in ID.findall(match["ids"])])
    return going


def _told(lookup: _Lookup, artefact: Artefact, clock: Clock, count: Count) -> Iterator[Row]:
    """Rows of one lookup: its blocks, or its lists alone where the log has no lines for the blocks."""
    if not (lookup.binary or lookup.linear or lookup.lists):
        return
    count.lookups += 1
    about = {"lookup": artefact.at(lookup.first.number), "request": lookup.request, "ts": time_of(lookup.first.before, clock)}
    whole = not _torn(lookup)
    if not whole:
        count.torn.append(lookup.first.number)
    if whole:
        for method, blocks in (("binary", lookup.binary), ("linear", lookup.linear)):
            for position, block in enumerate(blocks):
                yield "block_lookups", {
                    **about, "method": method, "position": position, "block_hash": block.block_hash, "block_id": block.block_id,
                    "cached": block.cached, "computed": block.computed, "hit": method == "binary" or block.cached,
                    "source": artefact.at(block.line),
                }
    for how, (line, ids) in lookup.lists.items():
        method = "binary" if how == "二分" else "linear"
        yield "block_lookups", {**about, "method": method, "listed": " ".join(map(str, ids)), "source": artefact.at(line)}


def _torn(lookup: _Lookup) -> bool:
    """Do its own lines contradict each other, so that the first ones must be missing?

    Both methods look at the same blocks within one call: their flags agree where both look, the walk ends at a miss
    (or at the end of the chain), and the binary list has one id for every block line.
    """
    walk = [block.cached for block in lookup.linear]
    if not lookup.binary and not walk:
        return True
    if False in walk[:-1] or (walk and walk[-1] and len(walk) < len(lookup.binary)):
        return True
    # a block that is cached and not computed may be a hit for one and a miss for the other
    if any(one.cached != other and one.computed is not False for one, other in zip(lookup.binary, walk, strict=False)):
        return True
    listed = lookup.lists.get("二分")
    return listed is not None and len(listed[1]) != sum(block.block_hash is not None for block in lookup.binary)
