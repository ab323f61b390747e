"""Writes ATB dumps byte by byte as msprobe's probe does: there is no other way without an NPU. msprobe's own reader checks them.

Only the standard library: it runs in the environments of `make oracle` and in the tests.
"""

import json
import math
import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

F32, F16, I32, BF16 = 0, 1, 3, 27
ND, NZ = 2, 29
COLUMNS = "Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,Max,Min,Mean,Norm,Tensor Path"
BLOCKS, BLOCK, HEADS, DIM = 6, 4, 2, 8
NAMES = {F32: "float", F16: "float16", I32: "int32", BF16: "bf16"}


def record(dtype: int, dims: Sequence[int], content: bytes = b"", *, form: int = ND, alias: str = "") -> bytes:
    """One record: the order of lines is that of the writer; an alias has no object."""
    lines = ["$Version=1.0", f"$Object.Count={0 if alias else 1}", f"$Object.Length={len(content)}"]
    lines += [f"format={form}", f"dtype={dtype}", f"dims={','.join(map(str, dims))}"]
    lines += [f"data={alias}"] if alias else [f"$Object.data=0,{len(content)}"]
    return ("\n".join([*lines, "$End=1"]) + "\n").encode() + content


def packed(dtype: int, values: Iterable[float]) -> bytes:
    """Little-endian elements; bfloat16 by cutting float32."""
    if dtype == I32:
        return b"".join(struct.pack("<i", int(value)) for value in values)
    if dtype == BF16:
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return b"".join(struct.pack("<e" if dtype == F16 else "<f", value) for value in values)


class Writer:
    """One device in one round."""

    def __init__(self, root: Path, device: str = "0_39943", number: int = 7) -> None:
        self.root = root / "atb_dump_data"
        self.device, self.number = device, number
        self.folder = self.root / "data" / device / str(number)
        self.rows: list[str] = []

    def tensor(self, op: str, side: str, index: int, dtype: int, dims: Sequence[int], values: Sequence[float], *, form: int = ND, alias: str = "") -> Path:
        """`op` as in folder names ("5_Prefill_layer/0_Attention"), side "input" or "output"."""
        place = "before/intensor" if side == "input" else "after/outtensor"
        path = self.folder / op / f"{place}{index}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"" if alias else packed(dtype, values)
        with path.open("ab") as file:  # the probe appends
            file.write(record(dtype, dims, content, form=form, alias=alias))
        self.row(op, side, index, dtype, dims, values, path)
        return path

    def row(self, op: str, side: str, index: int, dtype: int, dims: Sequence[int], values: Sequence[float], path: Path | None) -> None:
        """Of statistic.csv, with figures in six decimals."""
        ids, names = zip(*(piece.split("_", 1) for piece in op.split("/")), strict=True)
        figures = [max(values), min(values), math.fsum(values) / len(values), math.sqrt(math.fsum(value * value for value in values))]
        where = str(path.relative_to(self.root.parent)) if path is not None else "N/A"
        told = [f"{figure:.6f}" for figure in figures]
        self.rows.append(",".join([
            self.device, str(self.number), "/".join(names), names[-1], "_".join(ids), side, str(index),
            NAMES[dtype], "nd", "x".join(map(str, dims)), *told, where,
        ]))  # fmt: skip

    def done(self, *, with_graph: bool = True) -> None:
        """statistic.csv, rows not in the order of execution as twelve threads write it; the model's graph."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "statistic.csv").write_text("\n".join([COLUMNS, *reversed(self.rows)]) + "\n")
        if with_graph:
            folder = self.root / "info" / "model" / self.device
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "DecoderModel_Prefill.json").write_text(json.dumps(graph()))


def graph() -> dict[str, object]:
    """Two layers after the embedding, as info/model has them."""
    def layer(one: int) -> dict[str, object]:
        name = f"Prefill_layer_{one}"
        inside = [f"{name}_internal_{at}" for at in range(2)]
        return {
            "opName": name, "opType": "Prefill_layer", "inTensors": [f"hidden_{one - 1}", f"k_{one}", f"v_{one}", "slots"],
            "outTensors": [f"hidden_{one}"], "internalTensors": inside,
            "nodes": [
                {"opName": f"ReshapeAndCacheOperation_{one}_0", "opType": "ReshapeAndCacheOperation", "param": {},
                 "inTensors": [inside[0], inside[1], f"k_{one}", f"v_{one}", "slots"], "outTensors": [f"k_{one}", f"v_{one}"]},
                {"opName": f"SelfAttention_{one}_1", "opType": "SelfAttention", "param": {},
                 "inTensors": [inside[0], f"k_{one}", f"v_{one}"], "outTensors": [f"hidden_{one}"]},
            ],
        }  # fmt: skip
    return {"modelName": "DecoderModel_Prefill", "nodes": [{"opName": "WordEmbedding_0", "inTensors": ["ids"], "outTensors": ["hidden_0"]}, layer(1), layer(2)]}


def model(root: Path, which: str, *, device: str = "0_39943", number: int = 7, dtype: int = BF16) -> Writer:
    """A dump of two layers; in the bad one block 1 of layer 2's keys is another's."""
    writer = Writer(root, device, number)
    numbers = random.Random(5)

    def values(count: int) -> list[float]:
        return [round(numbers.gauss(0, 1) * 64) / 64 for _ in range(count)]

    tokens, pool = 3, (BLOCKS, BLOCK, HEADS, DIM)
    writer.tensor("0_WordEmbedding", "input", 0, I32, (tokens,), [11, 12, 13])
    writer.tensor("0_WordEmbedding", "output", 0, dtype, (tokens, HEADS * DIM), values(tokens * HEADS * DIM))
    for layer in (1, 2):
        op = f"{layer}_Prefill_layer"
        keys, held = values(math.prod(pool)), values(math.prod(pool))
        if which == "bad" and layer == 2:
            block = BLOCK * HEADS * DIM
            other = random.Random(99)
            keys[block : 2 * block] = [round(other.gauss(0, 1) * 64) / 64 for _ in range(block)]
        writer.tensor(op, "input", 0, dtype, (tokens, HEADS * DIM), values(tokens * HEADS * DIM))
        writer.tensor(op, "input", 1, dtype, pool, keys)
        writer.tensor(op, "input", 2, dtype, pool, held)
        writer.tensor(op, "input", 3, I32, (tokens,), [0, 1, 2])
        cache = f"{op}/0_ReshapeAndCacheOperation"
        for index in (0, 1):
            writer.tensor(cache, "input", index, dtype, (tokens, HEADS, DIM), values(tokens * HEADS * DIM))
        for index, source in ((2, 1), (3, 2), (4, 3)):
            same = keys if source == 1 else held if source == 2 else [0, 1, 2]
            writer.tensor(cache, "input", index, dtype if index < 4 else I32, pool if index < 4 else (tokens,), same, alias=f"{layer}_intensor{source}.bin")
        writer.tensor(op, "output", 0, dtype, (tokens, HEADS * DIM), values(tokens * HEADS * DIM))
    writer.done()
    return writer
