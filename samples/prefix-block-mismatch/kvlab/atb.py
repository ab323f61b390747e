"""The folder that the ATB probe writes under MindIE: one prefill round of device 0.

Keys and values are inputs of a layer; the attention inside of it has them once more, as aliases without content.
"""

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.int32: 3, torch.int64: 9, torch.bfloat16: 27}
ND = 2
COLUMNS = (
    "Device and PID", "Execution Count", "Op Name", "Op Type", "Op Id", "Input/Output", "Index", "Dtype", "Format", "Shape",
    "Max", "Min", "Mean", "Norm", "Tensor Path",
)  # fmt: skip

Named = Mapping[str, torch.Tensor]


@dataclass
class _Round:
    folder: Path
    device: str
    rows: list[list[str]] = field(default_factory=list)

    def put(self, op: str, side: str, index: int, tensor: torch.Tensor, alias: str = "") -> None:
        """`op`: 1_Prefill_layer/0_PagedAttentionOperation; `side`: input or output."""
        before, stem = ("before", "intensor") if side == "input" else ("after", "outtensor")
        path = self.folder / op / before / f"{stem}{index}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_record(tensor, alias))
        names = [part.split("_", 1) for part in op.split("/")]
        figures = ["N/A"] * 4 if not tensor.is_floating_point() else _figures(tensor)
        self.rows.append([
            self.device, "0", "/".join(name for _, name in names), names[-1][1], "_".join(number for number, _ in names), side, str(index),
            str(tensor.dtype).removeprefix("torch."), "nd", "x".join(map(str, tensor.shape)), *figures, str(path),
        ])  # fmt: skip


def write_atb(folder: Path, tensors: Named, layers: int) -> None:
    """Embedding, layers, head, and the table of figures."""
    device = f"0_{os.getpid()}"
    held = _Round(folder / "atb_dump_data" / "data" / device / "0", device)
    held.put("0_WordEmbedding", "input", 0, tensors["input_ids"])
    held.put("0_WordEmbedding", "output", 0, tensors["layers.0.input.hidden_states"])
    for layer in range(layers):
        _layer(held, layer, tensors)
    held.put(f"{layers + 1}_LmHead", "output", 0, tensors["lm_head.output.logits"])
    with (held.folder / "statistic.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *held.rows])


def _layer(held: _Round, layer: int, tensors: Named) -> None:
    number = layer + 1
    op = f"{number}_Prefill_layer"
    attention = f"{op}/0_PagedAttentionOperation"
    inputs = ("input.hidden_states", "attn.input.k_cache", "attn.input.v_cache")
    for index, name in enumerate(inputs):
        held.put(op, "input", index, tensors[f"layers.{layer}.{name}"])
    for index, name in enumerate(inputs[1:], 1):
        held.put(attention, "input", index, tensors[f"layers.{layer}.{name}"], alias=f"{number}_intensor{index}.bin")
    if "block_tables" in tensors:
        held.put(attention, "input", 3, tensors["block_tables"])
    held.put(attention, "input", 4, tensors["context_lens"])
    held.put(attention, "output", 0, tensors[f"layers.{layer}.attn.output.0"])
    held.put(op, "output", 0, tensors[f"layers.{layer}.output.0"])
    (held.folder / attention / "op_param.json").write_text(json.dumps({"headNum": 4, "kvHeadNum": 2}))


def _record(tensor: torch.Tensor, alias: str) -> bytes:
    content = b"" if alias else tensor.contiguous().view(torch.uint8).numpy().tobytes()
    lines = ["$Version=1.0", f"$Object.Count={0 if alias else 1}", f"$Object.Length={len(content)}", f"format={ND}", f"dtype={DTYPES[tensor.dtype]}"]
    lines += [f"dims={','.join(map(str, tensor.shape))}", *([f"data={alias}"] if alias else []), f"$Object.data=0,{len(content)}", "$End=1"]
    return "".join(f"{line}\n" for line in lines).encode() + content


def _figures(tensor: torch.Tensor) -> list[str]:
    values = tensor.double()
    return [f"{float(value):.6f}" for value in (values.max(), values.min(), values.mean(), values.norm())]
