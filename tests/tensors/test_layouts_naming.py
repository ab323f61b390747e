"""What names tell: layer, role, rank, step, and what two runs have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.tensors.naming import bare, layer_of, natural, operation_of, rank_of, role_of, step_of


@pytest.mark.parametrize(("name", "layer"), [
    ("model.layers.3.self_attn.k_cache", 3), ("layers.10", 10), ("layer_0.kv", 0), ("round_0.layer_2.kv", 2), ("past_key_values.7.key", 7),
    ("5_Prefill_layer/0_Attention/input.0", 5), ("encoder.layers.1.decoder.layers.4.mlp", 4), ("transformer.h.11.attn", 11), ("layer_id=6", 6),
    ("key_cache.12", 12), ("block_tables", None), ("model.norm", None), ("linear.7", None), ("layernorm.3", None), ("player.3", None),
])  # fmt: skip
def test_layer(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


@pytest.mark.parametrize(("name", "role"), [
    ("model.layers.3.self_attn.k_cache", "k"), ("key_cache", "k"), ("layers.0.value_cache", "v"), ("layer_2.key", "k"), ("layer_2.value", "v"),
    ("past_key_values.3.value", "v"), ("kv_cache", "kv"), ("layer_1.kv", "kv"), ("block_tables", "block_table"), ("slot_mapping", "slot_mapping"),
    ("model.forward_batch_info.input_ids", "token_ids"), ("positions", "positions"), ("seq_lens", "context_lens"), ("context_lengths", "context_lens"),
    ("attn_metadata_slot_mapping", "slot_mapping"), ("layers.1.k_cache.0", "k"), ("layers.1.self_attn.k_proj", None), ("linear.key", None),
    ("Module.x.forward.0.input.1.k", None), ("hidden_states", None), ("", None),
])  # fmt: skip
def test_role(name: str, role: str | None) -> None:
    assert role_of(name) == role


@pytest.mark.parametrize(("path", "rank", "step"), [
    ("step0/rank0", 0, 0), ("TP1_PP0_Rank1_pid77/Pass00002", 1, 2), ("step=4___rank=3", 3, 4), ("forward_pass_id=9", None, 9), ("round_7.logits", None, 7),
    ("global_rank_2/x", 2, None), ("frank3", None, None), ("x/y", None, None),
])  # fmt: skip
def test_rank_and_step(path: str, rank: int | None, step: int | None) -> None:
    assert (rank_of(path), step_of(path)) == (rank, step)


@pytest.mark.parametrize(("name", "common"), [
    ("step0/rank3/layers.1.k_cache", "layers.1.k_cache"), ("k_cache_rank3_step0_layer2", "k_cache_layer2"), ("TP1_PP0_Rank1_pid77/Pass00002", ""),
    ("dump_20261130_101112/layers.9", "dump_layers.9"), ("1732900000.123/x", "x"), ("2026-11-30T10:11:12/foo", "foo"), ("layers.10.input.0", "layers.10.input.0"),
    ("pid=12.k", "k"),
])  # fmt: skip
def test_what_two_runs_have_in_common(name: str, common: str) -> None:
    assert bare(name) == common


@pytest.mark.parametrize(("name", "op", "direction"), [
    ("attn.inputs.0", "attn", "input"), ("5_Prefill_layer/0_Attention/output.1", "5_Prefill_layer/0_Attention", "output"), ("a-input.hidden", "a", "input"),
    ("output.dense.input.0", "output.dense", "input"), ("model.input_layernorm.weight", "", None), ("intensor3", "", "input"), ("k", "", None),
])  # fmt: skip
def test_operation(name: str, op: str, direction: str | None) -> None:
    assert operation_of(name) == (op, direction)


def test_layers_sort_as_people_count() -> None:
    names = [f"layers.{one}.k" for one in (10, 9, 100, 0)]
    assert sorted(names, key=natural) == ["layers.0.k", "layers.9.k", "layers.10.k", "layers.100.k"]


@given(st.lists(st.text(alphabet="0123456789._-/aZ²٣ \x00", max_size=40), min_size=2, max_size=6))
def test_every_text_has_answers_and_a_place(names: list[str]) -> None:
    ordered = sorted(names, key=natural)
    assert sorted(ordered, key=natural) == ordered
    for name in names:
        layer = layer_of(name)
        assert layer is None or layer >= 0
        assert len(bare(name)) <= len(name)
        role_of(name), rank_of(name), step_of(name), operation_of(name)
