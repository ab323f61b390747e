"""Writes the samples of the rules about prefix caches and tensor dumps: logs by hand, comparisons by `llmdiag compare-dumps`.

    python samples/prefix-cache/write.py [NAME…]      # all, or some of those in sample.toml

Dumps are made of numbers drawn from seeds: what a block holds is drawn from the tokens up to its end, as a causal model
would compute it, so that another token changes every later block of the deeper layers. They are compared and thrown away.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LAYERS, BLOCKS, TOKENS, HEADS, DIM = 2, 4, 8, 2, 16
PROMPT = tuple(range(100, 100 + BLOCKS * TOKENS))
OTHER = tuple(range(700, 700 + BLOCKS * TOKENS))
CACHED = 3
"""Blocks of the prompt that the cache held; the last one is computed anew."""


# --- dumps ---


def drawn(*seed: object, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(repr(seed).encode())).standard_normal(shape).astype("float32")


def block(kind: str, layer: int, tokens: Sequence[int], number: int) -> np.ndarray:
    """Keys or values of one block: in layer 0 they depend on its own tokens (keys on their place too), above it on all before."""
    first, end = number * TOKENS, (number + 1) * TOKENS
    own = tuple(tokens[first:end])
    seen = tuple(tokens[:end]) if layer else (own, number) if kind == "k" else own
    return drawn(kind, layer, seen, shape=(TOKENS, HEADS, DIM))


def cache(tokens: Sequence[int], replaced: Mapping[int, Sequence[int]] | None = None) -> dict[str, np.ndarray]:
    """The cache of one request, and the activations after it. `replaced`: block -> tokens of the request whose block 0 stands there."""
    found: dict[str, np.ndarray] = {"input_ids": np.array(tokens, "int64")}
    wrong = replaced or {}
    for layer in range(LAYERS):
        for kind in "kv":
            blocks = [block(kind, layer, wrong[n], 0) if n in wrong else block(kind, layer, tokens, n) for n in range(BLOCKS)]
            if wrong and layer:  # what is computed anew looks at the wrong block, but for the first layer
                blocks[CACHED:] = [drawn("computed", kind, layer, n, tuple(wrong.items()), shape=(TOKENS, HEADS, DIM)) for n in range(CACHED, BLOCKS)]
            found[f"layers.{layer}.{kind}_cache"] = np.stack(blocks)
        found[f"layers.{layer}.hidden"] = drawn("hidden", layer, tuple(tokens), tuple(wrong.items()), shape=(TOKENS, 32))
    return found | placed()


def placed() -> dict[str, np.ndarray]:
    return {"block_tables": np.arange(BLOCKS, dtype="int32")[None], "context_lens": np.array([BLOCKS * TOKENS], "int32")}


def noisy(dump: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same request in another batch: rounding only."""
    return {name: array if array.dtype.kind == "i" else array * (1 + 1e-6 * drawn("noise", name, shape=array.shape)) for name, array in dump.items()}


def save(folder: Path, dump: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    for name, array in dump.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def save_operations(folder: Path, steps: Sequence[tuple[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]) -> Path:
    """Operations with inputs and outputs in the layout of msprobe."""
    place = folder / "step0" / "rank0"
    data = place / "dump_tensor_data"
    data.mkdir(parents=True)
    told: dict[str, object] = {}
    for op, inputs, outputs in steps:
        entry: dict[str, list[object]] = {"input_args": [], "output": []}
        for group, word, arrays in (("input_args", "input", inputs), ("output", "output", outputs)):
            for number, array in enumerate(arrays.values()):
                file = f"{op}.{word}.{number}.npy"
                np.save(data / file, array)
                entry[group].append({"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape), "data_name": file})
        told[op] = entry
    (place / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": str(data), "data": told}))
    return folder


def compared(target: Path, work: Path, good: Mapping[str, np.ndarray], bad: Mapping[str, np.ndarray], donors: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> None:
    """Save both, compare them, keep the comparison."""
    save(work / "good", good)
    save(work / "bad", bad)
    for name, dump in (donors or {}).items():
        save(work / name, dump)
    compare(target, work, *[part for name in donors or {} for part in ("--donors", name)])


def compare(target: Path, work: Path, *options: str) -> None:
    run = subprocess.run(
        ["llmdiag", "compare-dumps", "good", "bad", *options, "-o", str(target.absolute() / "comparison.json"), "-f", "json"],
        cwd=work, capture_output=True, text=True,
    )  # fmt: skip
    if run.returncode not in (0, 1):
        raise SystemExit(run.stderr)
    document = json.loads((target / "comparison.json").read_text())
    # What a rule says of it belongs to the rule, and the folder it was made in to nobody.
    document["diagnosis"], document["lookups"], document["seconds"] = None, [], 0.0
    for who in ("good", "bad"):
        document[who]["root"] = who
    for donor in document["donors"]:
        donor["root"] = donor["name"]
    pairs = document.pop("pairs")
    text = json.dumps(document, ensure_ascii=False)[:-1] + ',"pairs":[\n' + ",\n".join(json.dumps(pair) for pair in pairs) + "]}\n"
    (target / "comparison.json").write_text(text)


# --- logs ---


def lookup(flags: Sequence[int], answer: int, second: int, request: str | None = None) -> str:
    """One lookup as a patched MindIE logs it: flags of the chain, blocks that the binary search answers."""
    lines, ids = ([] if request is None else [f": schedule prefill, requestId={request}"]), []
    for position in range(answer):
        lines.append(f"二分IsBlockCached: {flags[position]}")
        if flags[position]:
            ids.append(40 + position)
            lines.append(f"===> PrefixCacheBlockAllocator blockHash={zlib.crc32(repr(PROMPT[: position + 1]).encode()) * 4294967311} blockIDs ={ids[-1]} is computed:1")
    walk = flags[: flags.index(0) + 1] if 0 in flags else flags
    lines += [f"遍历IsBlockCached: {flag}" for flag in walk]
    leading = len(walk) - (0 in walk)
    lines += [f"二分:{ids}", f"遍历:{[40 + n for n in range(leading)]}"]
    return "".join(f"[2026-01-05 10:00:{second:02}.{120 + n:03}] [4711] [4720] [llm] [DEBUG] [prefix_cache_block_allocator.cpp:404] {line}\n" for n, line in enumerate(lines))


def log(target: Path, flags: Sequence[int], answer: int) -> None:
    """A day in the life of a cache: a miss, a whole hit, and the lookup in question."""
    (target / "lookups.log").write_text(lookup([0], 0, 1) + lookup([1, 1, 1], 3, 2) + lookup(flags, answer, 3), encoding="utf-8")


def asked_and_logged(target: Path, cached: int) -> None:
    """A log that prints both searches, and the experiment whose requests it is of: one of them meets a hole and comes back with so many cached tokens."""
    chains = [([0], 0, 0), ([1, 1, 1], 3, 3 * TOKENS), ([1, 1, 1], 3, 3 * TOKENS), ([1, 0, 1], 3, cached)]
    names = [f"cmpl-5d1f0c{number:02}" for number in range(len(chains))]
    text = "".join(lookup(flags, answer, second, name) for second, ((flags, answer, _), name) in enumerate(zip(chains, names, strict=True), 1))
    (target / "lookups.log").write_text(text, encoding="utf-8")
    trials = [
        {"arm": "pressure", "ordinal": ordinal, "kind": "reask", "prompt": 0, "variant": None, "answer_class": "same", "suspicious": False, "reproduced": None,
         "hit": tokens > 0, "cached_tokens": tokens, "prompt_tokens": 30, "bypass": False, "seconds": 0.8, "ts": 1767607200.0 + ordinal, "note": "", "request": name}
        for ordinal, ((_, _, tokens), name) in enumerate(zip(chains, names, strict=True), 1)
    ]  # fmt: skip
    save_experiment(target, {**EXPERIMENT, "verdict": "no-failure", "started_at": 1767607200.0, "seconds": 9.0, "ended": "full", "healed_by_bypass": None,
        "because": ["the cache was full (usage reached 100 %), and 3 re-asks used cached blocks after that"],
        "arms": [{"arm": "pressure", "stickiness": None}], "trials": trials})  # fmt: skip


def own_lines(target: Path, epoch: int) -> None:
    """Three blocks that an engine of generation 3 takes from its cache."""
    rows = [
        {"request": "r7", "method": "engine", "position": n, "block_hash": f"{n + 1:016x}", "block_id": 40 + n, "cached": True, "computed": True, "hit": True,
         "ts": 1796007298.5, "epoch": epoch if n == 0 else 3, "engine_epoch": 3}
        for n in range(3)
    ]  # fmt: skip
    (target / "lookups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def versions(target: Path, *dists: str) -> None:
    """What a snapshot lists of the packages of each process."""
    lines = [{"artefact": "versions", "ts": 1796007298.5}]
    lines += [{"pid": 4711 + n, "python": "3.11.4", "site": [], "dists": [dist], "libraries": []} for n, dist in enumerate(dists)]
    (target / "versions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines).replace('"artefact": ', '"artefact":').replace('{"pid": ', '{"pid":'))


def repro(target: Path, *, reproduced: bool) -> None:
    """An experiment in which the failing prompt is wrong from request 1,702 on, or is once merely worded otherwise."""
    def trial(arm: str, ordinal: int, kind: str, answer: str, cached: int, **more: object) -> dict[str, object]:
        return {
            "arm": arm, "ordinal": ordinal, "kind": kind, "prompt": 0, "variant": None, "answer_class": answer, "suspicious": answer != "same",
            "reproduced": None, "hit": cached > 0, "cached_tokens": cached, "prompt_tokens": 431, "bypass": False, "seconds": 0.8,
            "ts": 1796007298.0 + ordinal, "note": "", **more,
        }  # fmt: skip
    wrong = "empty" if reproduced else "different"
    trials = [
        trial("baseline", 1, "baseline", "same", 0, bypass=True), trial("baseline", 2, "baseline", "same", 0, bypass=True),
        trial("control", 1, "reask", "same", 384), trial("pressure", 10, "reask", "same", 384),
        trial("pressure", 1702, "reask", wrong, 384, reproduced=reproduced, note="" if reproduced else "asked again it was right"),
        trial("pressure", 1703, "confirm", wrong if reproduced else "same", 384), trial("pressure", 1704, "confirm", "same", 0, bypass=True),
        trial("pressure", 1712, "reask", wrong if reproduced else "same", 384, **({"reproduced": True} if reproduced else {})),
    ]  # fmt: skip
    save_experiment(target, {**EXPERIMENT, "verdict": "reproduced" if reproduced else "no-failure", "started_at": 1796007298.0, "seconds": 1712.0,
        "ended": "reproduced" if reproduced else "full", "healed_by_bypass": True if reproduced else None,
        "arms": [{"arm": "pressure", "stickiness": 1.0 if reproduced else None}], "trials": trials})  # fmt: skip


# The order of names is that of the files that were written before.
EXPERIMENT: Mapping[str, object] = {
    "schema": "llmdiag.repro/1", "verdict": None, "url": "http://127.0.0.1:8000", "model": "qwen3-4b", "started_at": None, "seconds": None, "ended": None,
    "exercised": True, "healed_by_bypass": None, "bypass": {"by": "cache_salt", "proven": True, "says": "with a salt no token came from the cache"},
    "cache": {"family": "vllm", "full_by": "usage reached 100 %", "capacity_tokens": 61440, "new_tokens": 184000.0}, "arms": [],
}  # fmt: skip


def save_experiment(target: Path, document: Mapping[str, object]) -> None:
    trials = document["trials"]
    assert isinstance(trials, list)
    head = {name: value for name, value in document.items() if name != "trials"}
    text = json.dumps(head)[:-1].replace('{"schema": ', '{"schema":', 1) + ',"trials":[\n' + ",\n".join(map(json.dumps, trials)) + "]}\n"
    (target / "repro.json").write_text(text)


# --- samples ---


def stale(target: Path, work: Path, donor: str) -> None:
    compared(target, work, cache(PROMPT), cache(PROMPT, {0: OTHER}), {donor: cache(OTHER)})


def fine(target: Path, work: Path) -> None:
    compared(target, work, cache(PROMPT), noisy(cache(PROMPT)))


def hole_in_lookup(target: Path, work: Path) -> None:
    log(target, [0, 1, 1], 3)


def hole_in_affected_version(target: Path, work: Path) -> None:
    hole_in_lookup(target, work)
    versions(target, "mindie_llm-2.2rc1.dist-info")


def hole_and_walk(target: Path, work: Path) -> None:
    asked_and_logged(target, TOKENS)


def hole_and_binary(target: Path, work: Path) -> None:
    asked_and_logged(target, 3 * TOKENS)


def wrong_block(target: Path, work: Path) -> None:
    stale(target, work, "request-b")


def wrong_block_and_hole(target: Path, work: Path) -> None:
    stale(target, work, "request-b")
    log(target, [0, 1, 1], 3)


def affected_version(target: Path, work: Path) -> None:
    stale(target, work, "request-b")
    versions(target, "mindie_llm-2.2rc1.dist-info")


def tail_missing(target: Path, work: Path) -> None:
    fine(target, work)
    log(target, [1, 1, 0], 2)


def other_prompt(target: Path, work: Path) -> None:
    changed = (*OTHER[:TOKENS], *PROMPT[TOKENS:])
    compared(target, work, cache(PROMPT), cache(changed), {"request-b": cache(OTHER)})
    log(target, [0], 0)


def old_epoch(target: Path, work: Path) -> None:
    own_lines(target, epoch=2)


def same_epoch(target: Path, work: Path) -> None:
    own_lines(target, epoch=3)
    fine(target, work)


def block_of_generation_1(target: Path, work: Path) -> None:
    stale(target, work, "generation-1")


def operations(scores: np.ndarray, out: np.ndarray, mask: np.ndarray) -> list[tuple[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]:
    hidden, weight = drawn("hidden", shape=(16, 32)), drawn("weight", shape=(32, 32))
    after = out @ weight
    return [
        ("Functional.linear.0.forward", {"x": hidden, "w": weight}, {"y": hidden @ weight}), ("Tensor.masked_fill.0.forward", {"x": hidden}, {"y": mask}),
        ("Torch.softmax.0.forward", {"x": hidden}, {"y": scores}), ("Torch.matmul.0.forward", {"x": scores, "y": hidden}, {"y": out}),
        ("Functional.linear.1.forward", {"x": out, "w": weight}, {"y": after}),
    ]  # fmt: skip


def in_operations(target: Path, work: Path, *, scores: np.ndarray | None = None, out: np.ndarray | None = None, mask: tuple[float, float] = (0.0, 0.0)) -> None:
    """A good run, and a bad one in which the scores, what is made of them, or the mask differ."""
    plain = drawn("scores", shape=(16, 16))
    hidden = drawn("hidden", shape=(16, 32))
    masks = [np.where(np.tri(16, dtype=bool), np.float32(0), np.float32(value)) for value in mask]
    bad_scores = plain if scores is None else scores
    save_operations(work / "good", operations(plain, plain @ hidden, masks[0]))
    save_operations(work / "bad", operations(bad_scores, bad_scores @ hidden if out is None else out, masks[1]))
    compare(target, work)


def kernel_differs(target: Path, work: Path) -> None:
    in_operations(target, work, out=drawn("another kernel", shape=(16, 32)))


def rounding_only(target: Path, work: Path) -> None:
    in_operations(target, work, out=(drawn("scores", shape=(16, 16)) @ drawn("hidden", shape=(16, 32))) * np.float32(1 + 1e-6))


def nan_in_softmax(target: Path, work: Path) -> None:
    scores = drawn("scores", shape=(16, 16))
    scores[3] = np.nan
    in_operations(target, work, scores=scores)


def mask_with_inf(target: Path, work: Path) -> None:
    in_operations(target, work, mask=(-np.inf, -np.inf))


def two_layouts(target: Path, work: Path) -> None:
    good = cache(PROMPT)
    bad = {name: array.swapaxes(1, 2).copy() if name.endswith("_cache") else array for name, array in good.items()}
    compared(target, work, good, bad)
    versions(target, "vllm-0.32.0.dist-info", "vllm-0.33.0.dist-info")


def hits_wrong(target: Path, work: Path) -> None:
    repro(target, reproduced=True)


def noise_only(target: Path, work: Path) -> None:
    repro(target, reproduced=False)


WRITERS: Mapping[str, Callable[[Path, Path], None]] = {
    writer.__name__.replace("_", "-"): writer
    for writer in (
        hole_in_lookup, hole_in_affected_version, hole_and_walk, hole_and_binary, wrong_block, wrong_block_and_hole, affected_version, tail_missing, other_prompt, old_epoch, same_epoch, block_of_generation_1,
        kernel_differs, rounding_only, nan_in_softmax, mask_with_inf, two_layouts, hits_wrong, noise_only,
    )
}  # fmt: skip


def main(names: Sequence[str]) -> None:
    for name in names or WRITERS:
        target = HERE / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        with tempfile.TemporaryDirectory() as work:
            WRITERS[name](target, Path(work))
        print(name, sum(path.stat().st_size for path in target.iterdir()))


if __name__ == "__main__":
    main(sys.argv[1:])
