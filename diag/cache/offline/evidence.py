"""An RDB file among loose evidence -> rows of cache_keys: every ghost, and as many other keys as a diagnosis needs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from diag.cache.offline.scan import scan
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, Garbled
from diag.model import Artefact, Row

MAX_ROWS = 20_000
MAX_BYTES = 256 << 20
"""Of values; a larger file is for `scan-cache`."""


def rows(path: Path, artefact: Artefact) -> Iterator[Row]:
    """Judged as `scan-cache` does. What was left out is a `collected` row. Raises Garbled where no key can be read."""
    kept: list[CacheKey] = []

    def keep(row: CacheKey) -> None:
        if row.verdict not in ("ghost", "soft") and len(kept) < MAX_ROWS:
            kept.append(row)

    try:
        result = scan(path, each=keep, bytes_at_most=MAX_BYTES)
    except BadInput as error:
        raise Garbled(error.message, hint=error.hint) from error
    odd = (*result.ghosts, *result.soft)
    chosen = [*odd, *kept][: max(MAX_ROWS, len(result.ghosts))]
    yield from (("cache_keys", _row(item, artefact)) for item in chosen)
    notes = list(result.losses)
    if len(chosen) < result.keys:
        notes.append(f"{artefact.path} holds {result.keys} keys: the ghosts and {len(chosen) - len(result.ghosts)} others are rows")
    if notes:
        yield "collected", {"table_name": "cache_keys", "status": "partial", "reason": "; ".join(notes)}


def _row(item: CacheKey, artefact: Artefact) -> Mapping[str, object]:
    return {**item.row(), "target": artefact.path, "source": artefact.key(f"{item.db}:{item.key_hex}")}
