"""The first divergence in execution order, what follows from it, artefacts of the dump, and what wrong blocks point at."""

import dataclasses
from typing import Any

import pytest

from diag.tensors import divergence
from diag.tensors.measure import Difference
from diag.tensors.result import Alias, Result, Side
from diag.tensors.verdicts import ARTEFACT


def tensor(ord: int, name: str, verdict: str = "same", rel: float = 0.0, **more: Any) -> Result:
    told = Difference(verdict == "same", verdict == "same", 1.0, 0.0, rel, rel, 0, rel, 0, int(rel > 0), 0)
    plain: dict[str, Any] = {"rank": 0, "step": 0, "layer": None, "role": None, "op": "", "direction": None, "request": None, "block": None} | more
    side = Side("bfloat16", (4, 8), None)
    return Result(name=name, ord=ord, good=side, bad=side, verdict=verdict, difference=told, **plain)  # type: ignore[arg-type]


def block(ord: int, layer: int, number: int, verdict: str = "same", role: str = "k", rel: float | None = None, **more: Any) -> Result:
    far = 1.4 if verdict == "different" else 0.0
    return tensor(ord, f"layers.{layer}.{role}", verdict, far if rel is None else rel, layer=layer, role=role, block=number, **more)


def flags(results: list[Result]) -> dict[str, str]:
    return {item.name: "first" if item.is_first else "follows" if item.follows else item.doubt or "" for item in results if item.is_wrong}


def test_inputs_the_same_and_output_different_is_the_operation() -> None:
    run = [
        tensor(0, "mlp.in", op="mlp", direction="input"), tensor(1, "mlp.out", "different", 1.2, op="mlp", direction="output"),
        tensor(2, "norm.in", "different", 1.2, op="norm", direction="input"), tensor(3, "norm.out", "different", 1.2, op="norm", direction="output"),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None
    assert (first.result.name, first.kind) == ("mlp.out", "operation")
    assert "while the 1 tensor that its operation reads match" in first.says
    assert flags(marked) == {"mlp.out": "first", "norm.in": "follows", "norm.out": "follows"}


def test_wrong_kv_beside_right_hidden_states_is_bad_kv() -> None:
    """The files name the output of the layer before its cache: the cache is read first all the same."""
    run = [
        tensor(0, "layers.0.in", layer=0, direction="input"),
        tensor(1, "layers.0.attn.out", "different", 0.9, layer=0, direction="output"),
        block(2, 0, 0, "different"), block(3, 0, 1),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None
    assert (first.kind, first.result.block, first.result.role) == ("bad-kv", 0, "k")
    assert [item.name for item in marked] == ["layers.0.in", "layers.0.k", "layers.0.k", "layers.0.attn.out"]
    assert flags(marked) == {"layers.0.k": "first", "layers.0.attn.out": "follows"}


def test_other_tokens_are_another_input() -> None:
    _, first = divergence.mark([tensor(0, "input_ids", "different", role="token_ids"), tensor(1, "out", "different", 1.0)])
    assert first is not None and first.kind == "input"


def test_far_off_while_all_successors_match_is_an_artefact() -> None:
    """nnsight #630: the hook kept a reference, and a fused kernel wrote into it."""
    run = [
        tensor(0, "layers.0.mlp.out", "different", 2.0, layer=0, direction="output"), tensor(1, "layers.1.in", layer=1, direction="input"),
        tensor(2, "layers.1.out", layer=1, direction="output"),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None and first.kind == "artefact"
    assert marked[0].doubt == ARTEFACT
    real = [*run, tensor(3, "layers.2.out", "different", 2.0, layer=2), tensor(4, "layers.3.out", "different", 2.0, layer=3)]
    marked, first = divergence.mark(real)
    assert first is not None and first.result.name == "layers.2.out", "it hides no later divergence"
    assert flags(marked) == {"layers.0.mlp.out": ARTEFACT, "layers.2.out": "first", "layers.3.out": "follows"}


def test_what_the_next_operation_reads_is_no_artefact() -> None:
    """Its input holds the same numbers in the same dump: the run computed with them, however well the last output matches."""
    run = [
        tensor(0, "layers.0.out", "different", 0.5, op="a", layer=0, direction="output"),
        tensor(1, "layers.1.in", "different", 0.5, op="b", layer=1, direction="input"),
        tensor(2, "layers.1.out", "different", 0.5, op="b", layer=1, direction="output"), tensor(3, "logits", op="head", direction="output"),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None and (first.result.name, first.kind) == ("layers.0.out", "operation")
    assert not any(item.doubt for item in marked), flags(marked)


def test_a_suspicious_end_acquits_nobody() -> None:
    end = dataclasses.replace(tensor(1, "logits", "close", 0.2), doubt="suspicious")
    marked, _ = divergence.mark([tensor(0, "out", "different", 0.5), end])
    assert not any(item.is_artefact for item in marked)


def test_what_a_wrong_block_of_the_cache_leads_to_is_no_artefact() -> None:
    """One row of the attention is far off, and is lost in the noise of what follows: the cache of that very layer is wrong."""
    theirs = Alias("other", "k", 7, "other", "block", 16)
    run = [
        tensor(0, "layers.2.out", "close", 0.004, layer=2, direction="output"),
        *(dataclasses.replace(block(1 + at, 3, 5, "aliased", role), alias=theirs) for at, role in enumerate("kv")),
        tensor(3, "layers.3.attn.out", "different", 0.09, layer=3, op="attn", direction="output"), tensor(4, "layers.3.out", "different", 0.05, layer=3, direction="output"),
        tensor(5, "layers.4.out", "close", 0.02, layer=4, direction="output"), tensor(6, "logits", "close", 0.02, direction="output"),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None and first.kind == "bad-kv"
    assert not any(item.doubt for item in marked), flags(marked)
    assert flags(marked) == {"layers.3.k": "first", "layers.3.v": "", "layers.3.attn.out": "follows", "layers.3.out": "follows"}


def test_a_change_behind_it_where_all_was_the_same_before_is_no_artefact() -> None:
    run = [
        tensor(0, "layers.0.out", layer=0), tensor(1, "layers.1.attn.out", "different", 0.9, layer=1, direction="output"),
        tensor(2, "layers.1.out", "close", 0.02, layer=1), tensor(3, "layers.2.out", "close", 0.02, layer=2),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None and (first.kind, first.result.name) == ("operation", "layers.1.attn.out")
    assert not any(item.doubt for item in marked), flags(marked)


def test_nan_in_an_output_is_no_artefact() -> None:
    marked, first = divergence.mark([tensor(0, "layers.0.out", "nan", layer=0), tensor(1, "layers.1.out", layer=1)])
    assert first is not None and first.kind == "nan"
    assert not any(item.doubt for item in marked)


def test_a_branch_that_matches_acquits_nobody() -> None:
    run = [
        tensor(0, "layers.0.q.out", "different", 2.0, layer=0), tensor(1, "layers.0.k.out", layer=0), tensor(2, "layers.0.attn.out", "different", 2.0, layer=0),
        tensor(3, "layers.1.out", "different", 2.0, layer=1),
    ]  # fmt: skip
    marked, first = divergence.mark(run)
    assert first is not None and first.result.name == "layers.0.q.out"
    assert not any(item.doubt for item in marked)


def test_an_artefact_does_not_hide_the_first_real_divergence() -> None:
    run = [tensor(0, "a.out", "different", 2.0, step=0), tensor(1, "b.out", step=0), tensor(2, "a.out", "different", 2.0, step=1)]
    marked, first = divergence.mark(run)
    assert first is not None and first.result.step == 1
    assert marked[0].doubt == ARTEFACT
    assert not marked[0].follows


def test_growth_without_a_jump_is_drift() -> None:
    run = [tensor(number, f"layers.{number}.out", "different" if rel >= 0.3 else "close", rel) for number, rel in enumerate((0.05, 0.1, 0.2, 0.35, 0.5))]
    _, first = divergence.mark(run)
    assert first is not None
    assert (first.kind, first.result.name) == ("drift", "layers.3.out")
    _, jump = divergence.mark([tensor(0, "a", "close", 0.01), tensor(1, "b", "different", 0.8)])
    assert jump is not None and jump.kind == "operation"


def test_nothing_wrong_nothing_first() -> None:
    marked, first = divergence.mark([tensor(0, "a"), tensor(1, "b", "close", 0.01)])
    assert first is None
    assert divergence.overall(marked) == "close"
    assert divergence.scope(marked) is None


def cache(layers: int, ranks: int, wrong: dict[tuple[int, int, str], set[int]]) -> list[Result]:
    """Four blocks everywhere; `wrong`: (rank, layer, role) -> blocks."""
    results = []
    for rank in range(ranks):
        for layer in range(layers):
            for role in "kv":
                for number in range(4):
                    verdict = "different" if number in wrong.get((rank, layer, role), ()) else "same"
                    results.append(block(len(results), layer, number, verdict, role, rank=rank))
    return results


def same(blocks: set[int], layers: Any, ranks: Any = (0,), roles: str = "kv") -> dict[tuple[int, int, str], set[int]]:
    return {(rank, layer, role): blocks for rank in ranks for layer in layers for role in roles}


@pytest.mark.parametrize(
    ("wrong", "points_at", "blocks", "says"),
    [
        (same({0}, range(6), (0, 1)), "allocator", (0,), "on all 6 layers and all 2 ranks alike"),
        (same({1, 2}, range(6), (0, 1)), "allocator", (1, 2), "blocks 1, 2 wrong"),
        (same({0}, range(6), (1,)), "rank", (0,), "rank 1 only, of 2"),
        (same({3}, [4], (0, 1)), "kernel-or-transfer", (3,), "layer 4 only, of 6"),
        (same({3}, [2, 3, 4, 5], (0, 1)), "kernel-or-transfer", (3,), "from layer 2 on"),
        (same({3}, [1, 4], (0, 1)), "kernel-or-transfer", (3,), "layers 1, 4, of 6"),
        (same({3}, range(6), (0, 1), "v"), "kernel-or-transfer", (3,), "values only"),
    ],
)
def test_where_wrong_blocks_point_at(wrong: dict[tuple[int, int, str], set[int]], points_at: str, blocks: tuple[int, ...], says: str) -> None:
    found = divergence.scope(cache(6, 2, wrong))
    assert found is not None
    assert (found.points_at, found.blocks) == (points_at, blocks)
    assert says in found.says


def test_later_blocks_of_deeper_layers_are_a_consequence() -> None:
    wrong = same({0}, [0], (0, 1)) | same({0, 3}, range(1, 6), (0, 1))
    found = divergence.scope(cache(6, 2, wrong))
    assert found is not None
    assert (found.points_at, found.blocks) == ("allocator", (0,))


def test_a_block_that_is_wrong_in_layer_0_follows_from_nobody() -> None:
    marked, _ = divergence.mark(cache(3, 1, same({1, 2}, [0]) | same({1, 2, 3}, [1, 2])))
    assert {item.block for item in marked if item.follows} == {3}
    found = divergence.scope(marked)
    assert found is not None and (found.points_at, found.blocks) == ("allocator", (1, 2)), found.says


def test_one_tensor_tells_nothing() -> None:
    found = divergence.scope([block(0, 0, 0, "different"), block(1, 0, 1)])
    assert found is not None and found.points_at == "unknown"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "all 4 blocks differ on all 6 layers: other weights, adapter, quantisation or another prompt come first"),
        ({"rel": 0.002}, "by 0.002 at most (relative L2): rounding of another kernel, batch or build"),
        ({"verdict": "zero"}, "nothing was written there, or it was dumped before that"),
    ],
)
def test_where_every_block_differs_no_allocator_is_blamed(more: dict[str, Any], says: str) -> None:
    wrong = [block(item.ord, item.layer or 0, item.block or 0, **{"verdict": "different", "rel": 1.2, "role": item.role or "k", "rank": item.rank, **more})
             for item in cache(6, 2, {})]  # fmt: skip
    marked, first = divergence.mark(wrong)
    found = divergence.scope(marked)
    assert found is not None and (found.points_at, len(found.blocks)) == ("weights-or-input", 4), found
    assert says in found.says
    assert first is not None and "and so do all blocks of the cache" in first.says and "bad KV" not in first.says


def test_where_every_block_is_somebody_else_s_the_allocator_is() -> None:
    theirs = Alias("other", "k", 7, "other", "block", 16)
    owned = [dataclasses.replace(item, verdict="aliased", alias=theirs) for item in cache(6, 1, {})]
    found = divergence.scope(divergence.mark(owned)[0])
    assert found is not None and found.points_at == "allocator", found


def test_the_same_tokens_rule_out_another_prompt() -> None:
    wrong = [tensor(0, "input_ids", role="token_ids"), *(dataclasses.replace(item, ord=item.ord + 1, verdict="different") for item in cache(2, 1, {}))]
    found = divergence.scope(divergence.mark(wrong)[0])
    assert found is not None and "other weights, adapter or quantisation come first" in found.says, found


@pytest.mark.parametrize("verdict", ["different", "nan"])
def test_the_cache_of_later_layers_follows_from_an_operation_that_was_wrong_before(verdict: str) -> None:
    """An operation of layer 1 gives out what is wrong; layer 2 fills its cache with it, that of layer 1 is right."""
    results = []
    for layer in range(4):
        results += [block(len(results) + at, layer, at, verdict if layer >= 2 and at != 1 else "same", rel=1.0) for at in range(3)]
        name = f"layers.{layer}.mlp.output"
        results.append(tensor(len(results), name, verdict if layer >= 1 else "same", 1.0 if layer else 0.0, layer=layer, op=f"layers.{layer}.mlp", direction="output"))
    marked, first = divergence.mark(results)
    found = divergence.scope(marked)
    assert first is not None and first.result.name == "layers.1.mlp.output"
    assert found is not None and (found.points_at, found.blocks, found.layers) == ("operation", (0, 2), (2, 3)), found
    assert found.says == "layers.1.mlp.output: blocks 0, 2 of layers 2, 3 of the cache were computed from it, so the cache is not the cause"


def test_another_s_block_follows_from_no_operation() -> None:
    theirs = Alias("other", "k", 7, "other", "block", 16)
    results = [
        tensor(0, "layers.0.mlp.output", "different", 1.0, layer=0, op="layers.0.mlp", direction="output"),
        *(dataclasses.replace(block(1 + at, 1, at % 2, "same" if at % 2 else "aliased", "kv"[at // 2 - 1]), alias=None if at % 2 else theirs) for at in range(4)),
    ]
    found = divergence.scope(divergence.mark(results)[0])
    assert found is not None and (found.points_at, found.blocks) == ("allocator", (0,)), found


def test_an_artefact_is_no_wrong_block() -> None:
    item = dataclasses.replace(block(0, 0, 0, "different"), doubt=ARTEFACT)
    assert divergence.scope([item]) is None
