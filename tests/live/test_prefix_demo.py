"""The demo of the second incident: named block, donor and cause; clear without the fault; failing where the healing does not heal."""

import json
from pathlib import Path

import pytest

from tests.live.run import llmdiag

pytestmark = [pytest.mark.live, pytest.mark.torch]

DEADLINE_S = 300.0


def test_it_names_block_donor_and_cause_and_the_walk_heals(tmp_path: Path) -> None:
    keep = tmp_path / "not" / "there"
    said = llmdiag("demo", "prefix-mismatch", "--keep", str(keep), deadline_s=DEADLINE_S)
    assert said.code == 0, said.err
    for words in ("verdict: reproduced", "Diagnosis: prefix-block-mismatch, confirmed", "Restarted with the linear lookup", "verdict: no-failure", "Healed"):
        assert words in said.out, f"{words!r} is not in\n{said.out}"
    found = json.loads((keep / "demo-incident.json").read_text())
    first = found["first_divergence"]
    tensor = [pair for pair in found["pairs"] if pair["name"] == first["name"]]
    (wrong,) = [pair for pair in tensor if pair["block"] == first["block"]]
    assert (wrong["verdict"], wrong["alias_of"]["dump"].partition("-")[0]) == ("aliased", "request"), wrong
    assert f"block {first['block']} (aliased) is block {wrong['alias_of']['block']} of {wrong['alias_of']['dump']}" in said.out
    assert any(pair["verdict"] == "same" for pair in tensor if pair["block"] > first["block"]), tensor
    again = llmdiag("analyze", str(keep / "demo-incident.json"), "--format", "json")
    assert again.code == 1, again.err
    assert again.json["findings"][0]["rule"] == "prefix-block-mismatch"
    _what_was_kept_is_judged(keep, first["block"])


def _what_was_kept_is_judged(keep: Path, block: int) -> None:
    """The log and the experiment alone tell the incident, the healed engine is not accused though its log prints both searches, and the dumps compare again."""
    names = [str(keep / f"demo-incident-{name}") for name in ("lookups.log", "experiment.json", "healed-lookups.log", "healed-experiment.json")]
    ill = llmdiag("analyze", *names[:2], "--format", "json")
    assert [(item["rule"], item["verdict"]) for item in ill.json["findings"]] == [("prefix-block-mismatch", "confirmed")], ill.out
    well = llmdiag("analyze", *names[2:], "--format", "json")
    assert (well.code, well.json["findings"]) == (0, []), well.out
    assert "prefix-block-mismatch" in {item["rule"] for item in well.json["ruled_out"]}, well.out
    dumps = keep / "demo-incident-dumps"
    compared = llmdiag("compare-dumps", str(dumps / "good"), str(dumps / "bad"), "--donors", str(dumps / "donors"), "--format", "json")
    assert compared.json["first_divergence"]["block"] == block, compared.out
    size = sum(path.stat().st_size for path in keep.rglob("*") if path.is_file())
    assert size < 64 << 20, size


def test_without_the_fault_it_ends_clear(tmp_path: Path) -> None:
    said = llmdiag("demo", "prefix-mismatch", "--no-fault", deadline_s=DEADLINE_S, TMPDIR=str(tmp_path))
    assert said.code == 0, said.err
    assert "CLEAR" in said.out and "verdict: no-failure" in said.out, said.out
    assert list(tmp_path.iterdir()) == []
