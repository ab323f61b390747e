"""Servers that refuse, hang, die or speak otherwise; and passwords, which appear nowhere."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from diag.cache.order import with_credentials
from diag.cache.servers.connection import connect
from diag.errors import BadInput, LlmdiagError
from tests.cache.cli import PURGE, at_terminal, ended, run, run_all, start
from tests.cache.proxy import Command, Proxy
from tests.cache.test_cli import valid
from tests.cache.world import SOUND, fill
from tests.live.run import Said

PASSWORD = "op3n:s3s@me/#?%"
ENCODED = quote(PASSWORD, safe="")


@pytest.fixture(scope="module")
def locked(start_server: Callable[..., Any]) -> Any:
    """A server with a password, two ghosts in it."""
    server = start_server("--requirepass", PASSWORD)
    fill(server.client(password=PASSWORD), 2)
    return server


def _url(server: Any, password: str = ENCODED, host: str = "127.0.0.1") -> str:
    return f"redis://:{password}@{host}:{server.port}/0"


def _keeps_secret(said: Said, folder: Path) -> None:
    everything = said.out + said.err + "".join(path.read_text() for path in folder.iterdir())
    for secret in (PASSWORD, ENCODED, "s3s", "wr0ng"):
        assert secret not in everything


def test_the_password_opens_and_is_shown_nowhere(locked: Any, tmp_path: Path) -> None:
    said = run("scan-cache", _url(locked), cwd=tmp_path)
    assert said.code == 1 and said.out.startswith(locked.target + " (")
    _keeps_secret(said, tmp_path)
    said = run("scan-cache", *PURGE, "-f", "json", "--backup", "b.jsonl", cwd=tmp_path, LLMDIAG_REDIS_URL=_url(locked))
    assert said.code == 0 and valid(said.json)["target"] == locked.target and valid(said.json)["purge"]["deleted"] == 2
    _keeps_secret(said, tmp_path)
    said = run("restore-cache", "b.jsonl", _url(locked), cwd=tmp_path)
    assert said.code == 0 and said.out.startswith("2 restored")
    _keeps_secret(said, tmp_path)


def test_a_target_without_credentials_takes_those_of_the_variable(locked: Any, tmp_path: Path) -> None:
    targets = (f"redis://127.0.0.1:{locked.port}", f"redis://localhost:{locked.port}/0")
    for said in run_all(*(("scan-cache", target) for target in targets), cwd=tmp_path, LLMDIAG_REDIS_URL=_url(locked)):
        assert said.code == 1 and f"{SOUND + 2} keys" in said.out
        _keeps_secret(said, tmp_path)


def test_credentials_are_lent_to_the_same_server_only() -> None:
    lent = with_credentials
    assert lent("redis://127.0.0.1:7/2", ["memory://", "redis://u:p%40@localhost:7/0"]) == "redis://u:p%40@127.0.0.1:7/2"
    assert lent("redis://127.0.0.1:7", ["rediss://:p@localhost:7/1?ssl_ca_certs=/ca"]) == "rediss://:p@127.0.0.1:7/1?ssl_ca_certs=/ca"
    assert lent("unix:///run/s", ["unix://:p@/run/s"]) == "unix://:p@/run/s"
    assert lent("redis://localhost:7", ["redis://localhost:7?password=p"]) == "redis://localhost:7?password=p"
    for other in ("redis://:p@127.0.0.1:8", "redis://:p@127.0.0.2:7", "redis://127.0.0.1:7", "unix://:p@/7"):
        assert lent("redis://127.0.0.1:7", [other]) == "redis://127.0.0.1:7"
    assert lent("redis://:own@127.0.0.1:7", ["redis://:p@127.0.0.1:7"]) == "redis://:own@127.0.0.1:7"


def test_credentials_go_to_no_other_server_and_own_ones_win(locked: Any, server: Any, tmp_path: Path) -> None:
    other = run("scan-cache", f"redis://127.0.0.1:{server.port}", cwd=tmp_path, LLMDIAG_REDIS_URL=_url(locked))
    assert other.code == 0 and other.out.startswith(server.target)
    assert all("auth" not in name for name in server.client().info("commandstats"))
    own = run("scan-cache", _url(locked, "wr0ng"), cwd=tmp_path, LLMDIAG_REDIS_URL=_url(locked))
    assert own.code == 2 and "user or password" in own.err
    _keeps_secret(own, tmp_path)


def test_a_missing_wrong_or_misspelt_password_is_an_error_that_says_so(locked: Any, tmp_path: Path) -> None:
    cases = {
        f"redis://127.0.0.1:{locked.port}": "password", f"redis://someone:wr0ng@127.0.0.1:{locked.port}": "user or password",
        f"redis://x:op3n@s3s/me@127.0.0.1:{locked.port}": "%2F",
    }  # fmt: skip
    found = run_all(*(("scan-cache", target, *PURGE, "-f", "json") for target in cases), cwd=tmp_path)
    for said, expected in zip(found, cases.values(), strict=True):
        assert (said.code, said.out) == (2, "") and expected in said.err, said
        _keeps_secret(said, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address",
    [f"redis://:{PASSWORD}@h:1", "redis://:s3s/@h:1", "redis://x@s3s/me@h:1", "redis://x:op3n@s3s?@h:1", "redis://op3n@s3s#me@h:1", "redis://:s3s@[h"],
)
def test_a_misspelt_address_does_not_show_a_piece_of_its_password(address: str) -> None:
    with pytest.raises(BadInput) as error:
        connect(address)
    assert "s3s" not in str(error.value)


def test_what_is_no_server_is_named(tmp_path: Path) -> None:
    """Nothing there, a web server, a port that closes at once, addresses that are none."""
    cases = {
        "redis://127.0.0.1:1": "cannot be reached", "unix:///no/such/socket": "cannot be reached", "redis://no.such.host.invalid": "cannot be reached",
        "localhost:6379": "kind of Redis address", "redis://h:1/zero": "no number", "http://h": "kind of Redis address",
    }  # fmt: skip
    with _answers_with(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web, _answers_with(b"") as closing:
        cases |= {f"redis://127.0.0.1:{web}": "is it a Redis", f"redis://127.0.0.1:{closing}": "TLS", f"rediss://127.0.0.1:{web}": "TLS"}
        for target, expected in cases.items():
            with pytest.raises(LlmdiagError) as error:
                connect(target)
            assert expected in str(error.value), target
        for said in run_all(("scan-cache", "redis://127.0.0.1:1"), ("scan-cache", f"redis://127.0.0.1:{web}"), cwd=tmp_path):
            assert (said.code, said.out) == (2, "") and said.err.startswith("error: ")


@contextlib.contextmanager
def _answers_with(text: bytes) -> Iterator[int]:
    """A port of this machine that says one thing to everybody and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):  # the end of the listener
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(text)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.fixture(scope="module")
def silence(start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Said]]:
    """What is said to a server that is stopped, before and in the middle of a purge, and to one that speaks no TLS.

    All at once, because each takes as long as llmdiag is patient.
    """
    folder = tmp_path_factory.mktemp("silence")
    hung, stopped_midway, plain = start_server(), start_server(), start_server()
    for each in (hung, stopped_midway, plain):
        fill(each.client(), 2)
    hung.process.send_signal(signal.SIGSTOP)
    (folder / "b.jsonl").write_text('{"schema": "llmdiag.backup/1"}\n')
    running = {
        "scan": start("scan-cache", hung.url, "-f", "json", cwd=folder),
        "restore": start("restore-cache", "b.jsonl", hung.url, cwd=folder),
        "tls": start("scan-cache", f"rediss://127.0.0.1:{plain.port}", cwd=folder),
    }
    code, screen = at_terminal(
        "scan-cache", stopped_midway.url, "--purge", "--backup", "midway.jsonl", cwd=folder, answer="y\n",
        before_answer=lambda: stopped_midway.process.send_signal(signal.SIGSTOP),
    )  # fmt: skip
    said = {name: ended(process) for name, process in running.items()} | {"midway": Said(code, screen, screen)}
    for each in (hung, stopped_midway):
        each.process.send_signal(signal.SIGCONT)
    for each in (hung, stopped_midway, plain):
        assert each.client().dbsize() == SOUND + 2
    assert not (folder / "midway.jsonl").exists()
    yield said


@pytest.mark.parametrize(
    ("what", "expected"),
    [("scan", "did not answer in time"), ("restore", "did not answer in time"), ("midway", "did not answer in time"), ("tls", "TLS")],
)
def test_silence_is_an_error_and_nothing_is_lost(silence: dict[str, Said], what: str, expected: str) -> None:
    said = silence[what]
    assert said.code == 2 and expected in said.err
    assert said.out == "" or what == "midway"


def test_a_server_that_dies_between_plan_and_purge(start_server: Callable[..., Any], tmp_path: Path) -> None:
    doomed = start_server()
    fill(doomed.client(), 2)

    def die() -> None:
        doomed.process.kill()
        doomed.process.wait()

    code, screen = at_terminal("scan-cache", doomed.url, "--purge", cwd=tmp_path, answer="y\n", before_answer=die)
    assert code == 2 and "cannot be reached" in screen and list(tmp_path.iterdir()) == []


def test_a_server_that_dies_between_backup_and_delete(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """It goes when the first delete reaches it; the backup is on disk by then."""
    doomed = start_server()
    fill(doomed.client(), 2)

    def die(number: int, command: Command) -> None:
        if command[0] == b"EVAL" and command[1] != b"return 0":
            doomed.process.kill()
            doomed.process.wait()

    proxy = Proxy(doomed.port, before=die)
    said = ended(start("scan-cache", proxy.url, *PURGE, "-f", "json", "--backup", "b.jsonl", cwd=tmp_path))
    proxy.close()
    found = valid(said.json)
    assert said.code == 2 and "stopped early" in said.err and found["purge"]["failed"] == 2 and found["purge"]["backup"] == "b.jsonl"
    assert len((tmp_path / "b.jsonl").read_text().splitlines()) == 3


def test_a_user_without_rights_is_told_which(server: Any, tmp_path: Path) -> None:
    admin = server.client()
    fill(admin, 2)
    for name, rights in (("noinfo", ["-info"]), ("noscan", ["-scan"]), ("nounlink", ["-unlink", "-del"])):
        admin.execute_command("ACL", "SETUSER", name, "on", ">pw", "~*", "+@all", *rights)
    url = f"redis://{{}}:pw@127.0.0.1:{server.port}"
    purge = (*PURGE, "-f", "json")
    running = {
        "noinfo": start("scan-cache", url.format("noinfo"), cwd=tmp_path),
        "noscan": start("scan-cache", url.format("noscan"), cwd=tmp_path),
        "nounlink": start("scan-cache", url.format("nounlink"), *purge, cwd=tmp_path),
    }
    said = {name: ended(process) for name, process in running.items()}
    for name in running:
        admin.execute_command("ACL", "DELUSER", name)
    assert said["noinfo"].code == 1 and "INFO refused" in said["noinfo"].out
    assert "db 0: unknown keys" in said["noinfo"].out.splitlines()[0]
    assert said["noscan"].code == 2 and "scan" in said["noscan"].err
    assert said["nounlink"].code == 2 and "unlink" in said["nounlink"].err.lower()
    assert said["nounlink"].out == "" and admin.dbsize() == SOUND + 2 and list(tmp_path.iterdir()) == [], said["nounlink"]


def test_what_matches_nothing_is_no_clean_bill(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 2)
    for asked in (("--family", "nope"), ("--pattern", "nope:*")):
        said = run("scan-cache", server.url, *asked, cwd=tmp_path)
        assert said.code == 2 and "nothing was looked at" in said.err, said


def test_a_bare_address_is_answered_with_the_right_one(server: Any, tmp_path: Path) -> None:
    said = run("scan-cache", f"localhost:{server.port}", cwd=tmp_path)
    assert said.code == 2 and f"use redis://localhost:{server.port}" in said.err, said


def test_a_replica_without_its_copy_is_not_healthy(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a primary that never answers
        replica = start_server("--replicaof", "127.0.0.1", str(silent.getsockname()[1]))
        said = run("scan-cache", replica.url, cwd=tmp_path)
    assert said.code == 2 and "no copy of its primary" in said.err, said


def test_a_plan_nobody_could_read_deletes_nothing(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 2)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "diag.cli", "scan-cache", server.url, *PURGE], stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    os.close(write)
    assert done.returncode == 2 and "nothing was deleted" in done.stderr and server.client().dbsize() == SOUND + 2
