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


def save_operations(folder: Path, steps: Sequence[tuple[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]], step: int = 0, rank: int = 0) -> Path:
    """Operations with inputs and outputs in the layout of msprobe, at one step of one rank."""
    place = folder / f"step{step}" / f"rank{rank}"
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


def compare(target: Path, work: Path, *options: str, good: str = "good", bad: str = "bad", name: str = "comparison.json") -> None:
    run = subprocess.run(
        ["llmdiag", "compare-dumps", good, bad, *options, "-o", str(target.absolute() / name), "-f", "json"],
        cwd=work, capture_output=True, text=True,
    )  # fmt: skip
    if run.returncode not in (0, 1):
        raise SystemExit(run.stderr)
    document = json.loads((target / name).read_text())
    # What a rule says of it belongs to the rule, and the folder it was made in to nobody.
    document["diagnosis"], document["lookups"], document["seconds"] = None, [], 0.0
    for who, root in (("good", good), ("bad", bad)):
        document[who]["root"] = root
    for donor in document["donors"]:
        donor["root"] = donor["name"]
    pairs = document.pop("pairs")
    text = json.dumps(document, ensure_ascii=False)[:-1] + ',"pairs":[\n' + ",\n".join(json.dumps(pair) for pair in pairs) + "]}\n"
    (target / name).write_text(text)


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


def failing_lookups(target: Path, work: Path) -> None:
    """Six questions, four answered wrongly: two whose lookup meets a hole (one goes by the binary search, one by the walk), one whose lookup is sound, one of which the log has nothing."""
    chains = [([1, 0, 1], 3, 3, True), ([1, 0, 1], 3, 1, True), ([1, 1, 1], 3, 3, True), ([1, 0, 1], 3, 3, False), ([1, 1, 1], 3, 3, False)]
    names = [f"cmpl-77aa0{number}" for number in range(len(chains))]
    told = [lookup(flags, answer, second, name) for second, ((flags, answer, _, _), name) in enumerate(zip(chains, names, strict=True), 1)]
    (target / "lookups.log").write_text("".join(told), encoding="utf-8")
    trials = [
        {**asked("pressure", ordinal, ordinal, "empty" if failed else "same", cached * TOKENS, request=name), "ts": 1767607200.0 + ordinal, **({"reproduced": True} if failed else {})}
        for ordinal, ((_, _, cached, failed), name) in enumerate([*zip(chains, names, strict=True), (([], 0, 3, True), "cmpl-77aa09")], 1)
    ]  # fmt: skip
    versions(target, "mindie_llm-2.3.0.dist-info")
    save_experiment(target, {**EXPERIMENT, "verdict": "reproduced", "started_at": 1767607200.0, "seconds": 9.0, "ended": "reproduced", "healed_by_bypass": True, "trials": trials})


DUMPED, DONOR = "cmpl-40", "cmpl-41"


def dumped(target: Path, work: Path) -> None:
    """The dumps of stale(), named after their requests; beside block 0 a kernel spoiled block 2 of the first layer."""
    bad = cache(PROMPT, {0: OTHER})
    bad["layers.0.v_cache"][2] = drawn("a kernel", shape=(TOKENS, HEADS, DIM))
    for name, dump in (("good", cache(PROMPT)), (DUMPED, bad), (DONOR, cache(OTHER))):
        save(work / name, dump)
    compare(target, work, "--donors", DONOR, bad=DUMPED)


def lookups(target: Path, **flags: Sequence[int]) -> None:
    """Lookups of requests cmpl-NN, one after the other: a binary search that answers all that is logged, and the walk."""
    text = "".join(lookup(mask, len(mask) if any(mask) else 0, second, name.replace("_", "-")) for second, (name, mask) in enumerate(flags.items(), 1))
    (target / "lookups.log").write_text(text, encoding="utf-8")


def answers(target: Path, *trials: dict[str, object], **facts: object) -> None:
    """An experiment of the minute in which lookups() were logged."""
    document = {**EXPERIMENT, "verdict": "no-failure", "started_at": 1767607200.0, "seconds": 9.0, "ended": "full", "because": ["the cache was full"], **facts}
    save_experiment(target, {**document, "trials": [{**trial, "ts": 1767607200.0 + number} for number, trial in enumerate(trials, 1)]})


def dump_and_lookups(target: Path, work: Path) -> None:
    dumped(target, work)
    lookups(target, cmpl_39=[1, 0, 1], cmpl_40=[0, 1, 1], cmpl_41=[0, 1, 1], cmpl_42=[1, 1, 1], cmpl_43=[1, 0, 1])
    answers(
        target, asked("pressure", 1, 0, "empty", 3 * TOKENS, reproduced=True, request="cmpl-39"), asked("pressure", 2, 1, "empty", 3 * TOKENS, reproduced=True, request=DUMPED),
        asked("pressure", 3, 2, "same", TOKENS, request="cmpl-43"), asked("pressure", 4, 3, "same", 3 * TOKENS, request="cmpl-42"), verdict="reproduced", ended="reproduced", healed_by_bypass=True,
    )  # fmt: skip


def dump_and_anothers_lookup(target: Path, work: Path) -> None:
    dumped(target, work)
    lookups(target, cmpl_39=[1, 0, 1], cmpl_42=[1, 1, 1], cmpl_43=[1, 0, 1])
    answers(target, asked("pressure", 1, 0, "same", 3 * TOKENS, request="cmpl-39"), asked("pressure", 2, 1, "same", 3 * TOKENS, request="cmpl-42"))


def spoiled(target: Path, work: Path) -> None:
    """Only what the kernel spoiled in dumped(): one block, in the first layer alone."""
    bad = cache(PROMPT)
    bad["layers.0.v_cache"][2] = drawn("a kernel", shape=(TOKENS, HEADS, DIM))
    save(work / "good", cache(PROMPT))
    save(work / DUMPED, bad)
    compare(target, work, bad=DUMPED)
    versions(target, "mindie_llm-2.2rc1.dist-info")


def spoiled_block_and_lookups(target: Path, work: Path) -> None:
    spoiled(target, work)
    lookups(target, cmpl_39=[1, 1, 0, 1], cmpl_40=[1, 1, 1, 1])
    answers(target, asked("pressure", 1, 0, "same", 4 * TOKENS, request="cmpl-39"), asked("pressure", 2, 1, "same", 4 * TOKENS, request=DUMPED))


def spoiled_block_and_walk(target: Path, work: Path) -> None:
    spoiled(target, work)
    lookups(target, cmpl_39=[1, 1, 0, 1], cmpl_40=[1, 1, 1, 1])
    answers(target, asked("pressure", 1, 0, "same", 2 * TOKENS, request="cmpl-39"), asked("pressure", 2, 1, "same", 4 * TOKENS, request=DUMPED))


def dump_and_hole_elsewhere(target: Path, work: Path) -> None:
    dumped(target, work)
    lookups(target, cmpl_39=[0, 1, 1], cmpl_40=[1, 1, 0, 1], cmpl_41=[1, 0, 1], cmpl_42=[1, 1, 1])
    answers(
        target, asked("pressure", 1, 0, "empty", 3 * TOKENS, reproduced=True, request="cmpl-39"), asked("pressure", 2, 1, "same", 3 * TOKENS, request="cmpl-42"),
        verdict="reproduced", ended="reproduced", healed_by_bypass=True,
    )  # fmt: skip


def dump_and_hit(target: Path, work: Path) -> None:
    dumped(target, work)
    lookups(target, cmpl_40=[1, 1, 1], cmpl_42=[1, 1, 1])


def dump_and_fixed_version(target: Path, work: Path) -> None:
    dumped(target, work)
    lookups(target, cmpl_39=[1, 0, 1])
    versions(target, "mindie_llm-2.3.0.dist-info")


def one_layer_of_two(target: Path, work: Path) -> None:
    """Another request's block stands in the last layer alone."""
    good, donor = cache(PROMPT), cache(OTHER)
    bad = {name: np.stack([donor[name][0], *array[1:]]) if ".1." in name and name.endswith("_cache") else array for name, array in good.items()}
    compared(target, work, good, bad, {"request-b": donor})
    versions(target, "mindie_llm-2.2rc1.dist-info")


def zero_tail(target: Path, work: Path) -> None:
    """The last block is zero in all layers, and there is none behind it."""
    good = cache(PROMPT)
    bad = {name: np.stack([*array[:-1], array[-1] * 0]) if name.endswith("_cache") else array for name, array in good.items()}
    compared(target, work, good, bad)
    versions(target, "mindie_llm-2.2rc1.dist-info")


def flags_only(target: Path, work: Path) -> None:
    """An engine that logs which blocks are there, and neither what a search answers nor what it uses."""
    rows = [
        {"request": "r7", "method": "engine", "position": n, "block_hash": f"{n + 1:016x}", "block_id": 40 + n, "cached": n != 0, "computed": n != 0, "hit": None,
         "ts": 1796007298.5, "epoch": 3, "engine_epoch": 3}
        for n in range(3)
    ]  # fmt: skip
    (target / "lookups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    in_operations(target, work)


def block_of_generation_1_and_hole(target: Path, work: Path) -> None:
    block_of_generation_1(target, work)
    lookups(target, cmpl_39=[1, 0, 1], cmpl_42=[1, 1, 1])
    answers(target, asked("pressure", 1, 0, "same", 3 * TOKENS, request="cmpl-39"), asked("pressure", 2, 1, "same", 3 * TOKENS, request="cmpl-42"))


def failure_of_others_asked(target: Path, work: Path) -> None:
    lookups(target, cmpl_39=[1, 0, 1])
    answers(target, asked("pressure", 1, 0, "same", None, request="cmpl-39"))
    (target / "repro.json").rename(target / "repro-1.json")
    answers(target, asked("pressure", 1, 0, "empty", 3 * TOKENS, reproduced=True, request="cmpl-98"), verdict="reproduced", ended="reproduced", healed_by_bypass=True)


def dump_and_sound_lookup(target: Path, work: Path) -> None:
    dumped(target, work)
    save(work / "cmpl-50", cache(PROMPT, {0: OTHER}))
    compare(target, work, bad="cmpl-50", name="comparison-2.json")
    lookups(target, cmpl_40=[0], cmpl_42=[1, 1, 1], cmpl_43=[0])


def walk_not_exercised(target: Path, work: Path) -> None:
    lookups(target, cmpl_39=[1, 0, 1], cmpl_42=[1, 1, 1])
    both = (asked("pressure", 1, 0, "same", TOKENS, request="cmpl-39"), asked("pressure", 2, 1, "same", 3 * TOKENS, request="cmpl-42"))
    answers(target, *both, verdict="not-exercised", exercised=False)


def experiment_of_others(target: Path, work: Path) -> None:
    lookups(target, cmpl_39=[1, 0, 1])
    answers(target, asked("pressure", 1, 0, "same", 3 * TOKENS, request="cmpl-99"))


def experiment_of_the_same(target: Path, work: Path) -> None:
    lookups(target, cmpl_39=[1, 0, 1])
    answers(target, asked("pressure", 1, 0, "same", None, request="cmpl-39"))


def failure_of_others(target: Path, work: Path) -> None:
    lookups(target, cmpl_39=[1, 0, 1])
    answers(target, asked("pressure", 1, 0, "same", 3 * TOKENS, request="cmpl-99"))
    (target / "repro.json").rename(target / "repro-1.json")
    answers(target, asked("pressure", 1, 0, "empty", 3 * TOKENS, reproduced=True, request="cmpl-98"), verdict="reproduced", ended="reproduced", healed_by_bypass=True)


def other_prompt_first_layer(target: Path, work: Path) -> None:
    """Only the first layer was dumped, in which a block depends on its own tokens alone."""
    changed = cache((*OTHER[:TOKENS], *PROMPT[TOKENS:]))
    first = [{name: array for name, array in dump.items() if ".1." not in name} for dump in (cache(PROMPT), changed)]
    compared(target, work, *first)


def affected_version_no_donor(target: Path, work: Path) -> None:
    compared(target, work, cache(PROMPT), cache(PROMPT, {0: OTHER}))
    versions(target, "mindie_llm-2.2rc1.dist-info")


def fixed_version(target: Path, work: Path) -> None:
    stale(target, work, "request-b")
    versions(target, "mindie_llm-2.3.0.dist-info")


def hole_in_fixed_version(target: Path, work: Path) -> None:
    hole_in_lookup(target, work)
    versions(target, "mindie_llm-2.3.0.dist-info")


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


def lists_only(target: Path, work: Path) -> None:
    """The lines of hole_in_affected_version, of which the log has dropped those of single blocks in the last lookup: the two answers are left."""
    hole_in_affected_version(target, work)
    told = (target / "lookups.log").read_text(encoding="utf-8").splitlines(keepends=True)
    lost = [line for line in told if "10:00:03" in line and ("IsBlockCached" in line or "blockIDs" in line)]
    (target / "lookups.log").write_text("".join(line for line in told if line not in lost), encoding="utf-8")


def experiment_that_shows_nothing(target: Path, work: Path) -> None:
    """The experiment of experiment_of_others, in which the cache never was full."""
    experiment_of_others(target, work)
    answers(target, asked("pressure", 1, 0, "same", 3 * TOKENS, request="cmpl-99"), verdict="not-exercised", exercised=False)


def experiment_of_a_sound_lookup(target: Path, work: Path) -> None:
    """The experiment of experiment_of_others asked a question whose lookup is in the log too, and meets no hole."""
    lookups(target, cmpl_39=[1, 0, 1], cmpl_42=[1, 1, 1])
    answers(target, asked("pressure", 1, 0, "same", 3 * TOKENS, request="cmpl-42"))


def zero_tail_in_fixed_version(target: Path, work: Path) -> None:
    """The dumps of zero_tail, a lookup that steps over a hole, an experiment without failure, and MindIE 2.3.0, which walks."""
    zero_tail(target, work)
    experiment_of_others(target, work)
    versions(target, "mindie_llm-2.3.0.dist-info")


def tail_missing_in_fixed_version(target: Path, work: Path) -> None:
    tail_missing(target, work)
    versions(target, "mindie_llm-2.3.0.dist-info")


def block_of_generation_1_and_hit(target: Path, work: Path) -> None:
    """The dumps of block_of_generation_1, and a lookup that meets no hole."""
    block_of_generation_1(target, work)
    lookups(target, cmpl_39=[1, 1, 1])


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


LIFE = [
    "[[event]]", 'file = "life.log"', 'kind = "weights_hash"', 'initiator = "engine-manager"', r"regex = '^(?P<ts>\S+ \S+) weights (?P<detail>\S+)'", "",
    "[[event]]", 'file = "life.log"', 'kind = "sync_barrier"', 'initiator = "engine-manager"', r"regex = '^(?P<ts>\S+ \S+) (?P<detail>barrier .*)'", "",
    "[[event]]", 'file = "life.log"', 'kind = "generation"', 'initiator = "engine-manager"', r"regex = '^(?P<ts>\S+ \S+) (?P<detail>generation .*)'", "",
    "[[event]]", 'file = "life.log"', 'kind = "exit"', 'initiator = "engine-manager"', r"regex = '^(?P<ts>\S+ \S+) (?P<detail>engine ended)'",
]  # fmt: skip


def life(target: Path, *told: str) -> None:
    """What a home-made manager writes of an engine, and its map."""
    (target / "life.log").write_text("".join(f"2026-11-30 01:{minute:02}:00 {text}\n" for minute, text in enumerate(told)))
    (target / "events-map.toml").write_text("".join(f"{line}\n" for line in LIFE))


def old_epoch_same_weights(target: Path, work: Path) -> None:
    old_epoch(target, work)
    life(target, "weights 5d41402a", "weights 5d41402a", "barrier of 8 ranks")


def old_epoch_other_weights(target: Path, work: Path) -> None:
    old_epoch(target, work)
    life(target, "weights 5d41402a", "weights 7d793037")


def old_epoch_in_experiment(target: Path, work: Path) -> None:
    """Of four requests that reuse an old block one is answered wrongly for sure; one that reuses a block of its own time is, too."""
    rows = [
        {"request": name, "method": "engine", "position": n, "block_hash": f"{n + 1:016x}", "block_id": 40 + n, "cached": n != gone, "computed": n != gone, "hit": True,
         "ts": 1796007298.5, "epoch": epoch if n == 0 else 3, "engine_epoch": 3}
        for name, epoch, gone in (("r7", 2, None), ("r8", 3, 1), ("r9", 2, None), ("r10", 2, None)) for n in range(3)
    ]  # fmt: skip
    (target / "lookups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    life(target, "weights 5d41402a")
    trials = [
        asked("pressure", 7, 0, "empty", 48, reproduced=True, request="r7"), asked("pressure", 8, 1, "empty", 48, reproduced=True, request="r8"),
        asked("pressure", 9, 2, "same", 48, request="r9"), asked("pressure", 10, 3, "different", 48, reproduced=False, request="r10"),
    ]  # fmt: skip
    save_experiment(target, {**EXPERIMENT, "verdict": "reproduced", "started_at": 1796007298.0, "seconds": 40.0, "ended": "reproduced", "healed_by_bypass": True, "trials": trials})


def block_of_generation_1_restarted(target: Path, work: Path) -> None:
    """Beside the block of the life before one of another request."""
    third = tuple(range(900, 900 + BLOCKS * TOKENS))
    compared(target, work, cache(PROMPT), cache(PROMPT, {0: OTHER, 1: third}), {"generation-1": cache(OTHER), "request-c": cache(third)})
    life(target, "engine ended", "generation 2 begins")


def same_epoch(target: Path, work: Path) -> None:
    own_lines(target, epoch=3)
    fine(target, work)


def block_of_generation_1(target: Path, work: Path) -> None:
    stale(target, work, "generation-1")


Operation = tuple[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]


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


def kernel_differs_from_both(target: Path, work: Path) -> None:
    """The same, and a second good run that differs by rounding was given as the control."""
    scores = drawn("scores", shape=(16, 16))
    save_operations(work / "again", runs(scores, (scores @ drawn("hidden", shape=(16, 32))) * np.float32(1 + 1e-6)))
    save_operations(work / "good", runs(scores))
    save_operations(work / "bad", runs(scores, drawn("another kernel", shape=(16, 32))))
    compare(target, work, "--control", "again")


def rounding_only(target: Path, work: Path) -> None:
    in_operations(target, work, out=(drawn("scores", shape=(16, 16)) @ drawn("hidden", shape=(16, 32))) * np.float32(1 + 1e-6))


def runs(scores: np.ndarray, out: np.ndarray | None = None) -> list[tuple[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]:
    """The operations of one run: `out` is what its kernel makes of the scores."""
    return operations(scores, scores @ drawn("hidden", shape=(16, 32)) if out is None else out, np.zeros((16, 16), "float32"))


def three_comparisons(target: Path, work: Path) -> None:
    """Two good runs against the bad one, and the good run against another bad one."""
    scores = drawn("scores", shape=(16, 16))
    other = drawn("another kernel", shape=(16, 32))
    for name, out in (("good", None), ("good-2", None), ("bad", other), ("worse", drawn("a third kernel", shape=(16, 32)))):
        save_operations(work / name, runs(scores, out))
    for good, bad in (("good", "bad"), ("good-2", "bad"), ("good", "worse")):
        compare(target, work, good=good, bad=bad, name=f"{good}-{bad}.json")


def kernel_on_one_rank(target: Path, work: Path) -> None:
    """Two ranks and two steps; the kernel is off in the second step of rank 1."""
    for who in ("good", "bad"):
        for step in (0, 1):
            for rank in (0, 1):
                scores = drawn("scores", step, rank, shape=(16, 16))
                off = drawn("another kernel", shape=(16, 32)) if (who, step, rank) == ("bad", 1, 1) else None
                save_operations(work / who, runs(scores, off), step, rank)
    compare(target, work)


def kernel_after_narrow_input(target: Path, work: Path) -> None:
    """The operation that differs was given its input in half the width."""
    scores = drawn("scores", shape=(16, 16))
    save_operations(work / "good", runs(scores))
    save_operations(work / "bad", runs(scores.astype("float16"), drawn("another kernel", shape=(16, 32))))
    compare(target, work)


def reference_kept(target: Path, work: Path) -> None:
    """The dump of one output is far off, and what was computed from it is right: a hook kept a reference, and the tensor was written again."""
    scores = drawn("scores", shape=(16, 16))
    steps = runs(scores)
    save_operations(work / "good", steps)
    late = {"y": drawn("written later", shape=(16, 32))}
    save_operations(work / "bad", [(op, inputs, late if op == "Torch.matmul.0.forward" else outputs) for op, inputs, outputs in steps])
    compare(target, work)


def nan_in_softmax(target: Path, work: Path) -> None:
    scores = drawn("scores", shape=(16, 16))
    scores[3] = np.nan
    in_operations(target, work, scores=scores)


def nan_in_the_input(target: Path, work: Path) -> None:
    """What the first operation is given has NaN already."""
    good = operations(drawn("scores", shape=(16, 16)), drawn("out", shape=(16, 32)), np.zeros((16, 16), "float32"))
    save_operations(work / "good", good)
    save_operations(work / "bad", with_nan(good, "Functional.linear.0.forward"))
    compare(target, work)


def nan_in_outputs(target: Path, work: Path) -> None:
    """The runs of nan_in_softmax; what the softmax was given was not dumped."""
    scores = drawn("scores", shape=(16, 16))
    for name in ("good", "bad"):
        save_operations(work / name, [(op, {} if "softmax" in op else inputs, outputs) for op, inputs, outputs in runs(scores)])
        scores[3] = np.nan
    compare(target, work)


def with_nan(steps: Sequence[Operation], first: str) -> list[Operation]:
    """The same, with NaN in what operation `first` is given and in all that comes after it."""
    begin = [op for op, _, _ in steps].index(first)
    spoil = {op: {name: np.where(array == array.flat[0], np.float32(np.nan), array) for name, array in inputs.items()} for op, inputs, _ in steps[begin:]}
    return [(op, spoil.get(op, inputs), {name: array * np.float32(np.nan) for name, array in outputs.items()} if op in spoil else outputs) for op, inputs, outputs in steps]


def nan_on_one_rank(target: Path, work: Path) -> None:
    """Rank 0 makes NaN in its softmax, is given them in the next step, and hands them to rank 1 before its softmax; another bad run is given them. Masks are -Inf everywhere."""
    plain, hidden = drawn("scores", shape=(16, 16)), drawn("hidden", shape=(16, 32))
    mask = np.where(np.tri(16, dtype=bool), np.float32(0), np.float32(-np.inf))
    good = operations(plain, plain @ hidden, mask)
    scores = plain.copy()
    scores[3] = np.nan
    made, given = operations(scores, scores @ hidden, mask), with_nan(good, "Torch.softmax.0.forward")
    for name, steps in (("good", (good, good, good)), ("bad", (made, given, given)), ("bad-2", (given, given, given))):
        for place, ops in zip(((0, 0), (1, 0), (0, 1)), steps, strict=True):
            save_operations(work / name, ops, *place)
    compare(target, work)
    compare(target, work, bad="bad-2", name="comparison-2.json")


def dump_with_nan(target: Path, work: Path) -> None:
    """The bad run of nan_in_softmax alone."""
    scores = drawn("scores", shape=(16, 16))
    scores[3] = np.nan
    save_operations(target / "bad", runs(scores))
    told = target / "bad" / "step0" / "rank0" / "dump.json"
    told.write_text(told.read_text().replace(str(told.parent / "dump_tensor_data"), "dump_tensor_data"))


def nan_in_one_block(target: Path, work: Path) -> None:
    """One block of the first layer has NaN where the run reads it, and nothing else has."""
    bad = cache(PROMPT)
    bad["layers.0.k_cache"][1, 0, 0, 0] = np.nan
    compared(target, work, cache(PROMPT), bad)


def mask_with_inf(target: Path, work: Path) -> None:
    in_operations(target, work, mask=(-np.inf, -np.inf))


def two_layouts(target: Path, work: Path) -> None:
    good = cache(PROMPT)
    bad = {name: array.swapaxes(1, 2).copy() if name.endswith("_cache") else array for name, array in good.items()}
    compared(target, work, good, bad)
    versions(target, "vllm-0.32.0.dist-info", "vllm-0.33.0.dist-info")


def lengths_in_int64(target: Path, work: Path) -> None:
    good = cache(PROMPT)
    compared(target, work, good, noisy(good) | {"context_lens": good["context_lens"].astype("int64")})


def hidden_in_float16(target: Path, work: Path) -> None:
    good = cache(PROMPT)
    compared(target, work, good, {name: array.astype("float16") if name.endswith("hidden") else array for name, array in good.items()})


def shorter_prompt(target: Path, work: Path) -> None:
    """The last block of tokens was cut off in one run."""
    good = cache(PROMPT)
    left = {name: array[:-1] if name.endswith("_cache") else array[:-TOKENS] for name, array in good.items() if name not in placed()}
    compared(target, work, good, left | placed())


def hits_wrong(target: Path, work: Path) -> None:
    repro(target, reproduced=True)


def asked(arm: str, ordinal: int, prompt: int, answer: str, cached: int | None, **more: object) -> dict[str, object]:
    return {
        "arm": arm, "ordinal": ordinal, "kind": "reask", "prompt": prompt, "variant": None, "answer_class": answer, "suspicious": answer != "same", "reproduced": None,
        "hit": bool(cached), "cached_tokens": cached, "prompt_tokens": 431, "bypass": False, "seconds": 0.8, "ts": 1796007298.0 + ordinal, "note": "", **more,
    }  # fmt: skip


def two_replicas(target: Path, work: Path) -> None:
    """The same prompts for two engines. Of the first one prompts 0 and 1 fail before its cache is full, 0 only once, 1 with a head that the bypass does not change."""
    past = {"kind": "baseline", "bypass": True}
    failing = [
        asked("baseline", 1, 0, "same", None, **past), asked("baseline", 2, 1, "same", 16, **past), asked("control", 30, 0, "same", 384), asked("control", 31, 0, "different", 384),
        asked("pressure", 9, 0, "garbled", 384, reproduced=True), asked("pressure", 12, 1, "empty", 384, reproduced=True), asked("pressure", 15, 0, "same", 384),
        asked("control", 29, 1, "same", 0), asked("pressure", 16, 1, "empty", 384), asked("pressure", 18, 1, "empty", 0, kind="confirm", bypass=True), asked("pressure", 17, 1, "empty", 384, kind="repeat"),
    ]  # fmt: skip
    fine = [asked("baseline", 1, 0, "same", None, **past), asked("baseline", 2, 1, "same", None, **past), asked("pressure", 14, 0, "different", 384, note="asked again it was right"), asked("pressure", 20, 1, "empty", 384)]
    told = {**EXPERIMENT, "started_at": 1796007298.0, "seconds": 40.0}
    cache = EXPERIMENT["cache"]
    assert isinstance(cache, dict)
    save_experiment(target, {**told, "verdict": "reproduced", "ended": "reproduced", "healed_by_bypass": True, "cache": {**cache, "full_by": None}, "trials": failing})
    (target / "repro.json").rename(target / "repro-8000.json")
    save_experiment(target, {**told, "url": "http://127.0.0.1:8001", "verdict": "no-failure", "ended": "full", "trials": fine})


def wrong_without_hit(target: Path, work: Path) -> None:
    """The experiment of hits_wrong, but no failing answer used a cached block, and it fails while nothing fills the cache."""
    hits_wrong(target, work)
    document = json.loads((target / "repro.json").read_text())
    for trial in document["trials"]:
        if trial["suspicious"]:
            trial.update(hit=False, cached_tokens=0, arm="control")
    save_experiment(target, document)


def noise_only(target: Path, work: Path) -> None:
    repro(target, reproduced=False)


WRITERS: Mapping[str, Callable[[Path, Path], None]] = {
    writer.__name__.replace("_", "-"): writer
    for writer in (
        lists_only, experiment_that_shows_nothing, experiment_of_a_sound_lookup, zero_tail_in_fixed_version, tail_missing_in_fixed_version, block_of_generation_1_and_hit,
        hole_in_lookup, hole_in_affected_version, hole_and_walk, hole_and_binary, failing_lookups, dump_and_lookups, dump_and_anothers_lookup, dump_and_sound_lookup, dump_and_hole_elsewhere, dump_and_hit, dump_and_fixed_version, one_layer_of_two, zero_tail, flags_only, block_of_generation_1_and_hole, failure_of_others_asked,
        spoiled_block_and_lookups, spoiled_block_and_walk, walk_not_exercised, experiment_of_others, experiment_of_the_same, failure_of_others, other_prompt_first_layer, affected_version_no_donor, fixed_version, hole_in_fixed_version,
        wrong_block, wrong_block_and_hole, affected_version, tail_missing, other_prompt, old_epoch, old_epoch_same_weights, old_epoch_other_weights, old_epoch_in_experiment, same_epoch, block_of_generation_1, block_of_generation_1_restarted,
        kernel_differs, kernel_differs_from_both, three_comparisons, kernel_on_one_rank, kernel_after_narrow_input, reference_kept, rounding_only, nan_in_softmax, nan_in_the_input, nan_in_outputs, nan_on_one_rank, nan_in_one_block, dump_with_nan, mask_with_inf, two_layouts, lengths_in_int64, hidden_in_float16, shorter_prompt, hits_wrong, two_replicas, wrong_without_hit, noise_only,
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
