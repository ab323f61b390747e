"""A real server with sound keys and every kind of ghost: each ghost found, nothing sound called one."""

import hashlib
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import redis

from diag.cache.scanning.server import connect, inspect_keys, scan
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, CannotConnect, Denied
from diag.tables import CORE
from tests.cache.servers import on_every_server

HEALTHY = 240
FAMILY = b"clip-vit-b-32:image:"


def digest(number: object) -> bytes:
    return hashlib.md5(str(number).encode()).hexdigest().encode()


def vector(seed: int, width: int = 512, dtype: str = "f2") -> Any:
    return np.random.default_rng(seed).normal(size=(1, width)).astype(dtype)


def plant_healthy(client: redis.Redis) -> None:
    for number in range(HEALTHY):
        client.set(FAMILY + digest(number), pickle.dumps(vector(number)), ex=86_400)


def ghosts(app: ModuleType) -> dict[str, tuple[bytes, int | None]]:
    """reason -> (value, TTL) that a family of pickled 1x512 float16 arrays must not hold."""
    sound = pickle.dumps(vector(1))
    nan = vector(2)
    nan[0, 7] = np.nan
    sparse = np.zeros((1, 512), "f2")
    return {
        "empty": (b"", 86_400),
        "constant": (pickle.dumps(np.full((1, 512), 0.5, "f2")), 86_400),
        "all-zero": (pickle.dumps(sparse), 86_400),
        "nan-inf": (pickle.dumps(nan), 86_400),
        "placeholder": (pickle.dumps(app.SkipEncoding((1, 512), "float16")), 86_400),
        "foreign-object": (pickle.dumps(app.NoTextAtAll()), 86_400),
        "null-marker": (pickle.dumps(None), None),
        "truncated": (sound[:-300], 86_400),
        "corrupt": (sound[:40] + b"\xff" + sound[41:], 86_400),
        "shape-mismatch": (pickle.dumps(vector(3, 256)), 86_400),
        "dtype-mismatch": (pickle.dumps(vector(4, dtype="f4")), 86_400),
        "error-cached": (b"Internal Server Error", 86_400),
    }


def look_alikes(app: ModuleType) -> dict[str, tuple[bytes, int | None]]:
    """Sound values, and defences, that look odd."""
    sparse = np.zeros((1, 512), "f2")
    sparse[0, 100] = 3.0
    return {
        "sparse": (pickle.dumps(sparse), 86_400),
        "padded": (pickle.dumps(np.concatenate([vector(5)[:, :20], np.zeros((1, 492), "f2")], 1)), 86_400),
        "old": (pickle.dumps(vector(6)), 5),
        "null for a minute": (pickle.dumps(None), 60),
        "null text for a minute": (b"null", 60),
        "negative cache": (b"__NOT_FOUND__", 30),
        "no ttl": (pickle.dumps(vector(7)), None),
        "protocol 2": (pickle.dumps(vector(8), 2), 86_400),
        "large norm": (pickle.dumps(vector(9) * 50), 86_400),
    }


def put(client: redis.Redis, key: bytes, value: bytes, ttl_s: int | None) -> None:
    client.set(key, value, ex=ttl_s)


@on_every_server
def test_every_ghost_is_found_with_its_reason_and_nothing_else(server: Any, app: ModuleType) -> None:
    client = server.client()
    plant_healthy(client)
    planted = ghosts(app)
    for reason, (value, ttl_s) in planted.items():
        put(client, FAMILY + digest(reason), value, ttl_s)
    odd = look_alikes(app)
    for name, (value, ttl_s) in odd.items():
        put(client, FAMILY + digest(name), value, ttl_s)

    rows: list[CacheKey] = []
    found = scan(connect(server.url), server.target, each=rows.append)
    by_key = {row.name: row for row in rows}
    assert found.keys == len(rows) == len(by_key) == HEALTHY + len(planted) + len(odd)
    missed = {
        reason: by_key[FAMILY + digest(reason)].reasons
        for reason in planted
        if by_key[FAMILY + digest(reason)].verdict != "ghost"
        or reason not in by_key[FAMILY + digest(reason)].reasons
    }
    assert missed == {}
    assert {row.name for row in found.ghosts} == {FAMILY + digest(reason) for reason in planted}
    verdicts = {name: by_key[FAMILY + digest(name)] for name in odd}
    assert verdicts["null for a minute"].reasons == ("null-marker",)
    assert verdicts["null text for a minute"].verdict == "soft"
    assert verdicts["negative cache"].verdict == "soft"
    assert verdicts["no ttl"].reasons == ("no-ttl",)
    assert verdicts["large norm"].reasons == ("norm-outlier",)
    assert [verdicts[name].verdict for name in ("old", "protocol 2")] == ["ok", "ok"]
    healthy = {by_key[FAMILY + digest(number)].verdict for number in range(HEALTHY)}
    assert healthy == {"ok"}
    (family,) = found.families
    assert (family.family, family.codec, family.dtype, family.shape) == (
        "clip-vit-b-32:image:<hex>", "pickle", "float16", "1x512",
    )  # fmt: skip
    assert family.ghosts == len(planted)
    foreign = by_key[FAMILY + digest("foreign-object")]
    assert "app_classes.NoTextAtAll" in foreign.detail


@on_every_server
def test_the_same_ghosts_are_found_by_name_among_a_sample(server: Any, app: ModuleType) -> None:
    client = server.client()
    plant_healthy(client)
    planted = ghosts(app)
    for reason, (value, ttl_s) in planted.items():
        put(client, FAMILY + digest(reason), value, ttl_s)
    asked = [FAMILY + digest(reason) for reason in planted]
    rows = inspect_keys(connect(server.url), server.target, [*asked, b"not there", FAMILY + digest(3)])
    assert [row.name for row in rows[: len(asked) + 1]] == [*asked, FAMILY + digest(3)]
    for reason, row in zip(planted, rows, strict=False):
        assert row.verdict == "ghost" and reason in row.reasons, (reason, row)
    assert rows[len(asked)].verdict == "ok"
    siblings = rows[len(asked) + 1 :]
    assert 100 <= len(siblings) <= 200
    assert {row.verdict for row in siblings} == {"ok"}
    assert {row.family for row in rows} == {"clip-vit-b-32:image:<hex>"}


def test_a_row_has_the_columns_of_the_table(server: Any) -> None:
    client = server.client()
    plant_healthy(client)
    (row, *_) = inspect_keys(connect(server.url), server.target, [FAMILY + digest(1)])
    (table,) = [table for table in CORE if table.name == "cache_keys"]
    own = {column.name for column in table.columns} - {"bundle", "host", "capture", "source"}
    assert set(row.row()) == own
    expected = vector(1).astype("f8")
    assert row.shape == "1x512" and row.key == (FAMILY + digest(1)).decode()
    assert row.norm == pytest.approx(np.linalg.norm(expected))
    assert (row.min, row.max) == (expected.min(), expected.max())
    assert row.sha256 == hashlib.sha256(client.get(row.name)).hexdigest()
    assert row.ttl_s is not None and 86_000 < row.ttl_s <= 86_400


def test_cache_items_are_opened_and_their_checksum_verified(server: Any, app: ModuleType) -> None:
    client = server.client()
    for number in range(60):
        client.set(b"mm:item:" + digest(number), app.item(vector(number)), ex=3600)
    client.set(b"mm:item:" + digest("crc"), app.item(vector(1), broken=True), ex=3600)
    client.set(b"mm:item:" + digest("old"), app.item(vector(1), version="v1"), ex=3600)
    client.set(b"mm:item:" + digest("none"), app.item(None), ex=3600)
    client.set(b"mm:item:" + digest("bare"), pickle.dumps(vector(3)), ex=3600)
    found = scan(connect(server.url), server.target)
    assert {(row.name[-32:], row.reasons) for row in found.ghosts} == {
        (digest("crc"), ("checksum-mismatch",)),
        (digest("none"), ("null-marker",)),
    }
    assert {(row.name[-32:], row.reasons) for row in found.soft} == {(digest("old"), ("stale-version",))}
    (family,) = found.families
    assert (family.dtype, family.shape) == ("float16", "1x512")


def test_keys_of_an_older_version_are_soft(server: Any) -> None:
    client = server.client()
    for number in range(100):
        client.set(b"model:v2:image:" + digest(number), pickle.dumps(vector(number)), ex=3600)
    for number in range(4):
        client.set(b"model:v1:image:" + digest(number), pickle.dumps(vector(number)), ex=3600)
        client.set(b"model:v3:image:" + digest(number), pickle.dumps(vector(number)), ex=3600)
    found = scan(connect(server.url), server.target)
    assert found.ghosts == ()
    assert {(row.name[:9], row.reasons) for row in found.soft} == {(b"model:v1:", ("stale-version",))}
    rows = inspect_keys(connect(server.url), server.target, [b"model:v1:image:" + digest(1)])
    assert rows[0].reasons == ("stale-version",) and rows[0].version == "1"


def test_a_family_too_small_to_know_gives_no_ghosts(server: Any) -> None:
    client = server.client()
    for number in range(12):
        client.set(b"few:" + digest(number), pickle.dumps(vector(number)))
    client.set(b"few:" + digest("zero"), pickle.dumps(np.zeros((1, 512), "f2")))
    client.set(b"few:" + digest("none"), pickle.dumps(None))
    client.set(b"few:" + digest("cut"), pickle.dumps(vector(1))[:-9])
    client.set(b"alone:" + digest("cut"), pickle.dumps(vector(1))[:-9])
    rows: list[CacheKey] = []
    found = scan(connect(server.url), server.target, each=rows.append)
    assert [row.name for row in found.ghosts] == [b"few:" + digest("cut")]
    assert {row.verdict for row in rows if row not in found.ghosts} == {"unknown"}


def test_families_of_other_kinds_are_left_in_peace(server: Any) -> None:
    """Token lists, captions, counters, answers, masks, mixed widths, chunks with tails: all legitimate."""
    client = server.client()
    rng = np.random.default_rng(0)
    for n in range(200):
        name = digest(n)
        answer = "The error was that the image failed to load." if n % 3 else "None of them are valid."
        client.set(b"answer:" + name, json.dumps({"timestamp": n, "response": answer * (n % 7 + 1)}))
        client.set(b"caption:" + name, pickle.dumps({"text": "error" if n == 7 else f"cat {n}", "v": vector(n)}))
        client.set(b"tokens:" + name, pickle.dumps(np.zeros(20, "i8") + (n % 9 > 0)))
        client.set(b"mask:" + name, pickle.dumps(np.ones((1, 64), bool) if n % 40 else np.zeros((1, 64), bool)))
        tokens = 256 if n % 20 else int(rng.integers(1, 255))
        client.set(b"kv:" + name, rng.normal(size=(tokens, 16)).astype("f2").tobytes())
        client.set(b"seq:" + name, pickle.dumps(rng.normal(size=(tokens, 16)).astype("f2")))
        client.set(b"dim:" + name, pickle.dumps(vector(n, 768 if n % 4 else 512)))
        client.set(b"count:" + name, str(n))
        client.set(b"limit:%d" % n, n % 2)
        client.set(b"bias:" + name, pickle.dumps(np.where(rng.random(8) < 0.5, -np.inf, 0.0).astype("f4")))
        client.set(b"pic:" + name, pickle.dumps(rng.integers(0, 255, (8, 8, 3)).astype("u1") * (n != 5)))
    found = scan(connect(server.url), server.target)
    assert {(row.key, row.reasons) for row in found.ghosts} == set()


def test_odd_values_in_families_of_other_kinds_are_found(server: Any, app: ModuleType) -> None:
    client = server.client()
    rng = np.random.default_rng(0)
    for n in range(100):
        name = digest(n)
        client.set(b"answer:" + name, json.dumps({"timestamp": n, "response": "Paris is the capital. " * 9}))
        client.set(b"kv:" + name, rng.normal(size=(256, 16)).astype("f2").tobytes())
        client.set(b"emb:" + name, json.dumps({"embedding": rng.normal(size=64).tolist(), "model": "m"}))
        client.set(b"npy:" + name, app.npy(vector(n)))
    planted = {
        b"answer:" + digest("a"): (b'{"error": {"message": "overloaded"}}', "error-cached"),
        b"answer:" + digest("b"): (b"null", "null-marker"),
        b"answer:" + digest("c"): (b'{"timestamp": 1, "response": "Par', "truncated"),
        b"answer:" + digest("d"): (b'{"response": "__placeholder__"}', "placeholder"),
        b"kv:" + digest("a"): (bytes(256 * 16 * 2), "all-zero"),
        b"kv:" + digest("b"): (b"encode failed", "placeholder"),
        b"emb:" + digest("a"): (json.dumps({"embedding": [], "model": "m"}).encode(), "dtype-mismatch"),
        b"emb:" + digest("b"): (json.dumps({"embedding": [float("nan")] * 64, "model": "m"}).encode(), "nan-inf"),
        b"emb:" + digest("c"): (json.dumps({"embedding": [0.5] * 32, "model": "m"}).encode(), "shape-mismatch"),
        b"npy:" + digest("a"): (app.npy(vector(1))[:-100], "truncated"),
    }
    for key, (value, _reason) in planted.items():
        client.set(key, value)
    found = scan(connect(server.url), server.target)
    assert {row.name for row in found.ghosts} == set(planted)
    for row in found.ghosts:
        assert planted[row.name][1] in row.reasons, (row.key, row.reasons)


def test_a_value_that_would_run_code_is_named_and_not_run(server: Any, app: ModuleType, tmp_path: Path) -> None:
    client = server.client()
    plant_healthy(client)
    canary = tmp_path / "touched"
    client.set(FAMILY + digest("canary"), pickle.dumps(app.Toucher(str(canary))), ex=86_400)
    found = scan(connect(server.url), server.target)
    (row,) = found.ghosts
    assert row.reasons[0] == "foreign-object"
    assert "would run" in row.detail and ".open" in row.detail
    assert not canary.exists()


@on_every_server
def test_all_databases_types_and_names_are_seen(server: Any) -> None:
    first, third = server.client(), server.client(db=3)
    first.hset("h:1", mapping={"a": "b"})
    first.set(b"bin:\xff\x00\xfe", "x")
    for number in range(30):
        third.set(b"e:" + digest(number), pickle.dumps(vector(number)))
    third.set(b"e:" + digest("zero"), pickle.dumps(np.zeros((1, 512), "f2")))
    rows: list[CacheKey] = []
    found = scan(connect(server.url), server.target, each=rows.append)
    assert [(row.db, row.name) for row in found.ghosts] == [(3, b"e:" + digest("zero"))]
    assert {(row.codec, row.verdict) for row in rows if row.key == "h:1"} == {("hash", "unknown")}
    (binary,) = [row for row in rows if row.key is None]
    assert (binary.key_hex, binary.family) == (b"bin:\xff\x00\xfe".hex(), "bin:<bin>")
    assert found.server.role == "master" and found.server.databases == {0: 2, 3: 31}
    asked = inspect_keys(connect(server.url), server.target, [b"e:" + digest("zero")])
    assert (asked[0].db, asked[0].verdict) == (3, "ghost")
    only = scan(connect(server.url), server.target, "bin:*")
    assert only.keys == 1


def test_a_long_value_is_judged_by_its_head(server: Any, app: ModuleType) -> None:
    client = server.client()
    for number in range(30):
        client.set(b"big:" + digest(number), app.npy(np.random.default_rng(number).normal(size=(4, 8)).astype("f4")))
    whole = app.npy(np.ones((3, 1 << 20), "f4"))
    client.set(b"one:" + digest("whole"), whole)
    client.set(b"one:" + digest("cut"), whole[:-1000])
    client.set(b"one:" + digest("small"), app.npy(np.ones((1, 4), "f4")))
    rows = {row.name[-32:]: row for row in inspect_keys(connect(server.url), server.target, client.keys("one:*"))}
    assert rows[digest("whole")].bytes == len(whole) and rows[digest("whole")].sha256 is None
    assert rows[digest("whole")].reasons == () and rows[digest("whole")].shape == "3x1048576"
    assert rows[digest("cut")].reasons == ("truncated",)
    assert not rows[digest("cut")].purgeable


@on_every_server
def test_reading_leaves_idle_times_alone_and_names_itself(server: Any) -> None:
    client = server.client()
    client.set("idle:12345", pickle.dumps(vector(1)))
    reader = connect(server.url)
    assert "llmdiag" in {item["name"] for item in client.client_list()}
    deadline = time.monotonic() + 20
    while client.object("IDLETIME", "idle:12345") < 1:
        assert time.monotonic() < deadline, "the key never became idle"
    found = scan(reader, server.target)
    (row,) = inspect_keys(reader, server.target, [b"idle:12345"])
    if found.server.no_touch:
        assert client.object("IDLETIME", "idle:12345") >= 1
        assert row.idle_s is not None and row.idle_s >= 1
    else:
        assert any("idle" in note for note in found.warnings)


def test_bad_addresses_and_missing_rights_are_named(
    server: Any, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLMDIAG_REDIS_URL", raising=False)
    with pytest.raises(BadInput, match="no Redis server"):
        connect(None)
    with pytest.raises(BadInput, match="kind of Redis address"):
        connect("http://x")
    with pytest.raises(BadInput):
        connect("redis://host:port/0")
    with pytest.raises(CannotConnect) as error:
        connect("redis://:secret-word@127.0.0.1:1/0")
    assert "secret-word" not in str(error.value)
    locked = start_server("--requirepass", "open-sesame")
    with pytest.raises(Denied) as denied:
        connect(locked.url)
    assert "password" in str(denied.value)
    with pytest.raises(Denied):
        connect(f"redis://:wrong-word@127.0.0.1:{locked.port}/0")
    monkeypatch.setenv("LLMDIAG_REDIS_URL", f"redis://:open-sesame@127.0.0.1:{locked.port}/0")
    assert connect(None).ping()


@on_every_server
def test_the_rights_a_scan_needs_are_few(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = server.client()
    plant_healthy(admin)
    rights = "+scan +type +strlen +getrange +mget +pttl +object|idletime +info +select +ping +hello +client|setname"
    admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "-@all", *rights.split())
    try:
        found = scan(connect(f"redis://reader:pw@127.0.0.1:{server.port}/0"), server.target)
        assert found.keys == HEALTHY
        admin.execute_command("ACL", "SETUSER", "reader", "-mget")
        with pytest.raises(Denied, match="mget"):
            scan(connect(f"redis://reader:pw@127.0.0.1:{server.port}/0"), server.target)
    finally:
        admin.execute_command("ACL", "DELUSER", "reader")
