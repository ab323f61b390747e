"""A few mutated files of every format; `python -m tests.tensors.fuzz_files` runs as many as you like."""

import os
import sys
from pathlib import Path

import pytest

from tests.tensors import fuzz_files


@pytest.mark.parametrize("name", ["npy", "npz", "safetensors", "torch", "legacy", "raw"])
def test_mutated_files(tmp_path: Path, name: str) -> None:
    outcomes = fuzz_files.run(name, 250, tmp_path)
    assert sum(outcomes.values()) == 250
    assert outcomes["refused"] + outcomes["not read"] + outcomes["read in part"] > 25, f"hardly a mutation was noticed: {outcomes}"


def test_the_guard_sees_an_execution() -> None:
    fuzz_files.GUARD.seen.clear()
    fuzz_files.GUARD.on = True
    try:
        compile("1", "x", "eval")
    finally:
        fuzz_files.GUARD.on = False
    assert fuzz_files.GUARD.seen, f"nothing seen by {sys.version} in {os.getpid()}"
