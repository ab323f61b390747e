"""Holds a purge back: so many keys and bytes a second, fewer while the server, its replicas or a fork show strain."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import redis

from diag.cache.interrupts import Stop
from diag.cache.purging.rights import own_connection
from diag.cache.servers.connection import Client
from diag.errors import BadInput

PING_EVERY_S = 0.005
PINGS = 200
"""A second's worth: the 99th percentile of these is what other clients feel now."""
LOOK_EVERY_S = 0.25
SLOWEST = 1 / 16
BATCHES_A_SECOND = 100
UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0}


@dataclass(frozen=True)
class Rate:
    """The most that is read or deleted in a second."""

    keys_s: float = 5000.0
    bytes_s: float = 100e6

    @property
    def batch_keys(self) -> int:
        """Keys of a batch, so that a slow purge takes small bites instead of long breaks."""
        return max(1, min(100, int(self.keys_s / BATCHES_A_SECOND)))


@dataclass(frozen=True)
class Limits:
    """What counts as strain."""

    ping_ms: float = 10.0
    """99th percentile of our own pings above what it was before the purge."""
    lag_bytes: int = 16 << 20
    """A replica so far behind."""
    fork_usec: int = 200_000
    """The last fork stopped the server so long: half the rate all through."""
    patience_s: float = 60.0
    """In all; after that it goes on, at a sixteenth of the rate."""


def rate_of(text: str) -> Rate:
    """`2000`, `2000,20MB` or `,20MB`: keys and bytes per second. BadInput."""
    keys, _, size = text.partition(",")
    try:
        rate = Rate(float(keys) if keys else Rate.keys_s, _bytes(size) if size else Rate.bytes_s)
    except ValueError as error:
        raise BadInput(f"--rate {text}: no rate", hint="KEYS or KEYS,BYTES a second: 2000 or 2000,20MB") from error
    if not (0 < rate.keys_s < float("inf") and 0 < rate.bytes_s < float("inf")):
        raise BadInput(f"--rate {text}: nothing would ever be done", hint="KEYS or KEYS,BYTES a second: 2000 or 2000,20MB")
    return rate


def _bytes(text: str) -> float:
    for unit, factor in UNITS.items():
        if text.upper().endswith(unit):
            return float(text[: -len(unit)]) * factor
    return float(text)


@dataclass
class Pinger:
    """Pings one server over a connection of its own, all through the purge."""

    client: Client
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=PINGS))
    over: threading.Event = field(default_factory=threading.Event)
    baseline_s: float | None = None
    """None: it answers no pings."""

    def start(self) -> None:
        with own_connection(self.client) as alone:
            before = [_ping(alone) for _ in range(20)]
        if None not in before:
            self.baseline_s = max(cast(list[float], before))
            threading.Thread(target=self._run, name="ping", daemon=True).start()

    def _run(self) -> None:
        try:
            with own_connection(self.client) as alone:
                while not self.over.wait(PING_EVERY_S):
                    took = _ping(alone)
                    if took is None:
                        return
                    self.latencies_s.append(took)
        except (redis.RedisError, OSError):
            return  # the purge itself meets the same error and says so

    def above_ms(self) -> float:
        """How far the 99th percentile is above the baseline."""
        seen = sorted(list(self.latencies_s))
        if not seen or self.baseline_s is None:
            return 0.0
        return (seen[min(len(seen) - 1, int(len(seen) * 0.99))] - self.baseline_s) * 1000


def _ping(alone: Client) -> float | None:
    started = time.perf_counter()
    try:
        alone.ping()
    except redis.ResponseError:
        return None
    return time.perf_counter() - started


class Throttle:
    """`wait` before each batch. Look at `notes` at the end."""

    def __init__(
        self, clients: Sequence[Client], rate: Rate | None = None, limits: Limits | None = None, stop: Stop | None = None
    ) -> None:
        self.rate = Rate() if rate is None else rate
        self.limits = Limits() if limits is None else limits
        self.stop: Stop = threading.Event() if stop is None else stop
        self.clients = clients
        self.pingers = [Pinger(client) for client in clients]
        self.why: Counter[str] = Counter()
        self.slowed = 0
        self.waited_s = 0.0
        self._blind = False
        self._part = 1.0
        self._most = 1.0
        self._next = time.monotonic()
        self._looked = float("-inf")

    def __enter__(self) -> "Throttle":
        for pinger in self.pingers:
            pinger.start()
        return self

    def __exit__(self, *_: object) -> None:
        for pinger in self.pingers:
            pinger.over.set()

    def wait(self, keys: int, size: int) -> bool:
        """Until so many keys and bytes may go; True: somebody said stop. Raises the client library's connection errors."""
        self._heed()
        now = time.monotonic()
        pause = max(0.0, self._next - now)
        self._next = max(now, self._next) + max(keys / self.rate.keys_s, size / self.rate.bytes_s) / self._part
        return self.stop.wait(pause) if pause else self.stop.is_set()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of it."""
        said = []
        if self.slowed:
            reasons = ", ".join(f"{name} ({count}x)" for name, count in self.why.most_common())
            said.append(f"held back {self.slowed} times, {self.waited_s:.1f} s of them standing still: {reasons}")
        if self._blind:
            said.append("replica lag and forks were not watched: this user may not ask for INFO")
        return tuple(said)

    def _heed(self) -> None:
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        halting, slowing = self._strain()
        if halting or slowing:
            self.slowed += 1
            self._part = max(SLOWEST, self._part / 2)
        else:
            self._part = min(self._most, self._part * 1.5)
        self.why.update((*halting, *slowing))
        while halting and self.waited_s < self.limits.patience_s:
            started = time.monotonic()
            stopped = self.stop.wait(LOOK_EVERY_S)
            self.waited_s += time.monotonic() - started
            if stopped:
                break
            halting, _ = self._strain()
        if halting:
            self._part = SLOWEST
        self._looked = time.monotonic()

    def _strain(self) -> tuple[list[str], list[str]]:
        """What to stand still for, and what only to slow down for."""
        halting: list[str] = []
        slowing: list[str] = []
        if any(pinger.above_ms() > self.limits.ping_ms for pinger in self.pingers):
            slowing.append(f"pings took over {self.limits.ping_ms:g} ms longer than before")
        for client in self.clients:
            try:
                facts = [cast(Mapping[str, object], client.info(section)) for section in ("persistence", "replication", "stats")]
            except redis.ResponseError:
                self._blind = True
                continue
            except redis.ConnectionError:
                continue  # whoever deletes there meets it too, and knows what to do
            halting += _forks(facts[0])
            halting += _lag(facts[1], self.limits.lag_bytes)
            fork_usec = facts[2].get("latest_fork_usec")
            if isinstance(fork_usec, int) and fork_usec > self.limits.fork_usec and self._most == 1.0:
                self._most = self._part = 0.5
                slowing.append(f"its last fork took {fork_usec / 1000:.0f} ms")
        return list(dict.fromkeys(halting)), slowing


def _forks(facts: Mapping[str, object]) -> Iterable[str]:
    for name, what in (("rdb_bgsave_in_progress", "it was saving"), ("aof_rewrite_in_progress", "it was rewriting its log")):
        if facts.get(name) == 1:
            yield what


def _lag(facts: Mapping[str, object], most: int) -> Iterable[str]:
    """A replica that is behind, or still gets its first copy."""
    offset = facts.get("master_repl_offset")
    if facts.get("role") != "master" or not isinstance(offset, int):
        return
    for name, replica in facts.items():
        if not (name.startswith("slave") and isinstance(replica, dict)):
            continue
        behind = offset - int(replica.get("offset") or 0)
        if replica.get("state") != "online" or behind > most:
            yield "a replica was behind"
