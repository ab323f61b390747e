# requires: mindstudio-probe==26.2.0, torch==2.13.0
"""Writes tests/tensors/data/msprobe: a small attention model dumped by msprobe itself, good and bad, and what msprobe says of the two.

    good/, bad/                    task "tensor", level "mix", rank 0: content
    good_statistics/, …            task "statistics": figures only
    debug/                         two `debugger.save` calls, in a process without rank
    expected.json                  torch's figures of every file, and the rows of `msprobe compare`

and tests/tensors/data/atb: two ATB dumps by the byte listing (atb_bytes.py) with what `msprobe compare -m atb` reads in them.

In the bad run block 1 of the value cache of layer 1 holds another request's content.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OUT = Path(__file__).parent.parent / "tensors" / "data" / "msprobe"
BLOCKS, BLOCK, HEADS, DIM = 4, 4, 2, 8


def dump(task: str, level: str, which: str, folder: str) -> None:
    """One run in this process; msprobe can be set up once a process."""
    import torch
    from msprobe.pytorch import PrecisionDebugger

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = torch.nn.Linear(DIM * HEADS, DIM * HEADS, dtype=torch.bfloat16)
            self.o = torch.nn.Linear(DIM * HEADS, DIM * HEADS, dtype=torch.bfloat16)

        def forward(self, x, cache, *, block_tables, context_lens):
            q = self.q(x).view(-1, HEADS, DIM).transpose(0, 1)
            k = cache["k_cache"][block_tables[0].long()].reshape(-1, HEADS, DIM)[: int(context_lens[0])].transpose(0, 1)
            v = cache["v_cache"][block_tables[0].long()].reshape(-1, HEADS, DIM)[: int(context_lens[0])].transpose(0, 1)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.o(out.transpose(0, 1).reshape(-1, HEADS * DIM)), [out, (3, float("nan"))]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Attention(), Attention()])

        def forward(self, x, caches):
            for layer, cache in zip(self.layers, caches, strict=True):
                x, _ = layer(x, cache, block_tables=torch.tensor([[2, 1, 0]], dtype=torch.int32), context_lens=torch.tensor([10], dtype=torch.int32))
            return x.float()

    if level != "debug":
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    model = Model()
    caches = [
        {name: torch.randn(BLOCKS, BLOCK, HEADS, DIM, dtype=torch.bfloat16) for name in ("k_cache", "v_cache")} for _ in model.layers
    ]
    caches[0]["k_cache"][3, 0, 0, 0] = float("nan")  # a block that nobody reads
    tokens = torch.randn(2, DIM * HEADS, dtype=torch.bfloat16)
    if which == "bad":
        caches[1]["v_cache"][1] = torch.randn(BLOCK, HEADS, DIM, dtype=torch.bfloat16)
    filters = {"scope": [], "list": [], "data_mode": ["all"]}
    settings = {
        "task": task, "dump_path": folder, "rank": [], "step": [], "level": level,
        "tensor": filters, "statistics": {**filters, "summary_mode": "statistics"},
    }  # fmt: skip
    Path("settings.json").write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path="settings.json")
    with torch.no_grad():
        if level == "debug":
            debugger.save(tokens, "hidden")
            debugger.save({"k": caches[0]["k_cache"], "numbers": [1, 2]}, "cache")
        else:
            debugger.start(model=model)
            model(tokens, caches)
            debugger.stop()
        debugger.step()


def run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def comparison(name: str) -> list[dict[str, str]]:
    """Rows of `msprobe compare` of bad against good: names and figures."""
    places = [str(next(Path(folder).rglob("dump.json"))) for folder in (f"bad{name}", f"good{name}")]
    out = f"compared{name}"
    run("-c", "import sys; from msprobe.msprobe import main; sys.exit(main())", "compare", "-tp", places[0], "-gp", places[1], "-o", out)
    (table,) = Path(out).rglob("compare_result_*.csv")
    with table.open(newline="", encoding="utf-8-sig") as text:
        rows = list(csv.DictReader(text))
    left_out = {"NPU_Stack_Info", "Err_message", "Suggestions"}
    return [{key: value for key, value in row.items() if key not in left_out and value not in ("", None)} for row in rows]


def atb(out: Path) -> None:
    """ATB dumps as msprobe's own reader sees them; it skips aliases."""
    import pandas as pd
    from atb_bytes import model

    shutil.rmtree(out, ignore_errors=True)
    rounds = [str(model(out / which, which, device=device, number=number).folder) for which, device, number in (("bad", "0_52001", 9), ("good", "0_39943", 7))]
    run("-c", "import sys; from msprobe.msprobe import main; sys.exit(main())", "compare", "-m", "atb", "-tp", rounds[0], "-gp", rounds[1], "-o", "compared_atb")
    (table,) = Path("compared_atb").glob("*.xlsx")
    rows = json.loads(pd.read_excel(table, keep_default_na=False).to_json(orient="records"))
    (out / "expected.json").write_text(json.dumps({"compare": rows}, indent=1) + "\n")


def without_machine(folder: Path) -> None:
    """Paths of the machine and numbers of processes say nothing about the format."""
    for path in folder.rglob("stack.json"):
        path.write_text(re.sub(r"File /[^\s\"]*/([^/\s\"]+),", r"File \1,", path.read_text()))
    for path in folder.rglob("proc*"):
        path.rename(path.with_name("proc4711"))
    for path in folder.rglob("*.json"):
        path.write_text(re.sub(r"proc[0-9]+", "proc4711", path.read_text()))


def main() -> None:
    import torch
    from torch_expected import expected

    home = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for task, suffix in (("tensor", ""), ("statistics", "_statistics")):
            for which in ("good", "bad"):
                run(str(Path(__file__).resolve()), "dump", task, "mix", which, which + suffix)
        run(str(Path(__file__).resolve()), "dump", "tensor", "debug", "good", "debug")
        told = {
            "compare": comparison(""), "compare_statistics": comparison("_statistics"),
            "files": {str(path): expected(torch.load(path)) for path in sorted(Path().rglob("*.pt"))},
        }  # fmt: skip
        kept = ("good", "bad", "good_statistics", "bad_statistics", "debug")
        for folder in kept:
            without_machine(Path(folder))
        shutil.rmtree(OUT, ignore_errors=True)
        for folder in kept:
            shutil.copytree(folder, OUT / folder)
        text = re.sub(r"proc[0-9]+", "proc4711", json.dumps(told, indent=1))
        (OUT / "expected.json").write_text(text + "\n")
        atb(OUT.with_name("atb"))
        os.chdir(home)


if __name__ == "__main__":
    if sys.argv[1:2] == ["dump"]:
        dump(*sys.argv[2:])
    else:
        main()
