"""The other halves of entries of two keys, looked up on a live server."""

from collections.abc import Sequence
from dataclasses import replace

from diag.cache.servers.connection import Client
from diag.cache.values.facts import Facts, facts_of
from diag.cache.values.halves import PAUSE_S, Exists, Half, Waiting, partner, together
from diag.cache.values.keys import CacheKey
from diag.cache.values.profile import Profile

BATCH_KEYS = 250
MAX_INDEX_BYTES = 4096


def looking(client: Client) -> Exists:
    """Looks at a live server, a batch at a time."""

    def exists(keys: Sequence[bytes]) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(keys), BATCH_KEYS):
            pipe = client.pipeline(transaction=False)
            for key in keys[start : start + BATCH_KEYS]:
                pipe.exists(key)
            found += [bool(answer) for answer in pipe.execute()]
        return found

    return exists


def beside(client: Client, judged: Sequence[tuple[CacheKey, Facts]], profile: Profile, *, pause_s: float = PAUSE_S) -> list[CacheKey]:
    """Rows of keys that were asked for, each compared with its other half on the server."""
    known = profile.stated
    if known is None or known.file.halves is None:
        return [row for row, _ in judged]
    waiting = Waiting()
    rows: list[CacheKey] = []
    for row, facts in judged:
        rows += waiting.meet(row, facts, profile)
    for owner, half in waiting.alone.values():
        other = partner(half.row.name, owner)
        length = 0 if other is None else client.strlen(other)
        if other is None or not isinstance(length, int) or length == 0:
            continue
        head = client.get(other) if half.announces_bytes is None and length <= MAX_INDEX_BYTES else b""
        announced = facts_of(head).announces_bytes if isinstance(head, bytes) and head else None
        stand_in = Half(replace(half.row, bytes=length, reasons=(), verdict="ok", detail=""), 1 - half.side, announced)
        changed = next((r for r in together(half, stand_in) if r.reasons != half.row.reasons and r.bytes == half.row.bytes), None)
        if changed is not None and half.announces_bytes is None:
            rows.append(changed)
            waiting.met[owner.name] += 1
    told = {(row.db, row.key_hex) for row in rows}
    return rows + [row for row in waiting.settle(looking(client), pause_s=pause_s) if (row.db, row.key_hex) not in told]
