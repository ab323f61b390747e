"""Put purged keys back, except where the service has written something newer."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diag.cache import backup
from diag.cache.connection import Client, at_database, speaking

Outcome = Literal["restored", "kept_newer", "expired"]


@dataclass(frozen=True)
class Failure:
    """One line of the backup that did not come back."""

    line: int | None
    key_hex: str | None
    why: str


@dataclass(frozen=True)
class RestoreResult:
    """What came back."""

    restored: int
    kept_newer: int
    """The key exists again: its value was left alone."""
    expired: int
    """Its time was up while it was away."""
    failed: tuple[Failure, ...] = ()


def restore(client: Client, target: str, path: Path) -> RestoreResult:
    """Write every key of a backup that does not exist, with its absolute expiry, and read it back.

    BadInput: no backup. CannotConnect, Denied, TimedOut: the server; run it again, what is back stays back.
    """
    counts: Counter[Outcome] = Counter()
    failed: list[Failure] = []
    clients: dict[int, Client] = {}
    with speaking(target):
        for entry in backup.read(path):
            if isinstance(entry, backup.Damaged):
                failed.append(Failure(entry.line, entry.key_hex, entry.why))
                continue
            if entry.db not in clients:
                clients[entry.db] = at_database(client, entry.db)
            counts[_put_back(clients[entry.db], entry)] += 1
    return RestoreResult(counts["restored"], counts["kept_newer"], counts["expired"], tuple(failed))


def _put_back(client: Client, entry: backup.Entry) -> Outcome:
    seconds, micros = client.time()
    if entry.expires_at_ms is not None and entry.expires_at_ms <= seconds * 1000 + micros // 1000:
        return "kept_newer" if client.exists(entry.key) else "expired"
    if not client.set(entry.key, entry.value, nx=True, pxat=entry.expires_at_ms):
        return "kept_newer"
    found = client.get(entry.key)
    if found is None:
        return "expired"
    same = isinstance(found, bytes) and hashlib.sha256(found).hexdigest() == entry.sha256
    return "restored" if same else "kept_newer"
