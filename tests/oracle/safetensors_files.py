# requires: safetensors==0.8.0, torch==2.13.0, numpy==2.4.6, ml_dtypes==0.6.0
"""Writes tests/tensors/data/safetensors and data/numpy: files by safetensors and numpy, with the figures of what those packages read back.

    python tests/oracle/safetensors_files.py
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch_expected import contiguous_bytes, samples, write

DATA = Path(__file__).parent.parent / "tensors" / "data"


def tensors() -> dict[str, torch.Tensor]:
    """Every type the package writes."""
    return {key: tensor.contiguous() for key, tensor in samples(13).items() if key != "complex128"}


def safetensors(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(), folder / "types.safetensors", metadata={"format": "pt", "step": "3"})
    kv = {f"round_0.layer_{layer}.kv": torch.randn(1, 2, 2, 8, 4, generator=torch.Generator().manual_seed(layer)).half() for layer in range(3)}
    save_file({**kv, "round_0.context_lengths": torch.tensor([5], dtype=torch.int32)}, folder / "edge_llm.safetensors")
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # the package writes for its owner alone
    write(folder / "expected.json", {path.name: load_file(path) for path in sorted(folder.glob("*.safetensors"))})


def arrays(folder: Path) -> None:
    """.npy and .npz, among them types that numpy cannot name: their files say V2 and V1."""
    folder.mkdir(parents=True, exist_ok=True)
    base = torch.randn(3, 5, generator=torch.Generator().manual_seed(17))
    lost = {"bfloat16": base.bfloat16(), "float8_e4m3fn": base.to(torch.float8_e4m3fn), "float8_e5m2": base.to(torch.float8_e5m2)}
    for name, tensor in lost.items():
        codes = np.frombuffer(contiguous_bytes(tensor), getattr(ml_dtypes, name)).reshape(tensor.shape)
        np.save(folder / f"{name}.npy", codes)
    values = base.numpy()
    kept = {
        "float32": values, "float16": values.astype(np.float16), "float64_big": values.astype(">f8"), "int32_big": (values * 9).astype(">i4"),
        "fortran": np.asfortranarray(values), "bool": values > 0, "scalar": np.array(2.5), "empty": np.zeros((0, 4), np.int16),
        "complex64": values + 1j * values, "uint8": np.arange(7, dtype=np.uint8),
    }  # fmt: skip
    for name, array in kept.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "stored.npz", **kept)
    np.savez_compressed(folder / "deflated.npz", **kept)
    with (folder / "version_2.npy").open("wb") as out:
        np.lib.format.write_array(out, values, version=(2, 0))
    with (folder / "version_3.npy").open("wb") as out:
        np.lib.format.write_array(out, values, version=(3, 0))
    with (folder / "appended.npy").open("wb") as out:
        np.save(out, values)
        np.save(out, kept["uint8"])
    told = {name: {"dtype": array.dtype.newbyteorder("=").name, "shape": array.shape, "big_endian": array.dtype.byteorder == ">", "values": _listed(array)} for name, array in kept.items()}
    (folder / "expected.json").write_text(json.dumps({"numpy": np.__version__, "arrays": told}, indent=1) + "\n")
    write(folder / "lost.json", {"": lost})


def _listed(array: np.ndarray) -> object:
    return np.stack([array.real, array.imag]).tolist() if np.iscomplexobj(array) else array.tolist()


if __name__ == "__main__":
    safetensors(DATA / "safetensors")
    arrays(DATA / "numpy")
