"""Looks at every value of a cluster: all primaries at once, one picture of each family, slots that move looked for again.

First each primary gives the keys of the slots that were its own at the beginning. Then the slots that moved, or whose
node died, are gone through once more wherever they are, and keys that were missed are judged.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from threading import Event, Lock

import numpy as np
import redis

from diag.cache.scanning.how import How
from diag.cache.scanning.other_halves import looking
from diag.cache.scanning.reading import BATCH_KEYS, WHOLE_BYTES, Known, look, types, values
from diag.cache.scanning.server import begin_watch, said
from diag.cache.scanning.walk import Walk
from diag.cache.scanning.wire import Wire
from diag.cache.servers.cluster import Cluster
from diag.cache.servers.connection import Client, describe, speaking
from diag.cache.servers.routing import Moves
from diag.cache.servers.slots import Address, Layout, slot_of
from diag.cache.values.facts import Facts, facts_of
from diag.cache.values.families import family
from diag.cache.values.judging import SAMPLE, Scan
from diag.cache.values.keys import CacheKey, Place, ScanResult, other_type, unread
from diag.cache.values.profile import Profile

ROUNDS = 4
"""So often slots that moved are gone through before the report says that they do not come to rest."""


def scan(
    client: Cluster,
    target: str,
    pattern: bytes | str | None = None,
    *,
    databases: Sequence[int] | None = None,
    markers: Sequence[bytes] = (),
    sample: int = SAMPLE,
    each: Callable[[CacheKey], None] | None = None,
    how: How = How(),  # noqa: B008
) -> ScanResult:
    """As `server.scan`. Keeps 8 bytes a key, so that no key counts twice however it moves.

    CannotConnect: a primary is gone and none took its place.
    """
    started = time.monotonic()
    result = Scan(each, sample)
    left_out = 0
    glob = pattern.encode() if isinstance(pattern, str) else pattern
    notes: list[str] = []
    with speaking(target):
        server = describe(client)
        chosen = sorted(server.databases) if databases is None else databases
        begin_watch(how, server, result, chosen)
        for db in chosen:
            walk = _Walk(client.at_database(db), target, db, glob, markers, result, how, server.no_touch)
            walk.run()
            notes += walk.notes
            left_out += walk.left_out
            result.finish(looking(walk.cluster))
        server = describe(client)
    found = result.report(target, server=server, seconds=time.monotonic() - started)
    return replace(found, warnings=(*found.warnings, *notes, *said(how, left_out)))


@dataclass
class _Walk:
    """One database of the cluster."""

    cluster: Cluster
    target: str
    db: int
    pattern: bytes | None
    markers: Sequence[bytes]
    result: Scan
    how: How
    no_touch: bool
    notes: list[str] = field(default_factory=list)
    seen: "array[int]" = field(default_factory=lambda: array("q"))
    """Hashes of the names of all keys that were judged."""
    unsettled: set[int] = field(default_factory=set)
    """Slots to go through again."""
    moves: Moves = field(default_factory=lambda: Moves(set(), {}))
    lock: Lock = field(default_factory=Lock)
    stop: Event = field(default_factory=Event)
    rounds: int = 0
    left_out: int = 0

    def run(self) -> None:
        """Judge every key once. Raises the client library's errors."""
        router = self.cluster.router
        layout = router.refresh()
        router.redirected.clear()
        self.moves = router.moves()
        self.unsettled |= self.moves.moving
        self._at_once(layout, lambda node: self._own(node, layout))
        moved: set[int] = set()
        while (again := self._take_unsettled()) and self.rounds < ROUNDS and not self.how.stop():
            self.rounds += 1
            moved |= again
            self._at_once(router.layout, _Second(self, again).look_at)
        if moved:
            self.notes.append(f"{len(moved)} slots moved or lost their node during the scan, or may have been away, and were gone through again")
        if again:
            self.notes.append(f"{len(again)} slots are still being moved: keys in them may have been missed; scan again when they are at rest")

    def _at_once(self, layout: Layout, one: Callable[[Address], None]) -> None:
        """In a thread for each primary; the first error, or Ctrl-C, ends them all."""
        with ThreadPoolExecutor(len(layout.primaries), "primary") as pool:
            running = [pool.submit(copy_context().run, one, node) for node in layout.primaries]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                if not all(item.done() for item in running):
                    self.stop.set()
        for item in running:
            item.result()

    def _own(self, node: Address, layout: Layout) -> None:
        """The keys of the slots that were this node's at the beginning."""
        with self._surviving(node, {slot for slot, owner in enumerate(layout.owners) if owner == node}), closing(Wire(self._plain(node))) as wire:
            how = self.how
            walk = Walk(
                wire, _Own(self, node, layout), self.target, self.db, replace(how.pace), self.pattern, self.markers, how.values, self.no_touch,
                wants=self._wants, per_family=None if how.per_family is None else -(-how.per_family // len(layout.primaries)),
                stop=lambda: self.stop.is_set() or how.stop(), tick=self._tick,
            )  # fmt: skip
            walk.run()
            with self.lock:
                self.left_out += walk.left_out

    def again(self, node: Address, slots: set[int], pick: Callable[[list[bytes]], list[bytes]]) -> None:
        """Judge what is picked of the keys of these slots at one node."""
        plain = self._plain(node)
        with self._surviving(node, slots):
            cursor = -1
            while cursor != 0 and not self.stop.is_set():
                cursor, names = plain.scan(max(cursor, 0), match=self.pattern, count=BATCH_KEYS)
                self._judge(pick([name for name in names if isinstance(name, bytes) and slot_of(name) in slots and self._wants(name)]))

    @contextmanager
    def _surviving(self, node: Address, slots: set[int]) -> Iterator[None]:
        """If the node dies, its slots are to be gone through again at the one that takes its place."""
        try:
            yield
        except redis.TimeoutError:
            raise
        except redis.ConnectionError:
            self.cluster.router.wait_for_change(node)
            with self.lock:
                self.unsettled |= slots

    def _plain(self, node: Address) -> Client:
        return self.cluster.router.node(node, self.db)

    def _wants(self, name: bytes) -> bool:
        return self.result.selection.wants(name)

    def _tick(self, keys: int) -> None:
        with self.lock:
            self.how.watch.tick(keys)

    def _judge(self, keys: Sequence[bytes]) -> None:
        """Asked through the cluster: a key that has just moved is found where it is now."""
        if not keys:
            return
        known = look(self.cluster, keys, idle=True)
        others = [item for item in known if item.bytes is None]
        kinds = types(self.cluster, [item.key for item in others]) if others else []
        rows = [other_type(self._place(item), kind) for item, kind in zip(others, kinds, strict=True)]
        if not self.how.values:
            rows += [unread(self._place(item), family(item.key), item.bytes) for item in known if item.bytes is not None]
            others, known = known, []
        judged = [(self._place(item), self._facts(item, value)) for item, value in values(self.cluster, known)]
        with self.lock:
            self.seen.extend(hash(item.key) for item in others)
            self.seen.extend(hash(place.key) for place, _ in judged)
            for row in rows:
                self.result.emit(row)
            for place, facts in judged:
                self.result.add(place, facts)

    def _place(self, item: Known) -> Place:
        return Place(self.target, self.db, item.key, item.ttl_s, item.idle_s)

    def _facts(self, item: Known, value: bytes) -> Facts:
        long = item.bytes is not None and item.bytes > WHOLE_BYTES
        return facts_of(value, length=item.bytes if long else None, markers=self.markers)

    def _take_unsettled(self) -> set[int]:
        """Slots that moved, were found moving, or may have been away and are back, since they were asked for the last time."""
        router = self.cluster.router
        layout = router.refresh()
        before, self.moves = self.moves, router.moves()
        took_over = self.moves.took_over(before)
        found = self.unsettled | router.redirected | self.moves.moving
        found |= {slot for slot, owner in enumerate(layout.owners) if owner in took_over}
        self.unsettled = set()
        router.redirected.clear()
        return found


class _Own:
    """Takes what a pass over one primary finds: of the slots that were its own at the beginning, each key by name."""

    def __init__(self, walk: _Walk, node: Address, layout: Layout) -> None:
        self._walk, self._node, self._layout = walk, node, layout

    @property
    def each(self) -> Callable[[CacheKey], None]:
        """Every key is to be told, none only counted: it might be met again at another node."""
        return lambda row: None

    @property
    def profiles(self) -> Mapping[tuple[int, str], Profile]:
        return self._walk.result.profiles

    def add(self, place: Place, facts: Facts) -> None:
        with self._walk.lock:
            if self._is_first(place.key):
                self._walk.result.add(place, facts)

    def emit(self, row: CacheKey) -> None:
        with self._walk.lock:
            if self._is_first(row.name):
                self._walk.result.emit(row)

    def sound(self, db: int, name: str, versions: tuple[str, str] | None, keys: int, size: int) -> None:
        raise AssertionError("nothing is only counted here")

    def _is_first(self, key: bytes) -> bool:
        slot = slot_of(key)
        if self._layout.owners[slot] != self._node:
            self._walk.unsettled.add(slot)
            return False
        self._walk.seen.append(hash(key))
        return True


class _Second:
    """One more look at some slots, wherever they are: only keys that were not judged before."""

    def __init__(self, walk: _Walk, slots: set[int]) -> None:
        self.walk, self.slots = walk, slots
        self.known = np.sort(np.frombuffer(walk.seen, np.int64)) if walk.seen else np.empty(0, np.int64)
        self.taken: set[int] = set()
        """Hashes of the keys that this look has found; a moving key shows at two nodes."""

    def look_at(self, node: Address) -> None:
        self.walk.again(node, self.slots, self._new)

    def _new(self, page: list[bytes]) -> list[bytes]:
        if not page:
            return []
        hashes = np.array([hash(key) for key in page], np.int64)
        at = np.minimum(np.searchsorted(self.known, hashes), max(len(self.known) - 1, 0))
        old = self.known[at] == hashes if len(self.known) else np.zeros(len(page), bool)
        with self.walk.lock:
            new = [key for key, was in zip(page, old, strict=True) if not was and hash(key) not in self.taken]
            self.taken.update(map(hash, new))
        return new
