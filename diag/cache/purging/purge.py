"""Delete ghost keys, and only them: planned, backed up first, each compared with its backup at the moment it goes."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import redis

from diag.cache.interrupts import wished
from diag.cache.purging import acl, audit, backup, plan_file
from diag.cache.purging.deleting import Fingerprint, Means, Outcome, batches, delete_batch
from diag.cache.purging.planning import FAMILY_SHARE, FEW, MAX_KEYS, TOTAL_SHARE, Plan, plan
from diag.cache.purging.rereading import fingerprints, lonely, second_read
from diag.cache.purging.throttle import Limits, Rate, Throttle
from diag.cache.servers.connection import Client, at_database, nodes, speaking
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, Denied, LlmdiagError

__all__ = ["FAMILY_SHARE", "FEW", "MAX_KEYS", "TOTAL_SHARE", "Options", "Plan", "PurgeResult", "check", "plan", "purge"]

NO_STRING = ("redis-", "hash")
"""How the codec of a row begins whose key is no string: it is compared by its DUMP."""
BASE64 = 1.4
"""Bytes of backup per byte of value, with some room."""


@dataclass(frozen=True)
class Options:
    """How a purge goes about it."""

    force: bool = False
    """Also when the plan takes more than its caps allow."""
    pause_s: float = 0.0
    """Between the judgement and the second read: a key that lives changes in it and drops out."""
    use_del: bool = False
    """DEL, where UNLINK is denied: the server stops while it frees a long value."""
    rate: Rate = Rate()  # noqa: RUF009 - frozen
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    arguments: tuple[str, ...] = ()
    """The command line, for the audit log; it is redacted there."""


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
    audit: str | None = None
    """The log beside the backup."""
    notes: tuple[str, ...] = ()
    """How it went: the way of deleting where it is not the usual one, what held it back."""


@dataclass(frozen=True)
class _Work:
    """What one purge needs at every step."""

    client: Client
    target: str
    means: Means
    throttle: Throttle
    log: audit.Audit
    rows: Mapping[tuple[int, bytes], CacheKey]
    counts: Counter[Outcome]


def purge(
    client: Client, plan: Plan, path: Path, *, force: bool = False, pause_s: float = 0.0, options: Options | None = None
) -> PurgeResult:
    """Back up every planned key to `path`, then delete those that are still what was judged and backed up.

    `force` and `pause_s` are for callers with no other `options`. Raises what `check` raises. Before the backup is on
    disk nothing is deleted; an error after it ends in `PurgeResult.error`. SIGINT stops it after the batch that is
    under way.
    """
    chosen = Options(force=force, pause_s=pause_s) if options is None else options
    if not plan.keys:
        return PurgeResult(0, 0, 0, 0, 0, None)
    means = check(client, plan, path, options=chosen)
    with wished() as stop, speaking(plan.target):
        stop.wait(chosen.pause_s)
        with Throttle(nodes(client), chosen.rate, chosen.limits, stop) as throttle:
            return _carry_out(client, plan, path, means, throttle, chosen)


def _carry_out(client: Client, plan: Plan, path: Path, means: Means, throttle: Throttle, options: Options) -> PurgeResult:
    server = _product(client)
    counts: Counter[Outcome] = Counter()
    prints: list[Fingerprint] = []
    early: list[tuple[CacheKey, str]] = []
    most = options.rate.batch_keys
    found = second_read(client, plan.keys, server=server, wait=throttle.wait, most=most)
    backup.write(path, plan.target, _still_judged(found, plan.keys, prints, early), server=server)
    counts.update(cast(Outcome, outcome) for _, outcome in early)
    try:
        log = audit.begin(
            audit.path_of(path), target=plan.target, server=server, plan_sha256=plan_file.digest(plan), backup=path, arguments=options.arguments
        )
    except LlmdiagError:
        path.unlink()  # nothing was deleted, so there is nothing to undo
        raise
    with log:
        work = _Work(client, plan.target, means, throttle, log, {(row.db, row.name): row for row in plan.keys}, counts)
        error = _delete(work, prints, early, most)
        counts["failed"] += len(plan.keys) - sum(counts[name] for name in ("deleted", "changed", "missing", "failed"))
        tally = {name: counts[name] for name in ("deleted", "changed", "missing", "failed")}
        try:
            log.end(tally, error)
        except LlmdiagError as broken:
            error = error or broken.message
    notes = (*throttle.notes, *_said_of(means))
    return PurgeResult(len(plan.keys), **tally, backup=str(path), error=error, audit=str(log.path), notes=notes)


def _still_judged(
    found: Iterator[tuple[CacheKey, backup.Entry | str]], keys: Sequence[CacheKey], prints: list[Fingerprint], early: list[tuple[CacheKey, str]]
) -> Iterator[backup.Entry]:
    """The entries for the backup; what is to be compared goes to `prints`, what drops out to `early`."""
    alone = lonely(keys)
    before: CacheKey | None = None
    for row, entry in found:
        if isinstance(entry, str):
            early.append((row, entry))
            before = None
            continue
        follows = before is not None and before.db == row.db and plan_file.is_pair(before, row)
        prints += fingerprints(row, entry, follows=follows)
        other = alone.get((row.db, row.name))
        if other is not None:
            prints.append(Fingerprint(row.db, other, "", False, 0, follows=True, absent=True))
        before = row
        yield entry


def _delete(work: _Work, prints: Sequence[Fingerprint], early: Sequence[tuple[CacheKey, str]], most: int) -> str | None:
    """Delete what still is as in the backup. Returns why it stopped early, or None."""
    stop = work.throttle.stop
    batch: list[Fingerprint] = []
    try:
        work.log.keys(early)
        with speaking(work.target):
            for db in sorted({item.db for item in prints}):
                there = at_database(work.client, db)
                for batch in batches([item for item in prints if item.db == db], most):
                    if work.throttle.wait(len(batch), sum(item.bytes for item in batch)):
                        return "interrupted"
                    _settle(work, batch, delete_batch(there, batch, work.means))
                    batch = []
    except (LlmdiagError, KeyboardInterrupt) as error:
        why = error.message if isinstance(error, LlmdiagError) else "interrupted"
        why = f"interrupted, and then {why}" if stop.is_set() and isinstance(error, LlmdiagError) else why
        return why + _unknown(work, batch)
    return None


def _settle(work: _Work, batch: Sequence[Fingerprint], outcomes: Sequence[Outcome]) -> None:
    """Count and log."""
    told = [(item, outcome) for item, outcome in zip(batch, outcomes, strict=True) if not item.absent]
    work.counts.update(outcome for _, outcome in told)
    work.log.keys((work.rows[item.db, item.key], outcome) for item, outcome in told)


def _unknown(work: _Work, batch: Sequence[Fingerprint]) -> str:
    """Of a batch that was not answered it is not known what is gone: the log says so, the backup has it all."""
    try:
        work.log.keys((work.rows[item.db, item.key], "unknown") for item in batch if not item.absent)
    except LlmdiagError as error:
        return "" if not batch else f"; and {error.message}"
    return ""


def check(client: Client, plan: Plan, path: Path, *, force: bool = False, options: Options | None = None) -> Means:
    """Everything that can be known to stand against a purge before anybody is asked to confirm it.

    BadInput: the plan breaks a limit and is not forced, or the backup exists. Denied: the server is a replica, or a
    right is missing. LlmdiagError: there is no place for the backup, or the server takes no writes.
    """
    chosen = Options(force=force) if options is None else options
    if plan.refusals and not chosen.force:
        raise BadInput("the purge would take too much: " + "; ".join(plan.refusals), hint="look at the plan; then use --force")
    with speaking(plan.target):
        _refuse_replica(client, plan.target)
        means = _means(client, plan, chosen)
    backup.refuse_place(path)
    if audit.path_of(path).exists():
        raise audit.taken(audit.path_of(path))
    _refuse_full_disk(path, plan)
    return means


def _means(client: Client, plan: Plan, options: Options) -> Means:
    """By one key of each family at each node: rights may hang on the name. The least of them is for all."""
    samples = list({row.family: row.name for row in plan.keys}.values())
    dumped = any(row.codec.startswith(NO_STRING) for row in plan.keys)
    found = [acl.means(node, plan.target, samples, dumped=dumped, use_del=options.use_del) for node in nodes(client)]
    order: tuple[str, ...] = ("script", "delifeq", "delex", "watch")
    return max(found, key=lambda means: order.index(means.way))


def _said_of(means: Means) -> Iterator[str]:
    if means.way != "script":
        command = {"delifeq": "DELIFEQ", "delex": "DELEX", "watch": "WATCH and MULTI, key by key"}[means.way]
        yield f"this user may not run EVAL: compared and deleted by {command}"
    if means.verb == "DEL":
        yield "deleted by DEL, as --use-del says: the server stops while it frees a long value"


def _product(client: Client) -> str | None:
    """`redis 7.0.15`; None: it would not say."""
    try:
        facts = cast(Mapping[str, object], client.info("server"))
    except redis.ResponseError:
        return None
    if facts.get("valkey_version"):
        return f"valkey {facts['valkey_version']}"
    return f"redis {facts.get('redis_version')}"


def _refuse_replica(client: Client, target: str) -> None:
    try:
        facts = cast(Mapping[str, object], client.info("replication"))
    except redis.exceptions.NoPermissionError:
        return  # a replica says READONLY when the first delete is tried
    if facts.get("role") == "slave":
        raise Denied(
            f"{target} is a replica: deleting here would not last",
            hint=f"purge on its primary {facts.get('master_host')}:{facts.get('master_port')}",
        )


def _refuse_full_disk(path: Path, plan: Plan) -> None:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise LlmdiagError(f"the backup {path} cannot be written: {error.strerror}") from error
    size = plan.bytes * BASE64 + 2 * audit.LINE_BYTES * len(plan.keys)
    if size > free:
        raise LlmdiagError(
            f"the backup {path} cannot be written: with its log it needs about {size / 1e6:.1f} MB, there are {free / 1e6:.1f} MB",
            hint="nothing was deleted; choose a place with room for it",
        )
