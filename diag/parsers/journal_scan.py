"""A journal of any form and any length -> events of units: only lines that can matter are taken apart."""

from collections.abc import Iterator

from diag.model import Artefact
from diag.parsers import journald, journald_entries, log_scan, supervisord
from diag.parsers.event_rows import Event, Said, Watchdog
from diag.parsers.journald_entries import LINE_BYTES, Entry
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import clean
from diag.parsers.log_scan import Finder
from diag.parsers.lookup_lines import present

TEXT = (
    rb"(?:systemd|kubelet|dockerd)\[\d+\]: ", rb"systemd(?:-coredump|-oomd)\[\d+\]: ", rb"COMMAND=", rb"CMD \(", rb"-- (?:Reboot|Boot [0-9a-f]+) --",
    rb"kernel: [^\n]*(?:ut of memory|NVRM|amdgpu|GPU HANG|blocked for more than|soft lockup|segfault|general protection)",
)  # fmt: skip
WORDS = (b"md[", b"md-", b"kubelet[", b"dockerd[", b"COMMAND=", b"CMD (", b"Reboot --", b"Boot ", b"kernel: ")
"""One of these is in each of them, and begins with a letter that is rare in a journal: RE2 leaps from one such to the next."""
JSON = (
    rb'"(?:SYSLOG_IDENTIFIER|_COMM)"\s?:\s?"(?:systemd|kubelet|dockerd|systemd-coredump|systemd-oomd|sudo|CRON|cron|crond)"',
    rb'"_TRANSPORT"\s?:\s?"kernel"', rb'"SYSLOG_IDENTIFIER"\s?:\s?"kernel"',
)  # fmt: skip


def format_of(artefact: Artefact, head: bytes) -> str | None:
    """Which journal is inside a log that is somebody else's (an engine's); None = none."""
    text = head.rpartition(b"\n")[0].decode("utf-8", "replace")
    if journald_entries.structured(head) is not None or journald_entries.looks_like_journal(text):
        return "journald"
    return "supervisord" if present(artefact, {"supervisord": supervisord.MARKS}) else None


def read(artefact: Artefact, clock: Clock, said: Said) -> Iterator[Event | Watchdog]:
    """Events of one journal, then the watchdog rules it tells of."""
    return journald.read(_entries(artefact, clock), artefact.at, said)


def finder(form: str | None) -> Finder:
    """Finds, in bytes, every line that `journald` can make anything of."""
    return log_scan.by_pattern(JSON) if form == "json" else log_scan.by_words(WORDS, TEXT)


def _entries(artefact: Artefact, clock: Clock) -> Iterator[Entry]:
    with artefact.opener() as stream:
        form = journald_entries.structured(stream.read(64 << 10))
    with artefact.opener() as stream:
        if form == "export":
            yield from journald_entries.of_export(stream)
            return
        for block in log_scan.blocks(stream, finder(form)):
            for number, begin, end in _with_ends(block):
                raw = block.data[begin:end]
                entry = journald_entries.of_json(number, raw) if form == "json" else _of_text(number, raw, clock)
                if entry is not None:
                    yield entry


def _with_ends(block: log_scan.Block) -> Iterator[log_scan.Hit]:
    """The hits of a block, and its first and last line: from when to when it is."""
    data, last = block.data, block.first + block.lines - 1
    hits = list(block.hits)
    if not hits or hits[0].number > block.first:
        hits.insert(0, log_scan.Hit(block.first, 0, data.find(b"\n") + 1 or len(data)))
    if hits[-1].number < last:
        hits.append(log_scan.Hit(last, data.rfind(b"\n", 0, len(data) - 1) + 1, len(data)))
    yield from hits


def _of_text(number: int, raw: bytes, clock: Clock) -> Entry | None:
    return journald_entries.of_text(number, clean(raw[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r\n")), clock)
