"""What vLLM's own cache manager published and answered: replayed exactly, accused of nothing, until something is spoilt."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from diag import evidence
from diag.collectors import lookups
from diag.errors import Garbled
from diag.lookups import hash_check, invariants
from diag.lookups.events import Event
from diag.lookups.frames import event_of, records
from diag.model import Artefact
from tests.conftest import SAMPLES

FOLDER = SAMPLES / "vllm-kv-events"


def recorded(name: str) -> list[Event]:
    frame = evidence.open_paths([FOLDER / name / "kv-events.frames"]).frame("kv_events").sort_values("ord")
    return [event_of(row) for row in records(frame)]


def replayed(folder: Path) -> list[tuple[object, ...]]:
    case = evidence.open_paths([folder])
    rows = case.rows("SELECT request, linear_hit, binary_hit, engine_hit, follows, hole FROM lookup_replay ORDER BY ts", "test", 100)[0]
    assert case.rows("SELECT * FROM lookup_violations WHERE invariant <> 'hit-after-miss'", "test", 9)[0] == []
    return [tuple(row.values()) for row in rows]


def test_the_engine_answers_what_a_walk_over_its_events_answers() -> None:
    found = replayed(FOLDER / "walk")
    assert len(found) == 24, "all but the first request, before which there was no event"
    assert [row[1] for row in found] == [row[3] for row in found]
    assert sum(int(str(row[3])) for row in found) > 20, "the cache was used"
    assert {row[5] for row in found} == {None}


def test_the_search_of_v0_is_recognised_by_its_answers() -> None:
    found = [row for row in replayed(FOLDER / "bisect") if row[5] is not None]
    assert found == [("r5", 0, 4, 4, "binary", 0), ("r17", 0, 6, 6, "binary", 0), ("r23", 0, 5, 5, "binary", 0)]


def test_its_hashes_are_the_hashes_of_its_tokens() -> None:
    """Announced as numbers of 64 bits, with and without a salt; one token more or less, and the block is named."""
    events = recorded("walk")
    stored = [event for event in events if event.kind == "stored"]
    assert len(stored) > 50
    assert any(event.extra is not None for event in stored)
    assert list(hash_check.check(events)) == []
    for number in random.Random(1).sample(range(len(stored)), 10):
        tokens = stored[number].tokens or ()
        spoilt = [replace(event, tokens=(tokens[0] + 1, *tokens[1:])) if event is stored[number] else event for event in events]
        found = [item for item in hash_check.check(spoilt) if item.source == stored[number].source and item.block_hash == stored[number].block_hash]
        assert [item.invariant for item in found] == ["wrong-hash"], number


def test_its_events_keep_every_invariant() -> None:
    for name in ("walk", "bisect"):
        found = [item for item in invariants.of_events(recorded(name)) if item.benign is None]
        # evicting a first block by hand leaves children without it, and new ones are stored below them: that is the fault
        assert {item.invariant for item in found} <= ({"orphan-child"} if name == "bisect" else set())


def test_a_message_that_was_lost_excuses_what_follows() -> None:
    events = [event for event in recorded("walk") if event.seq != 3]
    found = list(invariants.of_events(events))
    assert "event-gap" in {item.invariant for item in found}
    assert [item for item in found if item.benign is None] == []


@pytest.mark.parametrize("name", ["kv-events.frames", "lookups.jsonl"])
def test_spoilt_recordings_never_hurt(name: str) -> None:
    chance = random.Random(5)
    whole = (FOLDER / "walk" / name).read_bytes()
    for _ in range(150):
        data = bytearray(whole[: chance.randrange(200, len(whole))])
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            for table, row in lookups.parse([Artefact.of_bytes(name, "lookups", bytes(data))]):
                assert table in ("kv_events", "block_lookups", "lookup_hits", "collected")
                assert table == "collected" or isinstance(row["source"], str)
        except Garbled as error:
            assert name in error.message
