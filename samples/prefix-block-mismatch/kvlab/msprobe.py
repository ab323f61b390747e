"""The folder that mindstudio-probe's PrecisionDebugger writes at level mix, task tensor."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

CLASSES = {"attn": "Attention", "lm_head": "ParallelLMHead", "": "Transformer"}

Item = tuple[str, str, torch.Tensor]


def write_msprobe(folder: Path, items: Sequence[Item]) -> None:
    """`items`: module, argument, tensor - in the order in which they came to be."""
    place = folder / "step0" / "rank0"
    content = place / "dump_tensor_data"
    content.mkdir(parents=True)
    data: dict[str, dict[str, Any]] = {}
    for module, argument, tensor in items:
        op = _operation(module)
        data[op] = entry = data.pop(op, {"input_args": [], "input_kwargs": {}, "output": []})  # they stand in the order in which they end
        direction, _, name = argument.rpartition(".")
        group = "output" if direction == "output" else "kwargs"
        label = str(len(entry["output"])) if group == "output" else name
        file = f"{op}.{group}.{label}.pt"
        torch.save(tensor.contiguous(), content / file)
        told = _told(tensor) | {"data_name": file}
        if group == "output":
            entry["output"].append(told)
        else:
            entry["input_kwargs"][label] = told
    document = {
        "task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": str(content), "data": data,
    }  # fmt: skip
    (place / "dump.json").write_text(json.dumps(document, indent=1))
    (place / "construct.json").write_text(json.dumps({op: _parent(op, data) for op in data}, indent=1))
    (place / "stack.json").write_text(json.dumps({"0": [list(data), ["File model.py, line 1, in forward"]]}, indent=1))


def _operation(module: str) -> str:
    last = module.rpartition(".")[2]
    name = f"Module.{module}.{CLASSES.get(last, 'DecoderLayer')}" if module else f"Module.{CLASSES['']}"
    return f"{name}.forward.0"


def _parent(op: str, data: dict[str, Any]) -> str | None:
    if ".attn." in op:
        return op.replace(".attn.Attention.", ".DecoderLayer.")
    root = _operation("")
    return root if op != root and root in data else None


def _told(tensor: torch.Tensor) -> dict[str, Any]:
    values = tensor.double()
    return {
        "type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape), "Max": float(values.max()), "Min": float(values.min()),
        "Mean": float(values.mean()), "Norm": float(values.norm()), "requires_grad": False,
    }  # fmt: skip
