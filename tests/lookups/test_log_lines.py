"""Logs with lookups: MindIE's lines in every spelling, vLLM's, LMCache's and SGLang's, and llmdiag's own JSON lines."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag import evidence
from diag.collectors import lookups
from diag.errors import Garbled
from diag.evidence import Evidence
from diag.model import Artefact

PREFIXES = (
    "", "[2026-01-05 10:00:03.120] [4711] [4720] [llm] [DEBUG] [prefix_cache_block_allocator.cpp:398] ", "2026-01-05 10:00:03,120 DEBUG ",
    "[2026-01-05 10:00:03.120+00:00][4711][4720][DEBUG]",
)  # fmt: skip


def mindie(binary: Sequence[tuple[int, int | None, int | None]], walk: Sequence[int], lists: Sequence[str], prefix: str = "") -> str:
    """One lookup: (flag, id in the map, computed) per block before the binary answer; flags of the walk; the lists as printed."""
    lines = []
    for position, (flag, block_id, computed) in enumerate(binary):
        lines.append(f"二分IsBlockCached: {flag}")
        if block_id is not None:
            lines.append(f"===> PrefixCacheBlockAllocator blockHash={2**64 - 1 - position} blockIDs ={block_id} is computed:{computed}")
    lines += [f"遍历IsBlockCached: {flag}" for flag in walk]
    lines += [f"二分:{lists[0]}", f"遍历:{lists[1]}"] if lists else []
    return "".join(f"{prefix}{line}\n" for line in lines)


HOLE = mindie([(0, None, None), (1, 12, 1), (1, 13, 1)], [0], ("[12, 13]", "[]"))


def parsed(text: str | bytes, zone: str | None = "UTC") -> tuple[list[Mapping[str, object]], list[Mapping[str, object]]]:
    data = text.encode() if isinstance(text, str) else text
    found = list(lookups.parse([Artefact("log", "lookups", Artefact.of_bytes("log", "lookups", data).opener, None, zone)]))
    return [row for table, row in found if table != "collected"], [row for table, row in found if table == "collected"]


def opened(tmp_path: Path, text: str | bytes, name: str = "lookups.log") -> Evidence:
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return evidence.open_paths([tmp_path / name])


def replayed(case: Evidence) -> list[tuple[object, ...]]:
    """(mask, walk, binary, hole, disagrees) of every lookup."""
    rows = case.rows("SELECT mask, linear_hit, binary_hit, hole, disagrees FROM lookup_replay ORDER BY length(source), source", "test", 100)[0]
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_incident_with_any_prefix(tmp_path: Path, prefix: str) -> None:
    case = opened(tmp_path, HOLE.replace("\n", "\n" + prefix).join((prefix, ""))[: -len(prefix) or None])
    assert replayed(case) == [("011", 0, 3, 0, True)]
    (row,) = case.rows("SELECT binary_ids, linear_ids, why, behind, blind, basis FROM lookup_replay", "test", 2)[0]
    assert row == {"binary_ids": "12 13", "linear_ids": "", "why": "not cached", "behind": 2, "blind": "0", "basis": "flags"}
    hashes = case.rows("SELECT block_hash FROM block_lookups WHERE method = 'binary' AND position > 0 ORDER BY position", "test", 9)[0]
    assert [row["block_hash"] for row in hashes] == ["18446744073709551614", "18446744073709551613"], "beyond what 64 signed bits hold"


@pytest.mark.parametrize("lists", [("[12, 13]", "[]"), ("12 13", ""), ("12,13,", " "), ("{12; 13}", "{}"), (" [12 13 ] ", " [ ]"), (" (12、13)", "()")])
@pytest.mark.parametrize("colon", [":", ": ", ":"])
def test_lists_in_any_spelling(lists: tuple[str, str], colon: str) -> None:
    text = mindie([(0, None, None), (1, 12, 1), (1, 13, 1)], [0], lists).replace(":", colon)
    rows, said = parsed(text)
    assert [row["listed"] for row in rows if "listed" in row] == ["12 13", ""]
    assert {item["table_name"]: item["status"] for item in said} == {"block_lookups": "ok", "lookup_hits": "ok"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (mindie([(1, 4, 1), (0, None, None), (1, 6, 1), (1, 7, 1)], [1, 0], ("4 6 7", "4")), ("1011", 1, 4, 1, True)),
        (mindie([(1, 4, 1), (1, 5, 0), (1, 6, 1)], [1, 0], ("4 5 6", "4")), ("101", 1, 3, 1, True)),
        (mindie([(1, 4, 1), (0, 5, 0), (1, 6, 1)], [1, 0], ("4 5 6", "4")), ("101", 1, 3, 1, True)),
        (mindie([(1, 4, 1), (1, 5, 1)], [1, 1, 0], ("4 5", "4 5")), ("110", 2, 2, None, False)),
        (mindie([(1, 4, 1), (1, 5, 1)], [1, 1], ("4 5", "4 5")), ("11", 2, 2, None, False)),
        (mindie([], [0], ("", "")), ("0", 0, 0, None, False)),
        (mindie([(1, 4, 1)], [1, 0], ("4", "4")), ("10", 1, 1, None, False)),
    ],
    ids=["hole at 1", "not computed", "not computed, told by both", "prefix", "whole", "miss", "one block"],
)
def test_masks(tmp_path: Path, text: str, wanted: tuple[object, ...]) -> None:
    assert replayed(opened(tmp_path, text)) == [wanted]


def test_several_lookups_of_two_writers_that_take_turns(tmp_path: Path) -> None:
    one = mindie([(0, None, None), (1, 12, 1), (1, 13, 1)], [0], ("12 13", ""), "[2026-01-05 10:00:03] [11] [1] ").splitlines(keepends=True)
    two = mindie([(1, 4, 1)], [1, 0], ("4", "4"), "[2026-01-05 10:00:03] [11] [2] ").splitlines(keepends=True)
    mixed = "".join(line for pair in zip(one, two, strict=False) for line in pair) + "".join(one[len(two) :])
    assert replayed(opened(tmp_path, mixed + "".join(two) + HOLE)) == [
        ("011", 0, 3, 0, True), ("10", 1, 1, None, False), ("10", 1, 1, None, False), ("011", 0, 3, 0, True),
    ]  # fmt: skip


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lookup_whose_beginning_is_missing_is_left_out_and_said(lost: int) -> None:
    """What is left of [0,1,1] may look like a healthy [1,1]: it is neither used to accuse nor to acquit."""
    rest = "".join(HOLE.splitlines(keepends=True)[lost:])
    rows, said = parsed(rest + HOLE)
    assert [row["position"] for row in rows if row.get("method") == "binary" and "position" in row] == [0, 1, 2]
    (about,) = (item for item in said if item["table_name"] == "block_lookups")
    assert about["status"] == "partial"
    assert "1 of 2 lookups in log contradict themselves (first at line " in str(about["reason"])


def test_lists_alone_still_tell_that_they_differ(tmp_path: Path) -> None:
    case = opened(tmp_path, "二分IsBlockCached: 1\n二分:[12, 13]\n遍历:[]\n")
    assert replayed(case) == [(None, 0, 2, None, True)]


def test_a_line_shortly_before_names_the_request(tmp_path: Path) -> None:
    prefix = "[2026-01-05 10:00:03] [11] [1] "
    hole = mindie([(0, None, None), (1, 12, 1)], [0], ("12", ""), prefix)
    other = "[2026-01-05 10:00:03] [11] [2] schedule prefill, requestId=cmpl-9\n"
    case = opened(tmp_path, f"{prefix}schedule prefill, requestId=cmpl-7\n{other}{hole}{hole}{prefix}requestId: \"x\"\n" + "\n" * 30 + hole)
    assert [row["request"] for row in case.rows("SELECT request FROM lookup_replay ORDER BY length(source), source", "test", 9)[0]] == ["cmpl-7", None, None]


def test_a_log_in_gbk(tmp_path: Path) -> None:
    data = ("启动\n" + HOLE).encode("gb18030")
    assert lookups.recognise("x.log", data)
    assert replayed(opened(tmp_path, data)) == [("011", 0, 3, 0, True)]


def test_an_engine_log_stays_one_and_is_read_twice(tmp_path: Path) -> None:
    """The engine's own lines become log events all the same."""
    lines = "".join(f"[2026-01-05 10:00:0{n}] ERROR: something went wrong {n}\n" for n in range(5))
    case = opened(tmp_path, lines + mindie([(0, None, None), (1, 12, 1), (1, 13, 1)], [0], ("12 13", ""), "[2026-01-05 10:00:07] "))
    assert len(case.frame("log_events")) == 5
    assert replayed(case) == [("011", 0, 3, 0, True)]
    ((ts,),) = case.connection.execute("SELECT ts FROM lookup_replay").fetchall()
    assert ts == datetime.datetime(2026, 1, 5, 10, 0, 7)


def test_a_log_without_lookups_says_nothing_of_them(tmp_path: Path) -> None:
    case = opened(tmp_path, "".join(f"[2026-01-05 10:00:0{n}] ERROR: something went wrong\n" for n in range(5)))
    assert [item.status for item in case.collected if item.table_name == "block_lookups"] == []
    assert "block_lookups" in case.unseen(case.reads("SELECT * FROM lookup_replay", "test"))


def test_hit_lengths_of_vllm_lmcache_and_sglang() -> None:
    rows, _ = parsed(
        "(EngineCore pid=9) INFO 11-30 02:52:45 [vllm_v1_adapter.py:1228] Reqid: cmpl-7, Total tokens 512, "
        "Inference Engine computed tokens: 48, LMCache hit tokens: 256, need to load: 208\n"
        "2026-11-30 02:52:45,123 LMCache INFO: Reqid: cmpl-8, Total tokens 512, LMCache hit tokens: 512, need to load: 511\n"
        "DEBUG 11-30 02:52:45 [block_pool.py:425] EmitCachedBlock event: block_size=16, num_cached_blocks=3, parent_block_hash=None, "
        "token_ids_len=48, group_idx=0\n"
        "[2026-11-30 02:52:45 TP0] Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 42, token usage: 0.00, #running-req: 0, #queue-req: 0, \n"
        "[2026-11-30 02:52:46 TP0] Prefill batch. #new-seq: 2, #new-token: 6, #cached-token: 42, token usage: 0.00, #running-req: 0, #queue-req: 0, \n"
    )
    found = [tuple(row.get(name) for name in ("cache", "request", "hit_tokens", "prompt_tokens", "block_size")) for row in rows]
    assert found == [
        ("lmcache", "cmpl-7", 256, 512, None), ("vllm", "cmpl-7", 48, 512, None), ("lmcache", "cmpl-8", 512, 512, None),
        ("vllm", None, 48, None, 16), ("sglang", None, 42, None, None),
    ]  # fmt: skip


OWN = (
    '{"request": "r7", "method": "binary", "position": 0, "block_hash": 18446744073709551615, "cached": false, "hit": true, "ts": 1796007298.3}\n'
    '{"request": "r7", "method": "binary", "position": 1, "block_hash": "22", "block_id": 12, "cached": true, "computed": true, "hit": true}\n'
    '{"request": "r7", "method": "engine", "position": 0, "hit": true}\n{"request": "r7", "method": "engine", "position": 1, "hit": true}\n'
)


def test_own_lines(tmp_path: Path) -> None:
    case = opened(tmp_path, OWN, "l.jsonl")
    assert replayed(case) == [("01", 0, 2, 0, True)]
    (row,) = case.rows("SELECT engine_hit, follows, request, ts FROM lookup_replay", "test", 2)[0]
    assert (row["engine_hit"], row["follows"], row["request"]) == (2, "binary", "r7")
    assert str(row["ts"]) == "2026-11-30 02:54:58.300000"


def test_the_same_request_again_is_another_lookup(tmp_path: Path) -> None:
    assert len(replayed(opened(tmp_path, OWN + OWN, "l.jsonl"))) == 2


@pytest.mark.parametrize("line", ['{"method": "guess", "position": 1}', "{", '{"method": "engine", "position": -1}', '{"method": "engine", "position": 1, "ts": "x"}'])
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(Garbled, match=r"^log:5 is not a lookup: "):
        parsed(OWN + line + "\n")


@pytest.mark.parametrize("text", ["", "\n", "{}\n", '{"method": "engine"}\n', "hello 二 分\n", '{"position": 1}\n', '{"artefact":"gpu"}\n'])
def test_other_files_are_not_claimed(text: str) -> None:
    assert not lookups.recognise("x", text.encode())


@given(st.lists(st.sampled_from([*HOLE.splitlines(), "二分:", "遍历:[1", "===> PrefixCacheBlockAllocator blockHash=", "遍历IsBlockCached: 1", "二分IsBlockCached: 2", "\x00", "�"]), max_size=30))
def test_lines_in_any_order_are_rows_or_a_sentence(lines: list[str]) -> None:
    rows, said = parsed("\n".join(lines))
    assert all(row["lookup"] and row["method"] in ("binary", "linear") for row in rows)
    assert {item["status"] for item in said} <= {"ok", "partial"}
    positions = [(row["lookup"], row["method"], row["position"]) for row in rows if "position" in row]
    assert len(set(positions)) == len(positions)
