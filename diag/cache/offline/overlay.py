"""What an append-only file makes of the state it began with: one State for each key it touched, nothing for the others.

Values stay in the files; what a base file holds is named, not looked up (`Base`), because it is read last.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from diag.cache.offline.rdb import MAX_KEY_BYTES
from diag.cache.offline.rdb_types import TYPES
from diag.cache.offline.wire import RAW, Buffer, Damaged, Stored, string

MAX_PARTS = 64
MAX_TOUCHED = 64
DUMP_FOOTER_BYTES = 10


class Base(NamedTuple):
    """A key of the base file, by its name there."""

    db: int
    key: bytes


class Piece(NamedTuple):
    """A string that lies in one of the append-only files."""

    file: int
    place: Stored


class State(NamedTuple):
    """What a key is after the commands read so far."""

    kind: str
    """string; same (as the base has it); unknown; gone; or the type of what is no string."""
    parts: tuple[Piece | Base, ...] = ()
    """Of a string, one behind the other; else the one Base that it was, if it comes from there."""
    expires: int | Base | None = None
    """Unix milliseconds; a Base: as that one; None: never."""
    why: str = ""
    """The command after which it is unknown."""


GONE = State("gone")
NEVER = -(1 << 63)
_PLAIN = struct.Struct("<IQQq")


def _packed(state: State) -> State | bytes:
    """The usual state, a string as one SET left it, in a third of the memory: there is one for each key that was written."""
    if state.kind == "string" and len(state.parts) == 1 and not isinstance(state.expires, Base):
        part = state.parts[0]
        expires = NEVER if state.expires is None else state.expires
        if isinstance(part, Piece) and part.place.form == RAW and NEVER <= expires < -NEVER:
            return _PLAIN.pack(part.file, part.place.start, part.place.stored, expires)
    return state


def _unpacked(packed: State | bytes) -> State:
    if not isinstance(packed, bytes):
        return packed
    file, start, size, expires = _PLAIN.unpack(packed)
    return State("string", (Piece(file, Stored(RAW, start, size, size)),), None if expires == NEVER else expires)


@dataclass
class Args:
    """One command, read word by word. Raises IndexError and ValueError where it is not what it should be."""

    buf: Buffer
    file: int
    words: list[tuple[int, int]]
    clock_s: float
    """When it was written, as well as is known."""
    relative: bool = False
    """Its expiry was counted from there."""

    def __len__(self) -> int:
        return len(self.words)

    def key(self, number: int) -> bytes:
        start, size = self.words[number]
        if size > MAX_KEY_BYTES:
            raise ValueError("too long for a key")
        return self.buf[start : start + size]

    def word(self, number: int) -> str:
        start, size = self.words[number]
        return self.buf[start : start + min(size, 32)].decode("latin-1").upper()

    def number(self, number: int) -> int:
        return int(self.word(number))

    def piece(self, number: int) -> Piece:
        start, size = self.words[number]
        return Piece(self.file, Stored(RAW, start, size, size))

    def expiry(self, option: str, number: int) -> int:
        """EX, PX, EXAT or PXAT and its number -> Unix milliseconds."""
        value = self.number(number) * (1 if option.startswith("P") else 1000)
        if option.endswith("AT"):
            return value
        self.relative = True
        return int(self.clock_s * 1000) + value


@dataclass
class Overlay:
    """The states after the commands so far."""

    _states: dict[int, dict[bytes, State | bytes]] = field(default_factory=dict)
    db: int = 0
    moved: dict[int, int | None] = field(default_factory=dict)
    """Which database of the base one is now; None: flushed. Those not named are what they were."""
    flushed: bool = False
    """FLUSHALL: nothing of the base is left."""
    not_applied: Counter[str] = field(default_factory=Counter)
    relative: int = 0
    """Commands whose expiry counts from when they were written."""

    def base_of(self, db: int) -> int | None:
        return self.moved.get(db, None if self.flushed else db)

    def at(self, key: bytes, db: int | None = None) -> State:
        """What a key is now, as far as is known without the base."""
        where = self.db if db is None else db
        found = self._states.get(where, {}).get(key)
        if found is not None:
            return _unpacked(found)
        base = self.base_of(where)
        return GONE if base is None else State("same", (Base(base, key),), Base(base, key))

    def put(self, key: bytes, state: State, db: int | None = None) -> None:
        self._states.setdefault(self.db if db is None else db, {})[key] = _packed(state)

    def touched(self, db: int, key: bytes) -> bool:
        """Did a command change this key?"""
        return key in self._states.get(db, {})

    def states(self) -> Iterator[tuple[int, bytes, State]]:
        """Every key that a command changed, by its present database and name."""
        for db, states in self._states.items():
            for key, packed in states.items():
                yield db, key, _unpacked(packed)

    def flush(self, db: int) -> None:
        """Nothing is left in this database."""
        self._states.pop(db, None)
        self.moved[db] = None

    def flush_all(self) -> None:
        self._states.clear()
        self.moved.clear()
        self.flushed = True

    def swap(self, one: int, other: int) -> None:
        """Two databases change places."""
        self.moved[one], self.moved[other] = self.base_of(other), self.base_of(one)
        self._states[one], self._states[other] = self._states.get(other, {}), self._states.get(one, {})

    def apply(self, args: Args) -> None:
        """Do what the command does. One that is not known makes the strings it names unknown."""
        name = args.word(0)
        try:
            if name in COMMANDS:
                COMMANDS[name](self, args)
            elif name in MAKES:
                self._other(MAKES[name], args.key(1))
            elif name in CHANGES_STRING:
                key = args.key(CHANGES_STRING[name])
                self.put(key, State("unknown", (), self.at(key).expires, name))
            elif name not in NO_STRINGS:
                self._touched(name, args)
        except (IndexError, ValueError, Damaged):
            self._touched(name, args)
        self.relative += args.relative

    def _other(self, kind: str, key: bytes) -> None:
        now = self.at(key)
        if now.kind != kind:
            self.put(key, State(kind, now.parts if now.kind == "same" else (), now.expires))

    def _touched(self, name: str, args: Args) -> None:
        printable = "".join(char for char in name if char.isalnum() or char in "._-")[:24] or "?"
        if len(self.not_applied) < 100 or printable in self.not_applied:
            self.not_applied[printable] += 1
        for number in range(1, min(len(args), MAX_TOUCHED)):
            if args.words[number][1] <= MAX_KEY_BYTES:
                key = args.key(number)
                now = self.at(key)
                if now.kind in ("string", "same"):
                    self.put(key, State("unknown", now.parts if now.kind == "same" else (), now.expires, printable))


def _set(over: Overlay, args: Args) -> None:
    key, number = args.key(1), 3
    expires: int | Base | None = None
    while number < len(args):
        option = args.word(number)
        number += 1
        if option in ("EX", "PX", "EXAT", "PXAT"):
            expires = args.expiry(option, number)
            number += 1
        elif option == "KEEPTTL":
            expires = over.at(key).expires
        elif option.startswith("IF"):  # IFEQ, IFDEQ …: it was so, or the command would not be here
            number += 1
    over.put(key, State("string", (args.piece(2),), expires))


def _setex(over: Overlay, args: Args) -> None:
    option = "PX" if args.word(0).startswith("P") else "EX"
    over.put(args.key(1), State("string", (args.piece(3),), args.expiry(option, 2)))


def _mset(over: Overlay, args: Args) -> None:
    for number in range(1, len(args) - 1, 2):
        over.put(args.key(number), State("string", (args.piece(number + 1),)))


def _delete(over: Overlay, args: Args) -> None:
    for number in range(1, len(args)):
        over.put(args.key(number), GONE)


def _delete_one(over: Overlay, args: Args) -> None:
    over.put(args.key(1), GONE)


def _expire(over: Overlay, args: Args) -> None:
    name, key = args.word(0), args.key(1)
    option = ("PX" if name.startswith("P") else "EX") + ("AT" if name.endswith("AT") else "")
    now = over.at(key)
    if now.kind != "gone":
        over.put(key, now._replace(expires=args.expiry(option, 2)))


def _persist(over: Overlay, args: Args) -> None:
    now = over.at(args.key(1))
    if now.kind != "gone":
        over.put(args.key(1), now._replace(expires=None))


def _getex(over: Overlay, args: Args) -> None:
    if len(args) > 3:
        now = over.at(args.key(1))
        if now.kind != "gone":
            over.put(args.key(1), now._replace(expires=args.expiry(args.word(2), 3)))
    elif len(args) == 3 and args.word(2) == "PERSIST":
        _persist(over, args)


def _append(over: Overlay, args: Args) -> None:
    key = args.key(1)
    now = over.at(key)
    if now.kind in ("string", "same", "gone") and len(now.parts) < MAX_PARTS:
        over.put(key, State("string", (*now.parts, args.piece(2)), now.expires))
    elif now.kind != "unknown":
        over.put(key, State("unknown", (), now.expires, "APPEND"))


def _rename(over: Overlay, args: Args) -> None:
    old, new = args.key(1), args.key(2)
    if old != new:
        over.put(new, over.at(old))
        over.put(old, GONE)


def _copy(over: Overlay, args: Args) -> None:
    db, number = over.db, 3
    while number < len(args):
        if args.word(number) == "DB":
            db = args.number(number + 1)
            number += 1
        number += 1
    over.put(args.key(2), over.at(args.key(1)), db)


def _move(over: Overlay, args: Args) -> None:
    key = args.key(1)
    over.put(key, over.at(key), args.number(2))
    over.put(key, GONE)


def _restore(over: Overlay, args: Args) -> None:
    """RESTORE key ttl dump [REPLACE] [ABSTTL] …: only where the value lies in the dump."""
    key, ttl = args.key(1), args.number(2)
    options = {args.word(number) for number in range(4, len(args))}
    expires = None if ttl == 0 else args.expiry("PXAT" if "ABSTTL" in options else "PX", 2)
    start, size = args.words[3]
    end = start + size - DUMP_FOOTER_BYTES
    code = args.buf[start]
    if code == 0:
        over.put(key, State("string", (Piece(args.file, string(args.buf, start + 1, end)),), expires))
    else:
        over.put(key, State(TYPES[code][0] if code in TYPES else "module", (), expires))


def _select(over: Overlay, args: Args) -> None:
    over.db = args.number(1)


def _flush_database(over: Overlay, args: Args) -> None:
    over.flush(over.db)


def _flush_all(over: Overlay, args: Args) -> None:
    over.flush_all()


def _swap(over: Overlay, args: Args) -> None:
    over.swap(args.number(1), args.number(2))


COMMANDS: dict[str, Callable[[Overlay, Args], None]] = {
    "SET": _set, "SETNX": _set, "GETSET": _set, "SETEX": _setex, "PSETEX": _setex, "MSET": _mset, "MSETNX": _mset,
    "APPEND": _append, "DEL": _delete, "UNLINK": _delete, "GETDEL": _delete_one, "DELEX": _delete_one, "DELIFEQ": _delete_one,
    "EXPIRE": _expire, "PEXPIRE": _expire, "EXPIREAT": _expire, "PEXPIREAT": _expire, "PERSIST": _persist, "GETEX": _getex,
    "RENAME": _rename, "RENAMENX": _rename, "COPY": _copy, "MOVE": _move, "RESTORE": _restore, "RESTORE-ASKING": _restore,
    "SELECT": _select, "FLUSHDB": _flush_database, "FLUSHALL": _flush_all, "SWAPDB": _swap,
}  # fmt: skip
"""A command is in the file only if it did something, so its conditions (NX, XX, GT …) were met."""
MAKES = {
    **dict.fromkeys(("HSET", "HMSET", "HSETNX", "HINCRBY", "HINCRBYFLOAT", "HSETEX"), "hash"),
    **dict.fromkeys(("RPUSH", "LPUSH", "LINSERT", "LSET"), "list"),
    "SADD": "set", **dict.fromkeys(("ZADD", "ZINCRBY", "GEOADD"), "zset"), "XADD": "stream",
}  # fmt: skip
"""Commands after which the key is surely there."""
CHANGES_STRING = {
    **dict.fromkeys(("INCR", "DECR", "INCRBY", "DECRBY", "INCRBYFLOAT", "SETRANGE", "SETBIT", "BITFIELD", "PFADD", "PFMERGE"), 1),
    "BITOP": 2,
}  # fmt: skip
"""Where the key is that they change, or make."""
NO_STRINGS = frozenset({
    "HDEL", "HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT", "HPERSIST", "HGETDEL", "HGETEX", "LPOP", "RPOP", "LTRIM", "LREM",
    "LPUSHX", "RPUSHX", "LMPOP", "BLMPOP", "BLPOP", "BRPOP", "RPOPLPUSH", "LMOVE", "BLMOVE", "SREM", "SPOP", "SMOVE", "ZREM",
    "ZPOPMIN", "ZPOPMAX", "ZMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "ZREMRANGEBYLEX",
    "XDEL", "XTRIM", "XSETID", "XGROUP", "XACK", "XCLAIM", "XAUTOCLAIM", "XREADGROUP", "XACKDEL", "XDELEX", "PUBLISH", "SPUBLISH",
    "FUNCTION", "SCRIPT", "PING", "MULTI", "EXEC",
})  # fmt: skip
"""Change only what is no string, or no key at all."""
