# requires: torch==2.13.0, numpy==2.4.6
"""Writes tests/tensors/data/sglang: torch.save under the names SGLang's two dumpers and TensorRT-LLM's hook document.

Their packages do not fit here; the names and the form of the content are theirs, the bytes are torch's.
"""

import shutil
from pathlib import Path

import torch
from torch_expected import write

OUT = Path(__file__).parent.parent / "tensors" / "data" / "sglang"


def dumper(folder: Path) -> dict[str, torch.Tensor]:
    """{"value", "meta"} a file, tags in the name."""
    folder.mkdir(parents=True)
    told = {}
    numbers = torch.Generator().manual_seed(3)
    index = 0
    for step in (0, 1):
        for name, layer, tensor in (
            ("input_ids", None, torch.arange(6)), ("hidden_states", 0, torch.randn(6, 8, generator=numbers, dtype=torch.bfloat16)),
            ("hidden_states", 10, torch.randn(6, 8, generator=numbers).half()), ("hidden_states", 9, torch.randn(6, 8, generator=numbers)),
            ("non_intrusive__model.layers.0.self_attn.inputs.0", None, torch.randn(2, 3, generator=numbers)), ("moe___topk", 1, torch.ones(2, dtype=torch.int32)),
        ):  # fmt: skip
            index += 1
            tags = {"step": step, "rank": 1, "dump_index": index, "name": name, "recompute_status": "disabled"} | ({} if layer is None else {"layer_id": layer})
            path = folder / ("___".join(f"{key}={value}" for key, value in tags.items()) + ".pt")
            torch.save({"value": tensor, "meta": {**tags, "world_rank": 1, "world_size": 2, "sglang_parallel_info": {"tp_rank": 1}, "dims": "t h"}}, path)
            told[f"dumper/{path.name}"] = tensor
    torch.save({"value": "not a tensor", "meta": {}}, folder / f"step=1___rank=1___dump_index={index + 1}___name=text___recompute_status=disabled.pt")
    return told


def forward_hook(folder: Path) -> dict[str, torch.Tensor]:
    """One dict a pass; what runs after "model" stands first in the next file."""
    told = {}
    numbers = torch.Generator().manual_seed(4)
    for rank in (0, 1):
        place = folder / f"TP{rank}_PP0_Rank{rank}_pid{4711 + rank}"
        place.mkdir(parents=True)
        after: dict[str, object] = {}
        for number in (0, 1):
            held: dict[str, object] = dict(after)
            for key in ("model.embed_tokens", *(f"model.layers.{layer}.{part}" for layer in (9, 10) for part in ("self_attn.qkv_proj", "mlp.down_proj")), "model.norm"):
                held[key] = torch.randn(3, 4, generator=numbers, dtype=torch.bfloat16)
            held["model.layers.10.mlp.down_proj"] = [torch.randn(3, 4, generator=numbers), torch.randn(3, 4, generator=numbers)]
            held |= {f"model.forward_batch_info.{key}": torch.arange(3) + number for key in ("input_ids", "seq_lens", "positions")}
            path = place / f"Pass{number:05d}.pt"
            torch.save(held, path)
            after = {"model": torch.randn(3, 4, generator=numbers), "logits_processor": torch.randn(1, 9, generator=numbers)}
            for key, value in held.items():
                for at, tensor in enumerate(value if isinstance(value, list) else [value]):
                    told[f"{path.relative_to(folder.parent)}#{key}{f'.{at}' if isinstance(value, list) else ''}"] = tensor
    return told


def tensorrt(folder: Path) -> dict[str, torch.Tensor]:
    """rank<r>/<call>.<Module>-…-<input|output>.<parameter>.pt, two passes."""
    place = folder / "rank1"
    place.mkdir(parents=True)
    told = {}
    numbers = torch.Generator().manual_seed(6)
    for top in (1, 3):
        for calls in (f"{top}.DecoderModel-1.Embedding", *(f"{top}.DecoderModel-{layer}.DecoderLayer-1.Attention" for layer in (2, 3))):
            for side, parameter in (("input", "hidden_states"), ("output", "0")):
                path = place / f"{calls}-{side}.{parameter}.pt"
                tensor = torch.randn(2, 4, generator=numbers)
                torch.save(tensor, path)
                told[str(path.relative_to(folder.parent))] = tensor
    return told


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    told = dumper(OUT / "dumper") | forward_hook(OUT / "forward_hook") | tensorrt(OUT / "tensorrt")
    write(OUT / "expected.json", {"all": told})


if __name__ == "__main__":
    main()
