"""Folders written by msprobe itself (tests/oracle/msprobe_files.py): names, order, layers, content, figures."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.errors import BadInput
from diag.tensors.dump import Dump, Tensor
from diag.tensors.measure import measure_pair
from diag.tensors.opening import open_dump
from tests.tensors.bytes_of import bytes_of

DATA = Path(__file__).parent / "data" / "msprobe"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())


def opened(name: str) -> Dump:
    return open_dump(DATA / name, settle_s=0)


def by_name(dump: Dump) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in dump.tensors}


def test_every_file_has_the_content_that_torch_reads() -> None:
    for name in ("good", "bad", "debug"):
        dump = opened(name)
        assert dump.layout == "msprobe"
        assert dump.unread == (), dump.unread
        told = {path: facts for path, facts in EXPECTED["files"].items() if path.startswith(f"{name}/")}
        assert {str(tensor.file.relative_to(DATA)) for tensor in dump.tensors} == told.keys()
        for tensor in dump.tensors:
            facts = told[str(tensor.file.relative_to(DATA))]
            assert (tensor.dtype, list(tensor.shape)) == (facts["dtype"], facts["shape"]), tensor.name
            assert hashlib.sha256(bytes_of(tensor)).hexdigest() == facts["sha256"], tensor.name
            assert tensor.name == tensor.file.stem


def test_order_is_that_of_the_document_and_both_tasks_have_the_same_names() -> None:
    content, figures = opened("good"), opened("good_statistics")
    document = json.loads((DATA / "good/step0/rank0/dump.json").read_text())
    ops = list(dict.fromkeys(tensor.op for tensor in content.tensors))
    assert ops == [op for op in document["data"] if op in ops]
    assert [tensor.order for tensor in content.tensors] == list(range(len(content.tensors)))
    assert [tensor.name for tensor in figures.tensors] == [tensor.name for tensor in content.tensors]
    assert [(tensor.op, tensor.direction, tensor.layer, tensor.role) for tensor in figures.tensors] == [
        (tensor.op, tensor.direction, tensor.layer, tensor.role) for tensor in content.tensors
    ]


def test_layers_roles_and_places() -> None:
    found = by_name(opened("good"))
    assert {(tensor.rank, tensor.step) for tensor in found.values()} == {(0, 0)}
    cache = found["Module.layers.1.Attention.forward.0.input.1.v_cache"]
    assert (cache.role, cache.layer, cache.direction, cache.op) == ("v", 1, "input", "Module.layers.1.Attention.forward.0")
    assert found["Module.layers.0.Attention.forward.0.kwargs.block_tables"].role == "block_table"
    assert found["Module.layers.0.q.Linear.forward.0.parameters.weight"].direction == "input"
    # functional calls have no layer in their names: construct.json tells the module around them
    assert found["Functional.scaled_dot_product_attention.1.forward.output.0"].layer == 1


def test_figures_without_content_are_those_of_torch() -> None:
    told = {Path(path).stem: facts for path, facts in EXPECTED["files"].items() if path.startswith("good/")}
    with_nan = 0
    for tensor in opened("good_statistics").tensors:
        assert tensor.offset == -1
        figures, facts = dict(tensor.summary), told[tensor.name]
        if facts["nan"]:
            with_nan += 1
            assert math.isnan(figures["max"]), tensor.name
            continue
        assert figures["max"] == pytest.approx(facts["max"], rel=1e-2), tensor.name
        assert figures["min"] == pytest.approx(facts["min"], rel=1e-2), tensor.name
        if "norm" in figures:  # none of integers; msprobe reckons in the tensor's own bfloat16
            assert figures["norm"] == pytest.approx(facts["norm"], rel=1e-2), tensor.name
    assert with_nan >= 1


def differences() -> Iterator[tuple[dict[str, str], Tensor, Tensor]]:
    good, bad = by_name(opened("good")), by_name(opened("bad"))
    for row in EXPECTED["compare"]:
        if row["Cosine"] != "unsupported":
            yield row, good[row["Bench Name"]], bad[row["NPU Name"]]


def test_our_figures_of_a_pair_are_those_of_msprobe() -> None:
    wrong = 0
    for row, good, bad in differences():
        if math.isnan(float(row["NPU max"])):
            continue
        measured = measure_pair(good, bad).whole.difference
        assert measured.max_abs == pytest.approx(float(row["MaxAbsErr"]), rel=1e-6, abs=1e-12), row
        assert measured.cosine == pytest.approx(float(row["Cosine"]), abs=1e-6), row
        wrong += float(row["Cosine"]) < 0.9
        assert row["Result"] == "pass", "msprobe found the wrong block after all: say so in the docs"
    assert wrong >= 5


def test_a_missing_file_and_one_nobody_mentions_are_named(tmp_path: Path) -> None:
    shutil.copytree(DATA / "good", tmp_path / "d")
    data = tmp_path / "d/step0/rank0/dump_tensor_data"
    gone = data / "Module.layers.0.Attention.forward.0.output.0.pt"
    gone.rename(data / "stray.pt")
    dump = open_dump(tmp_path / "d", settle_s=0)
    reasons = {Path(item.source).name: item.reason for item in dump.unread}
    assert "is missing" in reasons[f"dump.json#{gone.stem}"], reasons
    assert "not mentioned" in reasons["stray.pt"], reasons
    assert gone.stem not in by_name(dump)


def test_ranks_of_processes_without_rank_are_counted(tmp_path: Path) -> None:
    for pid in ("proc900", "proc1000"):
        shutil.copytree(DATA / "debug/step0/proc4711", tmp_path / "step3" / pid)
    dump = open_dump(tmp_path, settle_s=0)
    assert {(tensor.name, tensor.rank, tensor.step) for tensor in dump.tensors} == {
        (name, rank, 3) for name in ("hidden.0.debug", "cache.0.debug.k") for rank in (0, 1)
    }
    assert "proc900" in str(dump.tensors[0].file)


def test_a_path_in_the_document_leads_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    shutil.copy(DATA.parent / "numpy/float32.npy", secret)
    folder = tmp_path / "d/rank0"
    (folder / "dump_tensor_data").mkdir(parents=True)
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3, 5], "data_name": "../../../secret.npy"}
    (folder / "dump.json").write_text(json.dumps({"task": "tensor", "dump_data_dir": str(tmp_path), "data": {"op": {"input_args": [tensor]}}}))
    with pytest.raises(BadInput, match=r"holds no tensor.*is missing"):
        open_dump(tmp_path / "d", settle_s=0)


@pytest.mark.parametrize(("text", "says"), [
    ('{"task": "tensor", "dump_data_dir": null, "data": {"a": {"output": [', "damaged or cut short"),
    ('{"task": "tensor", "dump_data_dir": null, "data": ' + "[" * 100_000, "nested too deep"),
    ('{"task": "tensor", "dump_data_dir": null}', 'has no "data"'),
])  # fmt: skip
def test_a_broken_document_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(BadInput) as caught:
        open_dump(tmp_path, settle_s=0)
    assert says in caught.value.message
    assert "dump.json" in caught.value.message
