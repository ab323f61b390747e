"""What a scan of a cache found, as JSON (`llmdiag.cache/1`, `llmdiag.restore/1`)."""

from collections.abc import Mapping, Sequence

from diag.cache.keys import CacheKey, ScanResult, Server
from diag.cache.purge import Plan, PurgeResult
from diag.cache.restore import RestoreResult


def render(result: ScanResult, plan: Plan | None, done: PurgeResult | None) -> dict[str, object]:
    """One JSON object; `plan` and `done` are those of a purge, if there was one."""
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
                "ghosts": f.ghosts, "reasons": dict(f.reasons),
            }
            for f in result.families
        ],
        "ghosts": [key(item) for item in (*result.ghosts, *result.soft)],
        "warnings": list(result.warnings),
        "purge": purge(plan, done),
        "diagnosis": None,
    }


def server(found: Server) -> Mapping[str, object]:
    return {"product": found.product, "version": found.version, "role": found.role}


def key(item: CacheKey) -> dict[str, object]:
    """One odd key. `purgeable`: a plain purge deletes it; else `include` says which option would."""
    return {
        "db": item.db, "key": item.key, "key_hex": item.key_hex, "family": item.family, "bytes": item.bytes, "ttl_s": item.ttl_s,
        "verdict": item.verdict, "reasons": list(item.reasons), "detail": item.detail,
        "purgeable": item.purgeable, "include": item.include, "sha256": item.sha256,
    }


def purge(plan: Plan | None, done: PurgeResult | None) -> dict[str, object]:
    """Counts of a purge; a plan that was not carried out is a dry run."""
    if done is None:
        planned = 0 if plan is None else len(plan.keys)
        return {"mode": "dry-run", "planned": planned, "deleted": 0, "changed": 0, "missing": 0, "failed": 0, "backup": None}
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
