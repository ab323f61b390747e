"""`llmdiag scan-cache` as a process: which server, which keys, what is said and where."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag import evidence
from diag.report import cache as report
from tests.cache.cli import PURGE, at_terminal, run, run_all, without_control_codes
from tests.cache.servers import on_every_server
from tests.cache.world import GHOST, SOUND, fill, keyspace, sound

SCHEMA = json.loads(Path(report.__file__).with_name("cache.schema.json").read_text())
INCIDENT = Path(__file__).parents[2] / "samples" / "ghost-key-retry-loop" / "incident.zip"
LOCAL_PORT = 6379


def valid(document: Any) -> Any:
    """The document, once it fits the schema."""
    jsonschema.validate(document, SCHEMA)
    return document


def test_the_schema_is_one_and_refuses_what_is_not_said() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    restored = {"schema": "llmdiag.restore/1", "restored": 1, "kept_newer": 0, "expired": 0, "failed": []}
    valid(restored)
    for wrong in ({**restored, "restored": -1}, {**restored, "more": 1}, {**restored, "schema": "llmdiag.restore/2"}):
        with pytest.raises(jsonschema.ValidationError):
            valid(wrong)


# -- which server


@pytest.mark.parametrize("env", [{"LLMDIAG_REDIS_URL": "{}", "REDIS_URL": "redis://127.0.0.1:1"}, {"REDIS_URL": "{}"}])
def test_the_bare_command_takes_the_server_of_the_environment(server: Any, tmp_path: Path, env: dict[str, str]) -> None:
    fill(server.client(), 2)
    server.client(db=3).set("a", "b")
    said = run("scan-cache", cwd=tmp_path, **{name: url.format(server.url) for name, url in env.items()})
    assert said.code == 1
    first, *rest = said.out.splitlines()
    assert first.startswith(f"{server.target} (") and first.endswith(f"db 0: {SOUND + 2} keys, db 3: 1 keys")
    assert rest[0].startswith(f"{SOUND + 3} keys")


def test_our_own_variable_goes_before_the_common_one(server: Any, tmp_path: Path) -> None:
    said = run("scan-cache", cwd=tmp_path, LLMDIAG_REDIS_URL="redis://127.0.0.1:1", REDIS_URL=server.url)
    assert said.code == 2 and "from LLMDIAG_REDIS_URL" in said.err and said.out == ""


def test_a_variable_that_is_no_address_stops_nobody_who_names_a_server(server: Any, tmp_path: Path) -> None:
    assert run("scan-cache", server.url, cwd=tmp_path, REDIS_URL="memory://").code == 0
    said = run("scan-cache", cwd=tmp_path, REDIS_URL="memory://")
    assert said.code == 2 and "from REDIS_URL" in said.err


@pytest.fixture
def local_port() -> Iterator[socket.socket]:
    """127.0.0.1:6379, held so that nobody answers there; the test is skipped where somebody does."""
    with socket.socket() as held:
        try:
            held.bind(("127.0.0.1", LOCAL_PORT))
        except OSError as error:
            pytest.skip(f"127.0.0.1:{LOCAL_PORT} is taken: {error.strerror}; stop what listens there")
        yield held


def test_without_any_server_the_three_ways_to_name_one_are_said(local_port: socket.socket, tmp_path: Path) -> None:
    said = run("scan-cache", cwd=tmp_path)
    assert (said.code, said.out) == (2, "")
    for way in ("scan-cache redis://", "LLMDIAG_REDIS_URL", "127.0.0.1:6379"):
        assert way in said.err


def test_the_bare_command_finds_a_server_on_this_machine(
    local_port: socket.socket, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    local_port.close()
    local = start_server(port=LOCAL_PORT)
    try:
        fill(local.client(), 1)
        said = run("scan-cache", cwd=tmp_path)
    finally:
        local.process.kill()
        local.process.wait()
    assert said.code == 1
    assert said.out.splitlines()[0].startswith("redis://127.0.0.1:6379 (") and f"{SOUND + 1} keys" in said.out.splitlines()[0]


def test_sockets_and_names_of_this_machine_are_servers_too(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 1)
    said = run("scan-cache", f"unix://{server.unix}", "-f", "json", cwd=tmp_path)
    assert valid(said.json)["target"] == f"unix://{server.unix}" and said.code == 1
    said = run("scan-cache", f"redis://localhost:{server.port}/0?decode_responses=true&socket_timeout=0.001", "-f", "json", cwd=tmp_path)
    assert valid(said.json)["keys"] == SOUND + 1


# -- what is said


@on_every_server
def test_a_scan_says_what_it_found_and_deletes_nothing(server: Any, tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 3)
    client.expire(names[0], 200_000)
    client.set(b"emb:img\xff\xfe1", GHOST)
    client.set("emb:img55555", b"", ex=60)
    before = keyspace(client).keys()
    said, text = run_all(("scan-cache", server.url, "-f", "json"), ("scan-cache", server.url), cwd=tmp_path)
    found = valid(said.json)
    assert said.code == 1 and said.out.count("\n") == 1
    assert said.err.startswith(f"{server.target} (") and len(said.err.splitlines()) == 1
    assert found["diagnosis"] is None and found["seconds"] >= 0 and found["keys"] == SOUND + 5
    by_key = {item["key"]: item for item in found["ghosts"]}
    assert set(by_key) == {*(name.decode() for name in names), "emb:img55555"}
    assert [item["purgeable"] for item in found["ghosts"]] == [True, True, True, False]
    assert by_key["emb:img55555"]["include"] == "null-marker" and by_key["emb:img900000"]["ttl_s"] > 190_000
    assert found["purge"]["mode"] == "dry-run" and found["purge"]["planned"] == 3
    assert text.code == 1 and text.err == "" and "emb:img900000" in text.out and "dry run: --purge would delete 3 keys" in text.out
    assert keyspace(client).keys() == before and list(tmp_path.iterdir()) == []


def test_a_clean_cache_is_clean(server: Any, tmp_path: Path) -> None:
    fill(server.client(), 0)
    text, said = run_all(("scan-cache", server.url), ("scan-cache", server.url, *PURGE, "-f", "json"), cwd=tmp_path)
    assert text.code == 0 and "no ghosts" in text.out
    assert said.code == 0 and valid(said.json)["purge"]["backup"] is None and list(tmp_path.iterdir()) == []


def test_too_few_siblings_is_said_not_called_clean(server: Any, tmp_path: Path) -> None:
    client = server.client()
    for number in range(3):
        client.set(f"few:{number}", GHOST)
    said = run("scan-cache", server.url, "-f", "json", cwd=tmp_path)
    assert said.code == 0 and any(text.startswith("3 keys were not judged") for text in valid(said.json)["warnings"])


@pytest.mark.parametrize("env", [{"LC_ALL": "C", "NO_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_any_locale_in_a_pipe(server: Any, tmp_path: Path, env: dict[str, str]) -> None:
    client = server.client()
    fill(client, 12)
    client.set("emb:größe:\x1b[31m99999", GHOST)
    text, said = run_all(("scan-cache", server.url), ("scan-cache", server.url, "-f", "json"), cwd=tmp_path, **env)
    assert text.code == 1 and "\x1b" not in text.out and "more; --format json shows all" in text.out
    assert valid(said.json)["keys"] == SOUND + 13


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_of_80_columns(server: Any, tmp_path: Path, env: dict[str, str]) -> None:
    client = server.client()
    fill(client, 3)
    client.set("emb:" + "very-long-name-" * 12 + ":img99999", GHOST)
    client.set(b"emb:\xff\xfe" * 20, GHOST)
    code, screen = at_terminal("scan-cache", server.url, cwd=tmp_path, **env)
    assert code == 1
    lines = without_control_codes(screen).splitlines()
    (table,) = [number for number, line in enumerate(lines) if line.startswith("family ")]
    (end,) = [number for number, line in enumerate(lines) if line.startswith("note: 2 keys were not judged")]
    assert max(len(line) for line in lines[table : end - 1]) <= 80
    assert "emb:img900000" in screen and "yes" in screen
    colours = re.findall(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m", screen)
    assert colours == [] or not env


# -- which keys


def test_named_keys_as_text_and_as_bytes(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 4)
    binary = b"emb:\xff\xfe\x00"
    for number in range(30):
        client.set(b"emb:\xfe%d" % number, sound(number))
    client.set(binary, sound(1)[:-9])
    named = tmp_path / "keys"
    named.write_bytes(b"emb:img900001\r\n\nhex:" + binary.hex().encode() + b"\nemb:img00001\nnot there\n")
    command = ("scan-cache", server.url, "--keys-from", str(named))
    said, text = run_all((*command, "-f", "json"), command, cwd=tmp_path)
    found = valid(said.json)
    assert said.code == 1 and found["keys"] == 3
    assert {(item["key"], bytes.fromhex(item["key_hex"])) for item in found["ghosts"]} == {("emb:img900001", b"emb:img900001"), (None, binary)}
    assert any("1 of the 4 named keys" in text for text in found["warnings"])
    assert f"hex:{binary.hex()}" in text.out


def test_wrong_key_files_are_named_by_line(server: Any, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"emb:1\n\nhex:6z\n")
    (tmp_path / "empty").write_bytes(b"\n\n")
    cases = {"odd": "odd:3: not hexadecimal", "empty": "names no key", "absent": "does not exist"}
    for said, expected in zip(run_all(*(("scan-cache", server.url, "--keys-from", name) for name in cases), cwd=tmp_path), cases.values(), strict=True):
        assert said.code == 2 and expected in said.err, said


def test_keys_of_a_bundle(server: Any, tmp_path: Path) -> None:
    held, _ = evidence.open_paths([INCIDENT]).rows("SELECT DISTINCT key FROM cache_keys WHERE verdict = 'ghost'", "test", 9)
    planted = sorted(str(row["key"]) for row in held)
    client = server.client()
    for number in range(SOUND):
        client.set(f"{planted[0][:-8]}{number:08x}", sound(number), ex=3600)
    for key in planted:
        client.set(key, GHOST)
    client.set(f"{planted[0][:-8]}ffffffff", GHOST)  # another ghost, which nobody holds
    said = run("scan-cache", server.url, "--keys-from", str(INCIDENT), *PURGE, "-f", "json", cwd=tmp_path)
    found = valid(said.json)
    assert sorted(item["key"] for item in found["ghosts"]) == planted and said.code == 0
    assert found["purge"]["deleted"] == len(planted) and client.dbsize() == SOUND + 1


def test_a_bundle_where_nothing_hangs_names_no_key(server: Any, tmp_path: Path) -> None:
    said = run("scan-cache", server.url, "--keys-from", str(INCIDENT.with_name("idle-healthy.zip")), cwd=tmp_path)
    assert said.code == 2 and "no stuck thread holds a key" in said.err


def test_patterns_and_markers_of_ones_own(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 1)
    client.set("emb:img88888", sound(1).replace(b"numpy", b"quuxy"))
    scan = ("scan-cache", server.url, "-f", "json")
    some, marked = run_all((*scan, "--pattern", "emb:img88*"), (*scan, "--marker", "quuxy"), cwd=tmp_path)
    assert valid(some.json)["keys"] == 1
    assert "placeholder" in {item["key"]: item["reasons"] for item in valid(marked.json)["ghosts"]}["emb:img88888"]
    wrong = (("--marker", ""), ("--include", "no_ttl"), ("--max-keys", "-1"))
    for said, option in zip(run_all(*((*scan, *option) for option in wrong), cwd=tmp_path), wrong, strict=True):
        assert said.code == 2 and said.out == "" and option[0] in said.err, said
