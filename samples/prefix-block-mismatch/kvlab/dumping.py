"""Tensor dumps of one request in the formats of several tools, each written with the library that defines it.

    npy, npz       numpy: a file for each tensor, or all in one; bfloat16 as numpy saves it, two bytes without a name
    safetensors    safetensors
    pt, pt_legacy  torch.save: zip, and the format before it
    sglang         torch.save under the names of SGLang's dumper
    sglang_hook    torch.save in the layout of SGLang's forward hook
    msprobe        dump.json, stack.json, construct.json, dump_tensor_data of mindstudio-probe
    atb            text header and raw bytes of the ATB probe, with aliases and statistic.csv
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from kvlab import atb
from kvlab.engine import Capture
from kvlab.model import LAYERS
from kvlab.msprobe import write_msprobe

Kind = Literal["pool", "blocks", "cache"]
"""Keys and values of the whole pool, or of the blocks of the request alone; "cache": those when the answer
is complete, its own tokens included, and nothing that was computed from them."""


class MissingPackage(Exception):
    """A format whose library is not installed."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a dump. `op` is the module or operation, `place` its argument there."""

    op: str
    place: str
    tensor: torch.Tensor
    layer: int | None = None

    @property
    def name(self) -> str:
        return f"{self.op}.{self.place}" if self.op else self.place


def entries(capture: Capture, kind: Kind) -> list[Entry]:
    """The tensors in the order in which they came to be."""
    size, blocks = capture.block_size, torch.tensor(capture.table)
    shown = blocks if kind == "pool" else torch.arange(len(blocks))
    positions = torch.arange(capture.start, len(capture.token_ids))
    found = [
        Entry("", "input_ids", torch.tensor(capture.token_ids[capture.start :], dtype=torch.int32)),
        Entry("", "positions", positions.to(torch.int32)),
        Entry("", "slot_mapping", (shown[positions // size] * size + positions % size).to(torch.int32)),
        Entry("", "context_lens", torch.tensor([len(capture.token_ids)], dtype=torch.int32)),
        Entry("", "block_tables", shown[None].to(torch.int32)),
    ]
    for layer in range(LAYERS):
        keys, values = capture.keys[layer], capture.values[layer]
        if kind != "pool":
            keys, values = keys[blocks], values[blocks]
        found += [
            Entry(f"layers.{layer}", "input.hidden_states", torch.cat(capture.trace.hidden_in[layer]), layer),
            Entry(f"layers.{layer}.attn", "input.k_cache", keys, layer),
            Entry(f"layers.{layer}.attn", "input.v_cache", values, layer),
            Entry(f"layers.{layer}.attn", "output.0", torch.cat(capture.trace.attention[layer]), layer),
            Entry(f"layers.{layer}", "output.0", torch.cat(capture.trace.hidden_out[layer]), layer),
        ]
    found.append(Entry("lm_head", "output.logits", capture.logits[None]))
    return [item for item in found if not item.op or item.place.endswith("_cache")] if kind == "cache" else found


def write(folder: Path, formats: Sequence[str], name: str, found: Sequence[Entry]) -> list[Path]:
    """Folders FORMAT/NAME, each complete once it has that name; an older one of that name is replaced."""
    written = []
    for item in formats:
        target, growing = folder / item / name, folder / item / f".{name}.part"
        shutil.rmtree(growing, ignore_errors=True)
        growing.mkdir(parents=True)
        FORMATS[item](growing, found)
        shutil.rmtree(target, ignore_errors=True)
        growing.rename(target)
        written.append(target)
    return written


def array(tensor: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """As numpy has it; bfloat16 as two bytes without a type, which is what numpy saves of it."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view("V2")
    return tensor.contiguous().numpy()


def _npy(folder: Path, found: Sequence[Entry]) -> None:
    for entry in found:
        np.save(folder / f"{entry.name}.npy", array(entry.tensor), allow_pickle=False)


def _npz(folder: Path, found: Sequence[Entry]) -> None:
    arrays: dict[str, Any] = {entry.name: array(entry.tensor) for entry in found}
    np.savez(folder / "dump.npz", **arrays)


def _safetensors(folder: Path, found: Sequence[Entry]) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingPackage("pip install safetensors") from error
    save_file(_named(found), folder / "dump.safetensors")


def _pt(folder: Path, found: Sequence[Entry]) -> None:
    torch.save(_named(found), folder / "dump.pt")


def _pt_legacy(folder: Path, found: Sequence[Entry]) -> None:
    torch.save(_named(found), folder / "dump.pt", _use_new_zipfile_serialization=False)


def _sglang(folder: Path, found: Sequence[Entry]) -> None:
    for index, entry in enumerate(found, 1):
        tags = {"step": 0, "rank": 0, "dump_index": index, "name": entry.name}
        if entry.layer is not None:
            tags["layer_id"] = entry.layer
        name = "___".join(f"{key}={value}" for key, value in tags.items())
        torch.save({"value": entry.tensor.contiguous(), "meta": {**tags, "world_size": 1}}, folder / f"{name}.pt")


def _sglang_hook(folder: Path, found: Sequence[Entry]) -> None:
    place = folder / f"TP0_PP0_Rank0_pid{os.getpid()}"
    place.mkdir()
    batch = ("input_ids", "positions", "slot_mapping", "context_lens", "block_tables")
    names = {entry.name: f"model.forward_batch_info.{entry.name}" if entry.name in batch else f"model.{entry.name}" for entry in found}
    torch.save({names[entry.name]: entry.tensor.contiguous() for entry in found}, place / "Pass00000.pt")


def _msprobe(folder: Path, found: Sequence[Entry]) -> None:
    write_msprobe(folder, [(entry.op, entry.place, entry.tensor) for entry in found])


def _atb(folder: Path, found: Sequence[Entry]) -> None:
    atb.write_atb(folder, {entry.name: entry.tensor for entry in found}, LAYERS)


def _named(found: Sequence[Entry]) -> dict[str, torch.Tensor]:
    return {entry.name: entry.tensor.contiguous() for entry in found}


FORMATS: Mapping[str, Callable[[Path, Sequence[Entry]], None]] = {
    "npy": _npy, "npz": _npz, "safetensors": _safetensors, "pt": _pt, "pt_legacy": _pt_legacy,
    "sglang": _sglang, "sglang_hook": _sglang_hook, "msprobe": _msprobe, "atb": _atb,
}  # fmt: skip

