"""What a scan of a cache found, as JSON (`llmdiag.cache/1`, `llmdiag.restore/1`: cache.schema.json) and as table rows."""

from collections.abc import Mapping, Sequence

from diag.cache.purging.purge import Plan, PurgeResult
from diag.cache.purging.restore import RestoreResult
from diag.cache.values.keys import CacheKey, FamilyReport, ScanResult, Server

FAMILY_COLUMNS = ("family", "keys", "MB", "holds", "TTL", "ghosts", "reasons")
KEY_COLUMNS = ("db", "key", "bytes", "why", "purge")


def render(result: ScanResult, plan: Plan, done: PurgeResult | None, left: int | None) -> dict[str, object]:
    """One JSON object. `done`: what the purge did, if there was one; `left`: how many of its keys are ghosts now."""
    return {
        "schema": "llmdiag.cache/1",
        "target": result.target,
        "server": server(result.server),
        "keys": result.keys,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "families": [
            {
                "family": f.family, "keys": f.keys, "bytes": f.bytes, "codec": f.codec, "dtype": f.dtype, "shape": f.shape,
                "ttl_s": f.ttl_s, "ghosts": f.ghosts, "reasons": dict(f.reasons), "known": f.known, "protected": f.protected,
            }
            for f in result.families
        ],
        "ghosts": [key(item) for item in (*result.ghosts, *result.soft)],
        "warnings": warnings(result, plan, done, left),
        "purge": purge(plan, done),
        "diagnosis": None,
    }


def warnings(result: ScanResult, plan: Plan, done: PurgeResult | None = None, left: int | None = None) -> list[str]:
    """What a reader must know besides the numbers."""
    found = [*result.warnings]
    if result.unknown:
        found.append(f"{result.unknown} keys were not judged: too few siblings, or no string")
    found += plan.refusals
    if plan.guarded:
        found.append(f"{plan.guarded} keys belong to protected families and stay; --force takes them, too")
    if done is not None and done.error is not None:
        found.append(f"the purge stopped early: {done.error}")
    if done is not None:
        found += done.notes
        found += [] if done.audit is None else [f"the log of the purge is {done.audit}"]
    if left:
        found.append(f"{left} of the purged keys are ghosts now: kept, or written anew")
    return found


def ghosts_left(result: ScanResult, plan: Plan, left: int | None) -> int:
    """Ghosts on the server as it is left. `left` None: there was no purge."""
    if left is None:
        return len(result.ghosts)
    planned = sum(item.verdict == "ghost" for item in plan.keys)
    return len(result.ghosts) - planned + left


def server(found: Server) -> Mapping[str, object]:
    return {"product": found.product, "version": found.version, "role": found.role}


def key(item: CacheKey) -> dict[str, object]:
    """One odd key. `purgeable`: a plain purge deletes it; else `include` says which option would."""
    return {
        "db": item.db, "key": item.key, "key_hex": item.key_hex, "family": item.family, "bytes": item.bytes, "ttl_s": item.ttl_s,
        "verdict": item.verdict, "reasons": list(item.reasons), "detail": item.detail,
        "purgeable": item.purgeable, "include": item.include, "sha256": item.sha256,
    }


def purge(plan: Plan, done: PurgeResult | None) -> dict[str, object]:
    """Counts of a purge; a plan that was not carried out is a dry run."""
    if done is None:
        return {"mode": "dry-run", "planned": len(plan.keys), "deleted": 0, "changed": 0, "missing": 0, "failed": 0, "backup": None}
    return {
        "mode": "done", "planned": done.planned, "deleted": done.deleted, "changed": done.changed, "missing": done.missing,
        "failed": done.failed, "backup": done.backup,
    }


def restored(result: RestoreResult) -> dict[str, object]:
    """`llmdiag.restore/1`."""
    failed: Sequence[object] = [{"line": f.line, "key_hex": f.key_hex, "why": f.why} for f in result.failed]
    return {
        "schema": "llmdiag.restore/1", "restored": result.restored, "kept_newer": result.kept_newer, "expired": result.expired,
        "failed": failed,
    }


def family_row(family: FamilyReport) -> Mapping[str, object]:
    """For FAMILY_COLUMNS."""
    return {
        "family": family.family, "keys": family.keys, "MB": f"{family.bytes / 1e6:.2f}",
        "holds": " ".join(filter(None, (family.codec or "?", family.dtype, family.shape, "(protected)" if family.protected else None))),
        "TTL": _span(family.ttl_s), "ghosts": family.ghosts,
        "reasons": ", ".join(f"{name} {count}" for name, count in family.reasons.items()) or "-",
    }


def _span(seconds: float | None) -> str:
    """45 s, 23 h, 30 d; of a family whose keys never expire a dash."""
    if seconds is None:
        return "-"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def key_row(item: CacheKey, plan: Plan) -> Mapping[str, object]:
    """For KEY_COLUMNS."""
    return {
        "db": item.db, "key": item.key or f"hex:{item.key_hex}", "bytes": item.bytes,
        "why": ", ".join(item.reasons) + (f" ({item.detail})" if item.detail else ""),
        "purge": "yes" if item in plan.keys else "no" if item.include is None else f"--include {item.include}",
    }
