"""KV tensors cut into blocks: every layout that is known gives the same blocks of the same request."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diag.tensors import views
from diag.tensors.cutting import Cut, How, cut, is_kv, parts
from diag.tensors.dump import Tensor
from diag.tensors.measure import content
from diag.tensors.placement import NOWHERE, Placement, Placements, Request
from tests.tensors.world import opened

BLOCK, HEADS, DIM, TOKENS = 16, 4, 8, 40
TABLE = (5, 2, 7)
PLACE = Placement((Request(TABLE, TOKENS),))
Array = npt.NDArray[Any]


def rows(seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((TOKENS, HEADS, DIM)).astype(np.float32)


def pool(values: Array) -> Array:
    """[blocks, tokens, heads, dim]."""
    made = np.full((9, BLOCK, *values.shape[1:]), 7.0, np.float32)
    for index, physical in enumerate(TABLE):
        part = values[index * BLOCK : (index + 1) * BLOCK]
        made[physical, : len(part)] = part
    return made


def described(path: Path, array: Array, role: str | None) -> Tensor:
    np.save(path, np.ascontiguousarray(array))
    return Tensor("cache", array.dtype.name, array.shape, path, offset=128, role=role)  # type: ignore[arg-type]


def told(cut_: Cut | None) -> list[Array]:
    assert cut_ is not None
    return [content(cut_.block(span)).reshape(span.tokens, -1) for span in cut_.spans]


def expected(values: Array) -> list[Array]:
    return [values[start : start + BLOCK].reshape(-1, values[0].size) for start in range(0, TOKENS, BLOCK)]


def assert_blocks(found: Cut | None, values: Array) -> None:
    blocks = told(found)
    assert [len(block) for block in blocks] == [16, 16, 8]
    for block, want in zip(blocks, expected(values), strict=True):
        assert np.array_equal(block, want)


@pytest.mark.parametrize(
    ("name", "make", "how"),
    [
        ("NHD", lambda p: p, How(BLOCK)),
        ("NHD without a block size", lambda p: p, How()),
        ("HND", lambda p: p.transpose(0, 2, 1, 3), How(BLOCK)),
        ("HND without a block size", lambda p: p.transpose(0, 2, 1, 3), How()),
        ("HND said", lambda p: p.transpose(0, 2, 1, 3), How(None, "hnd")),
        ("packed keys", lambda p: p.reshape(9, BLOCK, HEADS, 2, 4).transpose(0, 2, 3, 1, 4), How(BLOCK)),
    ],
)
def test_pools_of_keys(tmp_path: Path, name: str, make: Any, how: How) -> None:
    values = rows()
    tensor = described(tmp_path / "k.npy", make(pool(values)), "k")
    assert parts(tensor) == (tensor,)
    found = cut(tensor, PLACE, how)
    assert_blocks(found, values)
    assert found is not None
    assert [(span.index, span.physical) for span in found.spans] == [(0, 5), (1, 2), (2, 7)]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("hnd", [False, True])
def test_keys_and_values_in_one_pool(tmp_path: Path, axis: int, hnd: bool) -> None:
    keys, values = rows(1), rows(2)
    both = np.stack([pool(keys), pool(values)], axis)
    tensor = described(tmp_path / "kv.npy", both.swapaxes(2, 3) if hnd else both, "kv")
    found = parts(tensor)
    assert [(part.name, part.role) for part in found] == [("cache[k]", "k"), ("cache[v]", "v")]
    for part, want in zip(found, (keys, values), strict=True):
        assert_blocks(cut(part, PLACE, How(BLOCK)), want)


def test_a_latent_pool(tmp_path: Path) -> None:
    values = rows().reshape(TOKENS, HEADS * DIM)
    assert_blocks(cut(described(tmp_path / "kv.npy", pool(values), "kv"), PLACE, How(BLOCK)), values)


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (lambda r: r, How(BLOCK)),
        (lambda r: r.reshape(TOKENS, -1), How(BLOCK)),
        (lambda r: r.transpose(1, 0, 2), How(BLOCK, "hnd")),
        (lambda r: r.transpose(1, 0, 2)[None], How(BLOCK)),
        (lambda r: r[None], How(BLOCK)),
    ],
    ids=["thd", "flat", "htd", "bhtd", "bthd"],
)
def test_sequences(tmp_path: Path, make: Any, how: How) -> None:
    values = rows()
    assert_blocks(cut(described(tmp_path / "k.npy", make(values), "k"), NOWHERE, how), values)


def test_edge_llm_pads_behind_the_context_length(tmp_path: Path) -> None:
    """[requests, 2, heads, longest, dim]."""
    keys, values = rows(1), rows(2)
    both = np.full((2, 2, HEADS, 64, DIM), np.nan, np.float32)
    both[0, 0, :, :TOKENS], both[0, 1, :, :TOKENS] = keys.transpose(1, 0, 2), values.transpose(1, 0, 2)
    both[1, :, :, :5] = 3.0
    tensor = described(tmp_path / "kv.npy", both.swapaxes(0, 1), "kv")
    place = Placement((Request(None, TOKENS), Request(None, 5)))
    found = cut(parts(tensor)[0], place, How(BLOCK))
    assert found is not None
    assert [(span.request, span.index, span.tokens) for span in found.spans] == [(0, 0, 16), (0, 1, 16), (0, 2, 8), (1, 0, 5)]
    for block, want in zip(told(found)[:3], expected(keys), strict=True):
        assert np.array_equal(block, want)


def test_a_batch_in_one_row_and_positions_that_begin_later(tmp_path: Path) -> None:
    tensor = described(tmp_path / "k.npy", rows(), "k")
    batch = cut(tensor, Placement((Request(None, 25), Request(None, 15))), How(BLOCK))
    assert batch is not None
    assert [(span.request, span.index, span.start, span.tokens) for span in batch.spans] == [(0, 0, 0, 16), (0, 1, 16, 9), (1, 0, 25, 15)]
    later = cut(tensor, Placement((Request(None, 60),), positions=(20, TOKENS)), How(BLOCK))
    assert later is not None
    assert [(span.index, span.start, span.tokens, span.token) for span in later.spans] == [(1, 0, 12, 20), (2, 12, 16, 32), (3, 28, 12, 48)]


def test_a_pool_without_a_table_goes_by_physical_id(tmp_path: Path) -> None:
    found = cut(described(tmp_path / "k.npy", pool(rows()), "k"), NOWHERE, How(BLOCK))
    assert found is not None
    assert [span.index for span in found.spans] == list(range(9))
    assert found.straight
    assert "no block table" in found.said


def test_tiled_content_has_blocks_but_no_rows(tmp_path: Path) -> None:
    from dataclasses import replace

    tensor = replace(described(tmp_path / "k.npy", pool(rows()), "k"), tiled="FRACTAL_NZ")
    found = cut(tensor, PLACE, How(BLOCK))
    assert found is not None
    assert found.tiled
    assert [(span.index, span.physical, span.tokens) for span in found.spans] == [(0, 5, 16), (1, 2, 16), (2, 7, 16)]


@pytest.mark.parametrize(
    ("shape", "role", "place", "how", "want"),
    [
        ((9, 16, 4, 8), "k", NOWHERE, How(), True),
        ((9, 16, 4, 8), None, PLACE, How(), True),
        ((9, 16, 4, 8), None, NOWHERE, How(), False),
        ((9, 16, 4, 8), None, NOWHERE, How(16), True),
        ((3, 16, 4, 8), None, PLACE, How(), False),
        ((9, 5, 4, 8), None, PLACE, How(), False),
        ((40, 32), None, PLACE, How(16), False),
        ((9,), "k", PLACE, How(16), False),
        ((1, 3), "block_table", PLACE, How(16), False),
    ],
)
def test_which_tensors_are_a_cache(shape: tuple[int, ...], role: Any, place: Placement, how: How, want: bool) -> None:
    assert is_kv(Tensor("x", "float32", shape, Path("x"), role=role), place, how) is want


def test_tables_lengths_and_slots_of_a_dump(tmp_path: Path) -> None:
    files = {
        "block_tables": [[5, 2, 7, 0, 0], [3, -1, -1, -1, -1]], "seq_lens": [40, 7], "slot_mapping": [[5 * 16 + 3, -1]], "positions": [20, 21, 22],
    }  # fmt: skip
    for name, value in files.items():
        np.save(tmp_path / f"{name}.npy", np.array(value, np.int32))
    np.save(tmp_path / "layers.0.k_cache.npy", pool(rows()))
    dump = opened(tmp_path)
    place = Placements(dump).of(next(tensor for tensor in dump.tensors if tensor.role == "k"))
    assert place.requests == (Request((5, 2, 7, 0, 0), 40), Request((3,), 7))
    assert [request.blocks(16) for request in place.requests] == [(5, 2, 7), (3,)]
    assert place.written == {83}
    assert place.positions == (20, 3)
    assert place.tokens == 47


def test_views_are_what_numpy_says(tmp_path: Path) -> None:
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    tensor = described(tmp_path / "a.npy", array, None)
    view = views.narrowed(views.permuted(views.selected(tensor, 1, 2), (2, 0, 1)), 0, 1, 3)
    assert np.array_equal(content(view), array[:, 2].transpose(2, 0, 1)[1:4])
    assert views.count(view) == math.prod(view.shape)
    assert views.narrowed(tensor, 0, 0, 2).strides is None, "a view of everything is the tensor itself"


def test_a_block_size_that_a_pool_cannot_have_does_not_turn_its_axes(tmp_path: Path) -> None:
    tensor = described(tmp_path / "p.npy", pool(rows()).transpose(0, 2, 1, 3), "k")
    found = cut(tensor, NOWHERE, How(DIM))
    assert found is not None and (found.block_tokens, found.said[:3]) == (BLOCK, "HND")


def test_a_block_size_that_does_not_divide_the_tokens_is_said(tmp_path: Path) -> None:
    tensor = described(tmp_path / "s.npy", rows(), "k")
    uneven, even = cut(tensor, NOWHERE, How(7)), cut(tensor, NOWHERE, How(8))
    assert uneven is not None and even is not None
    assert "--block-size 7 does not divide its 40 tokens: the last block has 5" in uneven.said
    assert "divide" not in even.said
