"""Judge just the keys that were named, each beside a sample of its siblings, as a ScanResult."""

import time
from collections import defaultdict
from collections.abc import Sequence

from diag.cache.scanning.server import inspect_keys
from diag.cache.servers.connection import Client, Settling, describe, speaking
from diag.cache.values.keys import CacheKey, ScanResult, Tally, hardened
from diag.cache.values.profile import Profile


def judge_named(client: Client, target: str, keys: Sequence[bytes], *, databases: Sequence[int] | None = None, markers: Sequence[bytes] = (), retried: Sequence[bytes] = ()) -> ScanResult:
    """Only rows of `keys` that exist; families count those keys, not their siblings.

    `retried`: keys that stuck threads are seen asking for again and again; what is odd about them is a hard reason.
    """
    started = time.monotonic()
    wanted = {key.hex() for key in keys}
    rows = [row for row in inspect_keys(client, target, keys, databases=databases, markers=markers) if row.key_hex in wanted]
    rows = [hardened(row) if row.name in set(retried) else row for row in rows]
    tallies: dict[str, Tally] = defaultdict(Tally)
    for row in rows:
        tallies[row.family].add(row)
    missing = len(wanted - {row.key_hex for row in rows})
    with speaking(target):
        server = describe(client)
    return ScanResult(
        target=target,
        server=server,
        keys=len(rows),
        bytes=sum(row.bytes for row in rows),
        seconds=time.monotonic() - started,
        families=tuple(tally.report(Profile(name, 0)) for name, tally in tallies.items()),
        ghosts=tuple(row for row in rows if row.verdict == "ghost"),
        soft=tuple(row for row in rows if row.verdict == "soft"),
        unknown=sum(row.verdict == "unknown" for row in rows),
        warnings=(f"{missing} of the {len(wanted)} named keys do not exist",) if missing else (),
    )


def ghosts_again(client: Client, target: str, purged: Sequence[CacheKey], *, markers: Sequence[bytes] = ()) -> int:
    """How many of these keys are ghosts now: kept because they had changed, or written anew since."""
    places = {(row.db, row.key_hex) for row in purged}
    if isinstance(client, Settling):
        with speaking(target):
            client.settle()
    rows = inspect_keys(client, target, [row.name for row in purged], markers=markers)
    return sum((row.db, row.key_hex) in places and row.verdict == "ghost" for row in rows)
