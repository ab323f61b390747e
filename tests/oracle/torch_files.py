# requires: torch==2.13.0, numpy==2.4.6
"""Writes tests/tensors/data/torch: what torch.save and pickle make of tensors, with torch's own figures beside.

    python tests/oracle/torch_files.py
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch_expected import samples, write

OUT = Path(__file__).parent.parent / "tensors" / "data" / "torch"


def saved(value: object, *, zipped: bool = True, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def deflated(data: bytes) -> bytes:
    """The same archive as somebody's zip program packs it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return out.getvalue()


def nested(tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """{"a.b": t} -> {"a": {"b": t}}"""
    root: dict[str, object] = {}
    for key, tensor in tensors.items():
        *folders, name = key.split(".")
        inner: dict[str, object] = root
        for folder in folders:
            inner = inner.setdefault(folder, {})  # type: ignore[assignment]
        inner[name] = tensor
    return root


def views() -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """Tensors that share storages, leave some of it out, or walk through it in another order."""
    base = torch.arange(240, dtype=torch.float32).reshape(2, 3, 40)
    shared = torch.arange(64, dtype=torch.bfloat16)
    found = {
        "slice": base[1, :, 4:9], "transposed": base.transpose(0, 2), "stepped": base[:, ::2, 1::3], "expanded": torch.ones(3, 1).expand(3, 8),
        "tail": shared[60:], "whole": shared, "column": base[0, :, 0], "one": base[1, 2, 39], "none": base[:0],
    }  # fmt: skip
    return dict(found), found


def containers() -> tuple[object, dict[str, torch.Tensor]]:
    """Lists, tuples, ordered dicts, parameters, a module's state, numbers for keys, one tensor under two names."""
    noise = torch.Generator().manual_seed(11)
    k, v = torch.randn(2, 4, generator=noise).half(), torch.randn(2, 4, generator=noise).half()
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=noise))
    state = module.state_dict()
    parameter = torch.nn.Parameter(torch.arange(3.0))
    quantised = torch.quantize_per_tensor(torch.arange(6.0) / 3, 0.1, 3, torch.qint8)
    value = {
        "layers": [{"k": k, "v": v}, {"k": v, "v": k}], "cache": (k, (v,)), "state": state, "ordered": OrderedDict(a=k),
        7: v, "parameter": parameter, "quantised": quantised, "note": "text", "number": 3, "none": None, "flags": {True, False},
        "array": k.numpy(), "size": k.size(), "kind": torch.bfloat16, "device": torch.device("cpu"),
    }  # fmt: skip
    expected = {
        "layers.0.k": k, "layers.0.v": v, "layers.1.k": v, "layers.1.v": k, "cache.0": k, "cache.1.0": v, "ordered.a": k, "7": v,
        "parameter": parameter, "quantised": quantised, "array": k, **{f"state.{key}": tensor for key, tensor in state.items()},
    }  # fmt: skip
    return value, expected


def sglang() -> tuple[object, dict[str, torch.Tensor]]:
    """What SGLang's dumper writes: the tensor and what it knows of it."""
    value = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).bfloat16()
    return {"value": value, "meta": {"step": 3, "rank": 1, "name": "hidden", "layer_id": 2, "scale": 0.5, "pp": None}}, {"value": value}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    kinds = samples()
    files: dict[str, tuple[bytes, dict[str, torch.Tensor]]] = {}
    files["types.pt"] = saved(nested(kinds)), kinds
    older = {key: tensor for key, tensor in kinds.items() if not key.startswith(("int.uint1", "int.uint3", "int.uint6"))}
    files["types_legacy.pt"] = saved(nested(older), zipped=False), older
    files["types_deflated.pt"] = deflated(saved(nested(kinds))), kinds
    for protocol in (3, 4, 5):
        files[f"protocol_{protocol}.pt"] = saved({"t": kinds["float.bfloat16"]}, protocol=protocol), {"t": kinds["float.bfloat16"]}
    files["protocol_4_legacy.pth"] = saved({"t": kinds["float.float16"]}, zipped=False, protocol=4), {"t": kinds["float.float16"]}
    for name, (value, expected) in {"views": views(), "containers": containers(), "sglang": sglang()}.items():
        files[f"{name}.pt"] = saved(value), expected
        files[f"{name}_legacy.pt"] = saved(value, zipped=False), expected
    files["alone.pt"] = saved(kinds["float.float32"]), {"": kinds["float.float32"]}
    files["storage.pt"] = saved(kinds["int.int16"].untyped_storage()), {"": kinds["int.int16"].reshape(-1).view(torch.uint8)}
    few = {"a": kinds["float.bfloat16"], "b": kinds["int.int32"].t(), "c": torch.nn.Parameter(kinds["float.float32"])}
    for protocol in (2, 4, 5):
        files[f"pickled_{protocol}.pkl"] = pickle.dumps(few, protocol=protocol), few
    conjugated = {"plain": kinds["complex64"], "turned": kinds["complex64"].conj(), "sparse": kinds["bool"].float().to_sparse()}
    files["unusual.pt"] = saved(conjugated), {"plain": kinds["complex64"]}
    for name, (data, _expected) in files.items():
        (OUT / name).write_bytes(data)
    write(OUT / "expected.json", {name: expected for name, (_data, expected) in files.items()}, {"unusual.pt": ["turned", "sparse"]})


if __name__ == "__main__":
    main()
