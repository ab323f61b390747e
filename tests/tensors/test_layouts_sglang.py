"""Folders of SGLang's dumper, its forward hook and TensorRT-LLM's hook: names as documented, bytes by torch (tests/oracle/sglang_files.py)."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from diag.tensors.dump import Dump, Tensor
from diag.tensors.layouts.sglang_dumper import tags
from diag.tensors.opening import open_dump
from tests.tensors.bytes_of import bytes_of

DATA = Path(__file__).parent / "data" / "sglang"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())["files"]["all"]


def opened(name: str) -> Dump:
    return open_dump(DATA / name, settle_s=0)


def check_content(dump: Dump, keys: dict[str, Tensor]) -> None:
    for key, tensor in keys.items():
        facts = EXPECTED[key]
        assert (tensor.dtype, list(tensor.shape)) == (facts["dtype"], facts["shape"]), key
        assert hashlib.sha256(bytes_of(tensor)).hexdigest() == facts["sha256"], key
    assert len(keys) == len(dump.tensors)


def test_dumper_names_say_everything() -> None:
    dump = opened("dumper")
    assert dump.layout == "SGLang dumper"
    assert [(tensor.step, tensor.name) for tensor in dump.tensors] == [
        (step, name) for step in (0, 1) for name in (
            "input_ids", "layers.0.hidden_states", "layers.10.hidden_states", "layers.9.hidden_states",
            "non_intrusive__model.layers.0.self_attn.inputs.0", "layers.1.moe___topk",
        )
    ]  # fmt: skip
    assert [tensor.order for tensor in dump.tensors] == sorted(tensor.order for tensor in dump.tensors)
    assert {tensor.rank for tensor in dump.tensors} == {1}
    assert [tensor.layer for tensor in dump.tensors[:6]] == [None, 0, 10, 9, 0, 1]
    assert dump.tensors[0].role == "token_ids"
    assert (dump.tensors[4].op, dump.tensors[4].direction) == ("non_intrusive__model.layers.0.self_attn", "input")
    check_content(dump, {f"dumper/{tensor.file.name}": tensor for tensor in dump.tensors})


def test_a_value_that_is_no_tensor_is_named() -> None:
    (unread,) = opened("dumper").unread
    assert "name=text" in unread.source
    assert unread.reason == '"value" in it is no tensor'


def test_tags_with_the_separator_in_a_name() -> None:
    assert tags("step=0___name=moe___topk___layer_id=1.pt") == {"step": "0", "name": "moe___topk", "layer_id": "1"}
    assert tags("___=___a") == {"": "___a"} or tags("___=___a") == {"": ""}
    assert tags("no tags.pt") == {}


def test_the_same_name_twice_in_a_step_is_told_apart(tmp_path: Path) -> None:
    source = next((DATA / "dumper").glob("step=0*name=input_ids*"))
    shutil.copy(source, tmp_path / "step=0___rank=0___dump_index=1___name=x.pt")
    shutil.copy(source, tmp_path / "step=0___rank=0___dump_index=10___name=x.pt")
    shutil.copy(source, tmp_path / "step=0___rank=0___dump_index=9___name=x___expert=3.pt")
    shutil.copy(source, tmp_path / "forward_pass_id=4___rank=0___name=x___dump_index=2.pt")
    dump = open_dump(tmp_path, settle_s=0)
    assert [(tensor.step, tensor.name) for tensor in dump.tensors] == [(0, "x"), (0, "x[expert=3]"), (0, "x#2"), (4, "x")]


def test_forward_hook_gives_late_outputs_back_to_their_pass() -> None:
    dump = opened("forward_hook")
    assert dump.layout == "SGLang forward hook"
    assert dump.unread == ()
    first = [tensor for tensor in dump.tensors if tensor.rank == 0]
    assert [tensor.order for tensor in first] == list(range(len(first)))
    assert [(tensor.step, tensor.name) for tensor in first][:9] == [
        (0, "model.embed_tokens"), (0, "model.layers.9.self_attn.qkv_proj"), (0, "model.layers.9.mlp.down_proj"),
        (0, "model.layers.10.self_attn.qkv_proj"), (0, "model.layers.10.mlp.down_proj.0"), (0, "model.layers.10.mlp.down_proj.1"),
        (0, "model.norm"), (0, "model.forward_batch_info.input_ids"), (0, "model.forward_batch_info.seq_lens"),
    ]  # fmt: skip
    assert [(tensor.step, tensor.name) for tensor in first][10:13] == [(0, "model"), (0, "logits_processor"), (1, "model.embed_tokens")]
    found = {(tensor.step, tensor.name): tensor for tensor in first}
    assert found[0, "model.forward_batch_info.input_ids"].role == "token_ids"
    assert found[0, "model.forward_batch_info.seq_lens"].role == "context_lens"
    assert found[0, "model.forward_batch_info.positions"].direction == "input"
    assert found[1, "model.layers.10.mlp.down_proj.1"].op == "model.layers.10.mlp.down_proj"
    assert found[1, "model.layers.10.mlp.down_proj.1"].layer == 10
    check_content(dump, {f"{tensor.file.relative_to(DATA)}#{tensor.key}": tensor for tensor in dump.tensors})


def test_tensorrt_hooks_count_passes_and_layers() -> None:
    dump = opened("tensorrt")
    assert dump.layout == "TensorRT-LLM"
    assert [(tensor.step, tensor.layer, tensor.name) for tensor in dump.tensors] == [
        (step, layer, f"DecoderModel-{calls}-{rest}") for step in (0, 1)
        for layer, calls in ((None, "1.Embedding"), (0, "2.DecoderLayer-1.Attention"), (1, "3.DecoderLayer-1.Attention"))
        for rest in ("input.hidden_states", "output.0")
    ]  # fmt: skip
    assert {(tensor.rank, tensor.op) for tensor in dump.tensors if tensor.layer == 1} == {(1, "DecoderModel-3.DecoderLayer-1.Attention")}
    check_content(dump, {str(tensor.file.relative_to(DATA)): tensor for tensor in dump.tensors})


def test_edge_llm_rounds_are_steps(tmp_path: Path) -> None:
    source = DATA.parent / "safetensors" / "edge_llm.safetensors"
    shutil.copy(source, tmp_path / "edgellm_dump_3.safetensors")
    dump = open_dump(tmp_path, settle_s=0)
    assert dump.layout == "TensorRT-LLM"
    assert [(tensor.name, tensor.step, tensor.layer, tensor.role) for tensor in dump.tensors] == [
        ("layer_0.kv", 0, 0, "kv"), ("layer_1.kv", 0, 1, "kv"), ("layer_2.kv", 0, 2, "kv"), ("context_lengths", 0, None, "context_lens"),
    ]  # fmt: skip
    alone = open_dump(tmp_path / "edgellm_dump_3.safetensors", settle_s=0)
    assert [tensor.name for tensor in alone.tensors] == [tensor.name for tensor in dump.tensors]
