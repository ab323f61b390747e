"""A few mutations of everything a layout reads; `python -m tests.tensors.fuzz_layouts` makes ten thousand of each."""

import pytest

from tests.tensors.fuzz_layouts import TARGETS, run


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_end_in_tensors_or_named_errors(name: str) -> None:
    outcomes = run(name, 40, seed=7)
    assert outcomes["Tensor"] > 0, outcomes
    if name != "file names":  # most names are as good as any other
        assert outcomes.keys() & {"Unread", "BadInput", "ReadError"}, outcomes
