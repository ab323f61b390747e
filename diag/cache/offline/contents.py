"""The keys of a cache on disk, one after the other: an RDB file, an append-only file, or the one changed by the other."""

import contextlib
import datetime
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from diag.cache.offline.aof import Command, Cut, Log
from diag.cache.offline.hash_values import dump_digest, fields_of
from diag.cache.offline.mapped import STEP_BYTES, Mapped, mapped
from diag.cache.offline.overlay import Args, Base, Overlay, Piece, State
from diag.cache.offline.rdb import MAX_KEY_BYTES, Entry, Rdb, open_rdb
from diag.cache.offline.target import HINT, files_of
from diag.cache.offline.wire import Damaged, Stored, content
from diag.errors import BadInput
from diag.loose import shown

PACKED_FILES = {
    b"VCS": ("a compressed stream of Valkey 9.2 (rdbcompression lz4)", "load it into such a server with rdbcompression yes, SAVE, and scan that file"),
    b"\x1f\x8b": ("compressed with gzip", "gunzip it first"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unzstd it first"),
    b"\x04\x22\x4d\x18": ("compressed with lz4", "unlz4 it first"),
}  # fmt: skip
STAMP = "its last time stamp was set"
NOTHING_READ = "it is damaged from there on; is there an older copy, or a replica?"


class Held(NamedTuple):
    """One key as it is after everything that the files say."""

    db: int
    key: bytes
    kind: str
    """string, unknown, or the type of what is no string."""
    parts: tuple[tuple[Mapped, Stored], ...]
    """Of a string: where its bytes lie, one piece behind the other; of another value of an RDB file: where it is."""
    bytes: int
    """Of a string its length, else what it takes in the file; 0: unknown."""
    elements: int | None
    expires_ms: int | None
    idle_s: int | None
    why: str = ""
    """The command that made it unknown, or changed its elements."""
    code: int | None = None
    """Type of the value in the RDB file that has it."""


@dataclass
class Contents:
    """Open files of one cache. `items` may be read once."""

    whole: Mapped | None
    since: tuple[Mapped, ...]
    rdb: Rdb | None
    notes: list[str] = field(default_factory=list)
    """What a reader must know besides the keys: damage, cut tails, commands not applied."""
    clock_s: float = 0.0
    """TTLs are relative to this: when the state was written, Unix seconds."""
    clock: str = ""
    """Where that is from."""
    _read_bytes: int = 0
    _at: int = 0

    @property
    def product(self) -> str | None:
        return None if self.rdb is None else self.rdb.product

    @property
    def version(self) -> str | None:
        return None if self.rdb is None else self.rdb.server_version

    @property
    def part(self) -> float:
        """How much of the RDB file, which is most of the work, is read: 0 to 1."""
        return 1.0 if self.rdb is None or self.whole is None else self._at / max(self.whole.size, 1)

    def items(self) -> Iterator[Held]:
        """Every key. Damage ends it early and is noted; raises BadInput where not a single key could be read."""
        overlay = Overlay()
        logs = [(self.whole, 0)] if self.whole is not None and self.rdb is None else []
        if self.whole is not None and self.rdb is not None and _has_log_behind(self.rdb):
            logs += self._behind_preamble(self.whole)
        logs += [(file, 0) for file in self.since]
        for number, (file, start) in enumerate(logs):
            if not self._play(overlay, file, number, start, last=number == len(logs) - 1):
                break
        self._say_clock(logs)
        wanted: dict[Base, Entry | None] = {base: None for base in _bases(overlay)}
        count = 0
        for held in self._base(overlay, wanted):
            count += 1
            yield held
        files = [file for file, _ in logs]
        for db, key, state in overlay.states():
            for held in self._resolved(db, key, state, wanted, files):
                count += 1
                yield held
        self._say_rest(overlay, count)

    def value(self, held: Held, most: int) -> bytes | memoryview:
        """The bytes of a string, or the first `most` of them; not copied where the RDB file has them. Raises Unpackable."""
        if len(held.parts) == 1 and held.parts[0][0] is self.whole:
            return content(self.whole.buf, held.parts[0][1], most)
        out = b""
        for file, place in held.parts:
            out += content(file.buf, place, most - len(out))
            self._read_bytes += place.stored
            if file is not self.whole and self._read_bytes > STEP_BYTES:
                self._read_bytes = 0
                if isinstance(file.buf, mmap.mmap):
                    file.buf.madvise(mmap.MADV_DONTNEED)
        return out

    def hash_of(self, held: Held) -> tuple[dict[bytes, bytes], str] | None:
        """Fields of a small hash, and the digest of its DUMP; None: too large, changed by commands, or not readable."""
        if self.rdb is None or held.kind != "hash" or held.code is None:
            return None
        file, place = held.parts[0]
        fields = fields_of(file.buf, held.code, place.start, place.after, valkey=self.rdb.valkey)
        return None if fields is None else (fields, dump_digest(file.buf, held.code, place.start, place.after, self.rdb.version))

    def _behind_preamble(self, file: Mapped) -> list[tuple[Mapped, int]]:
        """Where the commands begin behind an RDB in the same file; nowhere if it has no end, or nothing follows."""
        rdb = open_rdb(file.buf, file.size)
        assert rdb is not None
        try:
            for entry in rdb.entries():
                file.passed(entry.at)
        except Damaged:
            self.notes.append(f"{file.name}: its commands were not read: where they begin is unknown, because the RDB before them is damaged")
            return []
        finally:
            file.again()
        return [(file, rdb.at)] if rdb.at < file.size else []

    def _play(self, overlay: Overlay, file: Mapped, number: int, start: int, *, last: bool) -> bool:
        """Apply the commands of one file; False: what comes after them cannot be trusted."""
        log = Log(file.buf, file.size, start)
        opened: int | None = None
        overlay.db = 0 if number == 0 else overlay.db
        try:
            for command in log.commands():
                file.passed(log.at)
                name = _name(log, command)
                if name == b"MULTI":
                    opened = _after(command)
                elif name == b"EXEC" and opened is not None:
                    inside = Log(file.buf, command.at, opened, log.stamp_s)
                    for one in inside.commands():
                        self._apply(overlay, inside, file, number, one)
                    opened = None
                elif opened is None:
                    self._apply(overlay, log, file, number, command)
        except Cut as cut:
            if last:
                self.notes.append(f"{file.name}: its last command, at byte {cut.at}, is cut off and left out, as the server would do")
            else:
                self.notes.append(f"{file.name}: byte {cut.at}: {cut.why}, but another file follows; commands from there on were not read")
            return last
        except Damaged as error:
            self.notes.append(f"{file.name}: byte {error.at}: {error.why}; commands from there on were not read")
            return False
        finally:
            file.again()
            self.clock_s, self.clock = (file.modified_s, "the file was last changed") if log.stamp_s is None else (log.stamp_s, STAMP)
        if opened is not None:
            self.notes.append(f"{file.name}: its last transaction, before byte {opened}, has no end and is left out, as the server would do")
        return True

    def _apply(self, overlay: Overlay, log: Log, file: Mapped, number: int, command: Command) -> None:
        clock = file.modified_s if log.stamp_s is None else float(log.stamp_s)
        overlay.apply(Args(file.buf, number, command.words, clock))

    def _base(self, overlay: Overlay, wanted: dict[Base, Entry | None]) -> Iterator[Held]:
        """The keys of the RDB file that no command touched; those that one refers to are remembered."""
        if self.whole is None or self.rdb is None:
            return
        rdb, file = self.rdb, self.whole
        now_in = {base: db for db, base in overlay.moved.items() if base is not None}
        count = 0
        try:
            for entry in rdb.entries():
                count += 1
                self._at = entry.at
                file.passed(entry.at)
                name = Base(entry.db, entry.key)
                if name in wanted:
                    wanted[name] = entry
                db = now_in.get(entry.db, None if overlay.flushed or entry.db in overlay.moved else entry.db)
                if db is not None and not overlay.touched(db, entry.key):
                    yield self._of_entry(db, entry.key, entry, entry.expires_ms)
        except Damaged as error:
            if count == 0 and not any(overlay.states()):
                raise BadInput(f"{file.name}: byte {error.at}: {error.why}; no key was read", hint=NOTHING_READ) from error
            self.notes.append(f"{file.name}: byte {error.at}: {error.why}; only the {count} keys before it are shown")
            return
        self._check_end(rdb, file)

    def _check_end(self, rdb: Rdb, file: Mapped) -> None:
        if rdb.checksum is not None:
            at = rdb.at - 8
            found = file.crc64(at)
            if found != rdb.checksum:
                self.notes.append(
                    f"{file.name}: its checksum at byte {at} is wrong ({rdb.checksum:016x}, should be {found:016x}): it was changed or damaged after it was written"
                )  # fmt: skip
        if rdb.at < file.size and not _has_log_behind(rdb):
            self.notes.append(f"{file.name}: {file.size - rdb.at} bytes follow its end at byte {rdb.at}; they were not read")
        if rdb.long_keys:
            self.notes.append(f"{rdb.long_keys} keys have names of more than {MAX_KEY_BYTES} bytes and are not shown")

    def _of_entry(self, db: int, key: bytes, entry: Entry, expires_ms: int | None, why: str = "") -> Held:
        assert self.whole is not None
        return Held(db, key, entry.kind, ((self.whole, entry.place),), entry.bytes, entry.elements, expires_ms, entry.idle_s, why, entry.code)

    def _resolved(self, db: int, key: bytes, state: State, wanted: dict[Base, Entry | None], files: list[Mapped]) -> Iterator[Held]:
        """A key that commands touched; nothing if it was to come from the base, and is not there."""
        expires = state.expires
        if state.kind == "gone":
            return
        if isinstance(expires, Base):
            before = wanted[expires]
            expires = None if before is None else before.expires_ms
        origin = wanted[state.parts[0]] if state.parts and isinstance(state.parts[0], Base) else None
        if state.kind == "same" or (state.kind == "unknown" and state.parts):
            if origin is not None:
                known = state.kind == "same" or origin.kind != "string"
                yield self._of_entry(db, key, origin, expires) if known else Held(db, key, "unknown", (), 0, None, expires, None, state.why)
        elif state.kind == "string":
            parts = [part for part in state.parts if isinstance(part, Piece) or wanted[part] is not None]
            places = tuple(self._place(part, wanted, files) for part in parts)
            yield Held(db, key, "string", places, sum(place.bytes for _, place in places), None, expires, None)
        else:
            yield Held(db, key, state.kind, (), 0, None, expires, None, state.why)

    def _place(self, part: Piece | Base, wanted: dict[Base, Entry | None], files: list[Mapped]) -> tuple[Mapped, Stored]:
        if isinstance(part, Piece):
            return files[part.file], part.place
        entry = wanted[part]
        assert entry is not None and self.whole is not None
        return self.whole, entry.place

    def _say_clock(self, logs: list[tuple[Mapped, int]]) -> None:
        """Without commands the state is as old as the RDB file says."""
        if logs:
            return
        told = None if self.rdb is None else self.rdb.written_s
        file = self.whole
        if told is not None:
            self.clock_s, self.clock = told, "the file was written"
        elif file is not None:
            self.clock_s, self.clock = file.modified_s, "the file was last changed"

    def _say_rest(self, overlay: Overlay, count: int) -> None:
        if overlay.relative and self.clock != STAMP:
            self.notes.append(
                f"the time from which {overlay.relative} relative TTLs count is not in the file: they are counted from "
                f"{time_of(self.clock_s)}, when {self.clock}, and may seem longer than they were"
            )  # fmt: skip
        if overlay.not_applied:
            names = ", ".join(f"{name} {times}" for name, times in overlay.not_applied.most_common(8))
            self.notes.append(f"commands whose effect is not known here: {names}; strings that they name are shown as unknown")
        if count == 0 and self.notes and self.rdb is None:
            raise BadInput(f"{self.notes[0]}; no key was read", hint=NOTHING_READ)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Contents]:
    """The cache that a person named. Raises BadInput: no such file, none of a cache, nothing that can be read of it."""
    files = files_of(path)
    with contextlib.ExitStack() as stack:
        whole = None if files.whole is None else stack.enter_context(mapped(files.whole))
        since = tuple(stack.enter_context(mapped(file)) for file in files.since)
        rdb = None if whole is None else _begin(whole)
        contents = Contents(whole, since, rdb, list(files.notes))
        if rdb is not None and rdb.newer and whole is not None:
            contents.notes.append(f"{whole.name} is of RDB version {rdb.version}, newer than what this llmdiag was made for")
        contents._say_clock([])
        yield contents


def walk(path: Path) -> Iterator[Entry]:
    """Every key of a file, in flat memory, its checksum not looked at. Raises BadInput for no RDB file, Damaged."""
    with mapped(path) as file:
        file.checked = False
        rdb = open_rdb(file.buf, file.size)
        if rdb is None:
            raise BadInput(f"{file.name} is no RDB file", hint="scan-cache says what it is instead")
        given_back = 0
        for entry in rdb.entries():
            if entry.at > given_back:
                file.passed(entry.at)
                given_back = entry.at + STEP_BYTES
            yield entry


def describe(path: Path) -> str:
    """What the files say of themselves, before a key is read. Raises BadInput."""
    with opened(path) as contents:
        who = f"{contents.product or 'product unknown'} {contents.version or ''}".rstrip()
        files = [file for file in (contents.whole, *contents.since) if file is not None]
        size = sum(file.size for file in files)
        what = "append-only file" if contents.rdb is None else f"RDB version {contents.rdb.version}"
        written = f", written {time_of(contents.clock_s)}" if contents.clock_s else ""
    return f"{shown(path)} ({who}, {what}); {len(files)} file{'s' * (len(files) != 1)}, {size / 1e6:.1f} MB{written}"


def time_of(seconds: float) -> str:
    """Unix seconds as a person reads them; a file can announce any number."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def _begin(file: Mapped) -> Rdb | None:
    """The walk over an RDB file; None for an append-only file. Raises BadInput for all else."""
    rdb = open_rdb(file.buf, file.size)
    if rdb is not None:
        try:
            rdb.read_aux()
        except Damaged as error:
            raise BadInput(f"{file.name}: byte {error.at}: {error.why}; no key was read", hint=NOTHING_READ) from error
        return rdb
    head = file.buf[:4]
    for magic, (what, hint) in PACKED_FILES.items():
        if head.startswith(magic):
            raise BadInput(f"{file.name} is {what}, which cannot be read", hint=hint)
    if not head:
        raise BadInput(f"{file.name} is empty", hint=HINT)
    if head[:1] not in (b"*", b"#"):
        raise BadInput(f"{file.name} is no RDB file and no append-only file: it begins with {head!r}", hint=HINT)
    return None


def _has_log_behind(rdb: Rdb) -> bool:
    """Does the RDB stand at the begin of an append-only file? In the folder of Redis 7 nothing follows it."""
    return "1" in (rdb.aux.get("aof-preamble"), rdb.aux.get("aof-base"))


def _name(log: Log, command: Command) -> bytes:
    start, size = command.words[0]
    return log.buf[start : start + size].upper() if size < 8 else b""


def _after(command: Command) -> int:
    start, size = command.words[-1]
    return start + size + 2


def _bases(overlay: Overlay) -> Iterator[Base]:
    """Every key of the base that a state refers to."""
    for _, _, state in overlay.states():
        if isinstance(state.expires, Base):
            yield state.expires
        yield from (part for part in state.parts if isinstance(part, Base))
