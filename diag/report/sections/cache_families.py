"""Cached values that were judged, by family, with their ghosts; and the ghosts themselves."""

from collections.abc import Iterator, Mapping

from diag.model import Part, Section
from diag.plots import Bar, Bars, Listing
from diag.report.sections import Rows

ORDER = 8
READS = {
    "families": """
SELECT target, family, count(*) AS keys, sum(bytes) AS bytes, count(CASE WHEN verdict = 'ghost' THEN 1 END) AS ghosts,
  count(CASE WHEN verdict = 'soft' THEN 1 END) AS soft, string_agg(DISTINCT codec, ', ') AS codecs
FROM cache_keys WHERE family IS NOT NULL GROUP BY target, family ORDER BY ghosts DESC, soft DESC, keys DESC, family""",
    "ghosts": """
SELECT coalesce(key, '0x' || key_hex) AS key, db, bytes, reasons, verdict, family, source FROM cache_keys
WHERE verdict IN ('ghost', 'soft') ORDER BY verdict, family, key""",
}
MAX_FAMILIES, MAX_GHOSTS = 40, 50


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """Families as bars, ghosts as a table."""
    families, ghosts = rows["families"], rows["ghosts"]
    if not families:
        return
    several = len({row["target"] for row in families}) > 1
    bars = tuple(_bar(row, several=several) for row in families[:MAX_FAMILIES])
    parts = [Part(plot=Bars(bars))]
    if ghosts:
        shown = tuple((str(row["key"]), str(row["db"]), "unknown" if row["bytes"] is None else str(row["bytes"]), str(row["reasons"]), str(row["verdict"])) for row in ghosts[:MAX_GHOSTS])
        parts.append(Part(plot=Listing(("key", "db", "bytes", "why", "verdict"), shown)))
    judged, bad = sum(_int(row["keys"]) for row in families), sum(_int(row["ghosts"]) for row in families)
    yield Section(f"Cached values: {bad} {'ghost' if bad == 1 else 'ghosts'} among {judged} keys that were judged", tuple(parts))


def _bar(row: Mapping[str, object], *, several: bool) -> Bar:
    keys, ghosts, soft = _int(row["keys"]), _int(row["ghosts"]), _int(row["soft"])
    odd = [f"{count} {name}" for count, name in ((ghosts, "ghosts"), (soft, "soft")) if count]
    name = f"{row['target']} {row['family']}" if several else str(row["family"])
    size = "" if row["bytes"] is None else f", {_int(row['bytes']):,} bytes"
    codecs = "" if row["codecs"] is None else f", {row['codecs']}"
    text = f"{', '.join(odd) + ' of ' if odd else ''}{keys} {'key' if keys == 1 else 'keys'}{size}{codecs}"
    return Bar(name, keys, text, "bad" if ghosts else "warn" if soft else "calm", ghosts + soft if odd else None)


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]
