"""One pass over the keys of one database: names, then what the server knows of them, then values; each reply once.

Everything that is asked stands in one queue in the order of the answers. The next page of names is asked for ahead of
this page's values, so the server has work while the last page is judged, and never more than one page of it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import redis

from diag.cache.scanning import sharing, small_hashes, swift
from diag.cache.scanning.pace import Pace
from diag.cache.scanning.passing import Asked, Helper, Kin, Sink, Ttl
from diag.cache.scanning.reading import HEAD_BYTES, WHOLE_BYTES
from diag.cache.scanning.replies import plain, refuses_together, seconds
from diag.cache.scanning.wire import Wire, pack
from diag.cache.values.facts import Facts, facts_of
from diag.cache.values.keys import Place, other_type, unread
from diag.cache.values.naming import Names, named, page_of
from diag.cache.values.numbers_of import Halves
from diag.cache.values.quick import Quick

SHORT_BYTES = 64 << 10
"""Families of longer values are asked for the length of each before it is read."""
FEWEST = 10


@dataclass
class Walk:
    """State of a pass."""

    wire: Wire
    scan: Sink
    target: str
    db: int
    pace: Pace
    pattern: bytes | None = None
    markers: Sequence[bytes] = ()
    values: bool = True
    """False: names, TTL and lengths only; nothing is judged."""
    idle: bool = False
    """Idle times survive a read (CLIENT NO-TOUCH), so they can be asked for afterwards."""
    all_expire: bool = False
    """Every key of this database has a TTL, as the server counts them."""
    wants: Callable[[bytes], bool] | None = None
    """Keys of which nothing else is asked."""
    per_family: int | None = None
    """Look at so many keys of a family only."""
    stop: Callable[[], bool] = bool
    tick: Callable[[int], object] = int
    """Told after each page how many keys it had."""
    cursor: int = 0
    """Everything before it was judged, once `run` is back."""
    left_out: int = 0
    """Names of which `per_family` kept us from reading the value."""
    seconds: list[Helper] = field(default_factory=list)
    names: Names[Kin] = field(default_factory=Names)
    last: Kin | None = None
    """The family of the last key."""
    halves: Halves = field(default_factory=Halves)
    kins: dict[str, Kin] = field(default_factory=dict)
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    outgoing: list[bytes] = field(default_factory=list)
    one_by_one: bool = False
    """A cluster's node takes no command for keys of several slots."""
    mean: float = 1024.0

    def run(self) -> bool:
        """From `cursor` to the end; False: `stop` said so, and `cursor` is where to go on. Raises what `Wire` raises."""
        self._ask_names(self.cursor)
        with np.errstate(all="ignore"):
            while self.queue or any(second.waiting for second in self.seconds):
                if self.queue:
                    self._flush()
                    self.queue.popleft()()
                for second in tuple(self.seconds):
                    sharing.hear(self, second, wait=not self.queue)
        self._count()
        return self.cursor == 0

    def judge(self, page: list[bytes]) -> list[bytes]:
        """Just these keys. Returns those of families that are not known yet: nothing was asked of them."""
        known: list[bytes] = []
        back: list[bytes] = []
        for key in page:
            (known if (self.db, self._kin(key).name) in self.scan.profiles else back).append(key)
        if known:
            self.look_at(known)
        while self.queue:
            self._flush()
            self.queue.popleft()()
        self._count()
        return back

    def _flush(self) -> None:
        if self.outgoing:
            self.wire.send(self.outgoing)
            self.outgoing.clear()

    def _ask(self, command: bytes, answered: Callable[[], None]) -> None:
        self.outgoing.append(command)
        self.queue.append(answered)

    # names

    def _ask_names(self, cursor: int) -> None:
        fitting = self.pace.batch_bytes / max(1.0, self.mean) if self.values else self.pace.batch_keys
        count = int(max(FEWEST, min(self.pace.batch_keys, fitting)))
        match = () if self.pattern is None else (b"MATCH", self.pattern)
        self._ask(pack(b"SCAN", b"%d" % cursor, *match, b"COUNT", b"%d" % count), self._names)

    def _names(self) -> None:
        cursor, page = self.wire.page()
        self.pace.wait(len(page))
        self.cursor = cursor
        if cursor != 0 and not self.stop():
            self._ask_names(cursor)
        for start in range(0, len(page), self.pace.batch_keys):
            sharing.share(self, page[start : start + self.pace.batch_keys])

    def _kin(self, key: bytes) -> Kin:
        known = self.names.get(key)
        if known is None:
            said = named(key)
            known = self.kins.get(f"{said.family}\n{said.version}")
            if known is None:
                known = self.kins[f"{said.family}\n{said.version}"] = Kin(said.family, said.version, said.versionless)
            if self.names.remember(key, said.family, known):
                known.page = page_of(key)
        self.last = known
        return known

    def look_at(self, page: list[bytes]) -> None:
        """Values at once where the family is known and its values are short; else what the server says of each key first."""
        one = swift.family_of(self, page) if page else None
        if one is not None:
            if one.careful:
                self._learnt(one)
            if swift.ask(self, page, one):
                one.seen += len(page)
                self.mean += 0.2 * (one.longest - self.mean)
                self.queue.append(partial(self._tick, len(page)))
                return
        first: list[Asked] = []
        with_ttl: list[Asked] = []
        without: list[Asked] = []
        size = 0
        for key in page:
            if self.wants is not None and not self.wants(key):
                continue
            kin = self._kin(key)
            kin.seen += 1
            if self.per_family is not None and kin.seen > self.per_family:
                self.left_out += 1
                continue
            if kin.careful:
                self._learnt(kin)
            size += kin.longest
            if kin.careful or self.pace.careful or not self.values:
                first.append(Asked(key, kin))
            else:
                (with_ttl if self.needs_ttl(kin) else without).append(Asked(key, kin, bytes=kin.longest))
        if first:
            self.ask_about(first)
        for batch in self._batches(with_ttl):
            self.outgoing += [b"*2\r\n$4\r\nPTTL\r\n$%d\r\n%b\r\n" % (len(item.key), item.key) for item in batch]
            self.ask_values(batch, "before")
        for batch in self._batches(without):
            self.ask_values(batch, "unknown")
        self.mean += 0.2 * (size / max(1, len(page)) - self.mean)
        self.queue.append(partial(self._tick, len(page)))

    def _tick(self, keys: int) -> None:
        self.tick(keys)

    def _learnt(self, kin: Kin) -> None:
        """Has the family become known since the last page?"""
        profile = self.scan.profiles.get((self.db, kin.name))
        if profile is not None:
            if kin.quick is None:
                kin.quick = Quick(profile, kin.version)
            kin.careful = kin.longest > SHORT_BYTES or kin.mixed

    def needs_ttl(self, kin: Kin) -> bool:
        """May the verdict on a sound value depend on its TTL, or does somebody want to see every row?"""
        usable = kin.quick is not None and kin.quick.usable
        return not usable or (kin.expires and not self.all_expire) or self.scan.each is not None

    # what the server knows

    def ask_about(self, keys: list[Asked]) -> None:
        for item in keys:
            self.outgoing.append(pack(b"PTTL", item.key))
            if self._wants_idle(item):
                self.outgoing.append(pack(b"OBJECT", b"IDLETIME", item.key))
            self.outgoing.append(pack(b"STRLEN", item.key))
        self.queue.append(partial(self.known, keys, [self._wants_idle(item) for item in keys]))

    def _wants_idle(self, item: Asked) -> bool:
        return self.idle and item.kin.quick is None

    def known(self, keys: list[Asked], with_idle: list[bool], answers: list[int | redis.ResponseError] | None = None) -> None:
        strings: list[Asked] = []
        others: list[Asked] = []
        left = iter(self.wire.numbers(2 * len(keys) + sum(with_idle)) if answers is None else answers)
        for item, idle in zip(keys, with_idle, strict=True):
            ttl, *between, length = islice(left, 3 if idle else 2)
            ttl_ms = plain(ttl)
            if ttl_ms is None or ttl_ms == -2:
                continue
            idle_s = float(between[0]) if between and isinstance(between[0], int) else None
            size = None if isinstance(length, redis.ResponseError) and "WRONGTYPE" in str(length) else plain(length)
            asked = Asked(item.key, item.kin, seconds(ttl_ms), idle_s, size or 0)
            if size is None:
                item.kin.mixed = True
                others.append(asked)
            else:
                item.kin.longest = max(item.kin.longest, size)
                strings.append(asked)
        if others:
            self.outgoing += [pack(b"TYPE", item.key) for item in others]
            self.queue.append(partial(self._types, others))
        if not self.values:
            self._lengths(strings)
            return
        for item in strings:
            if item.bytes > WHOLE_BYTES:
                self._ask(pack(b"GETRANGE", item.key, b"0", b"%d" % (HEAD_BYTES - 1)), partial(self._long, item))
        for batch in self._batches([item for item in strings if item.bytes <= WHOLE_BYTES]):
            self.ask_values(batch, "known")

    def _batches(self, keys: Sequence[Asked]) -> Iterator[list[Asked]]:
        """Bounded by bytes."""
        batch: list[Asked] = []
        size = 0
        for item in keys:
            if batch and size + item.bytes > self.pace.batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += item.bytes
        if batch:
            yield batch

    def _types(self, keys: list[Asked]) -> None:
        small: list[Asked] = []
        for item in keys:
            kind = self.wire.reply()
            if isinstance(kind, redis.ResponseError):
                raise kind
            if kind == b"hash" and self.values:
                small.append(item)
            elif kind != b"none":
                self.scan.emit(other_type(self.place(item), kind.decode("utf-8", "replace") if isinstance(kind, bytes) else "unknown"))
        if small:
            small_hashes.ask(self, small)

    def _lengths(self, keys: Sequence[Asked]) -> None:
        """All that is wanted is known."""
        for item in keys:
            if self.scan.each is None:
                item.kin.keys += 1
                item.kin.bytes += item.bytes
            else:
                self.scan.emit(unread(self.place(item), item.kin.name, item.bytes))

    # values

    def ask_for(self, keys: Sequence[bytes]) -> None:
        if self.one_by_one:
            self.outgoing += [pack(b"GET", key) for key in keys]
        else:
            self.outgoing.append(pack(b"MGET", *keys))

    def ask_values(self, keys: list[Asked], ttl: Ttl) -> None:
        self.ask_for([item.key for item in keys])
        self.queue.append(partial(self._values, keys, ttl, self.one_by_one))

    def _values(self, keys: list[Asked], ttl: Ttl, one_by_one: bool) -> None:
        ttls = self._ttls(keys) if ttl == "before" else None
        quiet = self.scan.each is None
        late: list[tuple[Asked, Facts]] = []
        gone: list[Asked] = []
        found = (self.wire.value() for _ in keys) if one_by_one else self.wire.values(len(keys))
        try:
            for index, (value, size) in enumerate(found):
                item = keys[index]
                if ttls is not None and ttls[index] in (None, -2):
                    continue
                if not isinstance(value, memoryview):
                    plain(value)
                    if (value is None or "WRONGTYPE" in str(value)) and ttl != "known":
                        gone.append(item)
                    continue
                kin = item.kin
                lives = ttl == "unknown" or item.ttl_s is not None or not kin.expires
                if quiet and lives and kin.quick is not None and kin.quick.sound(value) and not (self.markers and self.marked(value)):
                    kin.keys += 1
                    kin.bytes += size
                    continue
                facts = self.facts(kin, value, size)
                if ttl == "unknown":
                    late.append((item, facts))
                else:
                    self.scan.add(self.place(item), facts)
        except redis.ResponseError as error:
            if not refuses_together(error):
                raise
            self.one_by_one = True
            self.ask_values(keys, "known" if ttl == "before" else ttl)
        if late:
            self.ask_late(late)
        if gone:
            self.ask_about(gone)  # deleted, or no string

    def _ttls(self, keys: list[Asked]) -> list[int | None]:
        """What PTTL said of each, noted before a value is looked at: a server may refuse to give them together."""
        answers = [plain(answer) for answer in self.wire.numbers(len(keys))]
        for item, ttl_ms in zip(keys, answers, strict=True):
            item.ttl_s = None if ttl_ms is None else seconds(ttl_ms)
        return answers

    def _long(self, item: Asked) -> None:
        value, size = self.wire.value()
        if isinstance(value, memoryview) and size:
            self.scan.add(self.place(item), facts_of(bytes(value), length=item.bytes, markers=self.markers))
        else:
            plain(value if isinstance(value, redis.ResponseError) else None)

    def facts(self, kin: Kin, value: memoryview, size: int) -> Facts:
        if size > SHORT_BYTES:
            kin.careful = True
            kin.longest = max(kin.longest, size)
        whole = bytes(value)
        quick = kin.quick
        if quick is None or len(whole) != size or self.marked(whole):
            return facts_of(whole, length=size, markers=self.markers)
        form = quick.skeleton(value)
        if form is not None:
            return form.facts_of(whole)
        facts = facts_of(whole)
        if facts.kind == "array" and facts.problem is None:
            quick.learn(whole)
        return facts

    def marked(self, value: bytes | memoryview) -> bool:
        whole = bytes(value) if self.markers else b""
        return any(marker in whole for marker in self.markers)

    def ask_late(self, late: list[tuple[Asked, Facts]]) -> None:
        """What a verdict on an odd value needs besides it."""
        for item, _ in late:
            self.outgoing.append(pack(b"PTTL", item.key))
            if self.idle:
                self.outgoing.append(pack(b"OBJECT", b"IDLETIME", item.key))
        self.queue.append(partial(self._late, late))

    def _late(self, late: list[tuple[Asked, Facts]]) -> None:
        for item, facts in late:
            ttl, *idle = self.wire.numbers(2 if self.idle else 1)
            ttl_ms = plain(ttl)
            if ttl_ms is None or ttl_ms == -2:
                continue
            item.ttl_s = seconds(ttl_ms)
            item.idle_s = float(idle[0]) if idle and isinstance(idle[0], int) else None
            self.scan.add(self.place(item), facts)

    def place(self, item: Asked) -> Place:
        return Place(self.target, self.db, item.key, item.ttl_s, item.idle_s)

    def _count(self) -> None:
        """Tell the scan how many sound values there were."""
        for kin in self.kins.values():
            if kin.keys:
                versions = None if kin.version is None else (kin.versionless, kin.version)
                self.scan.sound(self.db, kin.name, versions, kin.keys, kin.bytes)
                kin.keys = kin.bytes = 0
