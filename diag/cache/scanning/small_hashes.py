"""The small hashes of a page: how large they are, then the small ones whole, as one more thing a walk waits for."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from diag.cache.scanning.wire import pack
from diag.cache.values.hashes import MAX_BYTES, MAX_FIELDS, facts_of_hash
from diag.cache.values.keys import other_type

if TYPE_CHECKING:
    from diag.cache.scanning.passing import Asked
    from diag.cache.scanning.walk import Walk


def ask(walk: "Walk", items: "Sequence[Asked]") -> None:
    """Queue what it takes to judge these hashes: first how large they are, then the small ones whole, and their DUMP's digest."""
    for item in items:
        walk.outgoing += [pack(b"HLEN", item.key), pack(b"MEMORY", b"USAGE", item.key)]
    walk.queue.append(partial(_sized, walk, items))


def _sized(walk: "Walk", items: "Sequence[Asked]") -> None:
    wanted = []
    for item in items:
        fields, size = walk.wire.numbers(2)
        if isinstance(fields, int) and isinstance(size, int) and 0 < fields <= MAX_FIELDS and size <= MAX_BYTES:
            wanted.append(item)
        elif fields != 0:
            walk.scan.emit(other_type(walk.place(item), "hash"))
    for item in wanted:
        walk.outgoing += [pack(b"HGETALL", item.key), pack(b"DUMP", item.key)]
    if wanted:
        walk.queue.append(partial(_read, walk, wanted))


def _read(walk: "Walk", items: "Sequence[Asked]") -> None:
    for item in items:
        flat, dump = walk.wire.reply(), walk.wire.reply()
        if isinstance(flat, list) and flat and all(isinstance(part, bytes) for part in flat):
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            facts = facts_of_hash(item.key, fields, markers=walk.markers)
            # a purge compares a hash by its DUMP; without the right to DUMP it is only reported
            digest = hashlib.sha256(dump).hexdigest() if isinstance(dump, bytes) else None
            walk.scan.add(walk.place(item), replace(facts, sha256=digest))
        elif flat != []:
            walk.scan.emit(other_type(walk.place(item), "hash"))
