"""The rights that --print-acl prints are enough, none too few, on every server; a missing one is told with its line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.cache.purging import acl, purge, restore
from diag.cache.scanning.server import connect, scan
from diag.errors import Denied
from tests.cache.cli import PURGE, run
from tests.cache.servers import on_every_server
from tests.cache.test_cli import valid
from tests.cache.world import SOUND, differences, fill, keyspace

USES = ("scan", "purge", "restore")


@pytest.fixture
def users(server: Any) -> Iterator[Callable[[str], str]]:
    """The users of the printed lines; called with a use it gives the address of that one."""
    admin = server.client()
    for use, line in acl.lines(admin).items():
        admin.execute_command(*line.replace(">PASSWORD", ">pw").split())
        assert use in line
    yield lambda use: f"redis://llmdiag-{use}:pw@127.0.0.1:{server.port}"
    admin.execute_command("ACL", "DELUSER", *(f"llmdiag-{use}" for use in USES))


@on_every_server
def test_exactly_the_printed_rights_are_enough(server: Any, users: Callable[[str], str], tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 4)
    client.expire(names[0], 200_000)
    before = keyspace(client)
    client.execute_command("ACL", "LOG", "RESET")
    said = run("scan-cache", users("scan"), cwd=tmp_path)
    assert said.code == 1 and "role master" in said.out and "emb:img900000" in said.out, said
    said = run("scan-cache", users("purge"), *PURGE, "--backup", "b.jsonl", "-f", "json", cwd=tmp_path)
    assert said.code == 0 and valid(said.json)["purge"]["deleted"] == 4, said
    assert not any("not watched" in text or "may not" in text for text in said.json["warnings"]), said.json["warnings"]
    said = run("restore-cache", "b.jsonl", users("restore"), cwd=tmp_path)
    assert said.code == 0 and "4 restored" in said.out, said
    assert differences(before, keyspace(client)) == []
    assert [(item["reason"], item["object"], item["username"]) for item in _denials(client)] == []


def _denials(client: Any) -> list[dict[str, str]]:
    """What was refused to our users, as the server remembers it; rights that are only tried beforehand are no matter."""
    rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in _raw(client, "ACL", "LOG")]
    found = [{name.decode(): value.decode() for name, value in row.items() if isinstance(value, bytes)} for row in rows]
    return [item for item in found if item["context"] != "multi" and item["object"] not in ("delifeq", "watch", "client", "client|no-touch", "client|setinfo")]


def _raw(client: Any, *command: str) -> Any:
    with client.client() as alone:
        alone.ping()
        alone.connection.send_command(*command)
        return alone.connection.read_response()


@on_every_server
def test_each_use_is_refused_to_the_one_before(server: Any, users: Callable[[str], str], tmp_path: Path) -> None:
    """A scanning user may not purge, a purging one may not restore; both are told what to grant."""
    client = server.client()
    fill(client, 4)
    said = run("scan-cache", users("scan"), *PURGE, cwd=tmp_path)
    assert said.code == 2 and "ACL SETUSER llmdiag-scan +unlink" in said.err and "--print-acl" in said.err, said
    assert client.dbsize() == SOUND + 4 and list(tmp_path.iterdir()) == []
    assert run("scan-cache", users("purge"), *PURGE, "--backup", "b.jsonl", cwd=tmp_path).code == 0
    said = run("restore-cache", "b.jsonl", users("purge"), cwd=tmp_path)
    assert said.code == 2 and "+set" in said.err and client.dbsize() == SOUND, said


@on_every_server
def test_the_command_prints_one_line_a_use(server: Any, tmp_path: Path) -> None:
    client = server.client()
    said = run("scan-cache", server.url, "--print-acl", "--pattern", "emb:*", "-f", "json", cwd=tmp_path)
    lines = valid(said.json)
    assert said.code == 0 and all(lines[use].startswith(f"ACL SETUSER llmdiag-{use} reset on >PASSWORD ") for use in USES)
    assert all("~emb:*" in lines[use] and "-@all" in lines[use].split() for use in USES)
    for use in USES:
        client.execute_command(*lines[use].split())  # every name is known to this server
        client.execute_command("ACL", "DELUSER", f"llmdiag-{use}")
    text = run("scan-cache", server.url, "--print-acl", cwd=tmp_path)
    assert text.out.count("\nACL SETUSER ") == 3


@on_every_server
@pytest.mark.parametrize("right", ["scan", "get", "pttl", "mget"])
def test_a_scan_without_a_right_says_which(server: Any, users: Callable[[str], str], right: str) -> None:
    server.client().execute_command("ACL", "SETUSER", "llmdiag-scan", f"-{right}")
    with pytest.raises(Denied, match=right.upper()) as error:
        acl.may_scan(connect(users("scan")), server.target)
    assert f"ACL SETUSER llmdiag-scan +{right}" in error.value.hint


@on_every_server
def test_without_any_way_to_compare_nothing_goes(server: Any, users: Callable[[str], str], tmp_path: Path) -> None:
    """Neither EVAL nor WATCH nor, where there is one, DELIFEQ."""
    client = server.client()
    fill(client, 3)
    client.execute_command("ACL", "SETUSER", "llmdiag-purge", "-eval")
    found = scan(client, server.target)
    plan = purge.plan(found.ghosts, target=server.target)
    with pytest.raises(Denied, match="in no way") as error:
        purge.purge(connect(users("purge")), plan, tmp_path / "b.jsonl")
    assert "+eval" in error.value.hint and list(tmp_path.iterdir()) == [] and client.dbsize() == SOUND + 3


@on_every_server
def test_keys_that_are_not_this_users_are_told_before_anything_goes(server: Any, users: Callable[[str], str], tmp_path: Path) -> None:
    client = server.client()
    fill(client, 3)
    found = scan(client, server.target)
    plan = purge.plan(found.ghosts, target=server.target)
    client.execute_command("ACL", "SETUSER", "llmdiag-purge", "resetkeys", "~other:*")
    with pytest.raises(Denied, match="GET"):
        purge.purge(connect(users("purge")), plan, tmp_path / "b.jsonl")
    assert list(tmp_path.iterdir()) == [] and client.dbsize() == SOUND + 3
    client.execute_command("ACL", "SETUSER", "llmdiag-purge", "~emb:*")
    assert purge.purge(connect(users("purge")), plan, tmp_path / "b.jsonl").deleted == 3
    client.execute_command("ACL", "SETUSER", "llmdiag-restore", "resetkeys", "~other:*")
    with pytest.raises(Denied):
        restore.restore(connect(users("restore")), server.target, tmp_path / "b.jsonl")
    assert client.dbsize() == SOUND
