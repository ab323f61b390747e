"""Both searches over masks: the C++ loop is the same as Python's bisect, and what it cannot see is what it does not look at."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.lookups.replay import blind_spots, linear, lower_bound, replay

MASKS = st.lists(st.booleans(), max_size=200)


@pytest.mark.parametrize(
    ("mask", "binary", "walk", "hole"),
    [
        ([], 0, 0, None),
        ([0], 0, 0, None),
        ([1], 1, 1, None),
        ([0, 1, 1], 3, 0, 0),
        ([1, 0, 1], 1, 1, None),
        ([1, 0, 1, 1], 4, 1, 1),
        ([0, 0, 0, 1], 0, 0, None),
        ([1, 1, 1, 0], 3, 3, None),
    ],
)
def test_known_answers(mask: list[int], binary: int, walk: int, hole: int | None) -> None:
    found = replay([bool(there) for there in mask])
    assert (found.binary, found.linear, found.hole, found.disagrees) == (binary, walk, hole, binary != walk)


@given(MASKS)
def test_the_loop_is_that_of_bisect(mask: list[bool]) -> None:
    """vLLM V0: bisect_left(block_hashes, True, key=lambda x: not cached(x))."""
    assert lower_bound(mask) == bisect_left(range(len(mask)), True, key=lambda at: not mask[at])


@given(MASKS)
def test_the_search_never_answers_less_than_the_walk(mask: list[bool]) -> None:
    found = replay(mask)
    assert found.binary >= linear(mask)
    assert found.hole == (None if found.binary == found.linear else found.linear)
    assert len(found.probes) <= len(mask).bit_length()


@given(st.integers(0, 300), st.data())
def test_a_hole_is_blind_exactly_where_the_answer_stays(blocks: int, data: st.DataObject) -> None:
    chain = data.draw(st.integers(0, blocks))
    whole = [at < chain for at in range(blocks)]
    by_trying = tuple(at for at in range(chain) if lower_bound([there and n != at for n, there in enumerate(whole)]) == chain)
    assert blind_spots(blocks, chain) == by_trying


def test_blind_spots_of_short_prompts() -> None:
    assert {n: blind_spots(n) for n in range(5)} == {0: (), 1: (), 2: (0,), 3: (0,), 4: (0, 1)}
    with pytest.raises(ValueError, match="5 of 4 blocks"):
        blind_spots(4, 5)
