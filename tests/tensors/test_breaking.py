"""Dumps that were made to mislead: what may lie in a folder, tables that say odd things, and content that only looks like a fault."""

import json
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diag.collectors import tensors as collector
from diag.errors import Garbled
from diag.model import Artefact
from diag.report import tensors as report
from diag.tensors.compare import Options, compare
from diag.tensors.cutting import How
from diag.tensors.dump import Tensor
from diag.tensors.layouts import atb_roles
from diag.tensors.result import Comparison
from diag.tensors.summary import summaries
from diag.tensors.verdicts import DEFAULT_LIMITS
from tests.cache import cli
from tests.tensors.world import (
    BLOCK,
    DIM,
    HEADS,
    TOKENS,
    Array,
    Run,
    compared,
    each,
    everywhere,
    opened,
    pair,
    request,
    run,
    settled,
    verdicts,
)

RNG = np.random.default_rng(11)


def saved(folder: Path, **arrays: Array) -> Path:
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def two(folder: Path, good: dict[str, Array], bad: dict[str, Array] | None = None, how: How | None = None) -> Comparison:
    ours, theirs = saved(folder / "good", **good), saved(folder / "bad", **(good if bad is None else bad))
    return compare(opened(ours), opened(theirs), options=Options(how or How()))


# --- whose block ---------------------------------------------------------------------------------


def test_a_pool_block_of_nobody_does_not_outrank_a_named_donor(tmp_path: Path) -> None:
    """The good dump's pool still holds the wrong block; the donor's dump is from another batch, so only its tokens are equal."""
    good, bad = pair()
    donor = run(request(2), (3, 4, 9, 10), 92)
    for key, pool in bad.pools.items():
        wrong = donor.pools[key][donor.table[2]]
        if key[1:] != (0, "v"):
            wrong = wrong + RNG.standard_normal(wrong.shape).astype(wrong.dtype)
        pool[bad.table[0]] = wrong
        good.pools[key][11] = wrong
    found = compared(tmp_path / "w", good, bad, {"donor": donor})
    assert verdicts(found) == everywhere({0: "aliased"})
    assert {(item.alias.request, item.alias.block) for item in found.results if item.alias is not None} == {("donor", 2)}
    alone = compared(tmp_path / "w", good, bad)
    assert {item.alias.physical for item in alone.results if item.alias is not None} == {11}, "without donors the pool is told"


def test_equal_tokens_in_layer_0_do_not_make_a_pool_block_the_source(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 1, lambda block: block.__setitem__(slice(None), RNG.standard_normal(block.shape)))
    good.pools[(0, 0, "v")][11] = bad.block((0, 0, "v"), 1)
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({1: "different"})


def test_a_block_of_two_owners_names_both(tmp_path: Path) -> None:
    good, bad = pair()
    first, second = run(request(2), (3, 4, 9, 10), 92), run(request(3), (0, 1, 2, 3), 93)
    for key in bad.pools:
        bad.block(key, 0)[:13] = first.block(key, 2)[:13]
        bad.block(key, 0)[13:] = second.block(key, 1)[13:]
    found = compared(tmp_path / "w", good, bad, {"first": first, "second": second})
    assert {item.detail for item in found.results if item.is_wrong} == {"13 of 16 rows are of block 2 of first, 3 of block 1 of second"}


def test_a_donor_is_recognised_but_for_rounding_where_files_lost_the_type(tmp_path: Path) -> None:
    """numpy saves bfloat16 as two bytes of no type."""

    def lost(values: Array) -> Array:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view("V2")

    good, bad = request(1), request(1)
    donor = request(2)
    for key, rows in bad.items():
        rows[:BLOCK] = donor[key][BLOCK : 2 * BLOCK] * (1 + 0.02 * RNG.standard_normal((BLOCK, HEADS, DIM)).astype(np.float32))
    dumps = [
        opened(saved(tmp_path / name, **{f"layers.{layer}.{kind}_cache": lost(rows) for (_, layer, kind), rows in content.items()}))
        for name, content in (("good", good), ("bad", bad), ("donor", donor))
    ]
    found = compare(dumps[0], dumps[1], others=dumps[2:])
    assert verdicts(found) == everywhere({0: "aliased"})
    assert {(item.alias.request, item.alias.block, item.alias.by) for item in found.results if item.alias is not None} == {("donor", 1, "noise")}


def test_donors_that_are_the_dumps_themselves_say_nothing(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 1, lambda block: block.__setitem__(slice(None), RNG.standard_normal(block.shape)))
    ours, theirs = opened(good.write(tmp_path / "good")), opened(bad.write(tmp_path / "bad"))
    found = compare(ours, theirs, others=[ours, theirs])
    assert (list(found.donors), verdicts(found)) == ([], everywhere({1: "different"}))


def test_one_dump_in_two_roles_keeps_a_readable_name(tmp_path: Path) -> None:
    dump = opened(pair()[0].write(tmp_path / "good"))
    found = compare(dump, dump, control=dump)
    assert (found.verdict, found.good.name, found.bad.name) == ("same", "good", "good")


# --- tables ----------------------------------------------------------------------------------------


def test_null_blocks_of_a_sliding_window_are_not_compared(tmp_path: Path) -> None:
    good, bad = pair()
    good.table, bad.table = [0, 0, 2, 3], [0, 0, 8, 6]
    found = compared(tmp_path / "w", good, bad)
    assert found.verdict == "same"
    assert {item.block for item in found.results if item.block is not None} == {2, 3}
    assert any("null blocks" in note for note in found.notes), found.notes


def test_block_0_twice_in_the_bad_table_only_is_a_fault(tmp_path: Path) -> None:
    good, bad = pair()
    for pool in bad.pools.values():
        pool[0] = pool[7]
    bad.table = [0, 5, 0, 6]
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({2: "permuted"})


def test_block_0_may_be_the_last_of_a_request(tmp_path: Path) -> None:
    content = request(1)
    good, bad = run(content, (5, 4, 3, 0)), run(content, (5, 4, 3, 0))
    each(bad, 3, lambda block: block.fill(9))
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({3: "different"})


def test_a_table_too_short_for_blocks_of_16_shows_that_16_are_the_heads(tmp_path: Path) -> None:
    pool = RNG.standard_normal((8, 16, 128, 4)).astype(np.float32)  # [blocks, heads, tokens, elements]
    other = pool.copy()
    other[5, :, 100] += 1
    table: dict[str, Array] = {"block_table": np.array([[3, 5, 1]], np.int32), "context_lens": np.array([300], np.int32)}
    found = two(tmp_path, {"layers.0.k_cache": pool, **table}, {"layers.0.k_cache": other, **table})
    assert found.block_tokens == 128
    assert [(item.block, item.first_row) for item in found.results if item.is_wrong] == [(1, 100)]


def test_a_block_size_or_layout_that_does_not_fit_is_said(tmp_path: Path) -> None:
    good, bad = pair()
    found = compared(tmp_path / "w", good, bad, how=How(7))
    assert found.verdict == "same"
    assert any("--block-size 7 is not used" in note for note in found.notes), found.notes
    found = compared(tmp_path / "w", good, bad, how=How(layout="hnd"))
    assert any("is --layout right?" in note for note in found.notes), found.notes


@pytest.mark.parametrize("table", [[[2**31 - 1, -5, 3]], [[0, 0, 0]], [[-1]], [[]], [[11] * 400]])
@pytest.mark.parametrize("length", [-1, 0, 2**62, 5])
def test_tables_that_make_no_sense_end_in_an_answer(tmp_path: Path, table: list[list[int]], length: int) -> None:
    pool = RNG.standard_normal((12, 16, 2, 4)).astype(np.float32)
    named: dict[str, Array] = {"layers.0.k_cache": pool, "block_table": np.array(table, np.int64), "context_lens": np.array([length], np.int64)}
    assert two(tmp_path, named).verdict == "same"


@pytest.mark.parametrize("lengths", [[40], [40, 23], [1, 64]])
def test_padding_behind_the_context_lengths_is_masked_for_each_request(tmp_path: Path, lengths: list[int]) -> None:
    """TensorRT-Edge-LLM: [requests, 2, heads, most tokens, elements]; two requests have two axes of length 2."""
    good = RNG.standard_normal((len(lengths), 2, 2, 64, 8)).astype(np.float16)
    bad = good.copy()
    for number, length in enumerate(lengths):
        bad[number, :, :, length:] = np.nan
    lens = np.array(lengths, np.int32)
    assert two(tmp_path / "same", {"layer_0.kv": good, "context_lengths": lens}, {"layer_0.kv": bad, "context_lengths": lens}).verdict == "same"
    bad[-1, 1, :, 0] = 0
    found = two(tmp_path / "differ", {"layer_0.kv": good, "context_lengths": lens}, {"layer_0.kv": bad, "context_lengths": lens})
    assert [(item.role, item.request, item.block, item.first_row) for item in found.results if item.is_wrong] == [
        ("v", len(lengths) - 1 if len(lengths) > 1 else None, 0, 0)
    ]


SHAPES = [(0, 16, 2, 8), (4, 0, 2, 8), (4, 16, 0, 8), (4, 16, 2, 0), (0,), (), (2, 0), (0, 0, 0)]


@pytest.mark.parametrize("size", [None, 7])
def test_caches_without_an_element_are_the_same(tmp_path: Path, size: int | None) -> None:
    arrays: dict[str, Array] = {f"layers.{layer}.k_cache": np.zeros(shape, np.float32) for layer, shape in enumerate(SHAPES)}
    arrays |= {"block_table": np.zeros((0, 0), np.int32), "context_lens": np.zeros(0, np.int32)}
    assert two(tmp_path, arrays, how=How(size)).verdict == "same"


# --- rows that this very step writes ----------------------------------------------------------------


def fresh(good: Run, bad: Run) -> None:
    """Both runs compute every token in this step, from the same ids."""
    for one in (good, bad):
        one.extra["slot_mapping"] = np.array([one.table[token // BLOCK] * BLOCK + token % BLOCK for token in range(TOKENS)], np.int32)


def as_inputs(folder: Path, good: Run, bad: Run) -> Comparison:
    """The caches as what an operation reads, so nobody knows whether it had written to them when they were dumped."""
    dumps = []
    for name, one in (("good", good), ("bad", bad)):
        for path in one.write(folder / name).glob("*_cache.npy"):
            path.rename(path.with_name(path.name.replace(".k_cache", ".attn.input.k_cache").replace(".v_cache", ".attn.input.v_cache")))
        dumps.append(opened(folder / name))
    return compare(*dumps)


def test_a_block_that_the_step_itself_wrote_wrongly_is_found(tmp_path: Path) -> None:
    """Block 2 of the first cache tensor is wrong, and what follows from it is."""
    good, bad = pair()
    fresh(good, bad)
    each(bad, 2, lambda block: block.__setitem__(slice(None), RNG.standard_normal(block.shape)))
    assert verdicts(as_inputs(tmp_path, good, bad)) == everywhere({2: "different"})


def test_keys_of_layer_0_that_a_kernel_wrote_wrongly_are_found(tmp_path: Path) -> None:
    good, bad = pair()
    fresh(good, bad)
    for index in range(4):
        each(bad, index, lambda block: block.__setitem__(slice(None), RNG.standard_normal(block.shape)), [0], "k")
    found = as_inputs(tmp_path, good, bad)
    assert verdicts(found) == everywhere(dict.fromkeys(range(4), "different"), [0], "k")


def test_a_cache_that_was_dumped_before_the_step_wrote_to_it_is_no_fault(tmp_path: Path) -> None:
    good, bad = pair()
    fresh(good, bad)
    for one, seed in ((good, 70), (bad, 71)):
        leftover = run(request(seed), one.table, seed)
        one.pools = leftover.pools
    found = as_inputs(tmp_path, good, bad)
    assert found.verdict == "same", verdicts(found)
    assert any("not compared" in note for note in found.notes), found.notes


# --- inputs and rounding ----------------------------------------------------------------------------


def test_float32_logits_of_a_bfloat16_model_are_as_noisy_as_it(tmp_path: Path) -> None:
    hidden, logits = RNG.standard_normal((12, 64)).astype(np.float32), RNG.standard_normal((1, 512)).astype(np.float32)

    def dumped(noise: float, name: str) -> Any:
        rounded = (hidden * (1 + noise * RNG.standard_normal(hidden.shape).astype(np.float32))).view(np.uint32) >> 16
        other = logits * (1 + noise * RNG.standard_normal(logits.shape).astype(np.float32))
        return opened(saved(tmp_path / name, **{"layers.0.output": rounded.astype(np.uint16).view("V2"), "lm_head.logits": other}))

    found = compare(dumped(0, "good"), dumped(0.01, "bad"))
    assert [(item.verdict, item.doubt) for item in found.results] == [("close", None)] * 2
    alone = two(tmp_path / "alone", {"lm_head.logits": logits}, {"lm_head.logits": logits * np.float32(1.01)})
    assert [item.doubt for item in alone.results] == ["suspicious"], "float32 throughout: that is more than its rounding"


def test_other_input_points_at_no_allocator(tmp_path: Path) -> None:
    good, bad = run(request(1), (0, 1, 2, 3), 90), run(request(2), (7, 5, 8, 6), 91)
    good.extra["input_ids"], bad.extra["input_ids"] = np.arange(TOKENS), np.arange(TOKENS) + 5
    found = compared(tmp_path / "w", good, bad)
    assert found.first is not None and found.first.kind == "input"
    assert found.scope is None


def test_the_token_ids_of_an_atb_dump_are_the_input_of_its_embedding() -> None:
    def slot(number: int, dtype: str, *shape: int) -> tuple[atb_roles.Slot, Tensor]:
        return ("input", number), Tensor(f"input.{number}", dtype, shape, Path("x"))

    told = atb_roles.roles("WordEmbedding", [slot(0, "float16", 1000, 64), slot(1, "int64", 12)])
    assert told == {("input", 1): "token_ids"}
    assert atb_roles.roles("WordEmbedding", [slot(0, "int32", 12), slot(1, "int64", 12)]) == {}, "which of two is not known"


# --- what may lie in a folder ------------------------------------------------------------------------


class Canary:
    """Unpickled, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_pickles_links_pipes_and_gigantic_headers_are_named_and_nothing_runs(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    dumps = []
    for name in ("good", "bad"):
        folder = pair()[0].write(tmp_path / name)
        np.save(folder / "object.npy", np.array([Canary(canary)], dtype=object), allow_pickle=True)
        np.savez(folder / "object.npz", a=np.array([Canary(canary)], dtype=object))
        for kind in ("pt", "bin", "pth"):
            (folder / f"evil.{kind}").write_bytes(pickle.dumps({"a": Canary(canary)}))
        os.mkfifo(folder / "pipe.npy")
        (folder / "zero.npy").symlink_to("/dev/zero")
        (folder / "loop").symlink_to(folder)
        head = json.dumps({"t": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}).encode()
        (folder / "huge.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
        (folder / "longer.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000000000), }".ljust(117) + b"\n"
        (folder / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
        deep = folder
        for _ in range(200):
            deep /= "d"
            deep.mkdir()
        dumps.append(opened(folder))
    found = compare(*dumps)
    assert found.verdict == "same"
    assert not canary.exists()
    named = {Path(item.source.partition("#")[0]).name for side, item in found.unread if side == "bad"}
    assert named >= {
        "object.npy", "object.npz", "evil.pt", "evil.bin", "evil.pth", "pipe.npy", "zero.npy", "loop", "huge.safetensors", "longer.safetensors", "huge.npy",
    }  # fmt: skip


NAMES = [b"[red]x[-red]", b"\x1b]0;x\x07", "a\u202ergb".encode(), b"new\nline", b"\xffbad", b"-o", b"[bold", b"{}", b"%s", b"a'b\"c", b"x" * 200]


def test_names_of_any_bytes_are_shown_harmless_and_stay_in_the_document(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        for stem in NAMES:
            with (tmp_path / name / os.fsdecode(stem + b".npy")).open("wb") as file:
                np.save(file, RNG.standard_normal(40))
        settled(tmp_path / name)
    said = cli.run("compare-dumps", "good", "bad", "-o", "c.json", cwd=tmp_path)
    assert said.code == 1, said.err
    assert all(char == "\n" or char.isprintable() for char in said.out + said.err), ascii(said.out)
    document = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    names = {item["name"] for item in document["pairs"]}
    assert len(names) == len(NAMES)
    assert "\\udcffbad" in names


def test_descriptions_have_no_dictionary_each() -> None:
    """There may be 200,000 of them."""
    assert not hasattr(Tensor("x", "float32", (1,), Path("x")), "__dict__")


# --- documents edited by hand -------------------------------------------------------------------------


def document(folder: Path) -> dict[str, Any]:
    good, bad = pair()
    each(bad, 1, lambda block: block.fill(0))
    found: dict[str, Any] = json.loads(b"".join(report.document(compared(folder, good, bad))))
    return found


def parsed(path: Path, text: str) -> Sequence[tuple[str, Any]]:
    path.write_text(text, encoding="utf-8")
    return list(collector.parse([Artefact(path.name, "tensors", lambda: path.open("rb"))]))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-200], lambda text: text.replace('"pairs":[', '"pairs":[7,', 1), lambda text: text.replace('"block":0', '"block":"0"', 1),
        lambda text: text.replace('"rel_l2":', '"rel_l2":1e999,"x":', 1), lambda text: text.replace('"rel_l2":', '"rel_l2":NaN,"x":', 1),
        lambda text: text.replace('"notes":', '"x":' + "[" * 100_000 + "]" * 100_000 + ',"notes":', 1),
    ],
)  # fmt: skip
def test_a_damaged_document_is_refused_by_name(tmp_path: Path, change: Callable[[str], str]) -> None:
    text = json.dumps(document(tmp_path / "w"), separators=(",", ":"))
    changed = change(text)
    assert changed != text
    with pytest.raises(Garbled, match=r"c\.json"):
        parsed(tmp_path / "c.json", changed)


def test_a_document_without_pairs_was_not_looked_at(tmp_path: Path) -> None:
    rows = parsed(tmp_path / "c.json", json.dumps({**document(tmp_path / "w"), "pairs": []}))
    assert {(table, row["status"]) for table, row in rows} == {("collected", "failed")}


def test_nan_where_the_good_run_has_infinity_is_told_by_figures_alone() -> None:
    def known(largest: float) -> Tensor:
        return Tensor("x", "float16", (4,), Path("x"), offset=-1, summary=(("max", largest), ("min", 0.0)))

    assert summaries(known(float("inf")), known(float("nan")), DEFAULT_LIMITS) == ("nan", "max is nan in the bad run, inf in the good one")
    assert summaries(known(float("nan")), known(float("nan")), DEFAULT_LIMITS) == ("same", None)
