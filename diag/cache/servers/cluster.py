"""A Redis or Valkey cluster as one client, as far as a scan, a purge and a restore need one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import redis
from redis.client import Pipeline
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from diag.cache.servers.connection import Client
from diag.cache.servers.routing import Router
from diag.cache.servers.slots import SPLIT, Address, keys_of, slot_of, text_of, words_of

ROLE = "cluster"
CROSSSLOT = "CROSSSLOT keys of one command are in several slots, or at several nodes"
BUSY = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "loading", "latest_fork_usec", "lazyfree_pending_objects")
"""Of these the worst node speaks for the cluster."""
_NODES = 1 << 14


class Cluster(Client):
    """The client of a whole cluster. INFO and DBSIZE add up its primaries; the rest goes where the key lives."""

    def __init__(self, router: Router, db: int = 0) -> None:
        self.router = router
        self.db = db
        super().__init__(connection_pool=router.node(router.layout.primaries[0], db).connection_pool)

    def at_database(self, number: int) -> "Cluster":
        """Other than 0 only where the server allows it (Valkey 9)."""
        return self if number == self.db else Cluster(self.router, number)

    def client(self) -> Client:
        """One node, with a connection to itself."""
        return Client(connection_pool=self.connection_pool, single_connection_client=True)

    def primaries(self) -> dict[Address, Client]:
        """A plain client for each node that serves slots."""
        return {address: self.router.node(address, self.db) for address in self.router.layout.primaries}

    def notes(self) -> tuple[str, ...]:
        """What a report says about it."""
        layout = self.router.layout
        found = [f"a cluster of {len(layout.primaries)} primaries: {', '.join(map(text_of, layout.primaries))}"]
        if layout.uncovered:
            found.append(f"{layout.uncovered} slots of the cluster are served by nobody: their keys were not looked at")
        return tuple(found)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        name = words_of(args)[0]
        keys = keys_of(args)
        if name in SPLIT and len(keys) > 1:
            return self._split(name, keys, options)
        if len(keys) > 1 and len({slot_of(key) for key in keys}) > 1:
            raise redis.ResponseError(CROSSSLOT)
        if name in ("SCRIPT", "PING", "DBSIZE", "FLUSHALL", "FLUSHDB"):
            found = list(self.router.everywhere(self.db, *args, **options).values())
            return sum(found) if name == "DBSIZE" else found[0]
        if name == "INFO":
            return _merged(list(self.router.everywhere(self.db, *args, **options).values()))
        (answer,) = self.router.run([(args, options)], self.db)
        if isinstance(answer, TryAgainError):
            raise redis.ResponseError(CROSSSLOT) from answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _split(self, name: str, keys: Sequence[bytes], options: Mapping[str, Any]) -> Any:
        single = "GET" if name == "MGET" else name
        found = self.router.run([((single, key), options) for key in keys], self.db)
        for answer in found:
            if isinstance(answer, Exception) and not (name == "MGET" and "WRONGTYPE" in str(answer)):
                raise answer
        if name == "MGET":
            return [None if isinstance(answer, Exception) else answer for answer in found]
        return sum(found)

    def scan(self, cursor: Any = 0, match: Any = None, count: Any = None, _type: Any = None, **options: Any) -> Any:
        """One primary after the other; the cursor also says which."""
        if not int(cursor):
            self._scanning = tuple(self.primaries().values())
        position, index = divmod(int(cursor), _NODES)
        position, keys = cast(tuple[int, list[bytes]], self._scanning[index].scan(position, match=match, count=count, _type=_type))
        if position == 0:
            index += 1
        return (0 if index == len(self._scanning) else position * _NODES + index), keys

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """Without a transaction for any keys; with one for the keys of one slot, and a moving slot is a change."""
        return _Transaction(self) if transaction else _Pipeline(self)

    def close(self) -> None:
        self.router.close()
        super().close()


class _Pipeline(Pipeline):
    """Commands to any keys; each goes to its node, those of one node together."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, False, None)
        self._cluster = cluster

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = self.command_stack
        try:
            answers = self._cluster.router.run(stack, self._cluster.db)
            if raise_on_error:
                self.raise_first_error(stack, answers)  # type: ignore[no-untyped-call]
            return answers
        finally:
            self.reset()


class _Transaction(Pipeline):
    """WATCH, MULTI, EXEC at the node of the watched keys. A slot that moves in between counts as a change."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, True, None)
        self._cluster = cluster

    def watch(self, *names: Any) -> Any:
        if len({slot_of(name) for name in names}) > 1:
            raise redis.WatchError("the keys are in several slots")
        router = self._cluster.router
        owner = router.layout.owners[slot_of(names[0])]
        if owner is not None and self.connection is None:
            self.connection_pool = router.node(owner, self._cluster.db).connection_pool
        return super().watch(*names)  # type: ignore[no-untyped-call]

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        with _moving_is_a_change(self._cluster.router):
            return super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        with _moving_is_a_change(self._cluster.router):
            return super().execute(raise_on_error)


@contextmanager
def _moving_is_a_change(router: Router) -> Iterator[None]:
    try:
        yield
    except (AskError, TryAgainError, ClusterDownError) as error:
        if isinstance(error, MovedError):
            with suppress(redis.RedisError):
                router.refresh()
        raise redis.WatchError("the slot of the key is being moved") from error


def _merged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One INFO for all: that of the node whose replicas lag most, keys added up, the busiest node's state."""
    merged = dict(max(found, key=_lag_bytes))
    for name in BUSY:
        values = [facts[name] for facts in found if name in facts]
        if values:
            merged[name] = max(values)
    databases = {name for facts in found for name in facts if name.startswith("db") and name[2:].isdigit()}
    for name in databases:
        merged[name] = {"keys": sum(int(facts[name]["keys"]) for facts in found if isinstance(facts.get(name), dict))}
    if "role" in merged:
        merged["role"] = ROLE
    return merged


def _lag_bytes(facts: Any) -> int:
    """Bytes of replication that the slowest replica of this primary has not seen."""
    seen = [int(value["offset"]) for name, value in facts.items() if name.startswith("slave") and isinstance(value, dict) and "offset" in value]
    return int(facts.get("master_repl_offset", 0)) - min(seen) if seen else 0
