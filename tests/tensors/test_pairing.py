"""Which tensor belongs to which: names, maps, ranks, steps aligned by their tokens."""

from pathlib import Path

import numpy as np
import pytest

from diag.errors import BadInput
from diag.tensors.compare import Options, compare
from diag.tensors.dump import Dump, Tensor
from diag.tensors.pairing import Pairing, pair, unused_types, with_types
from diag.tensors.renaming import check, read_map
from tests.tensors.world import opened


def dump(folder: Path, files: dict[str, object]) -> Dump:
    for name, values in files.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.asarray(values))
    return opened(folder)


def described(name: str, root: str, *tensors: Tensor) -> Dump:
    return Dump(name, Path(root), "test", tensors)


def steps(found: Pairing) -> dict[int | None, int | None]:
    return {item.good.step: item.bad.step for item in found.pairs}


def test_pairs_are_in_execution_order_and_the_rest_is_told(tmp_path: Path) -> None:
    good = dump(tmp_path / "good", {"layers.10.out": [1.0], "layers.9.out": [1.0], "gone": [1.0]})
    bad = dump(tmp_path / "bad", {"layers.9.out": [1.0], "layers.10.out": [1.0], "new": [1.0]})
    found = pair(good, bad)
    assert [item.good.name for item in found.pairs] == ["layers.9.out", "layers.10.out"]
    assert [(item.side, item.tensor.name, item.why) for item in found.unpaired] == [
        ("good", "gone", "only the good dump has it"), ("bad", "new", "only the bad dump has it"),
    ]  # fmt: skip
    assert found.notes == ()


def test_a_map_translates_names_also_with_a_star(tmp_path: Path) -> None:
    file = tmp_path / "map.toml"
    file.write_text('"layers.*.k" = "blocks.*.key"\nold.name = "new"\n')
    names = read_map(file)
    assert [names.translated(name) for name in ("layers.12.k", "old.name", "layers.12.v")] == ["blocks.12.key", "new", "layers.12.v"]
    good, bad = dump(tmp_path / "good", {"a.old": [1.0]}), dump(tmp_path / "bad", {"b.new": [1.0]})
    with pytest.raises(BadInput, match=r"no tensor in common: a\.old"):
        pair(good, bad)
    (tmp_path / "one.toml").write_text('"a.old" = "b.new"')
    assert len(pair(good, bad, read_map(tmp_path / "one.toml")).pairs) == 1


@pytest.mark.parametrize("new", ["blocks.*.key", "decoder.*.key", "stages.*.key", "transformer.h.*.key", "model.layers.*.key", "stack.*.anything"])
def test_a_map_holds_whatever_its_new_names_tell_of_layers_and_roles(tmp_path: Path, new: str) -> None:
    """README's own example: the new name does not say that it is a layer, nor that it is a key."""
    chance = np.random.default_rng(1)
    pools = [chance.standard_normal((4, 16, 2, 8)).astype(np.float32) for _ in range(2)]
    good = dump(tmp_path / "good", {f"layers.{n}.k": pool for n, pool in enumerate(pools)})
    bad = dump(tmp_path / "bad", {new.replace("*", str(n)): pool for n, pool in enumerate(pools)})
    (tmp_path / "map.toml").write_text(f'"layers.*.k" = "{new}"')
    for ours, theirs, text in ((good, bad, f'"layers.*.k" = "{new}"'), (bad, good, f'"{new}" = "layers.*.k"')):
        (tmp_path / "map.toml").write_text(text)
        found = compare(ours, theirs, options=Options(names=read_map(tmp_path / "map.toml")))
        assert (found.verdict, len(found.results), len(found.unpaired)) == ("same", 8, 0)
        assert {(item.layer, item.role, item.block) for item in found.results} == {(layer, "k", block) for layer in (0, 1) for block in range(4)}


def test_a_map_speaks_of_names_with_or_without_what_all_begin_with(tmp_path: Path) -> None:
    for side, names in (("good", ("layers.0.k", "logits")), ("bad", ("blocks.0.key", "logits"))):
        (tmp_path / side).mkdir()
        np.savez(tmp_path / side / "dump.npz", **{name: np.ones(3) for name in names})
    good, bad = opened(tmp_path / "good"), opened(tmp_path / "bad")
    for text in ('"layers.*.k" = "blocks.*.key"', '"dump/layers.*.k" = "dump/blocks.*.key"', '[map]\n"layers.0.k" = "blocks.0.key"'):
        (tmp_path / "map.toml").write_text(text)
        names = read_map(tmp_path / "map.toml")
        found = compare(good, bad, options=Options(names=names))
        assert (len(found.results), found.unpaired[:]) == (2, []), text


def test_a_map_also_renames_the_second_tensor_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text('"a.*" = "b.*"')
    assert read_map(tmp_path / "map.toml").translated("a.x#2") == "b.x#2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"blocks.*.key" = "layers.*.k"', r'map.toml: "blocks.\*.key" = "layers.\*.k": the old name is one of the bad dump'),
        ('"layers.*.k" = "blocks.*.key"\n"layer.*.v" = "x.*"', r'map.toml: "layer.\*.v" = "x.\*": no tensor of the good dump is called that; it holds layers.0.k'),
        ('"layers.0.k" = "blocks.0.kye"', r'map.toml: "layers.0.k" = "blocks.0.kye": there is no blocks.0.kye in bad, which holds blocks.0.key'),
        ('"layers.0.q" = "blocks.0.key"', "no tensor of the good dump is called that"),
    ],
)
def test_a_line_of_a_map_that_nothing_comes_of_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    good = dump(tmp_path / "good", {"layers.0.k": [1.0], "logits": [1.0]})
    bad = dump(tmp_path / "bad", {"blocks.0.key": [1.0], "logits": [1.0]})
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(BadInput, match=said):
        check(read_map(tmp_path / "map.toml"), good, bad)


@pytest.mark.parametrize(
    ("text", "said"), [("a = 1", "a: the new name is no text"), ('"a.*" = "b"', "one [*] on each side"), ("a = ", "map.toml"), ("", "there is no line in it"), ('"*.*" = "*.*"', "one [*]"), ("a = " + "9" * 5_000, "map.toml: .*digits"),
     ("a = " + "[" * 5_000, "map.toml: .*recursion")]
)
def test_a_wrong_map_names_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "map.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_map(file)


def test_steps_with_other_numbers_are_aligned_by_their_tokens(tmp_path: Path) -> None:
    """The bad dump has a warm-up in front, and the third step worked on another token."""
    ids = ([5, 6, 7], [8], [9])
    good = dump(tmp_path / "good", {f"step{n}/{name}": value for n, row in enumerate(ids) for name, value in (("input_ids", row), ("out", [1.0]))})
    others = ([1, 1], [5, 6, 7], [8], [77])
    bad = dump(tmp_path / "bad", {f"step{n + 3}/{name}": value for n, row in enumerate(others) for name, value in (("input_ids", row), ("out", [1.0]))})
    found = pair(good, bad)
    assert steps(found) == {0: 4, 1: 5, 2: 6}
    assert {(item.side, item.tensor.step) for item in found.unpaired} == {("bad", 3)}
    assert "steps 0, 1, 2 of the good run are compared with steps 4, 5, 6" in found.notes[0]
    assert found.notes[1].startswith("the two runs worked on different tokens in step 2")


def test_a_prefix_hit_that_computes_the_end_only_is_the_same_step(tmp_path: Path) -> None:
    good = dump(tmp_path / "good", {"step0/input_ids": [5, 6, 7, 8], "step0/out": [1.0]})
    bad = dump(tmp_path / "bad", {"step1/input_ids": [7, 8], "step1/out": [1.0]})
    found = pair(good, bad)
    assert steps(found) == {0: 1}
    assert not any("different tokens" in note for note in found.notes)


def test_without_tokens_steps_go_by_number_then_in_order(tmp_path: Path) -> None:
    good = dump(tmp_path / "good", {f"step{n}/out": [1.0] for n in (0, 1, 2)})
    assert steps(pair(good, dump(tmp_path / "b1", {f"step{n}/out": [1.0] for n in (1, 2)}))) == {1: 1, 2: 2}
    found = pair(good, dump(tmp_path / "b2", {f"step{n}/out": [1.0] for n in (4, 7)}))
    assert steps(found) == {0: 4, 1: 7}
    assert [item.tensor.step for item in found.unpaired] == [2]
    assert "in order" in found.notes[0]


def test_a_file_for_all_against_a_file_for_each(tmp_path: Path) -> None:
    good = dump(tmp_path / "good", {"layers.0.out": [1.0], "layers.1.out": [1.0]})
    (tmp_path / "bad").mkdir()
    np.savez(tmp_path / "bad" / "dump.npz", **{"layers.0.out": np.ones(1), "layers.1.out": np.ones(1)})
    found = pair(good, opened(tmp_path / "bad"))
    assert [item.good.layer for item in found.pairs] == [0, 1]
    assert "without dump/" in found.notes[0]


def test_another_card_is_another_rank(tmp_path: Path) -> None:
    good = dump(tmp_path / "good", {f"rank{n}/out": [float(n)] for n in (0, 1)})
    bad = dump(tmp_path / "bad", {f"rank{n}/out": [float(n)] for n in (4, 5)})
    found = pair(good, bad)
    assert [(item.good.rank, item.bad.rank) for item in found.pairs] == [(0, 4), (1, 5)]
    assert "ranks 0, 1 of the good run" in found.notes[0]


def test_an_empty_dump_says_why(tmp_path: Path) -> None:
    from diag.tensors.dump import Unread

    empty = Dump("good", tmp_path, "test", (), (Unread("a.npy", "cut short"),))
    with pytest.raises(BadInput, match="cut short"):
        pair(empty, dump(tmp_path / "bad", {"out": [1.0]}))


def test_lost_types_are_what_a_person_says() -> None:
    lost = Tensor("a", "opaque2", (1,), Path("a.npy"))
    kept = Tensor("b", "float32", (1,), Path("b.npy"))
    found = with_types(described("x", "x", lost, kept), {"*": "bfloat16", "a": "float16"})
    assert [item.dtype for item in found.tensors] == ["float16", "float32"]
    assert with_types(described("x", "x", lost), {"*": "bfloat16"}).tensors[0].dtype == "bfloat16"


def test_bits_kept_as_integers_are_what_a_person_says() -> None:
    codes = Tensor("layers.0.k_cache", "uint16", (4, 2), Path("k.npy"), role="k")
    half, table = Tensor("h", "float16", (2,), Path("h.npy")), Tensor("block_table", "uint16", (2,), Path("t.npy"), role="block_table")
    of = described("x", "x", codes, half, table)
    assert [item.dtype for item in with_types(of, {"*": "bfloat16"}).tensors] == ["bfloat16", "float16", "uint16"]
    assert [item.dtype for item in with_types(of, {"h": "bfloat16"}).tensors] == ["uint16", "bfloat16", "uint16"]
    assert unused_types([of], {"*": "bfloat16", "h": "bfloat16"}) == []


def test_a_type_that_nothing_comes_of_is_told() -> None:
    of = described("x", "x", Tensor("h", "float32", (2,), Path("h.npy")), Tensor("lost", "opaque2", (2,), Path("l.npy")))
    assert unused_types([of], {"*": "float8_e5m2", "h": "bfloat16", "no.such": "float16"}) == [
        "--dtype float8_e5m2 is not used: the files hold float32, opaque2: types of their own, or of another width", "--dtype h=bfloat16 is not used: its file says float32, of another width",
        "--dtype no.such=float16 is not used: no tensor is called no.such",
    ]  # fmt: skip
    assert with_types(of, {"*": "float8_e5m2"}).tensors[1].dtype == "opaque2"
    assert unused_types([of], {"h": "float32"}) == ["--dtype h=float32 is not used: that is the type in the files"]
