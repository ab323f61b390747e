"""The journal in every form `journalctl` prints -> entries: who said what, when.

    Aug 20 13:37:51 gpu-1 systemd[1]: vllm.service: Watchdog timeout (limit 3min)!                     -o short (and syslog files)
    Aug 20 13:37:51.123456 gpu-1 systemd[1]: …                                                         -o short-precise
    2026-08-20T13:37:51.123456+0200 gpu-1 systemd[1]: …                                                -o short-iso, short-iso-precise
    Thu 2026-08-20 13:37:51 CEST gpu-1 systemd[1]: …                                                   -o short-full
    1787225871.123456 gpu-1 systemd[1]: …                                                              -o short-unix
    {"__REALTIME_TIMESTAMP":"1787225871123456","SYSLOG_IDENTIFIER":"systemd","MESSAGE":"…", …}         -o json, one a line
    __REALTIME_TIMESTAMP=1787225871123456 / MESSAGE=… / an empty line after each entry                 -o export
"""

import datetime
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import MONTHS, Stamp, clean

LINE_BYTES = 1 << 20
"""Of a longer line only this much is looked at; a longer field of an export is left out."""
MAX_FIELDS = 500
WHO = r"(?P<host>\S+) (?P<ident>[^\s\[\]:][^\[\]]*?)(?:\[(?P<pid>\d{1,10})\])?: "
CLOCK = r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
SHORT = re.compile(rf"(?P<month>[A-Z][a-z]{{2}}) {{1,2}}(?P<day>\d{{1,2}}) {CLOCK} {WHO}")
ISO = re.compile(rf"(?P<date>\d{{4}}-\d\d-\d\d)[T ]{CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d) {WHO}")
FULL = re.compile(rf"[A-Z][a-z]{{2}} (?P<date>\d{{4}}-\d\d-\d\d) {CLOCK} (?P<zone>[A-Z]{{1,5}}|[+-]\d\d(?:\d\d)?) {WHO}")
UNIX = re.compile(rf"(?P<epoch>\d{{9,10}}\.\d{{6}}) {WHO}")
REALTIME = "__REALTIME_TIMESTAMP"
JSON_MARK = re.compile(rb'^\s*\{(?=[^\n]{0,60000}"__REALTIME_TIMESTAMP")')
EXPORT_MARK = re.compile(rb"^__CURSOR=[^\n]*\n(?:[^\n]*\n){0,2}?__REALTIME_TIMESTAMP=\d", re.M)
BOOT = re.compile(r"^-- (?:Reboot|Boot [0-9a-f]{32}) --$")


@dataclass(frozen=True)
class Entry:
    """One message of the journal. `ident` is who logged it as the short form shows it (`systemd`, `kernel`, `vllm`)."""

    number: int
    """Line it begins at, from 1."""
    ts: datetime.datetime | None
    ident: str
    pid: int | None
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of the structured forms; empty for text."""


def structured(head: bytes) -> str | None:
    """`json`, `export`, or None: is this the beginning of a journal with fields?"""
    if JSON_MARK.match(head):
        return "json"
    return "export" if EXPORT_MARK.match(head) else None


def looks_like_journal(head: str, of: int = 50) -> bool:
    """Do nearly all of the first lines have the shape of a journal (or of a syslog file)?"""
    lines = [line for line in head.splitlines() if line.strip() and not line.startswith("-- ")][:of]
    return len(lines) > 0 and sum(_short(clean(line)) is not None for line in lines) >= 0.8 * len(lines)


def of_text(number: int, line: str, clock: Clock) -> Entry | None:
    """One cleaned line of a short form; None = it has another shape (a further line of a message, a header)."""
    if BOOT.match(line):
        return Entry(number, None, "journal", None, "-- Reboot --")
    match = _short(line)
    if match is None:
        return None
    found = match.groupdict()
    return Entry(number, _time(found, clock), found["ident"], int(found["pid"]) if found["pid"] else None, line[match.end() :])


def of_json(number: int, raw: bytes) -> Entry | None:
    """One line of `-o json`; None = no JSON object of a journal (a torn line)."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            found = msgspec.json.decode(raw.decode("utf-8", "replace"))
        except (msgspec.MsgspecError, RecursionError):
            return None
    if not isinstance(found, dict) or REALTIME not in found:
        return None
    return _of_fields(number, {str(key): _text(value) for key, value in list(found.items())[:MAX_FIELDS] if value is not None})


def of_export(stream: BinaryIO, before: int = 0) -> Iterator[Entry]:
    """Entries of `-o export`, streamed. `before` = lines that stand before the stream."""
    found: dict[str, str] = {}
    number, begin = before, before + 1
    while raw := stream.readline(LINE_BYTES):
        number += raw.endswith(b"\n")
        if raw in (b"\n", b"\r\n"):
            if REALTIME in found:
                yield _of_fields(begin, found)
            found, begin = {}, number + 1
            continue
        name, equals, value = raw.rstrip(b"\r\n").partition(b"=")
        while not raw.endswith(b"\n") and (raw := stream.readline(LINE_BYTES)):
            number += raw.endswith(b"\n")  # the rest of a long line
        if equals:
            _put(found, name, value)
        elif name:
            size = stream.read(8)
            length = struct.unpack("<Q", size)[0] if len(size) == 8 else 0
            value, lines = _binary(stream, length)
            number += lines
            _put(found, name, value)
    if REALTIME in found:
        yield _of_fields(begin, found)


def _put(found: dict[str, str], name: bytes, value: bytes) -> None:
    if len(found) < MAX_FIELDS:
        found[name.decode("ascii", "replace")] = value.decode("utf-8", "replace")


def _binary(stream: BinaryIO, length: int) -> tuple[bytes, int]:
    """A field with its length before it -> (what is kept of it, lines it covers, its end included)."""
    kept, lines, left = b"", 0, length + 1
    while left > 0 and (part := stream.read(min(left, LINE_BYTES))):
        left -= len(part)
        lines += part.count(b"\n")
        if len(kept) < LINE_BYTES:
            kept += part
    return (kept[:-1] if left == 0 and len(kept) == length + 1 else kept), lines


def _text(value: object) -> str:
    """A field as text: bytes that are no UTF-8 come as a list of numbers, a field given twice as a list."""
    if isinstance(value, list):
        if value and all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(_text(item) for item in value[:20])
    return str(value)


def _of_fields(number: int, found: Mapping[str, str]) -> Entry:
    pid = found.get("SYSLOG_PID") or found.get("_PID") or ""
    ident = found.get("SYSLOG_IDENTIFIER") or found.get("_COMM") or ("kernel" if found.get("_TRANSPORT") == "kernel" else "unknown")
    return Entry(number, _epoch(found[REALTIME], 1e6), ident, int(pid) if pid.isdecimal() else None, clean_lines(found.get("MESSAGE", "")), found)


def clean_lines(message: str) -> str:
    """A message without colours and control characters; its lines stay lines."""
    return "\n".join(clean(line) for line in message.split("\n"))


def _epoch(text: str, per_second: float) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(float(text) / per_second, datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return None


def _short(line: str) -> re.Match[str] | None:
    first = line[:1]
    if first.isdigit():
        return ISO.match(line) or UNIX.match(line)
    if line[3:4] == " ":
        match = SHORT.match(line)
        if match is not None:
            return match if match["month"] in MONTHS else None
        return FULL.match(line)
    return None


def _time(found: Mapping[str, str | None], clock: Clock) -> datetime.datetime | None:
    epoch = found.get("epoch")
    if epoch is not None:
        return _epoch(epoch, 1.0)
    fraction, printed = found["fraction"] or "", str(found["clock"])
    date, zone = found.get("date"), found.get("zone")
    if date is not None:
        zone = "UTC" if zone in ("Z", "UTC", "GMT") else zone if zone is not None and zone[0] in "+-" else None
        return clock.utc(Stamp(int(date[:4]), int(date[5:7]), int(date[8:]), printed, fraction, zone))
    return clock.utc(Stamp(None, MONTHS[str(found["month"])], int(str(found["day"])), printed, fraction, None))


def as_log_lines(entries: Iterable[Entry]) -> Iterator[tuple[int, str, int]]:
    """Entries that are no talk of the machine itself -> the lines an engine wrote, as the short form would show them."""
    for entry in entries:
        if entry.ident in NOT_ENGINES:
            continue
        who = entry.ident if entry.pid is None else f"{entry.ident}[{entry.pid}]"
        when = "" if entry.ts is None else f"{entry.ts.isoformat(timespec='microseconds')}Z journal {who}: "
        for count, line in enumerate(entry.message.split("\n")):
            yield entry.number, f"{when}{line}" if entry.pid is not None else line, 0 if count else 1 + len(line)


NOT_ENGINES = frozenset({
    "systemd", "kernel", "sudo", "CRON", "cron", "crond", "sshd", "su", "dbus-daemon", "systemd-logind", "systemd-journald", "systemd-coredump",
    "systemd-oomd", "audit", "auditd", "journal", "dockerd", "containerd", "kubelet", "polkitd", "NetworkManager", "systemd-networkd",
    "systemd-resolved", "systemd-timesyncd", "chronyd", "ntpd", "rsyslogd", "snapd", "udisksd", "systemd-udevd", "haproxy", "nginx",
})  # fmt: skip
"""Who logs about the machine: their lines are never an engine's."""
