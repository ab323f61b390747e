"""Addresses, TLS, sockets, databases, and credentials from files: which server is opened, as whom, and that no secret is told."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.cache import order
from diag.cache.order import with_credentials
from diag.cache.scanning import topology
from diag.cache.servers import address, credentials
from diag.cache.servers.connection import name_of
from diag.cache.servers.slots import SLOTS, keys_of, layout_of, moving_slots, slot_of
from diag.errors import BadInput, CannotConnect, Denied
from tests.cache.cli import PURGE, run, run_all
from tests.cache.conftest import LiveServer
from tests.cache.test_cli import valid
from tests.cache.world import SOUND, fill
from tests.ports import free_port

PASSWORD = "op3n:s3s@me/#?%"
ENCODED = "op3n%3As3s%40me%2F%23%3F%25"


@pytest.fixture(scope="module")
def locked(start_server: Callable[..., LiveServer]) -> LiveServer:
    """A server with a password for `default`, a user of its own, and two ghosts."""
    server = start_server("--requirepass", PASSWORD)
    with server.client(password=PASSWORD) as client:
        fill(client, 2)
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*", "+@all")
    return server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed, for 127.0.0.1; its key is beside it."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return folder / "cert.pem"


@pytest.fixture(scope="module")
def encrypted(start_server: Callable[..., LiveServer], certificate: Path) -> tuple[LiveServer, str]:
    """A server that also speaks TLS, two ghosts in it; and its address."""
    port = free_port()
    try:
        server = start_server(
            "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(certificate.with_name("key.pem")),
            "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
        )  # fmt: skip
    except AssertionError as error:
        pytest.skip(f"this server was built without TLS: {error}")
    fill(server.client(), 2)
    return server, f"rediss://127.0.0.1:{port}"


def test_tls_with_a_certificate_of_ones_own(encrypted: tuple[LiveServer, str], certificate: Path, tmp_path: Path) -> None:
    server, url = encrypted
    known = f"{url}?ssl_ca_certs={certificate}"
    unknown, trusted, blind, plain = run_all(
        ("scan-cache", url), ("scan-cache", known, *PURGE, "-f", "json", "--backup", "b.jsonl"),
        ("scan-cache", f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false"), ("scan-cache", url.replace("rediss", "redis")), cwd=tmp_path,
    )  # fmt: skip
    assert unknown.code == 2 and "ssl_ca_certs" in unknown.err and "ertificate" in unknown.err, unknown
    assert trusted.code == 0 and valid(trusted.json)["purge"]["deleted"] == 2 and trusted.json["target"] == url, trusted
    assert blind.code in (0, 1), blind
    assert plain.code == 2 and "TLS" in plain.err, plain
    back = run("restore-cache", "b.jsonl", known, cwd=tmp_path)
    assert back.code == 0 and server.client().dbsize() == SOUND + 2, back


def test_a_socket_and_some_databases(server: LiveServer, tmp_path: Path) -> None:
    for db in (0, 2, 5):
        fill(server.client(db), db + 1)
    url = f"unix://{server.unix}"
    everything, two, both = run_all(
        ("scan-cache", url, "-f", "json"), ("scan-cache", url, "--db", "2", "-f", "json"),
        ("scan-cache", url, "--db", "5", "--db", "0", "--db", "5", *PURGE, "-f", "json", "--backup", "b.jsonl"), cwd=tmp_path,
    )  # fmt: skip
    assert len(valid(two.json)["ghosts"]) == 3 and {row["db"] for row in two.json["ghosts"]} == {2}
    assert valid(both.json)["purge"]["deleted"] == 7 and everything.code == 1
    assert [server.client(db).dbsize() - SOUND for db in (0, 2, 5)] == [0, 3, 0]
    (tmp_path / "keys.txt").write_bytes(b"emb:img900000\n")
    said = run("scan-cache", url, "--db", "2", "--keys-from", "keys.txt", "-f", "json", cwd=tmp_path)
    assert [row["db"] for row in valid(said.json)["ghosts"]] == [2]


@pytest.mark.parametrize("line", [":{password}", "reader:{password}", "redis://:{encoded}@127.0.0.1:{port}", "\n# comment\nreader:{password}\n"])
def test_credentials_from_a_file(locked: LiveServer, tmp_path: Path, line: str) -> None:
    path = tmp_path / "secret"
    path.write_text(line.format(password=PASSWORD, encoded=ENCODED, port=locked.port))
    path.chmod(0o600)
    for target, environment in ((locked.target, {}), (None, {"LLMDIAG_REDIS_URL": f"redis://:wr0ng@127.0.0.1:{locked.port}"})):
        client, shown = order.choose(target, environment, path)
        with client:
            assert client.dbsize() == SOUND + 2 and shown == locked.target
    assert credentials.exposed(path) is None


def test_a_file_that_others_can_read_is_warned_of(locked: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f":{PASSWORD}\n")
    path.chmod(0o644)
    said = run("scan-cache", locked.target, "--credentials-file", str(path), *PURGE, "--backup", "b.jsonl", cwd=tmp_path)
    assert said.code == 0 and f"warning: {path} can be read by other users" in said.err, said
    path.chmod(0o600)
    back = run("restore-cache", "b.jsonl", locked.target, "--credentials-file", str(path), cwd=tmp_path)
    assert back.code == 0 and "warning" not in back.err, back
    for text in (said.out, said.err, back.out, back.err, (tmp_path / "b.jsonl").read_text()):
        assert PASSWORD not in text and ENCODED not in text


@pytest.mark.parametrize(
    ("content", "target", "text"),
    [
        (b"no colon at all", None, "does not hold credentials"),
        (b"a:b\nc:d\n", None, "does not hold credentials"),
        (b"", None, "does not hold credentials"),
        (b"\xff\xfe:", None, "is no text"),
        (b"redis://:s3s@127.0.0.2:1", "redis://127.0.0.1:1", "holds no credentials for redis://127.0.0.1:1 but for redis://127.0.0.2:1"),
        (b"memcached://:s3s@127.0.0.1:1", None, "no kind of Redis address"),
        (b"u:s3s", "nonsense://127.0.0.1", "no kind of Redis address"),
    ],
)
def test_files_that_hold_nothing_of_use(tmp_path: Path, content: bytes, target: str | None, text: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(BadInput) as told:
        order.choose(target, {}, path)
    assert text in str(told.value) and "s3s" not in str(told.value)


def test_wrong_credentials(locked: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("reader:wr0ng")
    with pytest.raises(Denied):
        order.choose(locked.target, {}, tmp_path / "secret")


def test_addresses_of_several_hosts() -> None:
    found = address.several("redis+sentinel://u:p%40@a:1,[::1]:2,b/my%2Fsvc/3?ssl_ca_certs=/x")
    assert found is not None and found.hosts == (("a", 1), ("::1", 2), ("b", 26379)) and (found.service, found.db, found.tls) == ("my/svc", "3", False)
    assert found.shown == "redis+sentinel://a:1,[::1]:2,b:26379/my%2Fsvc" and found.plain(("::1", 6)) == "redis://u:p%40@[::1]:6/3?ssl_ca_certs=/x"
    assert name_of("rediss-cluster://:pw@a,b:7") == "rediss+cluster://a:6379,b:7"
    assert name_of("redis-sentinel://:pw@a") == "redis+sentinel://a:26379"
    assert address.several("redis://a:1") is None and address.several("nonsense") is None
    for wrong in (
        "redis+cluster://", "redis+cluster://a:x", "redis+cluster://a:99999", "redis+cluster://a/b", "redis+sentinel://a/s/x", "redis+sentinel://:s3s/@a",
        "redis+sentinel://a/s/1/2",
    ):  # fmt: skip
        with pytest.raises(BadInput) as told:
            name_of(wrong)
        assert "s3s" not in str(told.value)


def test_credentials_are_lent_to_clusters_and_services_too() -> None:
    lent = with_credentials
    assert lent("redis+cluster://127.0.0.1:7", ["redis://:p@localhost:7"]) == "redis+cluster://:p@127.0.0.1:7"
    assert lent("redis://127.0.0.1:7", ["rediss+cluster://:p@localhost:7,localhost:8"]) == "rediss+cluster://:p@127.0.0.1:7"
    assert lent("redis+sentinel://127.0.0.1:7", ["redis-sentinel://:p@localhost:7/svc/2"]) == "redis+sentinel://:p@127.0.0.1:7/svc/2"
    # what a Sentinel's address holds is for the server behind it, not for what listens at that port
    assert lent("redis://127.0.0.1:7", ["redis+sentinel://:p@127.0.0.1:7/svc"]) == "redis://127.0.0.1:7"


def test_no_host_of_a_cluster_answers() -> None:
    with pytest.raises(CannotConnect):
        topology.connect("redis+cluster://127.0.0.1:1,127.0.0.1:2")


def test_a_cluster_that_was_never_put_together(start_server: Callable[..., LiveServer], tmp_path: Path) -> None:
    server = start_server("--cluster-enabled", "yes", "--cluster-config-file", "n.conf", port=free_port())
    said = run("scan-cache", server.url, cwd=tmp_path)
    assert said.code == 2 and "no slot is served" in said.err, said


def test_which_keys_a_command_has() -> None:
    assert keys_of(("GET", b"a")) == (b"a",) and keys_of(("MGET", b"a", b"b")) == (b"a", b"b")
    assert keys_of(("EVAL", "x", 2, b"a", b"b", b"v")) == (b"a", b"b") and keys_of(("OBJECT", "IDLETIME", b"a")) == (b"a",)
    assert keys_of(("MEMORY USAGE", b"a")) == (b"a",) and not keys_of(("CLIENT LIST", "TYPE", "normal")) and not keys_of(("SCRIPT LOAD", "x"))
    assert keys_of(("DELIFEQ", b"a", b"v")) == (b"a",) and not keys_of(("PING",)) and not keys_of(("CLIENT", "SETNAME", "x"))
    assert slot_of(b"x{user}y") == slot_of("user") == slot_of(b"{user}") != slot_of(b"{}user")


def test_the_map_of_a_cluster() -> None:
    answer: list[Any] = [[0, 99, [b"", 7, b"id"], [b"h", 8, b"id2"]], [100, SLOTS - 1, [b"::1", 9, b"id3"]]]
    layout = layout_of(answer, ("here", 1))
    assert layout.primaries == (("::1", 9), ("here", 7)) and layout.replicas == {("here", 7): 1, ("::1", 9): 0} and layout.uncovered == 0
    assert layout.moved(5, ("::1", 9)).differing(layout) == {5}
    assert layout_of(answer[:1], ("here", 1)).uncovered == SLOTS - 100
    lines = b"07c3 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-5460 7000 [93->-abc] [77-<-def] [x->-y]\nother 127.0.0.1:3@4 master - 0 0 2 connected [5->-abc]\n"
    assert moving_slots(lines) == {93, 77} and moving_slots(b"") == set()
