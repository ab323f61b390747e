"""Which tensor belongs to which: names, maps, ranks, steps aligned by their tokens."""

from pathlib import Path

import numpy as np
import pytest

from diag.errors import BadInput
from diag.tensors.dump import Dump, Tensor
from diag.tensors.pairing import Pairing, pair, read_map, unused_types, with_types
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
    (tmp_path / "one.toml").write_text('"a.*" = "b.*"')
    with pytest.raises(BadInput, match=r"no tensor in common: a\.old"):
        pair(good, bad, read_map(tmp_path / "one.toml"))
    (tmp_path / "one.toml").write_text('"a.old" = "b.new"')
    assert len(pair(good, bad, read_map(tmp_path / "one.toml")).pairs) == 1


@pytest.mark.parametrize(
    ("text", "said"), [("a = 1", "a: the new name is no text"), ('"a.*" = "b"', "one [*] on each side"), ("a = ", "map.toml"), ('"*.*" = "*.*"', "one [*]")]
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
