"""A purge plan as a file: written by a dry run, read by people, and carried out exactly with `--purge --plan FILE`.

    {"schema": "llmdiag.plan/1", "target": "redis://127.0.0.1:6379", "created_at": "…", "sha256": "…", "keys": 2, "bytes": 9,
     "refusals": [], "families": [{"family": "…", "keys": 2, "of": 400, "bytes": 9, "reasons": {"empty": 2}, "samples": ["…"]}],
     "entries": [{"db": 0, "key_hex": "…", "sha256": "…", "bytes": 4, "family": "…", "verdict": "ghost", "reasons": ["empty"],
                  "ttl_s": null, "codec": "pickle"}]}
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from diag.cache.purging import pairing
from diag.cache.purging.planning import MAX_KEYS, Plan, refusals
from diag.cache.values.keys import CacheKey, FamilyReport, ScanResult, Server
from diag.errors import BadInput, LlmdiagError

SCHEMA = "llmdiag.plan/1"
SAMPLES = 5
MAX_BYTES = 1 << 30


class _Entry(msgspec.Struct, frozen=True):
    db: int
    key_hex: str
    sha256: str
    bytes: int
    family: str
    verdict: Literal["ghost", "soft", "ok"]
    reasons: tuple[str, ...]
    ttl_s: float | None
    codec: str = "unknown"


class _Family(msgspec.Struct, frozen=True):
    family: str
    keys: int
    of: int | None
    """Keys of the family in all, as the scan counted them."""


class _File(msgspec.Struct, frozen=True):
    schema: str
    target: str
    sha256: str
    total_keys: int | None
    families: tuple[_Family, ...]
    others: Mapping[str, int] | None
    entries: tuple[_Entry, ...]


def digest(plan: Plan) -> str:
    """SHA-256 over database, name and content digest of each key, in the plan's order."""
    return _digest((row.db, row.key_hex, row.sha256) for row in plan.keys)


def is_pair(first: CacheKey, second: CacheKey) -> bool:
    """Are they the two halves of one thing?"""
    return pairing.partner(first.name) == second.name


def refuse_place(path: Path) -> None:
    """BadInput: a file of this name is there and is no plan. LlmdiagError: the folder is none, or takes no file."""
    if os.path.lexists(path) and not _is_plan(path):
        raise BadInput(f"{path} exists and is no plan", hint="name another file for --plan")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = "no such folder" if not path.parent.is_dir() else "the folder is not writable"
        raise LlmdiagError(f"the plan {path} cannot be written: {why}", hint="name another place")


def write(path: Path, plan: Plan) -> None:
    """Write it for the owner only, whole or not at all; an older plan is replaced, nothing else is.

    BadInput: another file has that name. LlmdiagError: the disk refuses.
    """
    refuse_place(path)
    partial = path.with_name(path.name + ".part")
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
            json.dump(_document(plan), out, indent=1)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise LlmdiagError(f"the plan {path} cannot be written: {error.strerror}", hint="nothing was deleted; name another place") from error


def read(path: Path, target: str, *, max_keys: int = MAX_KEYS) -> Plan:
    """The plan as it was written; its limits are checked anew. BadInput: it is none, was changed, or is for another server."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} is too long for a plan")
        found = msgspec.json.decode(path.read_bytes(), type=_File)
        rows = tuple(_row(found.target, entry) for entry in found.entries)
    except OSError as error:
        raise BadInput(f"cannot read the plan {path}: {error.strerror}", hint="write one with: llmdiag scan-cache --plan FILE") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadInput(f"{path} is no plan: {error}", hint="write one with: llmdiag scan-cache --plan FILE") from error
    if found.schema != SCHEMA:
        raise BadInput(f"{path} has schema {found.schema}, this version reads {SCHEMA}")
    if found.sha256 != _digest((row.db, row.key_hex, row.sha256) for row in rows):
        raise BadInput(f"{path}: its keys do not fit its digest: it was changed", hint="make the plan anew")
    if found.target != target:
        raise BadInput(f"{path} is a plan for {found.target}, not for {target}", hint="name the server as the plan does")
    return _plan(target, rows, found, max_keys)


def _plan(target: str, rows: Sequence[CacheKey], found: _File, max_keys: int) -> Plan:
    families = Counter(row.family for row in rows)
    sizes = None if found.others is None else {**found.others, **{item.family: item.of or item.keys for item in found.families}}
    return Plan(
        target=target,
        keys=tuple(rows),
        reasons=_reasons(rows),
        families=families,
        bytes=sum(row.bytes for row in rows),
        refusals=tuple(refusals(families, sizes, max_keys)),
        sizes=sizes,
    )


def as_scan(plan: Plan, server: Server) -> ScanResult:
    """The keys of a plan in place of what a scan would have found."""
    reports = [
        FamilyReport(
            family["family"], family["keys"], family["bytes"], sum(row.verdict == "ghost" for row in _of(plan, family["family"])),
            sum(row.verdict == "soft" for row in _of(plan, family["family"])), family["reasons"], None, None, None,
        )
        for family in families(plan)
    ]  # fmt: skip
    return ScanResult(
        target=plan.target, server=server, keys=len(plan.keys), bytes=plan.bytes, seconds=0.0, families=tuple(reports),
        ghosts=tuple(row for row in plan.keys if row.verdict == "ghost"), soft=tuple(row for row in plan.keys if row.verdict == "soft"),
        unknown=0,
    )  # fmt: skip


def families(plan: Plan) -> list[dict[str, Any]]:
    """Per family: keys, of how many, bytes, reasons, five samples."""
    return [_family(name, plan) for name in plan.families]


def _of(plan: Plan, family: str) -> list[CacheKey]:
    return [row for row in plan.keys if row.family == family]


def _document(plan: Plan) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "target": plan.target,
        "created_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "sha256": digest(plan),
        "keys": len(plan.keys),
        "bytes": plan.bytes,
        "total_keys": None if plan.sizes is None else sum(plan.sizes.values()),
        "refusals": list(plan.refusals),
        "families": families(plan),
        "others": None if plan.sizes is None else {name: size for name, size in plan.sizes.items() if name not in plan.families},
        "entries": [
            {
                "db": row.db, "key_hex": row.key_hex, "sha256": row.sha256, "bytes": row.bytes, "family": row.family,
                "verdict": row.verdict, "reasons": list(row.reasons), "ttl_s": row.ttl_s, "codec": row.codec,
            }
            for row in plan.keys
        ],
    }  # fmt: skip


def _family(name: str, plan: Plan) -> dict[str, Any]:
    rows = _of(plan, name)
    return {
        "family": name, "keys": len(rows), "of": None if plan.sizes is None else plan.sizes.get(name),
        "bytes": sum(row.bytes for row in rows), "reasons": _reasons(rows),
        "samples": [row.key or f"hex:{row.key_hex}" for row in rows[:SAMPLES]],
    }  # fmt: skip


def _reasons(rows: Iterable[CacheKey]) -> Counter[str]:
    return Counter(reason for row in rows if row.verdict != "ok" for reason in row.reasons)


def _digest(keys: Iterable[tuple[int, str, str | None]]) -> str:
    return hashlib.sha256("".join(f"{db} {name} {sha256}\n" for db, name, sha256 in keys).encode()).hexdigest()


def _row(target: str, entry: _Entry) -> CacheKey:
    name = bytes.fromhex(entry.key_hex)
    if len(bytes.fromhex(entry.sha256)) != 32 or entry.db < 0:
        raise ValueError(f"the entry of {entry.key_hex} is damaged")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = None
    return CacheKey(
        target=target, db=entry.db, key=text, key_hex=entry.key_hex, family=entry.family, bytes=entry.bytes, ttl_s=entry.ttl_s,
        idle_s=None, codec=entry.codec, dtype=None, shape=None, min=None, max=None, mean=None, norm=None, nan=None, inf=None,
        crc_ok=None, version=None, reasons=entry.reasons, verdict=entry.verdict, sha256=entry.sha256,
    )  # fmt: skip


def _is_plan(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return SCHEMA.encode() in stream.read(200)
    except OSError:
        return False
