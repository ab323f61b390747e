"""A scan that was stopped, in a small file: where to go on, and what is known so far.

    {"schema": "llmdiag.scan/1", "target": "redis://127.0.0.1:6379", "db": 0, "cursor": 1441792, "left": [3], "keys": 120000, …}

The file holds key names and what was learnt of families, never a value, and no address with credentials.
"""

import os
import re
from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from diag.cache.values.family_files import Known
from diag.cache.values.halves import Half, Waiting
from diag.cache.values.judging import Scan, Seen
from diag.cache.values.keys import CacheKey, Tally
from diag.cache.values.profile import Profile
from diag.cache.values.second_thoughts import Doubts, Family
from diag.errors import BadInput, LlmdiagError

SCHEMA = "llmdiag.scan/1"
MAX_BYTES = 1 << 30
HINT = "give the file that the interrupted scan named, or scan from the beginning"


class Saved(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds."""

    schema: str
    target: str
    db: int
    cursor: int
    left: list[int]
    """Databases after this one."""
    pattern: bytes | None
    markers: list[bytes]
    values: bool
    per_family: int | None
    keys: int
    """Looked at so far."""
    left_out: int
    sample: int
    waiting: list[tuple[tuple[int, str], list[Seen]]]
    profiles: list[tuple[tuple[int, str], Profile]]
    versions: list[tuple[tuple[int, str], dict[str, int]]]
    tallies: dict[str, Tally]
    ghosts: list[CacheKey]
    soft: list[CacheKey]
    alone: list[tuple[bytes, Known, Half]]
    met: dict[str, int]
    doubts: list[tuple[tuple[int, str], Family]]


class Stopped(LlmdiagError):
    """A person stopped the scan; `saved` is where it can go on."""

    def __init__(self, saved: Saved) -> None:
        ghosts = sum(row.verdict == "ghost" for row in saved.ghosts)
        super().__init__(f"interrupted: nothing was deleted; {saved.keys} keys were looked at, {ghosts} ghosts so far")
        self.saved = saved


def state(scan: Scan) -> dict[str, object]:
    """What is known, for `Saved`."""
    return {
        "sample": scan.sample, "waiting": list(scan.waiting.items()), "profiles": list(scan.profiles.items()),
        "versions": [(where, dict(counts)) for where, counts in scan.versions.items()], "tallies": dict(scan.tallies),
        "ghosts": list(scan.ghosts.values()), "soft": list(scan.soft.values()),
        "alone": [(name, known, half) for name, (known, half) in scan.pairs.alone.items()], "met": dict(scan.pairs.met),
        "doubts": list(scan.doubts.families.items()),
    }  # fmt: skip


def restore(saved: Saved, scan: Scan) -> None:
    """Put it back into an empty scan."""
    scan.sample = saved.sample
    scan.waiting = defaultdict(list, saved.waiting)
    scan.profiles = dict(saved.profiles)
    scan.versions = defaultdict(Counter, ((where, Counter(counts)) for where, counts in saved.versions))
    scan.tallies = defaultdict(Tally, saved.tallies)
    scan.ghosts = {(row.db, row.key_hex): row for row in saved.ghosts}
    scan.soft = {(row.db, row.key_hex): row for row in saved.soft}
    scan.pairs = Waiting({name: (known, half) for name, known, half in saved.alone}, Counter(saved.met))
    scan.doubts = Doubts(dict(saved.doubts), sum(len(family.rows) for _, family in saved.doubts))


def write(path: Path, saved: Saved) -> None:
    """Whole or not at all, readable by its owner only. LlmdiagError: it cannot be written."""
    partial = path.with_name(path.name + ".part")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(msgspec.json.encode(saved, enc_hook=_encoded))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise LlmdiagError(f"interrupted: nothing was deleted; {path} cannot be written: {error.strerror}", hint="scan from the beginning") from error


def read(path: Path) -> Saved:
    """BadInput: it is no such file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} is no interrupted scan: too large", hint=HINT)
        saved = msgspec.json.decode(path.read_bytes(), type=Saved, dec_hook=_decoded)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint=HINT) from error
    except (msgspec.DecodeError, UnicodeDecodeError, re.error, RecursionError) as error:
        raise BadInput(f"{path} is no interrupted scan: {error}", hint=HINT) from error
    if saved.schema != SCHEMA:
        raise BadInput(f"{path} is of another version: {saved.schema[:40]}", hint=HINT)
    return saved


def _encoded(value: object) -> object:
    if isinstance(value, re.Pattern):
        return value.pattern.decode("latin-1")
    raise NotImplementedError(type(value))


def _decoded(kind: type, value: object) -> object:
    made = getattr(kind, "__origin__", kind)
    if made is re.Pattern and isinstance(value, str):
        return re.compile(value.encode("latin-1"), re.DOTALL)
    if made is Counter and isinstance(value, dict):
        return Counter({str(name): int(count) for name, count in value.items()})
    raise NotImplementedError(kind)
