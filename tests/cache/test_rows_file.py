"""Rows of a scan as a Parquet file: written in bounded memory, read back as evidence, and a stranger's file read safely."""

import json
import os
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from diag import evidence
from diag.cache.scanning.rows_file import PART_ROWS, RowsFile
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, Garbled, LlmdiagError
from diag.model import Artefact
from diag.parsers import parquet_keys
from tests.cache.cli import run
from tests.cache.test_server import FAMILY, digest, ghosts, plant_healthy, put


def row(number: int, verdict: Any = "ok") -> CacheKey:
    name = b"k:\xff" if number == 3 else b"k:%d" % number
    return CacheKey(
        "redis://127.0.0.1:1", 0, None if number == 3 else name.decode(), name.hex(), "k:<n>", number, None, 0.5, "pickle", "float16", "1x8",
        -1.0, 1.0, 0.0, 2.0, 0, 0, None, "2", ("empty", "no-ttl") if verdict == "ghost" else (), verdict, None,
    )  # fmt: skip


def rows(path: Path) -> list[dict[str, object]]:
    found, _ = evidence.open_paths([path]).rows("SELECT * FROM cache_keys ORDER BY bytes", "test", 100_000)
    return found


def test_every_row_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "it's [all] *.parquet"
    count = PART_ROWS + 7
    with RowsFile(path) as file:
        for number in range(count):
            file.add(row(number, "ghost" if number % 100 == 1 else "ok"))
        assert len(file._rows) < PART_ROWS, "the whole is held in memory"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    found = rows(path)
    assert len(found) == count
    own = {name: value for name, value in found[1].items() if name not in ("bundle", "host", "capture", "source")}
    assert own == row(1, "ghost").row()
    assert found[1]["source"] == f"{path.name}#{row(1).key_hex}"
    assert (found[3]["key"], found[3]["key_hex"]) == (None, b"k:\xff".hex())


def test_a_scan_without_keys_writes_a_file_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    with RowsFile(path):
        pass
    assert rows(path) == []
    looked = {(item.table_name, item.status) for item in evidence.open_paths([path]).collected}
    assert ("cache_keys", "ok") in looked


def test_an_interrupted_scan_leaves_the_rows_so_far_and_a_crash_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LlmdiagError), RowsFile(tmp_path / "a.parquet") as file:
        file.add(row(1))
        raise LlmdiagError("interrupted")
    assert len(rows(tmp_path / "a.parquet")) == 1
    with pytest.raises(ZeroDivisionError), RowsFile(tmp_path / "b.parquet") as file:
        file.add(row(1))
        raise ZeroDivisionError
    with RowsFile(tmp_path / "c.parquet") as file:
        for number in range(PART_ROWS + 1):
            file.add(row(number))
        file.forget()
        file.add(row(5))
    assert len(rows(tmp_path / "c.parquet")) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.parquet", "c.parquet"]


def test_a_place_that_cannot_be_written_is_named_before_anything_is_scanned(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "x.parquet", tmp_path):
        with pytest.raises(BadInput):
            RowsFile(path)


def artefact(path: Path) -> Artefact:
    return Artefact(path.name, "redis", lambda: path.open("rb"))


def test_damaged_and_foreign_files_are_garbled_not_a_crash(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    with RowsFile(whole) as file:
        for number in range(300):
            file.add(row(number))
    data = whole.read_bytes()
    chance = random.Random(5)
    broken = {"cut": data[: len(data) // 2], "head": b"PAR1", "zeros": b"PAR1" + bytes(5000) + b"PAR1"}
    for number in range(3):
        at = chance.randrange(len(data) - 400, len(data) - 4)  # in the footer, which says where everything is
        broken[f"flip {number}"] = data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
    for name, content in broken.items():
        path = tmp_path / name
        path.write_bytes(content)
        try:
            found = [table for table, _ in parquet_keys.rows(artefact(path))]
        except Garbled as error:
            assert name in error.message
        else:
            assert name.startswith("flip") and len(found) <= 301
    other = tmp_path / "other.parquet"
    duckdb.sql("SELECT 1 AS one, 'x' AS two").write_parquet(str(other))
    with pytest.raises(Garbled, match="no cache keys"):
        list(parquet_keys.rows(artefact(other)))


def test_a_stranger_s_columns_become_ours_or_null(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    duckdb.sql("SELECT 7 AS key_hex, 'ghost' AS verdict, 'many' AS bytes, repeat('x', 100000) AS family, [1,2] AS reasons, 3 AS extra").write_parquet(str(path))
    ((table, found),) = parquet_keys.rows(artefact(path))
    assert table == "cache_keys"
    assert (found["key_hex"], found["verdict"], found["bytes"], found["reasons"]) == ("7", "ghost", None, "[1, 2]")
    assert len(str(found["family"])) == parquet_keys.MAX_TEXT and "extra" not in found


def test_of_too_many_rows_the_odd_ones_are_kept_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_keys, "MAX_ROWS", 3000)
    path = tmp_path / "many.parquet"
    duckdb.sql(
        f"SELECT i::VARCHAR AS key_hex, CASE WHEN i % 1000 = 999 THEN 'ghost' ELSE 'ok' END AS verdict FROM range({parquet_keys.MAX_ROWS + 500}) t(i)"
    ).write_parquet(str(path))
    ghosts_seen, said = 0, []
    for table, found in parquet_keys.rows(artefact(path)):
        ghosts_seen += table == "cache_keys" and found["verdict"] == "ghost"
        said += [found] if table == "collected" else []
    assert ghosts_seen == (parquet_keys.MAX_ROWS + 500) // 1000
    ((note),) = said
    assert note["status"] == "partial" and str(parquet_keys.MAX_ROWS) in str(note["reason"])


def test_scan_cache_writes_it_and_query_reads_it(server: Any, app: Any, tmp_path: Path) -> None:
    client = server.client()
    plant_healthy(client)
    for reason, (value, ttl_s) in ghosts(app).items():
        put(client, FAMILY + digest(reason), value, ttl_s)
    said = run("scan-cache", server.target, "--out", "keys.parquet", cwd=tmp_path)
    assert said.code == 1, said.err
    asked = run("query", "keys.parquet", "SELECT verdict, count(*) AS n FROM cache_keys GROUP BY verdict ORDER BY verdict", "-f", "json", cwd=tmp_path)
    assert asked.code == 0, asked.err
    assert {(found["verdict"], found["n"]) for found in json.loads(asked.out)["rows"]} == {("ghost", len(ghosts(app))), ("ok", client.dbsize() - len(ghosts(app)))}


def test_options_of_a_whole_scan_are_refused_where_there_is_none(server: Any, tmp_path: Path) -> None:
    plant_healthy(server.client())
    (tmp_path / "keys.txt").write_text("x:1\n")
    (tmp_path / "broken.json").write_text("{}")
    for words, wanted in {
        ("--keys-from", "keys.txt", "--gentle"): "--gentle is for the scan of a whole live server",
        ("--lengths", "--sample", "50"): "--lengths reads no values",
        ("--resume", "broken.json"): "no interrupted scan",
        ("--out", "nowhere/keys.parquet"): "cannot write",
        ("--lengths", "--purge", "--yes"): "--lengths",
    }.items():
        said = run("scan-cache", server.target, *words, cwd=tmp_path)
        assert said.code == 2 and wanted in said.err, (words, said)


def test_ctrl_c_leaves_a_file_to_go_on_from(server: Any, app: Any, tmp_path: Path) -> None:
    import signal
    import time

    from tests.cache.cli import ended, start

    client = server.client()
    plant_healthy(client)
    pipe = client.pipeline(transaction=False)
    for number in range(60_000):
        pipe.set(b"txt:%06d" % number, b"a sound text of no great length %06d" % number)
    pipe.execute()
    for reason, (value, ttl_s) in ghosts(app).items():
        put(client, FAMILY + digest(reason), value, ttl_s)
    process = start("scan-cache", server.target, "--gentle", cwd=tmp_path)
    deadline = time.monotonic() + 30
    while client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"] < 20:
        assert process.poll() is None and time.monotonic() < deadline, "the scan never read a value"
    process.send_signal(signal.SIGINT)
    said = ended(process)
    assert said.code == 2 and "nothing was deleted" in said.err and "--resume" in said.err, said
    (file,) = tmp_path.glob("llmdiag-scan-*.json")
    rest = run("scan-cache", server.target, "--resume", file.name, "--format", "json", cwd=tmp_path)
    found = json.loads(rest.out)
    assert found["keys"] == client.dbsize()
    assert sum(ghost["verdict"] == "ghost" for ghost in found["ghosts"]) == len(ghosts(app))


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="a device or a pipe"):
        RowsFile(tmp_path / "pipe")
    assert [(item.name, item.is_fifo()) for item in tmp_path.iterdir()] == [("pipe", True)]
