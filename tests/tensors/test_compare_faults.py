"""Faults put into a run, each with its known answer: verdicts of every block, first divergence, whose content, where it points."""

from pathlib import Path

import numpy as np
import pytest

from diag.errors import BadInput
from diag.tensors.compare import compare
from diag.tensors.cutting import How
from tests.tensors.world import BLOCK, DIM, HEADS, LAYERS, POOL, compared, each, everywhere, opened, pair, request, run, verdicts


def test_equal_runs_are_the_same_though_their_blocks_lie_elsewhere(tmp_path: Path) -> None:
    found = compared(tmp_path / "w", *pair())
    assert found.verdict == "same"
    assert found.first is None
    assert found.scope is None
    assert [item.block for item in found.results if item.layer == 0 and item.role == "k"] == [0, 1, 2, 3]
    assert found.results[-1].bad.shape == (12, HEADS, DIM), "rows behind the context length are not compared"


def test_a_hole_in_the_prefix_that_was_never_written(tmp_path: Path) -> None:
    """The incident: three blocks are hit, the first holds what its previous owner left."""
    good, bad = pair()
    donor = run(request(2), (3, 4, 9, 10))
    for key, pool in bad.pools.items():
        pool[bad.table[0]] = donor.pools[key][donor.table[2]]
    found = compared(tmp_path / "w", good, bad, {"stranger": run(request(3), (0, 1)), "previous": donor})
    assert verdicts(found) == everywhere({0: "aliased"})
    assert found.verdict == "differ"
    assert found.first is not None and found.first.kind == "bad-kv"
    assert (found.first.result.layer, found.first.result.block) == (0, 0)
    for item in found.results:
        if item.verdict == "aliased":
            assert item.alias is not None
            assert (item.alias.dump, item.alias.request, item.alias.block, item.alias.by) == ("previous", "previous", 2, "block")
    assert found.scope is not None
    assert (found.scope.points_at, found.scope.blocks) == ("allocator", (0,))
    assert [item.is_first for item in found.results].count(True) == 1
    assert not any(item.follows for item in found.results), "the same block elsewhere has the same cause"


def test_blocks_behind_the_wrong_one_that_were_computed_with_it_follow(tmp_path: Path) -> None:
    """New tokens attend to the wrong block: their keys and values differ from layer 1 on."""
    good, bad = pair()
    chance = np.random.default_rng(5)
    each(bad, 0, lambda block: block.__setitem__(slice(None), chance.standard_normal(block.shape)))
    each(bad, 3, lambda block: block.__setitem__(slice(None), block + 0.9 * chance.standard_normal(block.shape)), range(1, LAYERS))
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({0: "different"}) | everywhere({3: "different"}, range(1, LAYERS))
    assert found.scope is not None
    assert (found.scope.points_at, found.scope.blocks) == ("allocator", (0,))
    assert {item.block for item in found.results if item.follows} == {3}


def test_swapped_blocks_are_permuted(tmp_path: Path) -> None:
    good, bad = pair()
    bad.table[1], bad.table[2] = bad.table[2], bad.table[1]
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({1: "permuted", 2: "permuted"})
    holds = {(item.block, item.alias.block) for item in found.results if item.alias is not None}
    assert holds == {(1, 2), (2, 1)}
    assert found.scope is not None and found.scope.points_at == "allocator"
    assert not found.twins


def test_one_id_twice_in_the_table_makes_twins(tmp_path: Path) -> None:
    good, bad = pair()
    bad.table[2] = bad.table[1]
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({2: "permuted"})
    assert {(twin.blocks, twin.physical) for twin in found.twins} == {((1, 2), (5, 5))}
    assert len(found.twins) == 2 * LAYERS


def test_a_block_that_was_never_written(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 2, lambda block: block.fill(0))
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({2: "zero"})


def test_a_block_of_a_fill_pattern(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 2, lambda block: block.view(np.uint8).fill(0xCD))
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({2: "different"})
    assert all("never written" in (item.detail or "") for item in found.results if item.block == 2)


def test_nan_in_one_head(tmp_path: Path) -> None:
    good, bad = pair()
    bad.block((0, 2, "v"), 1)[:, 1, :] = np.nan
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == {(2, "v", 1): "nan"}
    (item,) = [item for item in found.results if item.verdict == "nan"]
    assert item.bad.figures is not None and item.bad.figures.nan == BLOCK * DIM
    assert f"{BLOCK * DIM} NaN of {BLOCK * HEADS * DIM}" in (item.detail or "")
    assert found.scope is not None and found.scope.points_at == "kernel-or-transfer"


@pytest.mark.parametrize("shift", [1, 3, -2])
def test_rows_shifted_by_some_tokens(tmp_path: Path, shift: int) -> None:
    good, _ = pair()
    content = {key: np.roll(rows, -shift, axis=0) for key, rows in request(1).items()}
    found = compared(tmp_path / "w", good, run(content, (7, 5, 8, 6), 91))
    assert verdicts(found) == everywhere(dict.fromkeys(range(4), "permuted"))
    assert {item.shift for item in found.results if item.verdict == "permuted"} == {shift}


def test_a_stale_tail_of_a_block(tmp_path: Path) -> None:
    """The first ten rows are the request's, the rest is another's."""
    good, bad = pair()
    donor = run(request(2), (3, 4, 9, 10))
    for key in bad.pools:
        bad.block(key, 1)[10:] = donor.block(key, 2)[10:]
    found = compared(tmp_path / "w", good, bad, {"previous": donor})
    assert verdicts(found) == everywhere({1: "aliased"})
    for item in found.results:
        if item.block == 1:
            assert (item.rows_differ, item.rows_of, item.first_row) == (6, 16, 10)
            assert item.alias is not None
            assert (item.alias.request, item.alias.block, item.alias.by, item.alias.rows) == ("previous", 2, "rows", 6)
    alone = compared(tmp_path / "w", good, bad)
    assert verdicts(alone) == everywhere({1: "different"})
    assert {item.detail for item in alone.results if item.block == 1} == {"rows 0-9 are the good run's, 10-15 hold other content"}


def test_what_lies_behind_the_context_length_is_padding(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 3, lambda block: block[12:].fill(np.nan))
    assert compared(tmp_path / "w", good, bad).verdict == "same"


def test_one_replaced_row_is_found_though_the_cosine_is_high(tmp_path: Path) -> None:
    """8,192 tokens in one block: the cosine of the whole stays at 0.9999."""
    content = request(1, layers=1, tokens=8192)
    other = {key: rows.copy() for key, rows in content.items()}
    other[(0, 0, "k")][5000] = np.random.default_rng(8).standard_normal((HEADS, DIM))
    folders = []
    for name, rows in (("good", content), ("bad", other)):
        folder = tmp_path / name
        folder.mkdir()
        for (_, layer, kind), array in rows.items():
            np.save(folder / f"layers.{layer}.{kind}_cache.npy", array)
        folders.append(opened(folder))
    found = compare(*folders)
    wrong = [item for item in found.results if item.is_wrong]
    assert [(item.role, item.block, item.first_row) for item in wrong] == [("k", 5000 // 16, 5000 % 16)]
    from diag.tensors.compare import Options

    (whole,) = [item for item in compare(*folders, options=Options(How(8192))).results if item.is_wrong]
    assert whole.difference is not None and whole.difference.cosine is not None and whole.difference.cosine > 0.9998
    assert (whole.verdict, whole.rows_differ, whole.first_row) == ("different", 1, 5000)


def test_a_row_that_huge_channels_hide(tmp_path: Path) -> None:
    """Two unrelated rows that share outliers: relative L2 and cosine see nothing."""
    good, bad = pair()
    for one in (good, bad):
        for key in one.pools:
            one.pools[key][:, :, 0, 3] = 3e4
    chance = np.random.default_rng(4)
    for key in bad.pools:
        block = bad.block(key, 1)
        block[...] = chance.standard_normal(block.shape)
        block[:, 0, 3] = 3e4
    found = compared(tmp_path / "w", good, bad)
    wrong = [item for item in found.results if item.is_wrong]
    assert verdicts(found) == everywhere({1: "different"})
    assert all(item.difference is not None and (item.difference.rel_l2 or 1) < 1e-3 for item in wrong)
    assert all(item.rows_differ == 16 for item in wrong)


def test_another_element_type(tmp_path: Path) -> None:
    good, bad = pair()
    bad.pools[(0, 1, "k")] = bad.pools[(0, 1, "k")].astype(np.float64)
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere(dict.fromkeys(range(4), "dtype-mismatch"), [1], "k")
    assert all("values are equal" in (item.detail or "") for item in found.results if item.is_wrong)


def test_types_alone_accuse_nobody(tmp_path: Path) -> None:
    """The same run dumped as float32 and, rounded, as float16: no bad cache, nothing follows, nobody pointed at."""
    good, bad = pair()
    bad.pools = {key: pool.astype(np.float16) for key, pool in bad.pools.items()}
    found = compared(tmp_path / "w", good, bad)
    assert found.first is not None and found.first.kind == "other"
    assert "only the types differ, everywhere (float32 against float16)" in found.first.says
    assert found.scope is None
    assert not any(item.follows for item in found.results)
    each(bad, 1, lambda block: block.fill(1))
    found = compared(tmp_path / "w", good, bad)
    assert found.first is not None and (found.first.kind, found.first.result.block) == ("bad-kv", 1), found.first.says
    assert found.scope is not None and (found.scope.points_at, found.scope.blocks) == ("allocator", (1,))


def test_tokens_and_heads_changed_over_in_place(tmp_path: Path) -> None:
    """Same shape, but the bytes of a block lie head by head."""
    good, bad = pair()
    each(bad, 1, lambda block: block.__setitem__(slice(None), block.transpose(1, 0, 2).reshape(block.shape).copy()))
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({1: "permuted"})
    assert all("tokens and heads" in (item.detail or "") for item in found.results if item.is_wrong)


def test_one_run_nhd_the_other_hnd(tmp_path: Path) -> None:
    good, bad = pair()
    bad.pools = {key: np.ascontiguousarray(pool.transpose(0, 2, 1, 3)) for key, pool in bad.pools.items()}
    found = compared(tmp_path / "w", good, bad)
    assert {item.verdict for item in found.results if item.block is not None} == {"shape-mismatch"}
    assert all("the content is same" in (item.detail or "") for item in found.results if item.block is not None)


def test_only_one_rank_is_bad(tmp_path: Path) -> None:
    good, bad = pair(ranks=4)
    chance = np.random.default_rng(6)
    each(bad, 1, lambda block: block.__setitem__(slice(None), chance.standard_normal(block.shape)), rank=3)
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == {(3, *key): verdict for key, verdict in everywhere({1: "different"}).items()}
    assert found.scope is not None
    assert (found.scope.points_at, found.scope.ranks) == ("rank", (3,))
    assert found.first is not None and (found.first.result.rank, found.first.result.layer, found.first.result.block) == (3, 0, 1)


def test_only_one_layer_is_bad(tmp_path: Path) -> None:
    good, bad = pair()
    chance = np.random.default_rng(6)
    each(bad, 1, lambda block: block.__setitem__(slice(None), chance.standard_normal(block.shape)), [2])
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({1: "different"}, [2])
    assert found.scope is not None
    assert (found.scope.points_at, found.scope.layers) == ("kernel-or-transfer", (2,))


def test_rounding_only_is_close(tmp_path: Path) -> None:
    """The same numbers summed in another order, in half precision, deeper layers noisier."""
    good, bad = pair(dtype="float16")
    chance = np.random.default_rng(7)
    for (rank, layer, kind), pool in bad.pools.items():
        bad.pools[(rank, layer, kind)] = (pool * (1 + 2e-3 * (layer + 1) * chance.standard_normal(pool.shape))).astype(np.float16)
    found = compared(tmp_path / "w", good, bad)
    assert found.verdict == "close"
    assert found.first is None
    assert set(verdicts(found).values()) == {"close"}
    assert not any(item.doubt for item in found.results)


def test_scaled_content_differs_though_the_cosine_is_one(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 0, lambda block: block.__imul__(2))
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({0: "different"})
    assert {item.detail for item in found.results if item.is_wrong} == {"the good run's content times 2"}


def test_minus_zero_is_the_same_value(tmp_path: Path) -> None:
    good, bad = pair()
    good.block((0, 0, "k"), 1)[3] = 0.0
    bad.block((0, 0, "k"), 1)[3] = -0.0
    found = compared(tmp_path / "w", good, bad)
    assert found.verdict == "same"
    (item,) = [item for item in found.results if item.detail is not None]
    assert (item.layer, item.role, item.block) == (0, "k", 1)
    assert item.difference is not None and not item.difference.equal_bits


def test_a_truncated_file_is_named_and_not_compared(tmp_path: Path) -> None:
    good, bad = pair()
    folders = [one.write(tmp_path / name) for name, one in (("good", good), ("bad", bad))]
    cut = folders[1] / "layers.2.v_cache.npy"
    cut.write_bytes(cut.read_bytes()[:-100])
    found = compare(*map(opened, folders))
    assert found.verdict == "same"
    named = [item.source for _, item in found.unread] + [item.tensor.name for item in found.unpaired]
    assert any("layers.2.v_cache" in name for name in named), named
    assert not any(item.layer == 2 and item.role == "v" for item in found.results)


def test_the_same_pool_block_seen_twice_is_nobody_s(tmp_path: Path) -> None:
    """The good dump's pool holds, in the very same block, what the bad run reads: the same memory, if both are of one process."""
    content = request(1)
    good, bad = run(content, (0, 1, 2, 3), 90), run(content, (7, 1, 2, 3), 90)
    for key in bad.pools:
        bad.pools[key][7] = good.pools[key][7]
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({0: "different"})
    assert not any(item.alias for item in found.results)
    assert all("pool block 7 of good holds: the same memory if both are of one process" in (item.detail or "") for item in found.results if item.is_wrong)
    assert found.scope is not None and found.scope.points_at == "allocator"


def test_right_tokens_after_a_wrong_block_are_no_alias(tmp_path: Path) -> None:
    """Blocks 2 and 3 are right in layer 0 and differ above it: they follow from block 1, whoever has the same rows."""
    content = request(1)
    good, bad = run(content, (0, 1, 2, 3), 90), run(content, (7, 5, 8, 6), 91)
    other = run(request(2), (0, 1, 2, 3))
    each(bad, 1, lambda block: block.__setitem__(slice(None), np.random.default_rng(5).standard_normal(block.shape)))
    for key in bad.pools:
        for index in (2, 3) if key[1] else ():
            bad.block(key, index)[:] = other.block(key, index)
    found = compared(tmp_path / "w", good, bad, {"later": other})
    assert verdicts(found) == everywhere({1: "different"}) | everywhere({2: "different", 3: "different"}, range(1, 4))
    assert {item.block for item in found.results if item.follows} >= {2, 3}
    assert not any(item.alias for item in found.results)
    assert found.scope is not None and (found.scope.points_at, found.scope.blocks) == ("allocator", (1,)), found.scope


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    good = pair()[0].write(tmp_path / "good")
    other = tmp_path / "other"
    other.mkdir()
    np.save(other / "something_else.npy", np.zeros(POOL))
    with pytest.raises(BadInput, match="no tensor in common"):
        compare(opened(good), opened(other))


def test_two_runs_of_other_weights_blame_no_donor(tmp_path: Path) -> None:
    """Everything differs: nobody's block is recognised by chance."""
    found = compared(tmp_path / "w", run(request(1), (0, 1, 2, 3)), run(request(50), (7, 5, 8, 6), 91), {"one": run(request(51), (0, 1, 2, 3), 92)})
    assert set(verdicts(found).values()) == {"different"}
    assert not any(item.alias for item in found.results)
