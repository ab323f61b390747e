"""The owner of a wrong block is the one that wrote it, not a fellow victim that read it as the bad run did."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diag.tensors.result import Alias, Comparison
from tests.tensors.world import BLOCK, Run, compared, pair, request, run

LAST = 12
"""Rows of the request's last block."""


def filling(one: Run, tokens: Sequence[int]) -> Run:
    """With the slots that its dumped step fills: those of these tokens."""
    one.extra["slot_mapping"] = np.array([one.table[token // BLOCK] * BLOCK + token % BLOCK for token in tokens], np.int64)
    return one


def case(written: Sequence[int]) -> tuple[Run, Run, dict[str, Run]]:
    """Block 2 of the bad run has 12 rows of block 3 of request-1; request-2 and request-3 ask the same again and read the same."""
    good, bad = pair()
    theirs = request(2)
    victims = [run(request(1), (7, 5, 8, 6), 91) for _ in range(2)]
    for one in (bad, *victims):
        for key in one.pools:
            one.block(key, 2)[:LAST] = theirs[key][3 * BLOCK :]
    donors = {f"request-{number}": filling(one, range(48, 60)) for number, one in enumerate(victims, 2)}
    return good, bad, {"request-1": filling(run(theirs, (9, 10, 11, 8)), written), **donors}


def owners(found: Comparison) -> set[tuple[str | None, int | None, int, tuple[str, ...], bool]]:
    known: list[Alias] = [item.alias for item in found.results if item.alias is not None]
    return {(one.request, one.block, one.rows, one.readers, one.only_read) for one in known}


def test_the_one_that_wrote_the_block_is_named_before_those_that_have_more_rows_of_it(tmp_path: Path) -> None:
    good, bad, donors = case(range(48, 60))
    assert owners(found := compared(tmp_path / "w", good, bad, donors)) == {("request-1", 3, LAST, ("request-2", "request-3"), False)}
    assert found.first is not None
    assert found.first.result.detail == "12 of 16 rows are of block 3 of request-1, also read by request-2, request-3"


def test_a_writer_that_was_dumped_before_it_had_written_most_of_it_is_named(tmp_path: Path) -> None:
    good, bad, donors = case(())
    donors["request-1"].tokens = 50
    filling(donors["request-1"], (48, 49))
    assert owners(compared(tmp_path / "w", good, bad, donors)) == {("request-1", 3, 2, ("request-2", "request-3"), False)}


def test_where_nobody_wrote_it_the_readers_are_no_owners(tmp_path: Path) -> None:
    good, bad, donors = case(())
    del donors["request-1"]
    found = compared(tmp_path / "w", good, bad, donors)
    assert owners(found) == {("request-2", 2, BLOCK, (), True)}
    assert found.first is not None
    assert (found.first.result.detail or "").endswith("whose dumped step only read it there, too: who wrote it is not among the donors")


def test_a_few_words_in_common_do_not_make_a_writer(tmp_path: Path) -> None:
    """Rows that were written over since: not all that its step wrote are there."""
    good, bad, donors = case(())
    stranger = request(7)
    for key in bad.pools:
        stranger[key][BLOCK : BLOCK + 3] = bad.block(key, 2)[:3]
    donors["request-1"] = filling(run(stranger, (9, 10, 11, 8)), range(60))
    assert owners(compared(tmp_path / "w", good, bad, donors)) == {("request-2", 2, BLOCK, (), True)}


def test_the_good_run_s_own_block_comes_before_a_donor_that_wrote_the_same(tmp_path: Path) -> None:
    """Two blocks of the request changed over; a donor began with the same prompt."""
    good, bad = pair()
    for key in bad.pools:
        for here, there in ((0, 1), (1, 0)):
            bad.block(key, here)[:] = good.block(key, there)
    found = compared(tmp_path / "w", good, bad, {"request-1": filling(run(request(1), (9, 10, 11, 8)), range(60))})
    assert {item.verdict for item in found.results if item.block in (0, 1)} == {"permuted"}


def test_one_that_holds_all_of_it_elsewhere_comes_before_one_that_wrote_a_part(tmp_path: Path) -> None:
    good, bad = pair()
    theirs, like = request(2), request(3)
    for key in bad.pools:
        bad.block(key, 1)[:] = theirs[key][:BLOCK]
        like[key][2 * BLOCK : 2 * BLOCK + 9] = theirs[key][:9]
    donors = {"owner": filling(run(theirs, (9, 10, 11, 8)), range(48, 60)), "alike": filling(run(like, (9, 10, 11, 8)), range(60))}
    assert owners(compared(tmp_path / "w", good, bad, donors)) == {("owner", 0, BLOCK, (), False)}
