"""Which node of a cluster to ask: every command goes to the node that serves its key, wherever it moves meanwhile.

redis.RedisCluster needs rights that a scanning user lacks (COMMAND), gives up on a fail-over after a count of tries
instead of a time, and shows no node for itself; so its job is done here, over one plain client a node.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, cast

import redis
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from diag.cache.servers.connection import Client
from diag.cache.servers.slots import Address, Args, Layout, config_epoch, keys_of, layout_of, moving_slots, slot_of, text_of

FAILOVER_S = 30.0
"""How long a slot may have no primary: twice the time in which a cluster notices with its default settings."""
PAUSE_S = 0.05
Command = tuple[Args, Mapping[str, Any]]
"""As the client library keeps it: arguments, options of the answer."""


class Router:
    """Which node to ask; shared by the threads and databases of one cluster."""

    def __init__(self, seeds: Sequence[Address], first: Client, patience_s: float = FAILOVER_S) -> None:
        self.patience_s = patience_s
        self._seeds = tuple(seeds)
        options = {**first.connection_pool.connection_kwargs}
        kind = first.connection_pool.connection_class
        if "path" in options:
            kind = redis.Connection
            del options["path"]
        self._options, self._kind = options, kind
        self._nodes: dict[tuple[Address, int], Client] = {}
        self._lock = RLock()
        self.redirected: set[int] = set()
        """Slots of which a key was found elsewhere than expected."""
        self.layout = self._ask_for_layout()

    def node(self, address: Address, db: int = 0) -> Client:
        """A plain client of one node."""
        with self._lock:
            found = self._nodes.get((address, db))
            if found is None:
                options = {**self._options, "host": address[0], "port": address[1], "db": db}
                found = Client(connection_pool=redis.ConnectionPool(connection_class=self._kind, **options))
                self._nodes[address, db] = found
            return found

    def refresh(self) -> Layout:
        """Ask who serves what. ConnectionError: no node answers. ResponseError: none may say."""
        layout = self._ask_for_layout()
        with self._lock:
            self.redirected |= self.layout.differing(layout)
            self.layout = layout
        return layout

    def moves(self) -> "Moves":
        """What the nodes may say of slots on their way."""
        moving: set[int] = set()
        epochs: dict[Address, int] = {}
        for address in self.layout.primaries:
            try:
                answer = cast(bytes, raw(self.node(address), "CLUSTER", "NODES"))
            except redis.RedisError:
                continue
            moving |= moving_slots(answer)
            epoch = config_epoch(answer)
            if epoch is not None:
                epochs[address] = epoch
        return Moves(moving, epochs)

    def run(self, commands: Sequence[Command], db: int = 0) -> list[Any]:
        """The answers, in order; an error that is about the command is an answer, too.

        Follows MOVED and ASK, asks again after TRYAGAIN and CLUSTERDOWN and when a node died. ConnectionError,
        ClusterDownError: for longer than the patience. A command that was under way when a node died is sent twice.
        """
        answers: list[Any] = [None] * len(commands)
        slots = [self._slot(args) for args, _ in commands]
        pending: dict[int, Address | None] = dict.fromkeys(range(len(commands)))
        trouble: Exception | None = None
        deadline = time.monotonic() + self.patience_s
        rounds = 0
        while pending:
            if rounds > 1:  # the first redirection is followed at once
                if time.monotonic() > deadline:
                    raise trouble or redis.ConnectionError("the slots of the cluster do not come to rest")
                time.sleep(PAUSE_S)
            rounds += 1
            again: dict[int, Address | None] = {}
            for address, members in self._by_node(pending, slots).items():
                try:
                    got = self._send(address, db, [(commands[i], pending[i] is not None) for i in members])
                except redis.TimeoutError:
                    raise
                except redis.ConnectionError as error:
                    trouble = error
                    self._try_refresh()
                    self._refuse_hopeless(address, error)
                    again |= dict.fromkeys(members)
                    continue
                for index, answer in zip(members, got, strict=True):
                    if isinstance(answer, TryAgainError) and len(keys_of(commands[index][0])) > 1:
                        answers[index] = answer  # its keys are at two nodes until the slot has moved: they must be asked for singly
                    elif isinstance(answer, AskError | TryAgainError | ClusterDownError):
                        trouble = answer
                        again[index] = self._elsewhere(answer, address)
                    else:
                        answers[index] = answer
            if isinstance(trouble, ClusterDownError):
                self._try_refresh()
            pending = again
        return answers

    def everywhere(self, db: int, *args: Any, **options: Any) -> dict[Address, Any]:
        """One command at every primary. ConnectionError: one is gone, and none took its place."""
        while True:
            found: dict[Address, Any] = {}
            for address in self.layout.primaries:
                try:
                    found[address] = raw(self.node(address, db), *args, **options)
                except redis.TimeoutError:
                    raise
                except redis.ConnectionError:
                    self.wait_for_change(address)
                    break
            else:
                return found

    def wait_for_change(self, gone: Address) -> Layout:
        """A node died: wait until the slots it served have a primary that answers. ConnectionError: they get none."""
        deadline = time.monotonic() + self.patience_s
        while True:
            self._try_refresh()
            self._refuse_hopeless(gone)
            layout = self.layout
            if not layout.uncovered and all(map(self._answers, layout.primaries)):
                return layout
            if time.monotonic() > deadline:
                raise redis.ConnectionError(f"{text_of(gone)} is gone and no replica took its place within {self.patience_s:.0f} s")
            time.sleep(PAUSE_S)

    def close(self) -> None:
        with self._lock:
            nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.close()

    def _slot(self, args: Args) -> int | None:
        keys = keys_of(args)
        return slot_of(keys[0]) if keys else None

    def _by_node(self, pending: Mapping[int, Address | None], slots: Sequence[int | None]) -> dict[Address, list[int]]:
        layout = self.layout
        groups: dict[Address, list[int]] = defaultdict(list)
        first = layout.primaries[0]
        for index, asked in pending.items():
            slot = slots[index]
            owner = asked or (first if slot is None else layout.owners[slot])
            groups[owner or first].append(index)  # a slot that nobody serves: any node says CLUSTERDOWN
        return groups

    def _send(self, address: Address, db: int, commands: Sequence[tuple[Command, bool]]) -> list[Any]:
        pipe = self.node(address, db).pipeline(transaction=False)
        for (args, options), asking in commands:
            if asking:
                raw(pipe, "ASKING")
            raw(pipe, *args, **options)
        got = iter(pipe.execute(raise_on_error=False))
        answers = []
        for _, asking in commands:
            if asking:
                next(got)
            answers.append(next(got))
        return answers

    def _elsewhere(self, answer: Exception, asked: Address) -> Address | None:
        """Where to ask next, once only; None: the owner of the slot, as far as it is known now."""
        if not isinstance(answer, AskError):
            return None
        there = (answer.host if answer.host not in ("", "?") else asked[0], int(answer.port))
        with self._lock:
            self.redirected.add(int(answer.slot_id))
            if not isinstance(answer, MovedError):
                return there
            self.layout = self.layout.moved(int(answer.slot_id), there)
        return None

    def _try_refresh(self) -> None:
        try:
            self.refresh()
        except redis.RedisError:
            return  # whoever waits for it looks at the clock

    def _refuse_hopeless(self, gone: Address, why: Exception | None = None) -> None:
        """Nobody can take the place of a primary without replicas: no need to wait."""
        if self.layout.replicas.get(gone) == 0 and not isinstance(why, redis.BusyLoadingError) and not self._answers(gone):
            raise redis.ConnectionError(f"{text_of(gone)} is gone and has no replica that could take its place")

    def _answers(self, address: Address) -> bool:
        try:
            return bool(self.node(address).ping())
        except redis.RedisError:
            return False

    def _ask_for_layout(self) -> Layout:
        """From the first node that answers. A view with uncovered slots is believed only if there is no better one."""
        known = list(dict.fromkeys((*getattr(self, "layout", _NOTHING).primaries, *self._seeds)))
        best: Layout | None = None
        trouble: redis.RedisError | None = None
        for address in known:
            try:
                layout = layout_of(cast(Sequence[Any], raw(self.node(address), "CLUSTER", "SLOTS")), address)
            except redis.RedisError as error:
                trouble = error
                continue
            if best is None or layout.uncovered < best.uncovered:
                best = layout
            if not best.uncovered:
                break
        if best is None:
            raise trouble or redis.ConnectionError("no node of the cluster answers")
        if not best.primaries:
            raise redis.ResponseError("CLUSTERDOWN no slot is served: this cluster was never put together")
        return best


@dataclass(frozen=True)
class Moves:
    """Slots on their way at one moment."""

    moving: set[int]
    """Right now."""
    epochs: Mapping[Address, int]
    """Of each primary; another one than before means that it has taken over slots, were it only back again."""

    def took_over(self, before: "Moves") -> set[Address]:
        """Nodes that got slots since then; one that was no primary then shows by what it owns."""
        return {node for node, epoch in self.epochs.items() if before.epochs.get(node, epoch) != epoch}


_NOTHING = Layout((), {})


def raw(client: Client, *args: Any, **options: Any) -> Any:
    """A command in the words of the protocol."""
    return client.execute_command(*args, **options)  # type: ignore[no-untyped-call]
