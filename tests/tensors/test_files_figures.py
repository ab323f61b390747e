"""From file to figure: what is measured in the owners' files equals what their packages say in float64."""

import json
from pathlib import Path

import pytest

from diag.tensors.measure import measure_one
from tests.tensors.reading import read

DATA = Path(__file__).parent / "data"
FILES = [(folder, name, told) for folder in ("torch", "safetensors") for name, told in json.loads((DATA / folder / "expected.json").read_text())["files"].items() if any("nan" in figures for figures in told.values())]


@pytest.mark.parametrize(("folder", "name", "told"), FILES, ids=[name for _folder, name, _told in FILES])
def test_figures_are_the_owners(folder: str, name: str, told: dict[str, dict[str, float]]) -> None:
    tensors, _unread = read(DATA / folder / name)
    for key, expected in told.items():
        if "nan" not in expected:  # codes and complex numbers: torch gave a digest only
            continue
        whole, _segments = measure_one(tensors[key])
        counts = {"nan": whole.nan, "inf": whole.inf, "zeros": whole.zeros}
        assert counts == {count: expected[count] for count in counts}, key
        for figure in ("min", "max", "mean", "std", "norm"):
            measured = getattr(whole, figure)
            if figure in expected:
                assert measured == pytest.approx(expected[figure], rel=1e-12, abs=1e-14), f"{key}: {figure}"
            else:
                assert measured is None, f"{key}: {figure} of no finite element"
