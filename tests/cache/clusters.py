"""Real clusters and Sentinel services on free ports: put together, filled, slots moved, primaries killed."""

import contextlib
import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tests.cache import world
from tests.ports import free_port

DEADLINE_S = 30.0
SLOTS = 16384
NODE_TIMEOUT_MS = 1500
DOWN_AFTER_MS = 500


def until(met: Callable[[], object], what: str) -> None:
    """Ask again and again, until it is so."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(redis.RedisError):
            if met():
                return
        assert time.monotonic() < deadline, f"not in {DEADLINE_S:.0f} s: {what}"
        time.sleep(0.01)


@dataclass
class Node:
    """One server process."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path
    id: str = ""
    password: str | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self.password, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=5)

    @cached_property
    def asked(self) -> redis.Redis:
        """For one question after another, by the thousand while slots move. It asks again where a fail-over cut its connection."""
        return redis.Redis(port=self.port, password=self.password, protocol=2, retry=Retry(NoBackoff(), 1), socket_timeout=5)

    def do(self, *args: object) -> object:
        return self.asked.execute_command(*args)

    def info(self, section: str) -> dict[str, object]:
        return self.asked.info(section)

    def kill(self) -> None:
        self.asked.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __str__(self) -> str:
        return f"127.0.0.1:{self.port}"


def copied(primary: Node, replica: Node) -> None:
    """Until the replica has every key. (WAIT tells nothing to a connection that wrote nothing.)"""
    until(lambda: replica.client().dbsize() == primary.client().dbsize(), "the replica has everything")


def start(binary: Path, folder: Path, *arguments: str, password: str | None = None) -> Node:
    """One server, not yet up; its bus port is free, too."""
    folder.mkdir(parents=True)
    port = free_port()
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *arguments]
    with (folder / "log").open("wb") as log:
        return Node(port, subprocess.Popen(command, stdout=log, stderr=log), folder, password=password)


@dataclass
class LiveCluster:
    """Three primaries, and a replica of the first."""

    nodes: list[Node]
    primaries: list[Node]
    replica: Node

    @property
    def url(self) -> str:
        return self.primaries[0].url

    def client(self) -> redis.RedisCluster:
        """The client library's own, so that nothing under test says what is there."""
        return redis.RedisCluster(host="127.0.0.1", port=self.primaries[0].port, protocol=2)

    def fill(self, ghosts: int, healthy: int = world.SOUND, value: bytes = world.GHOST) -> list[bytes]:
        """As `world.fill`, over all slots; returns the names of the ghosts. The second third of the ghosts expires."""
        names = [b"emb:img9%05d" % number for number in range(ghosts)]
        with self.client() as client:
            pipe = client.pipeline()
            for number in range(healthy):
                pipe.set(b"emb:img%05d" % number, world.sound(number))
            for index, name in enumerate(names):
                pipe.set(name, value, ex=200_000 if index % 3 == 1 else None)
            pipe.execute()
        return names

    def keyspace(self) -> world.Keyspace:
        """Everything on all primaries. A key on two of them fails."""
        found: dict[tuple[int, bytes], tuple[bytes, int | None]] = {}
        for node in self.primaries:
            for name, what in _contents(node).items():
                assert (0, name) not in found, f"{name!r} is on two nodes"
                found[0, name] = what
        return found

    def calm(self) -> None:
        """Empty, and every slot back where it was at the beginning."""
        for node in self.primaries:
            node.do("FLUSHALL")
        wanted = {slot: node.id for node, slots in zip(self.primaries, _ranges(3), strict=True) for slot in slots}
        until(lambda: self._agreed(wanted) and self._same_epochs(), "every slot is where it was, and all nodes know it")

    def owner(self, slot: int) -> Node:
        return next(node for node in self.primaries if slot in _own_slots(node))

    def move(self, slot: int, source: Node, target: Node, *, between: Callable[[], None] = lambda: None, batch: int = 10) -> None:
        """As redis-cli --cluster reshard does it. `between`: while the slot is open, after each batch of keys."""
        if source is target:
            return
        self.open(slot, source, target)
        while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, batch):
            source.do("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            between()
        between()
        until(self._same_epochs, "all nodes know the epochs of all")
        until(lambda: self._agreed({slot: target.id}), f"slot {slot} is at {target}")

    def _same_epochs(self) -> bool:
        """Does every node know the epoch of every other?

        Else the new owner of a slot may take an epoch below that of the old one, and believe that, and delete the keys: they are lost.
        """
        return len({frozenset(_epochs(node).items()) for node in self.primaries}) == 1

    def _agreed(self, wanted: Mapping[int, str]) -> bool:
        """Do all nodes believe that these slots are at these nodes? If not they are told.

        Gossip of an earlier move may still be on its way, and of two nodes that claim a slot the higher epoch wins.
        """
        first = [node for node in self.primaries if node.id in wanted.values()]
        agreed = True
        for node in (*first, *self.nodes):
            seen = _view(node)
            wrong = [slot for slot, owner in wanted.items() if seen.get(slot) != owner]
            for slot in wrong if node is not self.replica else ():
                node.do("CLUSTER", "SETSLOT", slot, "NODE", wanted[slot])
            agreed = agreed and not wrong
        if not agreed:
            for node in first:
                node.do("CLUSTER", "BUMPEPOCH")
            return False
        return not any([self._closed(node, wanted) for node in self.primaries])

    def _closed(self, node: Node, wanted: Mapping[int, str]) -> list[int]:
        """Slots that were still open there, closed now: who hears of the new owner by gossip goes on asking the old one for what it lacks."""
        found = [slot for slot in _open_slots(node) if slot in wanted]
        for slot in found:
            node.do("CLUSTER", "SETSLOT", slot, "STABLE")
        return found

    def open(self, slot: int, source: Node, target: Node) -> None:
        """The slot is being moved from now on."""
        target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)


def _contents(node: Node) -> dict[bytes, tuple[bytes, int | None]]:
    """Also what is in slots that are on their way to it (ASKING)."""
    with node.client() as client:
        names = list(client.scan_iter(count=1000))
        pipe = client.pipeline(transaction=False)
        for name in names:
            for command in ("GET", "PTTL"):
                pipe.execute_command("ASKING").execute_command(command, name)
        seconds, micros = client.time()
        answers = pipe.execute()
    expiries = (None if ttl_ms < 0 else seconds * 1000 + micros // 1000 + ttl_ms for ttl_ms in answers[3::4])
    return dict(zip(names, zip(answers[1::4], expiries, strict=True), strict=True))


@contextlib.contextmanager
def moving(cluster: LiveCluster, keys: Iterable[bytes], moved: list[int]) -> Iterator[None]:
    """While this lasts, the slots of these keys are moved on, one after the other, over and over; which ones: `moved`."""
    slots = list(dict.fromkeys(key_slot(key) for key in keys))
    over = threading.Event()
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            while not over.is_set():
                for slot in slots:
                    if over.is_set():
                        return
                    source = cluster.owner(slot)
                    cluster.move(slot, source, cluster.primaries[(cluster.primaries.index(source) + 1) % 3], batch=1)
                    moved.append(slot)
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: moved or trouble, "a first slot has moved")
        yield
    finally:
        over.set()
        thread.join()
    if trouble:
        raise trouble[0]


@contextlib.contextmanager
def running(binary: Path, folder: Path) -> Iterator[LiveCluster]:
    """A cluster that is up, with all its slots; killed at the end."""
    nodes = [
        start(
            binary, folder / f"node{number}", "--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
            "--cluster-replica-validity-factor", "0", "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0",
        )
        for number in range(4)
    ]  # fmt: skip
    try:
        for number, node in enumerate(nodes):
            until(lambda node=node: node.do("PING"), f"{node} answers")
            node.id = str(node.do("CLUSTER", "MYID").decode())
            node.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        *primaries, replica = nodes
        for node, slots in zip(primaries, _ranges(3), strict=True):
            node.do("CLUSTER", "ADDSLOTS", *slots)
        for node in nodes[1:]:
            nodes[0].do("CLUSTER", "MEET", "127.0.0.1", node.port)
        until(lambda: all(len(node.info("cluster")) and _known(node) == 4 for node in nodes), "all know all")
        until(lambda: replica.do("CLUSTER", "REPLICATE", primaries[0].id), "the replica knows its primary")
        until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica has its copy")
        until(lambda: all(_state(node) == "ok" for node in nodes), "cluster_state:ok")
        until(lambda: all(_replicas(node) == 1 for node in primaries), "all know of the replica")
        yield LiveCluster(nodes, primaries, replica)
    finally:
        for node in nodes:
            node.kill()


def _ranges(count: int) -> list[range]:
    edges = [SLOTS * number // count for number in range(count + 1)]
    return [range(start, end) for start, end in itertools.pairwise(edges)]


def _facts(node: Node) -> dict[str, str]:
    return node.asked.cluster("info")


def _state(node: Node) -> str:
    return _facts(node)["cluster_state"]


def _known(node: Node) -> int:
    return int(_facts(node)["cluster_known_nodes"])


def _shards(node: Node) -> Sequence[Sequence[object]]:
    node.asked.response_callbacks.pop("CLUSTER SLOTS", None)
    return node.do("CLUSTER", "SLOTS")


def _replicas(node: Node) -> int:
    return max(len(shard) - 3 for shard in _shards(node))


def _own_slots(node: Node) -> set[int]:
    """What the node itself says that it serves."""
    return {slot for start, end, primary, *_ in _shards(node) if primary[2].decode() == node.id for slot in range(start, end + 1)}


def _open_slots(node: Node) -> list[int]:
    """Slots that the node itself takes to be on their way from it or to it: `[42->-ID]` and `[42-<-ID]` in its own line."""
    lines = str(node.do("CLUSTER", "NODES").decode()).splitlines()
    (own,) = (words for words in map(str.split, lines) if "myself" in words[2].split(","))
    return [int(word[1:].partition("-")[0]) for word in own[8:] if word.startswith("[")]


def _epochs(node: Node) -> dict[str, int]:
    """Primary -> its epoch, as far as this node knows."""
    lines = [line.split() for line in str(node.do("CLUSTER", "NODES").decode()).splitlines()]
    return {words[0]: int(words[6]) for words in lines if "master" in words[2].split(",")}


def _view(node: Node) -> dict[int, str]:
    """Slot -> id of its owner, in the eyes of this node."""
    return {slot: primary[2].decode() for start, end, primary, *_ in _shards(node) for slot in range(start, end + 1)}


@dataclass
class LiveService:
    """A primary, its replica, and the Sentinels that watch them."""

    servers: list[Node]
    sentinels: list[Node]
    name: str = "mymaster"
    started: float = field(default_factory=time.monotonic)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}"

    def primary(self) -> Node:
        """Who says of itself that it is, and is the one that every Sentinel names."""
        named = {self.named(node) for node in self.sentinels}
        found = [node for node in self.servers if node.process.poll() is None and node.info("replication")["role"] == "master" and named == {node.port}]
        assert len(found) == 1, f"Sentinels name {named}"
        return found[0]

    def named(self, sentinel: Node) -> int:
        """The port of the primary, as this Sentinel says."""
        return int(sentinel.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1])

    def settled(self) -> None:
        """A primary that all agree on, with a replica that has everything, which the Sentinels know of."""

        def so() -> bool:
            with contextlib.suppress(AssertionError):
                facts = self.primary().info("replication")
                copies = [value for name, value in facts.items() if name.startswith("slave") and isinstance(value, dict)]
                whole = len(copies) == 1 and copies[0]["state"] == "online" and copies[0]["offset"] == facts["master_repl_offset"]
                return whole and all(self._sees_replica(node) for node in self.sentinels)
            return False

        until(so, "the service is as it should be")

    def _sees_replica(self, sentinel: Node) -> bool:
        with sentinel.client() as client:
            state = client.sentinel_masters()[self.name]
            replicas = client.sentinel_slaves(self.name)
        return not state["is_sdown"] and sum(not item["is_sdown"] and item["flags"] == "slave" for item in replicas) == 1 if replicas else False

    def fail_over(self) -> Node:
        """Ask a Sentinel for it; returns the old primary at once."""
        old = self.primary()
        self.sentinels[0].do("SENTINEL", "FAILOVER", self.name)
        return old


@contextlib.contextmanager
def service(
    binary: Path, folder: Path, sentinels: int = 1, password: str | None = None, sentinel_password: str | None = None
) -> Iterator[LiveService]:
    """A primary and a replica under so many Sentinels (a quorum of one), up and settled."""
    secrets = () if password is None else ("--requirepass", password, "--masterauth", password)
    nodes: list[Node] = []
    try:
        for number in range(2):
            place = folder / f"server{number}"
            nodes.append(start(binary, place, "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0", *secrets, password=password))
        one, two = nodes
        for node in nodes:
            until(lambda node=node: node.do("PING"), f"{node} answers")
        two.do("REPLICAOF", "127.0.0.1", one.port)
        until(lambda: two.info("replication").get("master_link_status") == "up", "the replica has its copy")
        watching = [_sentinel(binary, folder / f"sentinel{number}", one, sentinel_password) for number in range(sentinels)]
        nodes += watching
        found = LiveService([one, two], watching)
        found.settled()
        yield found
    finally:
        for node in nodes:
            node.kill()


def _sentinel(binary: Path, folder: Path, primary: Node, password: str | None) -> Node:
    folder.mkdir()
    port = free_port()
    lines = [
        f"port {port}", "bind 127.0.0.1", f"dir {folder}", f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1",
        f"sentinel down-after-milliseconds mymaster {DOWN_AFTER_MS}", "sentinel failover-timeout mymaster 4000",
    ]  # fmt: skip
    lines += [] if primary.password is None else [f"sentinel auth-pass mymaster {primary.password}"]
    lines += [] if password is None else [f"requirepass {password}"]
    settings = folder / "sentinel.conf"
    settings.write_text("\n".join(lines) + "\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(binary), str(settings), "--sentinel"], stdout=log, stderr=log)
    return Node(port, process, folder, password=password)
