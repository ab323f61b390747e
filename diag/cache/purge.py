"""Delete ghost keys, and only them: planned, backed up first, each compared with its backup at the moment it goes."""

import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import redis

from diag.cache import backup
from diag.cache.connection import Client, at_database, speaking
from diag.cache.deleting import Fingerprint, Outcome, batches, delete
from diag.cache.keys import CacheKey
from diag.errors import BadInput, Denied, LlmdiagError

MAX_KEYS = 10_000
FAMILY_SHARE = 0.10
TOTAL_SHARE = 0.5
FEW = 5
"""So few keys of a family no share forbids."""
BASE64 = 1.4
"""Bytes of backup per byte of value, with some room."""


@dataclass(frozen=True)
class Plan:
    """What a purge would delete."""

    target: str
    keys: tuple[CacheKey, ...]
    reasons: Mapping[str, int]
    families: Mapping[str, int]
    bytes: int
    refusals: tuple[str, ...] = ()
    """Limits it breaks; a person must force it."""
    left_out: tuple[CacheKey, ...] = ()
    """Odd keys that this plan does not touch."""


@dataclass(frozen=True)
class PurgeResult:
    """What a purge did."""

    planned: int
    deleted: int
    changed: int
    missing: int
    failed: int
    backup: str | None
    """None: there was nothing to delete, so nothing to back up."""
    error: str | None = None
    """Why it stopped early. What was deleted until then is in the backup."""


def plan(
    rows: Iterable[CacheKey],
    *,
    target: str,
    sizes: Mapping[str, int] | None = None,
    include: Iterable[str] = (),
    max_keys: int = MAX_KEYS,
) -> Plan:
    """Which keys to delete: the ghosts, and soft ones for a reason in `include`.

    `sizes` are the keys per family as the scan counted them; with them the plan knows what share it would take.
    """
    wanted = frozenset(include)
    odd = [row for row in rows if row.verdict in ("ghost", "soft")]
    keys = [row for row in odd if row.sha256 is not None and (row.verdict == "ghost" or wanted & set(row.reasons))]
    chosen = {(row.db, row.key_hex) for row in keys}
    families = Counter(row.family for row in keys)
    return Plan(
        target=target,
        keys=tuple(keys),
        reasons=Counter(reason for row in keys for reason in row.reasons),
        families=families,
        bytes=sum(row.bytes for row in keys),
        refusals=tuple(_refusals(families, sizes, max_keys)),
        left_out=tuple(row for row in odd if (row.db, row.key_hex) not in chosen),
    )


def _refusals(families: Mapping[str, int], sizes: Mapping[str, int] | None, max_keys: int) -> Iterator[str]:
    total = sum(families.values())
    if total > max_keys:
        yield f"{total} keys are more than the limit of {max_keys}"
    if sizes is None:
        return
    for name, count in families.items():
        size = sizes.get(name, count)
        if count >= FEW and count > FAMILY_SHARE * size:
            yield f"{count} of {size} keys of {name} are more than {FAMILY_SHARE:.0%}: the rule may be wrong, not the keys"
    everything = sum(sizes.values())
    if total >= FEW and total > TOTAL_SHARE * everything:
        yield f"{total} of {everything} keys are more than half of everything"


def purge(client: Client, plan: Plan, path: Path, *, force: bool = False, pause_s: float = 0.0) -> PurgeResult:
    """Back up every planned key to `path`, then delete those that are still what was judged and backed up.

    `pause_s` lies between the judgement and the second read: a key that lives changes in it and drops out.
    Raises what `check` raises. Before the backup is on disk nothing is deleted; an error after it ends in
    `PurgeResult.error`.
    """
    if not plan.keys:
        return PurgeResult(0, 0, 0, 0, 0, None)
    check(client, plan, path, force=force)
    time.sleep(pause_s)
    counts: Counter[Outcome] = Counter()
    prints: list[Fingerprint] = []
    with speaking(plan.target):
        backup.write(path, plan.target, _second_read(client, plan.keys, counts, prints))
    error = delete(client, plan.target, prints, counts)
    counts["failed"] += len(plan.keys) - counts.total()
    return PurgeResult(
        len(plan.keys), counts["deleted"], counts["changed"], counts["missing"], counts["failed"], str(path), error
    )


def check(client: Client, plan: Plan, path: Path, *, force: bool = False) -> None:
    """Everything that can be known to stand against a purge before anybody is asked to confirm it.

    BadInput: the plan breaks a limit and is not forced, or the backup exists. Denied: the server is a replica.
    LlmdiagError: there is no place for the backup.
    """
    if plan.refusals and not force:
        raise BadInput("the purge would take too much: " + "; ".join(plan.refusals), hint="look at the plan; then use --force")
    with speaking(plan.target):
        _refuse_replica(client, plan.target)
    backup.refuse_place(path)
    _refuse_full_disk(path, plan.bytes)


def _refuse_replica(client: Client, target: str) -> None:
    try:
        facts = cast(Mapping[str, object], client.info("replication"))
    except redis.exceptions.NoPermissionError:
        return  # a replica says READONLY to the first delete
    if facts.get("role") == "slave":
        raise Denied(
            f"{target} is a replica: deleting here would not last",
            hint=f"purge on its primary {facts.get('master_host')}:{facts.get('master_port')}",
        )


def _refuse_full_disk(path: Path, size: int) -> None:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise LlmdiagError(f"the backup {path} cannot be written: {error.strerror}") from error
    if size * BASE64 > free:
        raise LlmdiagError(
            f"the backup {path} cannot be written: it needs about {size * BASE64 / 1e6:.1f} MB, there are {free / 1e6:.1f} MB",
            hint="nothing was deleted; choose a place with room for it",
        )


def _second_read(
    client: Client, keys: Sequence[CacheKey], counts: Counter[Outcome], prints: list[Fingerprint]
) -> Iterator[backup.Entry]:
    """Read each key again; those still as judged are backed up and remembered."""
    for db in sorted({row.db for row in keys}):
        there = at_database(client, db)
        rows = [row for row in keys if row.db == db]
        for batch in batches(rows):
            now = _values_and_expiries(there, [row.name for row in batch])
            for row, (value, expires_at_ms) in zip(batch, now, strict=True):
                if value is None:
                    counts["missing"] += 1
                    continue
                entry = backup.Entry(db, row.name, value, expires_at_ms)
                if entry.sha256 != row.sha256 or (row.ttl_s is None) != (expires_at_ms is None):
                    counts["changed"] += 1
                    continue
                digest = hashlib.sha1(value, usedforsecurity=False).hexdigest()
                prints.append(Fingerprint(db, row.name, digest, expires_at_ms is not None, len(value)))
                yield entry


def _values_and_expiries(client: Client, keys: Sequence[bytes]) -> list[tuple[bytes | None, int | None]]:
    """Value and absolute expiry in Unix milliseconds. A key that is no string any more counts as changed: b""."""
    absolute = True
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.get(key)
        pipe.pexpiretime(key)  # type: ignore[arg-type]
    answers = pipe.execute(raise_on_error=False)
    if any(_is_unsupported(answer) for answer in answers[1::2]):  # before Redis 7.0
        absolute = False
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.get(key)
            pipe.pttl(key)
        seconds, micros = client.time()
        answers = pipe.execute(raise_on_error=False)
    result: list[tuple[bytes | None, int | None]] = []
    for value, expiry in zip(answers[::2], answers[1::2], strict=True):
        if isinstance(value, Exception) and "WRONGTYPE" in str(value):
            result.append((b"", None))
            continue
        for answer in (value, expiry):
            if isinstance(answer, Exception):
                raise answer
        if expiry < 0:
            result.append((value, None))
        else:
            result.append((value, expiry if absolute else seconds * 1000 + micros // 1000 + expiry))
    return result


def _is_unsupported(answer: object) -> bool:
    return isinstance(answer, redis.ResponseError) and ("unknown command" in str(answer) or "no permissions" in str(answer))
