"""What is said of a control run that cannot tell, and where none is needed."""

from pathlib import Path

import numpy as np

from diag.report import tensor_text
from diag.tensors.result import Comparison
from tests.tensors.world import Run, compared, pair, request, run


def text(found: Comparison) -> str:
    return " ".join(str(part) for part in tensor_text.render(found, 100) if hasattr(part, "plain")).replace("\n", " ")


def drifted(one: Run, share: float) -> Run:
    """Every block of layer 1 and above is off by that share."""
    chance = np.random.default_rng(3)
    for key, pool in one.pools.items():
        if key[1]:
            pool *= (1 + share * chance.standard_normal(pool.shape)).astype(pool.dtype)
    return one


def test_a_control_run_that_repeats_the_good_run_exactly_cannot_tell(tmp_path: Path) -> None:
    good, bad = pair()
    found = compared(tmp_path / "w", good, drifted(bad, 0.02), control=run(request(1), (0, 1, 2, 3), 92))
    said = " ".join(text(found).split())
    assert "the control run repeats the good run exactly and cannot tell this engine's noise: take it in another batch" in said, said
    assert "add --control" not in said
    assert any("repeats the good run bit for bit" in note for note in found.notes), found.notes


def test_a_control_run_that_tells_is_not_blamed(tmp_path: Path) -> None:
    good, bad = pair()
    found = compared(tmp_path / "w", good, drifted(bad, 0.02), control=drifted(run(request(1), (0, 1, 2, 3), 92), 0.015))
    assert not any("bit for bit" in note for note in found.notes), found.notes
    assert "Doubt" not in text(found)


def test_no_control_run_is_asked_for_where_a_block_is_another_s_bit_for_bit(tmp_path: Path) -> None:
    good, bad = pair()
    donor = run(request(2), (3, 4, 9, 10))
    drifted(bad, 0.02)
    for key in bad.pools:
        bad.block(key, 1)[:] = donor.block(key, 2)
    said = " ".join(text(compared(tmp_path / "w", good, bad, {"donor": donor})).split())
    assert "as what is computed from a wrong block would be" in said, said
    assert "add --control" not in said
    alone = " ".join(text(compared(tmp_path / "w", good, bad)).split())
    assert "dump the good request once more and add --control DIR" in alone, alone
