"""What lookups in the prefix cache saw, block by block: logs of patched or debugging engines, and recorded KV cache events.

    [2026-01-05 10:00:03.120] [4711] [4720] [llm] [DEBUG] 二分IsBlockCached: 0            MindIE with a patched lookup
    {"request": "r7", "method": "engine", "position": 0, "block_hash": "8721", "hit": true}     llmdiag's own JSON lines
    {"seq": 7, "ts": 1796007298.3, "events": [{"type": "BlockStored", "block_hashes": […]}]}     KV events of vLLM

No engine tells this unasked, so a snapshot finds nothing of its own. It reads what is handed in; of logs, which stay
those of the collector `logs`, it reads the lines with such marks, also inside a bundle.
"""

from collections.abc import Iterator, Sequence

from diag.bundle import Door
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import lookup_jsonl, lookup_kv_events, lookup_mindie, lookup_sglang, lookup_vllm
from diag.parsers.log_clock import Clock
from diag.parsers.lookup_lines import encodings, present
from diag.tables import CORE, Table

NAME = "lookups"
FEEDS = ("lookup_hits",)
NEEDS: tuple[str, ...] = ()
TABLES: tuple[Table, ...] = tuple(table for table in CORE if table.name in ("block_lookups", "kv_events"))
"""Filled from what was handed in only: that a snapshot has none of it says nothing about the cache."""
BESIDE = ("logs",)
"""Artefacts of this collector are read here too."""
BUDGET_S = 1.0
BUDGET_BYTES = 1 << 20
HINT = "llmdiag snapshot {pid}"
LIVE = False
COLUMN_HINTS = {"block_lookups": "llmdiag analyze LOOKUP_LOG", "kv_events": "llmdiag analyze KV_EVENTS_FILE"}
HITS = {"vllm": lookup_vllm, "sglang": lookup_sglang}
MARKS = encodings(lookup_mindie.PROOF)


def collect(patient: Patient, door: Door) -> Collecting:
    """Nothing of its own: what a live service logs is collected by `logs`, what it does not log cannot be asked."""
    return
    yield


def recognise(name: str, head: bytes) -> bool:
    """A log with the marks of lookups near its beginning, recorded events, or llmdiag's own JSON lines."""
    if any(mark in head for mark in MARKS) or lookup_kv_events.recognise(head):
        return True
    first = head.lstrip().split(b"\n", 1)[0]
    return first[:1] == b"{" and lookup_jsonl.recognise(first.decode("utf-8", "replace"))


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Rows of block_lookups, lookup_hits and kv_events. Raises Garbled (names the line)."""
    for artefact in artefacts:
        with artefact.opener() as stream:
            head = stream.read(64 << 10)
        if lookup_kv_events.recognise(head):
            yield from _events(artefact)
        elif head.lstrip()[:1] == b"{" and artefact.collector == NAME:
            yield from lookup_jsonl.rows(artefact)
            for table in ("block_lookups", "lookup_hits"):
                yield "collected", {"table_name": table, "status": "ok"}
        else:
            yield from _log(artefact)


def _events(artefact: Artefact) -> Iterator[Row]:
    trouble = lookup_kv_events.Trouble()
    yield from lookup_kv_events.rows(artefact, trouble)
    if trouble.reason:
        yield "collected", {"table_name": "kv_events", "status": "partial", "reason": trouble.reason}
    else:
        yield "collected", {"table_name": "kv_events", "status": "ok"}


def _log(artefact: Artefact) -> Iterator[Row]:
    """One look for the marks of each engine; only a log that has them is read line by line."""
    marks = present(artefact, {"mindie": lookup_mindie.PROOF, **{name: parser.MARKS for name, parser in HITS.items()}})
    if marks:
        yield "collected", {"table_name": "lookup_hits", "status": "ok"}
    for name, parser in HITS.items():
        if name in marks:
            yield from parser.rows(artefact, Clock(artefact.year, artefact.zone, None))
    if "mindie" not in marks:
        return
    count = lookup_mindie.Count()
    yield from lookup_mindie.rows(artefact, Clock(artefact.year, artefact.zone, None), count)
    if count.torn:
        reason = (
            f"{len(count.torn)} of {count.lookups} lookups in {artefact.path} contradict themselves (first at line {count.torn[0]}): "
            "their beginning is missing, or lines of several writers are mixed; give the whole log"
        )
        yield "collected", {"table_name": "block_lookups", "status": "partial", "reason": reason}
    elif count.lookups:
        yield "collected", {"table_name": "block_lookups", "status": "ok"}
