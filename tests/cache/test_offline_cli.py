"""`scan-cache` of files, as a process, and RDB files as loose evidence."""

import json
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from diag import evidence, report
from diag.cache.offline import scan as offline
from diag.cache.offline.globs import matcher
from diag.cache.offline.target import is_path
from diag.errors import BadInput
from tests.cache import offline_world as world
from tests.cache.cli import run, run_all
from tests.cache.conftest import LiveServer
from tests.cache.fuzz_rdb import dump, text
from tests.cache.servers import on_every_server
from tests.cache.world import GHOST, fill, sound

GHOSTS = 3
SCHEMA = json.loads((Path(report.__file__).parent / "cache.schema.json").read_text())


def shown(text_: str) -> dict[str, Any]:
    found = json.loads(text_)
    jsonschema.validate(found, SCHEMA)
    return found


def verdicts(found: dict[str, Any]) -> set[tuple[int, str, str, tuple[str, ...]]]:
    """What does not depend on where the values were read."""
    return {(item["db"], item["key_hex"], item["verdict"], tuple(item["reasons"])) for item in found["ghosts"]}


def with_ghosts(live: LiveServer) -> list[bytes]:
    """Two databases with the same family, three ghosts and a hash in each."""
    for db in (0, 3):
        with live.client(db) as client:
            names = fill(client, GHOSTS)
            client.hset("meta", mapping={"a": "b"})
            client.set("emb:img88888", sound(1)[:-40])
            client.set("emb:img77777", pickle.dumps(np.full((1, 64), np.nan)))
    return names


@on_every_server
def test_a_file_gets_the_verdicts_of_the_server_it_came_from(server: LiveServer, tmp_path: Path) -> None:
    names = with_ghosts(server)
    path = world.saved(server)
    live, file = run_all(("scan-cache", server.target, "-f", "json"), ("scan-cache", str(path), "-f", "json"), cwd=tmp_path)
    assert (live.code, file.code) == (1, 1), (live, file)
    there, here = shown(live.out), shown(file.out)
    assert verdicts(here) == verdicts(there)
    assert {item["key_hex"] for item in here["ghosts"] if item["db"] == 3} >= {name.hex() for name in names}
    sizes = {"families", "seconds", "server", "target", "warnings", "purge", "ghosts", "bytes"}
    assert {key: value for key, value in here.items() if key not in sizes} == {key: value for key, value in there.items() if key not in sizes}
    assert [f for f in here["families"] if f["family"] != "meta"] == [f for f in there["families"] if f["family"] != "meta"]
    assert here["target"] == str(path)
    assert here["server"]["role"] is None
    assert (here["server"]["product"], here["server"]["version"]) == (there["server"]["product"], there["server"]["version"])
    assert here["purge"]["planned"] == 0 and "RDB version" in file.err


def test_text_says_what_it_is_first_and_how_to_purge_last(server: LiveServer, tmp_path: Path) -> None:
    with_ghosts(server)
    path = world.saved(server)
    said = run("scan-cache", str(path), cwd=tmp_path)
    lines = said.out.splitlines()
    assert said.code == 1
    assert lines[0].startswith(f"{path} (redis 7."), lines[0]
    assert f"llmdiag scan-cache {path} --format json | jq" in lines[-1], lines[-1]
    refused = run("scan-cache", str(path), "--purge", "--yes", cwd=tmp_path)
    assert refused.code == 2 and "nothing in it can be purged" in refused.err and "--keys-from keys.txt --purge" in refused.err, refused


def test_the_command_that_is_shown_purges_what_the_file_showed(server: LiveServer, tmp_path: Path) -> None:
    with_ghosts(server)
    found = shown(run("scan-cache", str(world.saved(server)), "-f", "json", cwd=tmp_path).out)
    (tmp_path / "keys.txt").write_text("".join(f"hex:{item['key_hex']}\n" for item in found["ghosts"] if item["purgeable"]))
    said = run("scan-cache", server.target, "--keys-from", "keys.txt", "--purge", "--yes", "--pause", "0", "--force", "-f", "json", cwd=tmp_path)
    assert said.code == 0, said
    assert shown(run("scan-cache", str(world.saved(server)), "-f", "json", cwd=tmp_path).out)["ghosts"] == []


def test_options_narrow_a_file_as_they_narrow_a_server(server: LiveServer, tmp_path: Path) -> None:
    with_ghosts(server)
    path = world.saved(server)
    assert offline.scan(path, pattern=b"emb:img9*").keys == 2 * GHOSTS
    assert {item.db for item in offline.scan(path, databases=[3]).ghosts} == {3} and offline.scan(path, databases=[3]).keys == 206
    assert any("placeholder" in item.reasons for item in offline.scan(path, markers=[b"numpy"]).ghosts)
    (tmp_path / "keys.txt").write_text("emb:img77777\nemb:img00001\nnever:there\n")
    options = ("--keys-from", "keys.txt", "--db", "3", "--pattern", "emb:img*", "--marker", "nothing has this")
    named = shown(run("scan-cache", str(path), *options, "-f", "json", cwd=tmp_path).out)
    assert named["keys"] == 2 and {item["key"] for item in named["ghosts"]} == {"emb:img77777"}, named
    assert any("1 of the 3 named keys do not exist" in item for item in named["warnings"]), named["warnings"]


@pytest.mark.parametrize("option", [("--plan", "p.json"), ("--print-acl",), ("--script", "d")])
def test_what_needs_a_server_is_refused_for_a_file(tmp_path: Path, option: tuple[str, ...]) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(b"\x00\x01k\x01v"))
    said = run("scan-cache", str(path), *option, cwd=tmp_path)
    assert said.code == 2 and f"{option[0]} needs a server" in said.err, said
    assert [item.name for item in tmp_path.iterdir()] == ["x.rdb"]


def test_paths_that_are_no_cache(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    said = run("scan-cache", "./no/such", cwd=tmp_path)
    assert said.code == 2 and "no such file or folder: no/such" in said.err, said
    for path, says in {tmp_path / "empty": "holds no cache", Path("/dev/null"): "is no regular file", tmp_path / "loop": "no such file|cannot read"}.items():
        with pytest.raises(BadInput, match=says):
            offline.scan(path)


@pytest.mark.parametrize(
    ("target", "file"),
    [("redis://h:1", False), ("h:6379", False), ("x.rdb", True), ("/nowhere", True), ("./x", True), (".", True), ("unix:///tmp/x.rdb", False), ("rediss://h/0", False)],
)
def test_what_is_a_file_and_what_a_server(target: str, file: bool) -> None:
    assert is_path(target) is file


def test_keys_that_expired_since_are_shown_with_the_ttl_they_had(server: LiveServer, tmp_path: Path) -> None:
    with server.client() as client:
        fill(client, 0)
        client.set("emb:img900001", GHOST, px=400)
        path = world.saved(server)
        world.wait_until(lambda: client.get("emb:img900001") is None, "the key to expire")
        world.wait_until(lambda: client.dbsize() == 200, "the server to drop it")
    (tmp_path / "keys.txt").write_text("emb:img900001\n")
    said = run("scan-cache", str(path), "-f", "json", cwd=tmp_path)
    found = shown(said.out)
    assert found["keys"] == 201
    item = next(item for item in found["ghosts"] if item["key"] == "emb:img900001")
    assert -1 < item["ttl_s"] <= 1.4, "of the second in which the file was written"
    assert any("the TTL of 1 keys has passed since the file was written" in warning for warning in found["warnings"]), found["warnings"]


def test_a_cut_file_shows_what_it_has_and_warns(server: LiveServer, tmp_path: Path) -> None:
    with_ghosts(server)
    data = world.saved(server).read_bytes()
    half, head = tmp_path / "half.rdb", tmp_path / "head.rdb"
    half.write_bytes(data[: len(data) // 2])
    head.write_bytes(data[:60])
    some, none = run_all(("scan-cache", str(half), "-f", "json"), ("scan-cache", str(head), "-f", "json"), cwd=tmp_path)
    found = shown(some.out)
    assert some.code in (0, 1) and 0 < found["keys"] < 412
    assert any(f"{half}: byte " in warning and "keys before it are shown" in warning for warning in found["warnings"]), found["warnings"]
    assert none.code == 2 and f"{head}: byte " in none.err and not none.out, none


def test_a_value_that_cannot_be_unpacked_is_a_row_and_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(b"\x00\x01k\xc3\x02\x50\x05\xff\x00\x00\x01l\x01v"))
    found = shown(run("scan-cache", str(path), "-f", "json", cwd=tmp_path).out)
    assert found["keys"] == 2
    assert "1 values are damaged in the file and were not judged" in found["warnings"]


def test_an_append_only_folder_is_a_target(start_server: Any, tmp_path: Path) -> None:
    live = start_server("--appendonly", "yes", "--appendfsync", "no")
    with_ghosts(live)
    with live.client() as client:
        client.delete("emb:img77777")
        client.append("emb:img00007", "trailing")
    there = live.unix.parent
    target = there / "appendonlydir" if (there / "appendonlydir").is_dir() else there / "appendonly.aof"
    server, file = run_all(("scan-cache", live.target, "-f", "json"), ("scan-cache", str(target), "-f", "json"), cwd=tmp_path)
    assert verdicts(shown(file.out)) == verdicts(shown(server.out))
    assert file.code == 1


def test_a_name_with_anything_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "a \x1b[31m'b"
    folder.mkdir()
    path = folder / "dump.rdb"
    path.write_bytes(dump(b"".join(b"\x00" + text(b"emb:k%d" % number) + text(sound(number)) for number in range(30)) + b"\x00\x07emb:k99\x00"))
    said = run("scan-cache", str(path), cwd=tmp_path)
    assert said.code == 1 and "\x1b[31m" not in said.out + said.err, said


def test_an_rdb_file_is_loose_evidence(server: LiveServer, tmp_path: Path) -> None:
    with_ghosts(server)
    shutil.copy(world.saved(server), tmp_path / "dump.rdb")
    (tmp_path / "broken.rdb").write_bytes(b"REDIS0010\xfe")
    sql = "SELECT db, key, verdict, target, source FROM cache_keys ORDER BY verdict = 'ghost' DESC, db, key"
    rows, _ = evidence.open_paths([tmp_path / "dump.rdb"]).rows(sql, "test", 1000)
    assert len(rows) == 412 and {row["target"] for row in rows} == {"dump.rdb"}, rows
    assert [row["verdict"] for row in rows].count("ghost") == 2 * (GHOSTS + 2)
    assert str(rows[0]["source"]).startswith("dump.rdb#0:")
    status = "SELECT status, reason FROM collected WHERE table_name = 'cache_keys'"
    assert [row["status"] for row in evidence.open_paths([tmp_path / "dump.rdb"]).rows(status, "test", 9)[0]] == ["ok"]
    broken, _ = evidence.open_paths([tmp_path / "broken.rdb"]).rows(status, "test", 9)
    assert [(row["status"], "broken.rdb: byte 10" in str(row["reason"])) for row in broken] == [("partial", True)], broken


def test_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "x.rdb"
    path.write_bytes(dump(b"".join(b"\x00" + text(b"k%05d" % number) + b"\x01v" for number in range(5000))))
    result = offline.scan(path, bytes_at_most=1 << 20)
    assert result.keys == 1025 and "only its first 1025 keys were judged" in result.losses[0], (result.keys, result.losses)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("a*c", ["ac", "abc", "a*c", "a\nc"], ["ab", "xac", "acx"]), ("*", ["", "x"], []), ("", [""], ["x"]), ("h?llo", ["hello"], ["hllo", "heello"]),
        ("h[ae]llo", ["hello"], ["hillo"]), ("h[^e]llo", ["hallo"], ["hello"]), ("h[a-c]", ["hb"], ["hd"]), ("h[c-a]", ["hb"], ["hd"]),
        (r"h\*o", ["h*o"], ["hxo"]), ("[\\]]", ["]"], ["x"]), ("[a", ["a"], ["["]), ("*a*a*", ["aa", "xaxax"], ["xax"]), ("a*ba", ["aba", "abba"], ["ab"]),
        ("[]x", [], ["x", "]x"]), ("x[^]", ["xa"], ["x"]), ("**a**", ["a"], ["b"]),
    ],
)  # fmt: skip
def test_patterns_match_as_the_server_does(shared_server: Any, glob: str, yes: list[str], no: list[str]) -> None:
    fits = matcher(glob.encode())
    assert [key for key in yes + no if fits(key.encode())] == yes
    with shared_server(None).client() as client:
        client.flushall()
        client.mset({key: "v" for key in [*yes, *no]})
        assert {key.decode() for key in client.scan_iter(match=glob, count=100)} == set(yes)


def test_no_pattern_takes_long() -> None:
    started = time.process_time()
    assert not matcher(b"*a*a*a*a*a*a*a*b")(b"a" * 60_000)
    assert time.process_time() - started < 1
