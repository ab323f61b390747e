"""ATB dumps by the byte listing, which msprobe's own reader agrees with (tests/oracle/msprobe_files.py)."""

import json
import math
import os
import shutil
import struct
from pathlib import Path

import pytest

from diag.errors import BadInput
from diag.tensors.dump import Dump, ReadError, Tensor, Unread
from diag.tensors.files import atb_bin
from diag.tensors.measure import measure_pair
from diag.tensors.opening import open_dump
from tests.oracle.atb_bytes import BF16, F32, I32, NZ, Writer, model, packed, record
from tests.tensors.bytes_of import bytes_of

DATA = Path(__file__).parent / "data" / "atb"


def by_name(dump: Dump) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in dump.tensors}


def only(path: Path) -> Tensor | Unread:
    (item,) = atb_bin.read(path)
    return item


def test_figures_of_a_pair_are_those_of_msprobe() -> None:
    good, bad = by_name(open_dump(DATA / "good", settle_s=0)), by_name(open_dump(DATA / "bad", settle_s=0))
    rows = json.loads((DATA / "expected.json").read_text())["compare"]
    assert {row["Golden Data Name"] for row in rows} == good.keys() == bad.keys()
    read, wrong = 0, []
    for row in rows:
        one, other = good[row["Golden Data Name"]], bad[row["Target Data Name"]]
        assert "x".join(map(str, one.shape)) == str(row["Golden Data Shape"])
        if row["Max Absolute Err"] in ("N/A", "unsupported"):
            continue  # aliases: msprobe skips them
        read += 1
        difference = measure_pair(one, other).whole.difference
        assert difference.max_abs == pytest.approx(float(row["Max Absolute Err"]), rel=1e-6), row
        assert difference.cosine == pytest.approx(float(row["Cosine"]), abs=1e-6), row
        if not difference.equal_bits:
            wrong.append(one.name)
    assert read >= 13
    assert wrong == ["2_Prefill_layer/input.1"]


def test_names_order_layers_and_roles() -> None:
    dump = open_dump(DATA / "good", settle_s=0)
    assert dump.layout == "ATB"
    assert dump.unread == (), dump.unread
    assert [tensor.name for tensor in dump.tensors][:9] == [
        "0_WordEmbedding/input.0", "0_WordEmbedding/output.0", *(f"1_Prefill_layer/input.{one}" for one in range(4)),
        *(f"1_Prefill_layer/0_ReshapeAndCacheOperation/input.{one}" for one in range(3)),
    ]  # fmt: skip
    found = by_name(dump)
    assert {(tensor.rank, tensor.step) for tensor in dump.tensors} == {(0, 7)}
    assert [found[name].layer for name in ("0_WordEmbedding/output.0", "1_Prefill_layer/output.0", "2_Prefill_layer/input.1")] == [None, 0, 1]
    assert [found[f"2_Prefill_layer/input.{one}"].role for one in range(4)] == [None, "k", "v", None]
    cache = "2_Prefill_layer/0_ReshapeAndCacheOperation"
    assert [found[f"{cache}/input.{one}"].role for one in range(5)] == [None, None, "k", "v", "slot_mapping"]
    assert found["1_Prefill_layer/output.0"].op == "1_Prefill_layer"
    orders = [found[f"1_Prefill_layer{rest}"].order for rest in ("/input.0", "/0_ReshapeAndCacheOperation/input.0", "/output.0")]
    assert orders == sorted(orders)


def test_an_alias_has_the_bytes_of_the_tensor_it_names() -> None:
    found = by_name(open_dump(DATA / "bad", settle_s=0))
    alias, owner = found["2_Prefill_layer/0_ReshapeAndCacheOperation/input.2"], found["2_Prefill_layer/input.1"]
    assert alias.file == owner.file
    assert bytes_of(alias) == bytes_of(owner)
    assert len(bytes_of(alias)) == 6 * 4 * 2 * 8 * 2


@pytest.mark.parametrize("depth", ["atb_dump_data", "atb_dump_data/data", "atb_dump_data/data/0_39943", "atb_dump_data/data/0_39943/7"])
def test_any_folder_of_a_dump_gives_the_same_names(depth: str) -> None:
    whole, part = open_dump(DATA / "good", settle_s=0), open_dump(DATA / "good" / depth, settle_s=0)
    assert [(tensor.name, tensor.rank, tensor.step, tensor.layer) for tensor in part.tensors] == [
        (tensor.name, tensor.rank, tensor.step, tensor.layer) for tensor in whole.tensors
    ]


def test_figures_stand_in_where_no_content_was_kept(tmp_path: Path) -> None:
    shutil.copytree(DATA / "good", tmp_path / "d")
    for path in (tmp_path / "d").rglob("*.bin"):
        path.unlink()
    table = tmp_path / "d/atb_dump_data/data/0_39943/7/statistic.csv"
    table.write_text("\n".join(line.rpartition(",")[0] + ",N/A" if line[:1].isdigit() else line for line in table.read_text().splitlines()))
    whole, figures = open_dump(DATA / "good", settle_s=0), open_dump(tmp_path / "d", settle_s=0)
    assert figures.unread == (), figures.unread
    assert [(tensor.name, tensor.order, tensor.role, tensor.layer, tensor.dtype, tensor.shape) for tensor in figures.tensors] == [
        (tensor.name, tensor.order, tensor.role, tensor.layer, tensor.dtype, tensor.shape) for tensor in whole.tensors
    ]
    ids = figures.tensors[0]
    assert (ids.offset, dict(ids.summary)) == (-1, {"max": 13.0, "min": 11.0, "mean": 12.0, "norm": pytest.approx(math.sqrt(434), abs=1e-6)})


def test_a_lost_file_is_named_even_with_its_figures(tmp_path: Path) -> None:
    shutil.copytree(DATA / "good", tmp_path / "d")
    (tmp_path / "d/atb_dump_data/data/0_39943/7/0_WordEmbedding/after/outtensor0.bin").unlink()
    dump = open_dump(tmp_path / "d", settle_s=0)
    assert [(item.source.rpartition("#")[2], item.reason) for item in dump.unread] == [
        ("0_WordEmbedding/output.0", "its .bin is missing, only its figures can be compared")
    ]
    assert by_name(dump)["0_WordEmbedding/output.0"].offset == -1


def test_a_layer_whose_owner_is_missing_and_filtered_kernels(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tensor("3_Decoder_layer", "input", 0, F32, (2,), [1, 2])
    writer.tensor("3_Decoder_layer/0_Linear", "input", 0, F32, (2,), [1, 2], alias="3_intensor9.bin")
    writer.tensor("3_Decoder_layer/0_Linear/0_MatMulKernel", "input", 0, F32, (2,), [1, 2], alias="intensor0.bin")
    writer.tensor("3_Decoder_layer/1_Add", "input", 0, F32, (2,), [1, 2], alias="3_1_outtensor0.bin")
    writer.tensor("3_Decoder_layer/1_Add", "output", 0, F32, (2,), [1, 2], alias="3_1_intensor0.bin")
    writer.tensor("3_Decoder_layer/2_Mul", "input", 0, F32, (3,), [1, 2, 3], alias="3_intensor0.bin")
    dump = open_dump(tmp_path, settle_s=0)
    assert [tensor.name for tensor in dump.tensors] == ["3_Decoder_layer/input.0"]
    reasons = sorted(item.reason.split(";")[0].split("(")[0].strip() for item in dump.unread)
    assert reasons == [
        "its content is passed on in a circle of aliases", "its content is passed on in a circle of aliases",
        "its content should be in 3_intensor9.bin of the same layer, which is not there or cannot be read",
        "its content was not dumped",
        "its dims [3] of float32 make 12 bytes, it holds 8",
    ], reasons
    # only layer 3 was dumped: whether it is the model's first is not known, so it is not called 0
    assert dump.tensors[0].layer == 3


def test_the_graph_puts_a_reader_after_its_writer(tmp_path: Path) -> None:
    writer = model(tmp_path, "good")
    path = writer.root / "info/model/0_39943/DecoderModel_Prefill.json"
    graph = json.loads(path.read_text())
    layer = graph["nodes"][1]
    layer["nodes"] = [
        {"opName": "Late_1_0", "inTensors": ["t"], "outTensors": ["hidden_1"]}, {"opName": "Early_1_1", "inTensors": ["k_1"], "outTensors": ["t"]},
        {"opName": "InPlace_1_2", "inTensors": ["k_1"], "outTensors": ["k_1"]},
    ]  # fmt: skip
    path.write_text(json.dumps(graph))
    for op in ("1_Prefill_layer/0_Late", "1_Prefill_layer/1_Early", "1_Prefill_layer/2_InPlace"):
        writer.tensor(op, "output", 0, F32, (1,), [1])
    order = [tensor.op.rpartition("_")[2] for tensor in open_dump(tmp_path, settle_s=0).tensors if tensor.op.startswith("1_Prefill_layer/")]
    assert [one for one in order if one in ("Early", "Late", "InPlace")] == ["Early", "Late", "InPlace"]


def test_a_file_dumped_twice_gives_the_last_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "intensor0.bin"
    first, second = record(F32, (2,), packed(F32, [1, 2])), record(F32, (2,), packed(F32, [3, 4]))
    path.write_bytes(first + second)
    told, tensor = atb_bin.read(path)
    assert isinstance(told, Unread)
    assert "dumped twice" in told.reason
    assert isinstance(tensor, Tensor)
    assert struct.unpack("<2f", bytes_of(tensor)) == (3, 4)
    path.write_bytes(first + second[:-1])
    *told_, tensor = atb_bin.read(path)
    assert isinstance(tensor, Tensor)
    assert struct.unpack("<2f", bytes_of(tensor)) == (1, 2)
    assert [item.reason for item in told_ if isinstance(item, Unread)] == [
        "a later record is unusable: shorter than its header says: 8 bytes announced, 7 are there; dump it again"
    ]
    path.write_bytes(first + b"\0" * 5)
    told, _ = atb_bin.read(path)
    assert isinstance(told, Unread)
    assert told.reason == "5 bytes after the tensor belong to nothing"


@pytest.mark.parametrize(("content", "says"), [
    (record(F32, (4,), b"\0" * 16)[:-1], "16 bytes announced, 15 are there"),
    (record(F32, (4,), b"\0" * 12), r"dims \[4\] of float32 make 16 bytes, it holds 12"),
    (record(99, (4,), b"\0" * 16), "element type 99"),
    (record(13, (4,), b"\0" * 16), "element type 13"),
    (b"$Version=1.0\ndtype=0\ndims=2,n\n$End=1\n", "dims=n is no number"),
    (b"$Version=1.0\ndtype=0\ndims=-2\n$End=1\n", "negative axis"),
    (b"$Version=1.0\ndtype=0\ndims=999999999999999,999999999999999\n$End=1\n", "more bytes than any file"),
    (b"$Version=1.0\ndtype=0\ndims=" + b"1," * 40 + b"\n$End=1\n", "40 axes"),
    (b"$Version=1.0\n" + b"x" * 5000, "no end within 4 KiB"),
])  # fmt: skip
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "intensor0.bin"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=says):
        list(atb_bin.read(path))


def test_older_headers_have_no_object_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"$Version=1.0\ndtype=27\nformat=1\ndims=2,2\n$End=1\n" + packed(BF16, [1, 2, 3, 4]))
    assert (only(path).dtype, only(path).shape, bytes_of(only(path))) == ("bfloat16", (2, 2), packed(BF16, [1, 2, 3, 4]))
    path.write_bytes(b"dims=3\ndtype=3\nunknown=1\n$End=1\n" + packed(I32, [1, 2, 3]))
    assert bytes_of(only(path)) == packed(I32, [1, 2, 3])
    path.write_bytes(b"dims=3\ndtype=3\nunknown=1\n" + packed(I32, [1, 2, 3]))
    assert not atb_bin.recognise(path, path.read_bytes())


@pytest.mark.parametrize(("dtype", "dims", "size", "name", "shape"), [
    (2, (3,), 3, "int8", (3,)), (4, (3,), 3, "uint8", (3,)), (6, (3,), 6, "int16", (3,)), (7, (3,), 6, "uint16", (3,)), (8, (3,), 12, "uint32", (3,)),
    (9, (3,), 24, "int64", (3,)), (10, (3,), 24, "uint64", (3,)), (11, (3,), 24, "float64", (3,)), (12, (3,), 3, "bool", (3,)),
    (16, (3,), 24, "complex64", (3,)), (17, (3,), 48, "complex128", (3,)), (29, (2, 4), 4, "int4_x2", (2, 2)), (30, (2, 8), 2, "uint1_x8", (2, 1)),
    (33, (3,), 12, "complex32", (3,)), (34, (3,), 3, "hifloat8", (3,)), (35, (3,), 3, "float8_e5m2", (3,)), (36, (3,), 3, "float8_e4m3fn", (3,)),
    (37, (3,), 3, "float8_e8m0fnu", (3,)), (38, (4,), 3, "float6_e3m2fn_bytes", (3,)), (39, (4,), 3, "float6_e2m3fn_bytes", (3,)),
    (40, (4,), 2, "float4_e2m1fn_x2", (2,)), (41, (4,), 2, "float4_e1m2fn_x2", (2,)), (0, (), 4, "float32", ()), (1, (0, 7), 0, "float16", (0, 7)),
])  # fmt: skip
def test_every_element_type(tmp_path: Path, dtype: int, dims: tuple[int, ...], size: int, name: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(record(dtype, dims, os.urandom(size)))
    tensor = only(path)
    assert isinstance(tensor, Tensor)
    assert (tensor.dtype, tensor.shape) == (name, shape)


def test_tiled_content_is_called_so_and_may_be_padded(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(record(BF16, (2, 1, 16, 16), b"\1" * 1024, form=NZ))
    assert (only(path).tiled, only(path).shape) == ("FRACTAL_NZ", (2, 1, 16, 16))
    path.write_bytes(record(BF16, (3, 5), b"\1" * 512, form=NZ))
    assert (only(path).tiled, only(path).shape) == ("FRACTAL_NZ", (256,))


def test_two_devices_and_rounds_are_ranks_and_steps(tmp_path: Path) -> None:
    model(tmp_path, "good", device="0_11", number=9)
    model(tmp_path, "good", device="0_11", number=10)
    model(tmp_path, "good", device="1_12", number=9)
    dump = open_dump(tmp_path, settle_s=0)
    assert list(dict.fromkeys((tensor.rank, tensor.step) for tensor in dump.tensors)) == [(0, 9), (0, 10), (1, 9)]
    assert len({tensor.name for tensor in dump.tensors}) * 3 == len(dump.tensors)


def test_an_alias_alone_says_where_its_bytes_are(tmp_path: Path) -> None:
    (tmp_path / "intensor2.bin").write_bytes(record(F32, (2,), alias="5_intensor1.bin"))
    with pytest.raises(BadInput, match=r"5_intensor1\.bin of the same layer"):
        open_dump(tmp_path / "intensor2.bin", settle_s=0)
