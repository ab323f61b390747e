"""`llmdiag compare-dumps` as a process: exit codes, JSON, Parquet, text at 80 columns, errors; and what `analyze` makes of it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import numpy as np
import pytest

from diag.report import tensors as report
from tests.cache import cli
from tests.live.run import Said
from tests.tensors.world import LAYERS, Run, pair, request, run, settled


def dumps(folder: Path, **runs: Run) -> dict[str, str]:
    return {name: str(one.write(folder / name)) for name, one in runs.items()}


def incident() -> dict[str, Run]:
    """Block 0 holds block 1 of another request; the rest is right."""
    good, bad = pair()
    donor = run(request(2), (3, 4, 9, 10))
    for key in bad.pools:
        bad.block(key, 0)[:] = donor.block(key, 1)
    return {"good": good, "bad": bad, "donor": donor}


def document(said: Said) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(said.out)
    jsonschema.Draft202012Validator(report.schema()).validate(found)
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(report.schema())


def test_json_and_a_file_that_analyze_reads(tmp_path: Path) -> None:
    path = dumps(tmp_path, **incident())
    said = cli.run("compare-dumps", path["good"], path["bad"], "--donors", path["donor"], "-f", "json", "-o", "c.json", cwd=tmp_path)
    assert said.code == 1, said.err
    found = document(said)
    assert found["verdict"] == "differ"
    assert {key: found["first_divergence"][key] for key in ("layer", "block", "rank", "kind")} == {"layer": 0, "block": 0, "rank": None, "kind": "bad-kv"}
    wrong = [item for item in found["pairs"] if item["verdict"] != "same"]
    assert {(item["block"], item["verdict"], item["alias_of"]["dump"], item["alias_of"]["block"]) for item in wrong} == {(0, "aliased", "donor", 1)}
    assert len(wrong) == 2 * LAYERS
    assert wrong[0]["good"]["shape"] == [16, 2, 32]
    assert wrong[0]["cosine"] is not None and wrong[0]["rel_l2"] > 1
    assert found["diagnosis"]["schema"] == "llmdiag.diagnosis/1"
    assert json.loads((tmp_path / "c.json").read_text())["pairs"] == found["pairs"]
    again = cli.run("query", "c.json", "SELECT block, count(*) AS n FROM tensor_pairs WHERE alias_request = 'donor' AND NOT follows GROUP BY ALL", "-f", "json", cwd=tmp_path)
    assert json.loads(again.out)["rows"] == [{"block": 0, "n": 2 * LAYERS}]
    both = cli.run("query", "c.json", "SELECT dump, count(*) AS n FROM tensors GROUP BY ALL ORDER BY ALL", "-f", "json", cwd=tmp_path)
    assert [row["dump"] for row in json.loads(both.out)["rows"]] == ["bad", "good"]
    assert cli.run("analyze", "c.json", cwd=tmp_path).code in (0, 1, 3)


LOOKUPS = """\
[2026-03-02 10:00:00.000001] [77] [78] [llm] [INFO] [scheduler.cpp:341] : schedule prefill, requestId=cmpl-9
[2026-03-02 10:00:00.000002] [77] [78] [llm] [INFO] [a.cpp:418] : 二分IsBlockCached: 0
[2026-03-02 10:00:00.000003] [77] [78] [llm] [INFO] [a.cpp:418] : 二分IsBlockCached: 1
[2026-03-02 10:00:00.000004] [77] [78] [llm] [INFO] [a.cpp:418] : ===> PrefixCacheBlockAllocator blockHash=11 blockIDs =5 is computed:1
[2026-03-02 10:00:00.000005] [77] [78] [llm] [INFO] [a.cpp:418] : 二分IsBlockCached: 1
[2026-03-02 10:00:00.000006] [77] [78] [llm] [INFO] [a.cpp:418] : ===> PrefixCacheBlockAllocator blockHash=12 blockIDs =8 is computed:1
[2026-03-02 10:00:00.000007] [77] [78] [llm] [INFO] [a.cpp:418] : 遍历IsBlockCached: 0
[2026-03-02 10:00:00.000008] [77] [78] [llm] [INFO] [a.cpp:418] : 二分:[5, 8]
[2026-03-02 10:00:00.000009] [77] [78] [llm] [INFO] [a.cpp:418] : 遍历:[]
"""


def test_lookups_are_judged_with_the_dumps(tmp_path: Path) -> None:
    path = dumps(tmp_path, **incident())
    (tmp_path / "lookups.log").write_text(LOOKUPS)
    found = document(cli.run("compare-dumps", path["good"], path["bad"], "--lookups", "lookups.log", "-f", "json", cwd=tmp_path))
    assert {(row["method"], row["position"], row["hit"]) for row in found["lookups"]} >= {("binary", 0, True), ("linear", 0, False)}
    (first, *_) = found["diagnosis"]["findings"]
    assert (first["rule"], first["verdict"]) == ("prefix-block-mismatch", "confirmed")
    command = next(action["run"] for action in first["actions"] if action["run"])
    assert command.startswith(f"llmdiag query {shlex.quote(str(path['bad']))} lookups.log ")
    rows = json.loads(cli.run(*shlex.split(command)[1:], "-f", "json", cwd=tmp_path).out)["rows"]
    assert rows and all(row["disagrees"] for row in rows), "the printed command shows nothing"


def test_same_is_0_and_the_pairs_are_a_table(tmp_path: Path) -> None:
    good, bad = pair()
    path = dumps(tmp_path, good=good, bad=bad)
    said = cli.run("compare-dumps", path["good"], path["bad"], "-o", "pairs.parquet", cwd=tmp_path)
    assert (said.code, said.out.splitlines()[0]) == (0, f"SAME: all {8 * LAYERS + 1} tensors and blocks (of {2 * LAYERS + 1} tensors)")
    assert "pairs.parquet" in said.err
    kinds = duckdb.sql(f"SELECT verdict, is_first, typeof(block) AS kind, count(*) FROM '{tmp_path}/pairs.parquet' WHERE role IN ('k', 'v') GROUP BY ALL").fetchall()
    assert kinds == [("same", False, "BIGINT", 8 * LAYERS)]


def test_text_at_80_columns_says_what_matters_first(tmp_path: Path) -> None:
    path = dumps(tmp_path, **incident())
    args = ("compare-dumps", path["good"], path["bad"], "--donors", path["donor"])
    code, screen = cli.at_terminal(*args, cwd=tmp_path, columns=80, NO_COLOR="1")
    text = cli.without_control_codes(screen)
    lines = text.splitlines()
    assert code == 1
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert next(line for line in lines if "DIFFER" in line).startswith(f"DIFFER: {2 * LAYERS} of {8 * LAYERS + 1}")
    flat = " ".join(text.split())
    for said in (
        "First block 0 of layers.0.k_cache is wrong", f"Whose block 0 is block 1 of donor, in {2 * LAYERS} of {2 * LAYERS} cache tensors",
        "Identical blocks 1-3", "Points at allocator: block 0 wrong on all 4 layers alike",
    ):  # fmt: skip
        assert said in flat, said
    assert "    0  a . . ." in text, "the map needs no colour"
    _, coloured = cli.at_terminal(*args, cwd=tmp_path, columns=80)
    assert "\x1b[" in coloured


def test_a_folder_of_donors_is_each_of_them(tmp_path: Path) -> None:
    runs = incident()
    path = dumps(tmp_path, good=runs["good"], bad=runs["bad"])
    dumps(tmp_path / "others", owner=runs["donor"], stranger=run(request(5), (0, 1, 2, 3)))
    found = document(cli.run("compare-dumps", path["good"], path["bad"], "--donors", "others", "-f", "json", cwd=tmp_path))
    assert [item["name"] for item in found["donors"]] == ["owner", "stranger"]
    assert {item["alias_of"]["request"] for item in found["pairs"] if item["alias_of"]} == {"owner"}


def test_a_control_run_settles_a_doubt(tmp_path: Path) -> None:
    """One part in a thousand in float32: more than rounding, less than other content."""
    good, bad = pair()
    control = run(request(1), (0, 1, 2, 3), 92)
    chance = np.random.default_rng(3)
    for one, share in ((bad, 1e-3), (control, 8e-4)):
        for key, pool in one.pools.items():
            one.pools[key] = (pool * (1 + share * chance.standard_normal(pool.shape))).astype(np.float32)
    path = dumps(tmp_path, good=good, bad=bad, control=control)
    alone, settled = cli.run_all(
        ("compare-dumps", path["good"], path["bad"]), ("compare-dumps", path["good"], path["bad"], "--control", path["control"], "-f", "json"), cwd=tmp_path
    )
    assert (alone.code, settled.code) == (0, 0)
    assert f"{8 * LAYERS} of them suspicious" in alone.out
    assert "add --control DIR" in " ".join(alone.out.split())
    found = document(settled)
    assert (found["verdict"], found["counts"]["suspicious"]) == ("close", 0)
    assert all(0 < item["control_rel_l2"] < 2e-3 for item in found["pairs"] if item["block"] is not None)
    stated = cli.run("compare-dumps", path["good"], path["bad"], "--tolerance", "float32=1e-4", cwd=tmp_path)
    assert stated.code == 1


def test_types_that_numpy_does_not_name(tmp_path: Path) -> None:
    for name, change in (("good", 0), ("bad", 1)):
        folder = tmp_path / name
        folder.mkdir()
        codes = np.full((32, 2, 16), 0x3F80, np.uint16)
        codes[5, 0, 0] += change  # the next bfloat16
        np.save(folder / "layers.0.k_cache.npy", codes.view("V2"))
        settled(folder)
    plain, said = cli.run_all(("compare-dumps", "good", "bad", "-f", "json"), ("compare-dumps", "good", "bad", "--dtype", "float16", "-f", "json"), cwd=tmp_path)
    found = document(plain)
    assert {item["good"]["dtype"] for item in found["pairs"]} == {"bfloat16"}
    assert any("opaque2 taken as bfloat16" in note for note in found["notes"])
    assert found["verdict"] == "close"
    assert {item["good"]["dtype"] for item in document(said)["pairs"]} == {"float16"}


def test_what_has_no_partner_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    good, bad = pair()
    path = dumps(tmp_path, good=good, bad=bad)
    (tmp_path / "bad" / "layers.1.k_cache.npy").unlink()
    cut = tmp_path / "bad" / "layers.2.v_cache.npy"
    cut.write_bytes(cut.read_bytes()[:500])
    settled(tmp_path / "bad")
    said = cli.run("compare-dumps", path["good"], path["bad"], "-f", "json", cwd=tmp_path)
    found = document(said)
    assert {(item["side"], item["name"]) for item in found["unpaired"]} >= {("good", "layers.1.k_cache")}
    assert any("layers.2.v_cache" in item["source"] for item in found["unread"]) or any("layers.2.v_cache" in item["name"] for item in found["unpaired"])
    text = cli.run("compare-dumps", path["good"], path["bad"], cwd=tmp_path)
    assert "Left out" in text.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("good", "nowhere"), "nowhere"),
        (("good", "other"), "no tensor in common"),
        (("good", "bad", "-o", "x.txt"), "what kind of file"),
        (("good", "bad", "--tolerance", "float32=much"), "no relative L2"),
        (("good", "bad", "--tolerance", "2"), "above 1 everything is close; it is relative L2"),
        (("good", "bad", "--tolerance", "nan"), "no relative L2"),
        (("good", "bad", "--tolerance", "foo=0.1"), "no such element type: foo"),
        (("good", "bad", "--lookups", "map.toml"), "--lookups map.toml: no lookup of a prefix cache"),
        (("good", "bad", "--dtype", "float99"), "no element type"),
        (("good", "bad", "--map", "map.toml"), "the new name is no text"),
        (("good", "bad", "-o", "missing/x.json"), "cannot write"),
        (("good", "bad", "--block-size", "0"), "--block-size"),
    ],
)
def test_errors_say_what_and_where(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    good, bad = pair()
    dumps(tmp_path, good=good, bad=bad)
    (tmp_path / "map.toml").write_text("a = 1")
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "other" / "strange.npy", np.zeros(3))
    settled(tmp_path / "other")
    found = cli.run("compare-dumps", *args, cwd=tmp_path)
    assert found.code == 2
    assert said in found.err
    assert not list(tmp_path.glob("*.part"))


def test_a_reader_that_has_seen_enough_does_not_change_the_verdict(tmp_path: Path) -> None:
    path = dumps(tmp_path, **incident())
    for args in (("compare-dumps", path["good"], path["bad"]), ("compare-dumps", path["good"], path["bad"], "-f", "json")):
        process = cli.start(*args, cwd=tmp_path)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        process.stderr.close()
        assert (process.wait(cli.DEADLINE_S), said) == (1, "")


def test_of_two_lines_of_a_map_the_first_that_fits_wins_and_an_exact_name_before_both(tmp_path: Path) -> None:
    for side, names in (("good", ("a.x.w", "a.y.w")), ("bad", ("c.x", "exact"))):
        (tmp_path / side).mkdir()
        for number, name in enumerate(names):
            np.save(tmp_path / side / f"{name}.npy", np.full(5, number, np.float32))
        settled(tmp_path / side)
    (tmp_path / "map.toml").write_text('"a.*.w" = "c.*"\n"a.*" = "d.*"\n"a.y.w" = "exact"\n')
    found = document(cli.run("compare-dumps", "good", "bad", "--map", "map.toml", "-f", "json", cwd=tmp_path))
    assert (found["verdict"], found["counts"]["pairs"], found["unpaired"]) == ("same", 2, [])
    (tmp_path / "map.toml").write_text('"a.*.*" = "c.*"\n')
    refused = cli.run("compare-dumps", "good", "bad", "--map", "map.toml", cwd=tmp_path)
    assert refused.code == 2 and "one * on each side, or none" in refused.err


def test_a_single_dump_is_evidence_too(tmp_path: Path) -> None:
    good, _ = pair()
    good.block((0, 0, "k"), 0)[0, 0, 0] = np.nan
    dumps(tmp_path, good=good)
    said = cli.run("query", "good", "SELECT name, layer, role, dtype, shape, nan FROM tensors WHERE nan > 0", "-f", "json", cwd=tmp_path)
    assert json.loads(said.out)["rows"] == [{"name": "layers.0.k_cache", "layer": 0, "role": "k", "dtype": "float32", "shape": "12x16x2x32", "nan": 1}]


def test_what_could_not_be_compared_is_not_called_the_same(tmp_path: Path) -> None:
    for side in ("good", "bad"):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "x.npy", np.ones(9, np.float32))
    np.save(tmp_path / "bad" / "alone.npy", np.ones(3, np.float32))
    said = cli.run("compare-dumps", "good", "bad", cwd=tmp_path)
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == "SAME: 1 tensor that could be compared, 1 could not"
    assert "--map" not in said.out, "only one side has tensors left"
    np.save(tmp_path / "good" / "lone.npy", np.ones(3, np.float32))
    part, as_json = cli.run_all(("compare-dumps", "good", "bad"), ("compare-dumps", "good", "bad", "-f", "json"), cwd=tmp_path)
    assert (part.code, part.out.splitlines()[0]) == (0, "1 of 3 tensors compared: SAME as far as that goes: 1 tensor")
    assert "say so with --map FILE" in " ".join(part.out.split())
    counts = document(as_json)["counts"]
    assert (counts["tensors"], counts["not_compared"]) == (1, 2)


def test_nan_in_both_runs_is_said(tmp_path: Path) -> None:
    values = np.ones((9, 4), np.float32)
    values[2, 1] = np.nan
    for side in ("good", "bad"):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "x.npy", values)
        np.save(tmp_path / side / "y.npy", np.ones(3, np.float32))
        settled(tmp_path / side)
    said = cli.run("compare-dumps", "good", "bad", cwd=tmp_path)
    assert (said.code, said.out.splitlines()[0]) == (0, "SAME: all 2 tensors, 1 of them with NaN or Inf in both runs")
    assert "NaN 1 tensor holds NaN or Inf in both runs, x:" in " ".join(said.out.split())


def test_a_printed_query_of_the_pairs_works_as_it_stands(tmp_path: Path) -> None:
    good, bad = pair()
    bad.block((0, 1, "k"), 1)[0, 0, 0] = np.nan
    path = dumps(tmp_path / "two runs", good=good, bad=bad)
    plain, written = cli.run_all(
        ("compare-dumps", path["good"], path["bad"], "-f", "json"), ("compare-dumps", path["good"], path["bad"], "-f", "json", "-o", "mine.json"), cwd=tmp_path
    )
    for said, cited in ((plain, "(this comparison)#pairs["), (written, "mine.json#pairs[")):
        found = document(said)["diagnosis"]["findings"][0]
        assert found["rule"] == "nan-origin"
        assert found["evidence"][0]["rows"][0]["source"].startswith(cited)
        commands = [shlex.split(command)[1:] for command in found["actions"][0]["run"].split("; ")]
        assert [command[0] for command in commands] == (["compare-dumps", "query"] if said is plain else ["query"])
        answers = [cli.run(*command, cwd=tmp_path) for command in commands]
        assert answers[-1].code == 0 and "layers.1.k_cache" in answers[-1].out, answers[-1]
    text = cli.run("compare-dumps", path["good"], path["bad"], cwd=tmp_path).out
    for noise in ("host unknown", "pid unknown", "paused at most", "llmdiag snapshot"):
        assert noise not in text, noise
    assert "dumps good and bad" in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_file_that_could_not_be_read_is_never_called_the_same(form: str, tmp_path: Path) -> None:
    """Where all that was compared is equal, only the exit code tells a script."""
    for side in ("good", "bad"):
        (tmp_path / side).mkdir()
        for name in ("a", "t"):
            np.save(tmp_path / side / f"{name}.npy", np.arange(512, dtype=np.float32))
    cut = tmp_path / "bad" / "t.npy"
    cut.write_bytes(cut.read_bytes()[:500])
    said = cli.run("compare-dumps", str(tmp_path / "good"), str(tmp_path / "bad"), "-f", form, cwd=tmp_path)
    assert said.code == 2 and "error: 1 file could not be read, first" in said.err and "t.npy" in said.err, said
    assert (document(said)["verdict"] if form == "json" else said.out[:4]) in ("same", "SAME", "1 of")
    np.save(tmp_path / "bad" / "a.npy", np.ones(512, dtype=np.float32))
    assert cli.run("compare-dumps", str(tmp_path / "good"), str(tmp_path / "bad"), "-f", form, cwd=tmp_path).code == 1
