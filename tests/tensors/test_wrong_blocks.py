"""What the rules read of wrong blocks: which of them no kernel and no other prompt explains, and why."""

from pathlib import Path
from typing import Any

import numpy as np

from diag import evidence
from diag.report import tensors as report
from diag.sources import sources_of
from tests.tensors.world import LAYERS, Run, compared, pair, request, run


def told(folder: Path, good: Run, bad: Run, donor: Run | None = None) -> list[dict[str, Any]]:
    """The rows over the document of that comparison, as `llmdiag query` would give them."""
    path = folder / "c.json"
    path.write_bytes(b"".join(report.document(compared(folder / "w", good, bad, {} if donor is None else {"donor": donor}))))
    collectors = evidence.collectors_of(evidence.Extras())
    loaded = evidence.load(sources_of([path], collectors), collectors, evidence.Extras())
    rows, _ = loaded.rows("SELECT block, later_right, owned, telling, why FROM wrong_blocks ORDER BY block", "test", 100)
    return [dict(row) for row in rows]


def followed(shares: dict[int, float]) -> tuple[Run, Run, Run]:
    """Block 1 is another request's; blocks behind it were computed from it: off by such a share from layer 1 on."""
    good, bad = pair()
    donor = run(request(2), (3, 4, 9, 10))
    chance = np.random.default_rng(4)
    for key in bad.pools:
        bad.block(key, 1)[:] = donor.block(key, 2)
        for index, share in shares.items() if key[1] else ():
            block = bad.block(key, index)
            block += (share * chance.standard_normal(block.shape)).astype(block.dtype)
    return good, bad, donor


def test_an_exact_block_of_another_request_tells_though_all_behind_it_are_off(tmp_path: Path) -> None:
    good, bad, donor = followed({2: 1.0, 3: 1.0})
    first, *rest = told(tmp_path, good, bad, donor)
    assert first == {"block": 1, "later_right": 0, "owned": True, "telling": True, "why": "it is block 2 of donor, in each of them"}
    assert [(row["block"], row["telling"]) for row in rest] == [(2, False), (3, False)]


def test_close_with_a_doubt_is_not_the_same(tmp_path: Path) -> None:
    good, bad, _ = followed({2: 0.1, 3: 0.1})
    rows = told(tmp_path, good, bad)
    assert rows == [{"block": 1, "later_right": 0, "owned": False, "telling": False, "why": None}], rows


def test_blocks_behind_it_that_are_the_same_tell_as_well(tmp_path: Path) -> None:
    good, bad, _ = followed({3: 0.1})
    rows = told(tmp_path, good, bad)
    assert (rows[0]["telling"], rows[0]["why"]) == (True, "1 of 2 blocks behind it are the same in the last one"), rows


def test_a_block_of_another_request_in_one_layer_alone_is_not_owned(tmp_path: Path) -> None:
    good, bad, donor = followed({2: 1.0, 3: 1.0})
    for key in bad.pools:
        if key[1] < LAYERS - 1:
            bad.block(key, 1)[:] = good.block(key, 1)
    rows = told(tmp_path, good, bad, donor)
    assert not any(row["telling"] for row in rows), rows


def test_another_prompt_that_begins_like_a_donor_s_is_not_owned(tmp_path: Path) -> None:
    good, bad, donor = followed({2: 1.0, 3: 1.0})
    good.extra["input_ids"], bad.extra["input_ids"] = np.arange(60), np.arange(60) + 7
    rows = told(tmp_path, good, bad, donor)
    assert rows and not any(row["telling"] for row in rows), rows
