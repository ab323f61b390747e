"""What torch itself says of a tensor, for the JSON files beside the samples: its bytes' digest and its figures in float64."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch

CODES = ("float8_e8m0fnu", "float4_e2m1fn_x2", "complex32")


def contiguous_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in C order, little-endian as this machine has them."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.is_quantized:
        plain = plain.int_repr()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def expected(tensor: torch.Tensor) -> dict[str, object]:
    """Digest, and figures of the finite elements with counts of all."""
    name = str(tensor.dtype).removeprefix("torch.").removeprefix("q")
    told: dict[str, object] = {
        "dtype": name, "shape": list(tensor.shape), "sha256": hashlib.sha256(contiguous_bytes(tensor)).hexdigest(),
    }  # fmt: skip
    if name in CODES or tensor.is_complex():
        return told
    values = (tensor.int_repr() if tensor.is_quantized else tensor).detach().double().reshape(-1)
    finite = values[torch.isfinite(values)]
    told |= {"nan": int(torch.isnan(values).sum()), "inf": int(torch.isinf(values).sum()), "zeros": int((values == 0).sum())}
    if len(finite):
        told |= {
            "min": finite.min().item(), "max": finite.max().item(), "mean": finite.mean().item(),
            "std": math.sqrt(((finite - finite.mean()) ** 2).mean().item()), "norm": finite.norm().item(),
        }  # fmt: skip
    return told


def write(path: Path, files: Mapping[str, Mapping[str, torch.Tensor]], unread: Mapping[str, list[str]] | None = None) -> None:
    """`path`: {"files": {file: {key: figures}}, "unread": {file: [key, …]}, "torch": version}."""
    told = {
        "torch": torch.__version__,
        "files": {name: {key: expected(tensor) for key, tensor in tensors.items()} for name, tensors in files.items()},
        "unread": dict(unread or {}),
    }
    path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


def samples(seed: int = 7) -> dict[str, torch.Tensor]:
    """One small tensor of every type torch has numbers for, with the values that readers get wrong."""
    noise = torch.Generator().manual_seed(seed)
    base = torch.randn(3, 5, generator=noise)
    found = {f"float.{kind}": base.to(getattr(torch, kind)) for kind in ("float64", "float32", "float16", "bfloat16")}
    found |= {
        f"float8.{kind}": (base * 20).to(getattr(torch, kind))
        for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    }
    found["float8.all_e4m3fn"] = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
    found["float8.all_e5m2"] = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e5m2)
    found["float8.float8_e8m0fnu"] = torch.arange(16, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    whole = torch.arange(-8, 8).reshape(4, 4)
    found |= {f"int.{kind}": whole.to(getattr(torch, kind)) for kind in ("int8", "int16", "int32", "int64")}
    found |= {f"int.{kind}": whole.abs().to(getattr(torch, kind)) for kind in ("uint8", "uint16", "uint32", "uint64")}
    found["bool"] = whole > 0
    found["complex64"] = torch.complex(base, -base)
    found["complex128"] = torch.complex(base.double(), base.double() ** 2)
    found["odd.nan_inf"] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3.5])
    found["odd.scalar"] = torch.tensor(2.5)
    found["odd.empty"] = torch.zeros(0, 7, dtype=torch.float16)
    return found
