"""cached_errors: by values of a cache, and by an access log alone."""

import pytest

from diag.derive import cached_errors
from tests.derive.frames import Row, derived
from tests.restarts.told import at

ERROR: Row = {"ts": at(0), "path": "/v1/x", "status": 502, "bytes": 274, "source": "a.jsonl:1"}
HIT: Row = {"path": "/v1/x", "status": 200, "bytes": 274, "cached": True}
HITS = [{**HIT, "ts": at(second)} for second in (10, 20, 30)]


def paths(*rows: Row) -> list[object]:
    return [(row["family"], row["keys"], row["bytes"], row["source"]) for row in derived(cached_errors, cache_keys=[], http_events=list(rows))["cached_errors"]]


def test_an_error_and_its_size_again_and_again_out_of_the_cache() -> None:
    assert paths(ERROR, *HITS) == [("/v1/x", 3, 274, "a.jsonl:1")]
    assert paths(ERROR, {**ERROR, "ts": at(5)}, *HITS) == [("/v1/x", 3, 274, "a.jsonl:1")], "one error, one row"


@pytest.mark.parametrize("change", [{"bytes": 275}, {"path": "/v1/y"}, {"cached": None}, {"cached": False}, {"status": 502}, {"ts": at(-5)}, {"ts": None}, {"capture": "2"}, {"bytes": None}])
def test_fewer_than_three_of_them_are_chance(change: Row) -> None:
    assert paths(ERROR, *HITS[:2], {**HITS[2], **change}) == []


@pytest.mark.parametrize("change", [{"status": 200}, {"bytes": None}, {"cached": True}, {"ts": at(15)}])
def test_without_the_error_before_them_hits_are_hits(change: Row) -> None:
    assert paths({**ERROR, **change}, *HITS) == []


def test_keys_of_a_family_are_one_row() -> None:
    key: Row = {"target": "redis://h:1", "db": 0, "family": "llm:<hex>", "key": "llm:b", "verdict": "ghost", "reasons": "error-cached", "bytes": 90}
    rows = derived(cached_errors, cache_keys=[key, {**key, "key": "llm:a"}, {**key, "verdict": "ok"}, {**key, "reasons": "truncated"}], http_events=[])["cached_errors"]
    assert [(row["target"], row["family"], row["keys"], row["bytes"], row["what"]) for row in rows] == [
        ("redis://h:1", "llm:<hex>", 2, 180, "2 stored errors in llm:<hex> (redis://h:1 db 0), for example llm:a"),
    ]
