"""Which node of a cluster serves which slot, and which slot a command is for. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

SLOTS = 16384
Address = tuple[str, int]
Args = Sequence[Any]
"""A command and its arguments as the client library has them."""

KEYLESS = frozenset(
    {
        "ACL", "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "FLUSHALL", "FLUSHDB", "HELLO", "INFO", "LASTSAVE",
        "LATENCY", "PING", "READONLY", "ROLE", "SCAN", "SCRIPT", "SELECT", "TIME", "WAIT",
    }
)  # fmt: skip
SECOND = frozenset({"OBJECT", "MEMORY", "XINFO"})
"""Commands whose key comes after a subcommand."""
COUNTED = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"})
"""Script, number of keys, keys."""
SPLIT = frozenset({"MGET", "EXISTS", "UNLINK", "DEL", "TOUCH"})
"""Every argument is a key of its own."""


@dataclass(frozen=True)
class Layout:
    """The owners of the slots at one moment."""

    owners: tuple[Address | None, ...]
    """One per slot; None: nobody serves it."""
    replicas: Mapping[Address, int]
    """How many copies each primary has."""

    @property
    def primaries(self) -> tuple[Address, ...]:
        """Every node that serves slots, in one order for everybody."""
        return tuple(sorted({owner for owner in self.owners if owner is not None}))

    @property
    def uncovered(self) -> int:
        """Slots that nobody serves."""
        return self.owners.count(None)

    def moved(self, slot: int, owner: Address) -> "Layout":
        """The same with another owner of one slot."""
        return Layout((*self.owners[:slot], owner, *self.owners[slot + 1 :]), self.replicas)

    def differing(self, other: "Layout") -> set[int]:
        """Slots that have another owner there."""
        return {slot for slot, pair in enumerate(zip(self.owners, other.owners, strict=True)) if pair[0] != pair[1]}


def layout_of(answer: Sequence[Any], asked: Address) -> Layout:
    """The answer to CLUSTER SLOTS; a node that does not know its own name is the one that was `asked`."""
    owners: list[Address | None] = [None] * SLOTS
    replicas: dict[Address, int] = {}
    for start, end, primary, *others in answer:
        address = _address(primary, asked)
        replicas[address] = max(replicas.get(address, 0), len(others))
        owners[start : end + 1] = [address] * (end + 1 - start)
    return Layout(tuple(owners), replicas)


def _address(node: Sequence[Any], asked: Address) -> Address:
    host = node[0].decode() if isinstance(node[0], bytes) else str(node[0] or "")
    return (host if host and host != "?" else asked[0], int(node[1]))


def moving_slots(answer: bytes | str) -> set[int]:
    """Slots that the node which gave this answer to CLUSTER NODES is migrating or importing: `[5461->-0a1b…]`."""
    words = [word[1:-1] for word in _myself(answer)[8:] if word.startswith("[") and word.endswith("]")]
    numbers = [word.partition("-")[0] for word in words]
    return {int(number) for number in numbers if number.isdecimal() and int(number) < SLOTS}


def config_epoch(answer: bytes | str) -> int | None:
    """Of the node that gave this answer to CLUSTER NODES: it grows whenever the node has taken over a slot."""
    words = _myself(answer)
    return int(words[6]) if len(words) > 6 and words[6].isdecimal() else None


def _myself(answer: bytes | str) -> list[str]:
    """Its line about itself: id, address, flags, primary, ping, pong, config epoch, link, slots …"""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return next((line for line in text.splitlines() if "myself" in line), "").split()


def words_of(args: Args) -> list[str]:
    """The command in capitals; the client library writes some subcommands into the same string (`MEMORY USAGE`)."""
    return str(args[0]).upper().split()


def keys_of(args: Args) -> Sequence[bytes]:
    """The keys of a command; none for one that any node can answer."""
    name, *subcommand = words_of(args)
    if name in KEYLESS or len(args) < 2:
        return ()
    if name in COUNTED:
        return args[3 : 3 + int(args[2])]
    if name in SPLIT:
        return args[1:]
    at = 2 - len(subcommand) if name in SECOND else 1
    return args[at : at + 1]


def slot_of(key: bytes | str) -> int:
    """Of a key; what stands in its first {} decides, if there is such a thing."""
    return int(key_slot(key.encode() if isinstance(key, str) else bytes(key)))


def text_of(address: Address) -> str:
    """HOST:PORT, as people write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
