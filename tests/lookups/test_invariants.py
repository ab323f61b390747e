"""What no sound cache would do: each kind of fault is found, and each harmless cause takes its edge off."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag import evidence
from diag.evidence import Evidence
from diag.lookups import invariants
from diag.lookups.events import Cache, Event
from diag.lookups.invariants import Hit, Look, Violation

HASHES = tuple("abcdef")


def stored(n: int, **changes: object) -> Event:
    """Block n of a chain, of four tokens."""
    plain = Event("stored", f"e:{n}", HASHES[n], HASHES[n - 1] if n else None, tuple(range(4 * n, 4 * n + 4)), seq=n, ts=float(n), event_tokens=4, event_blocks=1, block_size=4)
    return replace(plain, **changes)  # type: ignore[arg-type]


def removed(n: int, seq: int, **changes: object) -> Event:
    return replace(Event("removed", f"e:{seq}", HASHES[n], seq=seq, ts=float(seq)), **changes)  # type: ignore[arg-type]


def found(events: Sequence[Event]) -> list[tuple[str, str, bool]]:
    return [(item.invariant, item.source, item.benign is None) for item in invariants.of_events(events)]


def test_an_honest_recording_has_none() -> None:
    assert found([*map(stored, range(4)), removed(3, 4), removed(2, 5), stored(2, seq=6, ts=6.0), stored(3, seq=7, ts=7.0)]) == []


def test_duplicates_are_legal() -> None:
    """Two physical blocks with the same content: the same hash is stored twice, and removed twice."""
    assert found([stored(0), stored(1), stored(1, seq=2, ts=2.0), removed(1, 3), removed(1, 4)]) == []


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([stored(0), stored(1, seq=3)], ("event-gap", "e:1", False)),
        ([stored(0, ts=9.0), stored(1)], ("event-gap", "e:1", False)),
        ([stored(0), stored(1, event_tokens=12)], ("token-count", "e:1", True)),
        ([stored(0), stored(1, event_tokens=3)], ("token-count", "e:1", False)),
        ([stored(0), stored(1, event_tokens=12, spec_kind="mamba")], ("token-count", "e:1", False)),
        ([stored(0), stored(2, seq=1)], ("orphan-child", "e:2", True)),
        ([stored(0), stored(1), removed(1, 2), stored(2, seq=3, ts=3.0)], ("orphan-child", "e:2", True)),
        ([stored(0, seq=7), stored(2, seq=8)], ("orphan-child", "e:2", False)),
        ([stored(0, seq=None), stored(2, seq=None)], ("orphan-child", "e:2", False)),
        ([stored(0), stored(1, tokens=(9, 9, 9, 9)), stored(1, seq=2, ts=2.0, source="x")], ("one-hash-two-contents", "x", True)),
        ([stored(0), stored(1), stored(1, seq=2, ts=2.0, parent=None, source="x")], ("one-hash-two-contents", "x", True)),
        ([stored(0), stored(0, seq=1, lora="adapter", source="x")], ("one-hash-two-owners", "x", True)),
        ([stored(0), stored(0, seq=1, extra='["salt"]', source="x")], ("one-hash-two-owners", "x", True)),
        ([stored(0), removed(1, 1)], ("removed-unknown", "e:1", True)),
        ([stored(0, seq=5), removed(1, 6)], ("removed-unknown", "e:6", False)),
    ],
)
def test_what_events_alone_show(events: list[Event], wanted: tuple[str, str, bool]) -> None:
    assert found(events) == [wanted]


def test_after_a_gap_the_state_is_unknown_until_the_cache_is_cleared() -> None:
    gap = [stored(0), stored(2, seq=5, ts=5.0)]
    assert [item[0] for item in found(gap)] == ["event-gap", "orphan-child"]
    assert found([*gap, stored(4, seq=6, ts=6.0)])[-1] == ("orphan-child", "e:4", False)
    assert found([*gap, Event("cleared", "e:6", seq=6, ts=6.0), stored(4, seq=7, ts=7.0)])[-1] == ("orphan-child", "e:4", True)


def test_every_rank_has_a_cache_and_numbers_of_its_own() -> None:
    assert found([stored(0, origin="0"), stored(0, origin="1"), stored(1, origin="0"), stored(1, origin="1")]) == []


def test_what_a_cache_holds() -> None:
    cache = Cache()
    cache.apply(stored(0))
    assert (cache.holds("a"), cache.holds("b")) == (True, False)
    cache.unsure = "a gap"
    assert (cache.holds("a"), cache.holds("b")) == (True, None)
    cache.apply(removed(0, 1))
    assert cache.holds("a") is False, "it was seen to go"
    cache.apply(stored(0))
    cache.apply(stored(0))
    cache.apply(removed(0, 2))
    assert cache.holds("a") is None, "a copy may be left, or the block was announced again when it was reused"
    cache.apply(Event("cleared", "e:3"))
    assert (cache.holds("a"), cache.holds("b")) == (False, False)


# --- lookups ---


def look(position: int, **changes: object) -> Look:
    return replace(Look("l", f"l:{position}", position, True, block_hash=HASHES[position], block_id=position), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        ([look(0), look(1, block_id=0)], ["one-id-two-hashes"]),
        ([look(0), look(1, block_id=0, lookup="m")], []),
        ([look(0), look(0)], []),
        ([look(0, computed=False)], ["hit-not-computed"]),
        ([look(0, computed=False, hit=False)], []),
        ([look(0, computed=False), look(0, computed=False)], ["hit-not-computed"]),
        ([look(0, epoch=2, engine_epoch=3)], ["old-epoch"]),
        ([look(0, epoch=3, engine_epoch=3)], []),
        ([look(0, epoch=3), look(1, epoch=2)], ["old-epoch"]),
        ([look(0, epoch=2), look(1, epoch=3)], []),
        ([look(0, epoch=0, engine_epoch=1)], ["old-epoch"]),
        ([look(0, epoch=2, engine_epoch=3, hit=False)], []),
    ],
)
def test_what_one_lookup_shows(looks: list[Look], wanted: list[str]) -> None:
    assert [item.invariant for item in invariants.of_looks(looks)] == wanted


@pytest.mark.parametrize(
    ("hit", "wanted"),
    [
        (Hit("h:1", 48, "vllm", None, 512, 16), []),
        (Hit("h:1", 47, "vllm", None, 512, 16), ["hit-length"]),
        (Hit("h:1", 47, "vllm", None, 512), ["hit-length"]),
        (Hit("h:1", 47, "lmcache", None, 512), []),
        (Hit("h:1", 512, "vllm", None, 512, 16), ["hit-length"]),
        (Hit("h:1", 512, "lmcache", None, 512), []),
        (Hit("h:1", 0, "vllm", None, 0, 16), []),
    ],
)
def test_lengths_of_hits(hit: Hit, wanted: list[str]) -> None:
    assert [item.invariant for item in invariants.of_hits([hit], 16)] == wanted


def test_a_hit_after_the_cache_was_cleared() -> None:
    events = [stored(0), stored(1), Event("cleared", "e:2", seq=2, ts=2.0), stored(1, seq=3, ts=3.0, parent=None)]
    early, late = look(0, ts=1.5), look(0, ts=4.0)
    assert list(invariants.of_reuse(events, [early])) == []
    (item,) = invariants.of_reuse(events, [early, late, look(1, ts=4.0)])
    assert isinstance(item, Violation)
    assert (item.invariant, item.position, item.block_hash) == ("hit-after-clear", 0, "a")
    assert list(invariants.of_reuse(events, [replace(late, hit=False), replace(late, ts=None)])) == []


# --- events and lookups together, as evidence ---


def case(tmp_path: Path, events: Sequence[Sequence[object]], hit: int, *, ts: float = 50.0, kind: str | None = None, first_seq: int = 0) -> Evidence:
    """Events (one batch each) and a lookup of six blocks of which the engine reused `hit`."""
    lines = []
    for n, event in enumerate(events):
        told: object = list(event)
        if kind is not None and event[0] == "BlockStored":
            told = {"type": event[0], "block_hashes": event[1], "parent_block_hash": event[2], "token_ids": event[3], "block_size": 4, "kv_cache_spec_kind": kind}
        lines.append(json.dumps({"seq": first_seq + n, "ts": float(n), "events": [told]}))
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    looks = [{"request": "r7", "method": "engine", "position": n, "block_hash": n + 1, "hit": n < hit, "ts": ts} for n in range(6)]
    (tmp_path / "lookups.jsonl").write_text("\n".join(map(json.dumps, looks)))
    return evidence.open_paths([tmp_path])


CHAIN = [["BlockStored", [n + 1], n or None, [4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3], 4, None] for n in range(6)]


def seen(case: Evidence) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    replay = case.rows("SELECT basis, mask, linear_hit, binary_hit, engine_hit, follows, hole FROM lookup_replay", "test", 9)[0]
    wrong = case.rows("SELECT invariant, benign IS NULL AS real, position FROM lookup_violations ORDER BY ALL", "test", 99)[0]
    return [tuple(row.values()) for row in replay], [tuple(row.values()) for row in wrong]


def test_the_signature_of_a_binary_search_in_events(tmp_path: Path) -> None:
    """Block 0 is evicted, its children stay, and the engine reuses all six: what a binary search answers."""
    assert seen(case(tmp_path, [*CHAIN, ["BlockRemoved", [1]]], hit=6)) == (
        [("events", "011111", 0, 6, 6, "binary", 0)], [("hit-after-miss", True, 0)],
    )  # fmt: skip


def test_a_hole_that_nobody_crosses_is_legal(tmp_path: Path) -> None:
    assert seen(case(tmp_path, [*CHAIN, ["BlockRemoved", [1]]], hit=0)) == ([("events", "011111", 0, 6, 0, "linear", 0)], [])


def test_before_the_removal_it_was_right(tmp_path: Path) -> None:
    assert seen(case(tmp_path, [*CHAIN, ["BlockRemoved", [1]]], hit=6, ts=5.5)) == ([("events", "111111", 6, 6, 6, None, None)], [])


def test_windowed_attention_may_reuse_behind_a_hole(tmp_path: Path) -> None:
    replay, wrong = seen(case(tmp_path, [*CHAIN, ["BlockRemoved", [1]]], hit=6, kind="sliding_window"))
    assert (replay[0][-1], wrong) == (0, [("hit-after-miss", False, 0)])


def test_a_subscriber_that_came_late_does_not_accuse(tmp_path: Path) -> None:
    """Block 0 was never seen: it may have been stored before the recording began."""
    replay, wrong = seen(case(tmp_path, CHAIN[1:], hit=6, first_seq=9))
    assert replay == []
    assert wrong == [("orphan-child", False, None)]


def test_random_honest_histories_accuse_nobody(tmp_path: Path) -> None:
    """An LRU cache that frees tails first, looked up by a walk."""
    chance = random.Random(3)
    alive: list[int] = []
    events: list[list[object]] = []
    for _ in range(300):
        if len(alive) < 6 and chance.random() < 0.6:
            events.append(CHAIN[len(alive)])
            alive.append(len(alive) + 1)
        elif alive:
            events.append(["BlockRemoved", [alive.pop()]])
    replay, wrong = seen(case(tmp_path, events, hit=len(alive), ts=1e6))
    assert wrong == []
    assert replay[0][2:5] == (len(alive), len(alive), len(alive))
