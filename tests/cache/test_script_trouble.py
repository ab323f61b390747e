"""`scan-cache --script DIR` when things go wrong: killed, denied, full, read-only, dead, too much, damaged. Nothing is lost."""

import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diag.cache.purging import planning, script
from diag.errors import BadInput, LlmdiagError
from tests.cache.cli import run, run_all
from tests.cache.scripts import (
    apply,
    begin,
    end,
    everybody_is_gone,
    needs_cli,
    row,
    sh,
    undo_of,
    until_it_deletes,
    user,
    wait_until,
    written,
)
from tests.cache.servers import on_every_server
from tests.cache.world import GHOST, SOUND, differences, fill, keyspace

pytestmark = needs_cli


@on_every_server
def test_killed_half_way_and_put_back(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 400, healthy=50)
    for name in names[::3]:
        client.expire(name, 200_000)
    before = keyspace(client)
    folder = written(server, tmp_path / "s", names)
    for least in (1, 200):
        client.config_resetstat()
        process = begin(folder, "purge.sh", "--apply", "--pause", "0.03")
        until_it_deletes(client, process, least)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        everybody_is_gone(client)
        gone = len(before) - client.dbsize()
        assert least <= gone < len(names), f"killed after {gone} deletes"
        said = sh(folder, "restore.sh", str(max(folder.glob("undo-*"), key=lambda path: path.stat().st_mtime)))
        assert said.code == 0 and f"{gone} put back, {len(names) - gone} there already" in said.out, said
        assert differences(before, keyspace(client)) == []


def test_killed_while_the_backup_is_written(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 600, healthy=50)
    before = keyspace(client)
    folder = written(server, tmp_path / "s", names)
    process = begin(folder, "purge.sh", "--apply")
    wait_until(lambda: any(folder.glob("undo-*.partial/0.restore")) or process.poll() is not None, "no backup is begun")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert differences(before, keyspace(client)) == [] and list(folder.glob("undo-*.partial"))
    said = sh(folder, "restore.sh")
    assert said.code == 0 and "is not whole: nothing was deleted" in said.err and "put back" not in said.out, said
    assert apply(folder).code == 0 and client.dbsize() == 50
    assert sh(folder, "restore.sh").code == 0 and differences(before, keyspace(client)) == []


def test_interrupted_says_how_to_undo(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 300, healthy=50)
    before = keyspace(client)
    folder = written(server, tmp_path / "s", names)
    for number, to in enumerate((os.killpg, os.kill)):
        client.config_resetstat()
        process = begin(folder, "purge.sh", "--apply", "--pause", "0.05")
        until_it_deletes(client, process)
        to(process.pid, signal.SIGTERM)
        said = end(process)
        assert said.code == 2 and "interrupted" in said.err and "undo: sh '" in said.err and client.dbsize() > 50, (number, said)
        everybody_is_gone(client)
        assert sh(folder, "restore.sh").code == 0 and differences(before, keyspace(client)) == []


@pytest.mark.parametrize(
    ("denied", "says"),
    [("-eval", "may not run a script"), ("-unlink", "unlink"), ("-dump", "dump"), ("-get", "get"), ("-select", "select"), ("-pttl", "pttl")],
)
def test_a_missing_right_stops_before_anything_is_gone(server: Any, tmp_path: Path, denied: str, says: str) -> None:
    client, other = server.client(), server.client(db=1)
    names = fill(client, 3)
    other.set("a", GHOST)
    before = keyspace(client)
    folder = written(server, tmp_path / "s", {1: [b"a"]} if denied == "-select" else names)
    user(client, "some", "+@all", denied)
    said = apply(folder, "-p", str(server.port), "--user", "some", env={"REDISCLI_AUTH": "pw"})
    assert said.code == 2 and says in said.err.lower() and "purge.sh: error: " in said.err, said
    assert ("nothing was" in said.err) == (denied != "-unlink") and "Traceback" not in said.err
    assert differences(before, keyspace(client)) == []
    wrong = sh(folder, "purge.sh", "-p", str(server.port), "--user", "some", env={"REDISCLI_AUTH": "wrong"})
    assert wrong.code == 2 and "REDISCLI_AUTH" in wrong.err, wrong
    client.execute_command("ACL", "DELUSER", "some")


@on_every_server
def test_the_rights_that_the_message_names_are_enough(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 3)
    server.client(db=1).set("a", GHOST, ex=9000)
    before = keyspace(client)
    folder = written(server, tmp_path / "s", {0: names, 1: [b"a"]})
    user(client, "few", "-@all", "+eval", "+get", "+pttl", "+time", "+exists", "+dump", "+unlink", "+select", "+restore")
    options = ("-h", "127.0.0.1", "-p", str(server.port), "--user", "few")
    said = apply(folder, *options, env={"REDISCLI_AUTH": "pw"})
    assert said.code == 0 and "4 deleted" in said.out and "role unknown" in said.out, said
    said = sh(folder, "restore.sh", *options, env={"REDISCLI_AUTH": "pw"})
    assert said.code == 0 and differences(before, keyspace(client)) == [], said
    client.execute_command("ACL", "DELUSER", "few")


@pytest.mark.parametrize("room", [100, 3_000, 70_000])
def test_a_disk_that_fills_up_stops_before_the_first_delete(server: Any, tmp_path: Path, room: int) -> None:
    client = server.client()
    names = fill(client, 20, value=np.random.default_rng(2).bytes(5_000))
    before = keyspace(client)
    folder = written(server, tmp_path / "s", names)

    def little() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    said = apply(folder, preexec_fn=little)
    assert said.code == 2 and "backup" in said.err and "nothing was deleted" in said.err, said
    assert differences(before, keyspace(client)) == [] and not list(folder.glob("undo-*")) and len(list(folder.iterdir())) == 4


def test_no_room_is_seen_beforehand(server: Any, tmp_path: Path) -> None:
    """df is asked; here it is one that knows of 12 KiB."""
    folder = written(server, tmp_path / "s", fill(server.client(), 3))
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "df").write_text("#!/bin/sh\necho 'Filesystem 1024-blocks Used Available Capacity Mounted on'\necho 'a disk 100 88 12 88% /a place'\n")
    (tools / "df").chmod(0o755)
    said = apply(folder, env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert said.code == 2 and "12 KiB free" in said.err and "nothing was deleted" in said.err and server.client().dbsize() == SOUND + 3, said


def test_a_folder_that_cannot_be_written(server: Any, tmp_path: Path) -> None:
    client = server.client()
    folder = written(server, tmp_path / "s", fill(client, 3))
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555)
    base = folder
    how: dict[str, Any] = {}
    if os.getuid() == 0:  # root may write everywhere: somebody else, who can read it
        base = Path("/tmp") / f"llmdiag-script-{os.getpid()}"
        shutil.copytree(folder, base)
        how = {"user": 65534, "group": 65534, "extra_groups": []}
    try:
        assert sh(base, "purge.sh", **how).code == 0
        said = apply(base, **how)
    finally:
        if base != folder:
            shutil.rmtree(base)
        folder.chmod(0o755)
    assert said.code == 2 and "cannot be written" in said.err and "nothing was deleted" in said.err and client.dbsize() == SOUND + 3, said


def test_a_server_that_dies_in_the_middle(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    live = start_server(binary=server.binary)
    client = live.client()
    folder = written(live, tmp_path / "s", fill(client, 300))
    client.config_resetstat()
    process = begin(folder, "purge.sh", "--apply", "--pause", "0.05")
    until_it_deletes(client, process)
    live.process.kill()
    said = end(process)
    assert said.code == 2 and "stopped: " in said.err and "undo: sh '" in said.err, said
    said = sh(folder, "restore.sh")
    assert said.code == 2 and "cannot be asked" in said.err, said
    assert len((undo_of(folder) / "0.restore").read_text().splitlines()) == 300


def test_a_replica_is_refused(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    client = server.client()
    client.config_set("repl-diskless-sync-delay", 0)
    folder = written(server, tmp_path / "s", fill(client, 2))
    replica = start_server("--replicaof", "127.0.0.1", str(server.port), binary=server.binary)
    wait_until(lambda: replica.client().dbsize() == SOUND + 2, "the replica never catches up")
    there = ("-h", "127.0.0.1", "-p", str(replica.port))
    said = sh(folder, "purge.sh", *there)
    assert said.code == 0 and "2 would be deleted" in said.out and "replica" in said.err, said
    for said in (apply(folder, *there), apply(folder, *there, "--force")):
        assert said.code == 2 and "this is a replica" in said.err and "nothing was deleted" in said.err, said
    assert sh(folder, "restore.sh", *there).code == 2
    replica.client().config_set("replica-read-only", "no")
    assert apply(folder, *there).code == 2 and replica.client().dbsize() == client.dbsize() == SOUND + 2
    replica.process.kill()


@pytest.mark.parametrize(
    ("ghosts", "sizes", "max_keys", "says"),
    [
        (6, None, 5, "more than the limit of 5"), (5, {"emb:*": 49}, 99, "5 of 49 keys of emb:* are more than 10 %"),
        (2, {"emb:*": 3}, 99, "2 of 3 keys of emb:* are more than 50 %"), (4, {"emb:*": 8, "x": 1}, 99, None), (5, {"emb:*": 50}, 99, None),
        (6, None, 6, None),
    ],
)  # fmt: skip
def test_caps(server: Any, tmp_path: Path, ghosts: int, sizes: Mapping[str, int] | None, max_keys: int, says: str | None) -> None:
    """As the tool itself has them (`planning.refusals`); a person may strike keys off the list."""
    client = server.client()
    folder = written(server, tmp_path / "s", fill(client, ghosts, healthy=1), sizes=sizes, max_keys=max_keys)
    assert bool(list(planning.refusals({"emb:*": ghosts}, sizes, max_keys))) == (says is not None)
    if says is not None:
        looked, said = sh(folder, "purge.sh"), apply(folder)
        assert looked.code == 0 and says in looked.err and said.code == 2 and says in said.err and "--force" in said.err, (looked, said)
        assert client.dbsize() == ghosts + 1
        assert apply(folder, "--force").code == 0 and client.dbsize() == 1
        assert sh(folder, "restore.sh").code == 0
        lines = (folder / "keys.tsv").read_text().splitlines(keepends=True)
        (folder / "keys.tsv").write_text("".join(lines[:2]))
    said = apply(folder)
    assert said.code == 0 and f"{ghosts if says is None else 1} deleted" in said.out, said


def test_force_is_written_down(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 40)
    said = run("scan-cache", server.url, "--script", "s", "--max-keys", "39", cwd=tmp_path)
    assert said.code == 1 and "limit of 39" in said.out and apply(tmp_path / "s").code == 2
    said = run("scan-cache", server.url, "--script", "f", "--max-keys", "39", "--force", "-f", "json", cwd=tmp_path)
    assert said.code == 1 and said.json["purge"]["mode"] == "dry-run" and "40 keys" in said.err
    assert apply(tmp_path / "f").code == 0 and server.client().dbsize() == SOUND


def test_places_that_are_refused(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 2)
    plan = planning.plan([row(client, server.target, name) for name in names], target=server.target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    places = {"full": "something already", "full/mine": "something already", "link": "something already", "no/such": "no such folder", "/proc/x": "cannot be written"}
    for place, says in places.items():
        with pytest.raises(LlmdiagError) as error:
            script.write(client, plan, tmp_path / place, max_keys=9)
        assert says in error.value.message, (place, error.value.message)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "full", "link", "mine"]
    full, both, empty = run_all(
        ("scan-cache", server.url, "--script", "full", "-f", "json"), ("scan-cache", server.url, "--script", "x", "--purge", "--yes"),
        ("scan-cache", server.url, "--script", "empty"), cwd=tmp_path,
    )  # fmt: skip
    assert (full.code, full.out) == (2, "") and "something already" in full.err, full
    assert both.code == 2 and "--purge" in both.err and client.dbsize() == SOUND + 2 and not (tmp_path / "x").exists(), both
    assert empty.code == 1 and len(list((tmp_path / "empty").iterdir())) == 4, empty
    client.delete(*names)
    said = run("scan-cache", server.url, "--script", "none", cwd=tmp_path)
    assert said.code == 0 and "nothing to purge" in said.out and not (tmp_path / "none").exists(), said


def test_a_folder_is_written_whole_or_not_at_all(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = server.client()
    names = fill(client, 40)
    plan = planning.plan([row(client, server.target, name) for name in names], target=server.target)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, old[1]))  # purge.lua fits, purge.sh does not
    try:
        with pytest.raises(LlmdiagError, match="cannot be written"):
            script.write(client, plan, tmp_path / "s", max_keys=10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="already"):
        script.write(client, plan, Path(__file__), max_keys=10_000)


def test_options_are_checked(server: Any, tmp_path: Path) -> None:
    client = server.client()
    folder = written(server, tmp_path / "s", fill(client, 2))
    wrong = {
        ("-a", "secret"): "REDISCLI_AUTH", ("-asecret",): "REDISCLI_AUTH", ("--pass", "x"): "REDISCLI_AUTH", ("-u", "redis://:x@h:1"): "REDISCLI_AUTH",
        ("--eval", "x"): "unknown option", ("-n", "3"): "unknown option", ("-x",): "unknown option", ("-p",): "needs a value", ("--pause", "1;ls"): "no number",
        ("-p", "1"): "cannot be asked", ("-h", "$(touch canary)", "-p", "1"): "cannot be asked",
    }  # fmt: skip
    for options, says in wrong.items():
        for said in (apply(folder, *options), *([sh(folder, "restore.sh", *options)] if options[0] in ("-a", "--eval", "-p") else [])):
            assert said.code == 2 and (says in said.err or "no backup" in said.err) and "secret" not in said.err, (options, said)
    assert client.dbsize() == SOUND + 2 and not list(tmp_path.rglob("canary*"))
    said = sh(folder, "purge.sh", "-s", str(server.unix))
    assert said.code == 0 and "2 would be deleted" in said.out
    assert sh(folder, "purge.sh", "-u", server.url).code == 0
    for name in ("purge.sh", "restore.sh"):
        said = sh(folder, name, "--help")
        assert said.code == 0 and "sh restore.sh" in said.out and "Exit code" in said.out and not said.err, said
    said = sh(folder, "purge.sh", cli=Path("/no/such/cli"))
    assert said.code == 2 and "no redis-cli here" in said.err


@pytest.mark.parametrize("damage", ["x", "0\t6", "0\t6g\t{sha}\t-\t1\tstring\t-\tr\tf\t1\tn", "0\t61\t{sha}\t-\t1\tstring\t$(touch canary)\tr\tf\t1\tn", "a\t61\t{sha}\t-\t1\tstring\t-\tr\tf\t1\tn"])
def test_a_damaged_list_is_refused(server: Any, tmp_path: Path, damage: str) -> None:
    client = server.client()
    folder = written(server, tmp_path / "s", fill(client, 2))
    with (folder / "keys.tsv").open("a") as out:
        out.write(damage.replace("{sha}", "a" * 40) + "\n")
    for said in (sh(folder, "purge.sh"), apply(folder)):
        assert said.code == 2 and "keys.tsv:4:" in said.err, said
    assert client.dbsize() == SOUND + 2
