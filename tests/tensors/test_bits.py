"""bfloat16 whose bits were saved as 16-bit integers; and integers that are none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diag.tensors import bits
from diag.tensors.compare import Options, compare
from diag.tensors.dump import Dump
from diag.tensors.pairing import pair, unused_types, with_types
from diag.tensors.result import Comparison
from tests.tensors.world import opened

Array = npt.NDArray[Any]
SHAPE = (4, 16, 2, 8)


def bf16(values: Array, kind: str = "uint16") -> Array:
    """Rounded to even, as torch does it."""
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16).view(kind)


def normal(seed: int, shape: tuple[int, ...] = SHAPE, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def dump(folder: Path, arrays: Mapping[str, Array]) -> Dump:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return opened(folder)


def compared(tmp_path: Path, good: Mapping[str, Array], bad: Mapping[str, Array], **said: str) -> Comparison:
    options = Options(types={name.replace("all_of_them", "*"): kind for name, kind in said.items()})
    return compare(dump(tmp_path / "good", good), dump(tmp_path / "bad", bad), options=options)


@pytest.mark.parametrize("kind", ["uint16", "int16"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 200.0])
def test_rounding_of_bfloat16_kept_as_integers_is_no_difference(tmp_path: Path, kind: str, scale: float) -> None:
    """Numbers near zero change their sign: 32768 apart as integers."""
    values = normal(1, scale=scale)
    noisy = values + normal(2, scale=1e-3 * scale)
    found = compared(tmp_path, {"layers.0.k_cache": bf16(values, kind), "logits": bf16(values[0, 0], kind)}, {"layers.0.k_cache": bf16(noisy, kind), "logits": bf16(noisy[0, 0], kind)})
    assert (found.verdict, {item.good.dtype for item in found.results}) == ("close", {"bfloat16"})
    (note,) = [note for note in found.notes if "16-bit integers" in note]
    assert "hold the bits of bfloat16" in note and "--dtype uint16" in note, note


def test_other_content_is_still_found(tmp_path: Path) -> None:
    values, wrong = normal(1), normal(1)
    wrong[2] = normal(5, SHAPE[1:])
    found = compared(tmp_path, {"layers.0.k_cache": bf16(values)}, {"layers.0.k_cache": bf16(wrong)})
    assert [item.block for item in found.results if item.is_wrong] == [2]


def test_what_is_small_or_even_goes_with_the_rest(tmp_path: Path) -> None:
    ours = {"layers.0.k_cache": bf16(normal(1)), "norm": bf16(np.ones(8)), "zeros": bf16(np.zeros(8)), "expert": np.arange(8, dtype=np.uint16)}
    found = compared(tmp_path, ours, ours | {"expert": np.arange(1, 9, dtype=np.uint16)})
    assert {item.name: item.good.dtype for item in found.results} == {"layers.0.k_cache": "bfloat16", "norm": "bfloat16", "zeros": "bfloat16", "expert": "uint16"}
    assert [item.name for item in found.results if item.is_wrong] == ["expert"]


NUMBERS: dict[str, Array] = {
    "token ids": np.random.default_rng(1).integers(0, 50_000, (1024,)).astype(np.uint16),
    "all of them": np.random.default_rng(1).integers(0, 65_536, (1024,)).astype(np.uint16),
    "positions": np.arange(1024, dtype=np.uint16),
    "blocks": np.random.default_rng(1).integers(0, 400, (1024,)).astype(np.int16),
    "codes": np.random.default_rng(1).normal(0, 40, (1024,)).astype(np.int16),
    "large ids": np.random.default_rng(1).integers(15_000, 17_000, (1024,)).astype(np.uint16),
    "float16": normal(1, (1024,)).astype(np.float16).view(np.uint16),
    "ones": np.full(1024, 0x3F80, np.uint16),
    "zeros": np.zeros(1024, np.uint16),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_integers_and_float16_stay_what_they_are(tmp_path: Path, name: str) -> None:
    found = compared(tmp_path, {"some": NUMBERS[name]}, {"some": NUMBERS[name][::-1].copy()})
    assert {item.good.dtype for item in found.results} == {str(NUMBERS[name].dtype)}
    assert not any("16-bit" in note for note in found.notes)


def test_indices_are_never_taken_as_numbers(tmp_path: Path) -> None:
    """Whatever their bits look like, and beside tensors that are bfloat16."""
    ids = bf16(normal(3, (64,)))
    ours = {"layers.0.output": bf16(normal(1, (64, 8))), "input_ids": ids, "positions": ids, "block_table": ids}
    found = pair(dump(tmp_path / "good", ours), dump(tmp_path / "bad", ours))
    assert bits.guess(found.pairs, {}).names == {"layers.0.output"}


def test_what_a_person_said_is_not_guessed(tmp_path: Path) -> None:
    values = bf16(normal(1))
    other = values.copy()
    other[0, 0, 0, 0] ^= 1
    found = compared(tmp_path, {"layers.0.k_cache": values}, {"layers.0.k_cache": other}, all_of_them="uint16")
    assert (found.verdict, {item.good.dtype for item in found.results}) == ("differ", {"uint16"})
    dump_of = opened(tmp_path / "good")
    assert unused_types([dump_of], {"*": "uint16"}) == []
    assert {item.dtype for item in with_types(dump_of, {"*": "bfloat16"}).tensors} == {"bfloat16"}


def test_a_cache_of_integers_that_tell_nothing_is_said_to_be_that(tmp_path: Path) -> None:
    codes = normal(1).astype(np.float16).view(np.uint16)
    found = compared(tmp_path, {"layers.0.k_cache": codes}, {"layers.0.k_cache": codes})
    assert any(note.startswith("layers.0.k_cache is compared as uint16") and "--dtype float16" in note for note in found.notes), found.notes


def test_of_two_formats_one_knew_the_type(tmp_path: Path) -> None:
    values = normal(1)
    good = dump(tmp_path / "good", {"layers.0.k_cache": bf16(values)})
    bad = with_types(dump(tmp_path / "bad", {"layers.0.k_cache": bf16(values)}), {"*": "bfloat16"})
    assert compare(good, bad).verdict == "same"
