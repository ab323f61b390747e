"""Which of two logged answers an engine used: only evidence says so, and a log that prints both is none."""

from dataclasses import replace
from pathlib import Path

import pytest

from diag import analysis, rules
from diag.lookups.followed import Answers, used
from diag.lookups.ties import Asked, Dumped, Looked, Trials, at_odds
from tests.conftest import SAMPLES

DISPUTE = Answers("request a", binary=5, linear=3, disagrees=True)
CALM = Answers("request b", binary=4, linear=4, disagrees=False, cached_tokens=64)
"""16 tokens a block."""
AFFECTED, FIXED = {"mindie 2.2.RC1 searches": "affected"}, {"mindie 2.3.0 walks": "fixed"}


@pytest.mark.parametrize(("dispute", "beside", "versions", "reused"), [
    (DISPUTE, (), {}, None),
    # its own count
    (replace(DISPUTE, engine=5), (), {}, True), (replace(DISPUTE, engine=3), (), {}, False), (replace(DISPUTE, engine=3), (), AFFECTED, False),
    # cached tokens of its answer
    (replace(DISPUTE, cached_tokens=48), (CALM,), {}, False), (replace(DISPUTE, cached_tokens=80), (CALM,), {}, True),
    (replace(DISPUTE, cached_tokens=64), (CALM,), {}, True),  # the last block of a whole hit is given back
    (replace(DISPUTE, cached_tokens=48), (CALM,), AFFECTED, False),
    (replace(DISPUTE, cached_tokens=128), (CALM,), {}, None),  # a tier behind the cache counts as well
    # without a size of blocks: what can be of one answer only
    (replace(DISPUTE, cached_tokens=48), (), {}, None), (replace(DISPUTE, cached_tokens=80), (), {}, True), (replace(DISPUTE, cached_tokens=240), (), {}, None),
    (replace(DISPUTE, linear=0, cached_tokens=80), (), {}, True),
    # an endpoint that always tells 0, and tokens of another run
    (replace(DISPUTE, linear=0, cached_tokens=0), (), {}, None), (replace(DISPUTE, linear=0, cached_tokens=0), (replace(CALM, cached_tokens=0),), {}, None),
    (replace(DISPUTE, linear=0, cached_tokens=0), (CALM,), {}, False), (replace(DISPUTE, cached_tokens=48), (replace(CALM, cached_tokens=50),), {}, None),
    # other lookups of the same engine, then its version
    (DISPUTE, (replace(DISPUTE, who="request c", engine=5),), {}, True), (DISPUTE, (replace(DISPUTE, who="request c", engine=3),), AFFECTED, False),
    (DISPUTE, (replace(DISPUTE, engine=3), replace(DISPUTE, engine=5)), AFFECTED, None),
    (DISPUTE, (), AFFECTED, True), (DISPUTE, (), FIXED, False), (DISPUTE, (), AFFECTED | FIXED, None), (DISPUTE, (), {"vllm 0.8.5": "possible"}, None),
    # what is merely replayed is no answer of the engine, and two lists of one length are not told apart by a count
    (replace(DISPUTE, is_logged=False), (), AFFECTED, None), (replace(DISPUTE, binary=3, engine=3), (), {}, None),
    (replace(DISPUTE, disagrees=False, linear=5), (), AFFECTED, False),
])  # fmt: skip
def test_only_evidence_says_which_answer_was_used(dispute: Answers, beside: tuple[Answers, ...], versions: dict[str, str], reused: bool | None) -> None:
    found = used([dispute, *beside], versions)[0]
    assert found.reused is reused, found


def test_what_was_found_is_said() -> None:
    found = used([replace(DISPUTE, cached_tokens=48), CALM, replace(DISPUTE, who="request c")], {})
    assert found[0].says == "its answer came with 48 cached tokens, which are 3 blocks, as the walk says"
    assert found[2].says == f"request a shows which search this engine follows: {found[0].says}"


@pytest.mark.parametrize(("log_ts", "is_found"), [(1000.5, True), (1000.5 + 8 * 3600, True), (1000.5 - 3600, True), (1200.0, False), (1000.5 + 17 * 3600, False), (None, True)])
def test_a_mere_number_as_id_is_only_found_at_its_time(log_ts: float | None, is_found: bool) -> None:
    counted = Asked(("cmpl-75",), 1000.0, 0.2, "request 1", False, "same", 48)
    assert (Trials([counted]).named("cmpl-75", log_ts) is counted) is is_found
    unique = replace(counted, names=("cmpl-5d1f0c03",))
    assert Trials([unique]).named("cmpl-5d1f0c03", log_ts) is unique


@pytest.mark.parametrize(("looked", "says"), [
    (Looked("l", hole=0, reuses=3, holes=frozenset({0})), ""),
    (Looked("l", hole=0, reuses=7, holes=frozenset({0})), "it reuses 7 blocks, and the dump bad has 6"),
    (Looked("l", hole=0, reuses=3, holes=frozenset({0, 1})), "block 1 was missing as well, and is as it should be in the dump bad"),
    (Looked("l", hole=0, reuses=5, holes=frozenset({0})), "it reuses 5 blocks, and the dump bad shows block 4 computed anew"),
])  # fmt: skip
def test_the_place_of_a_hole_alone_ties_nothing_that_does_not_go_together(looked: Looked, says: str) -> None:
    assert at_odds(looked, Dumped("bad", frozenset({0}), blocks=6, renewed=frozenset({4, 5}))) == says


@pytest.mark.parametrize(("sample", "verdict", "words"), [
    ("hole-in-lookup", "likely", "which one the engine follows is not known"),
    ("hole-in-affected-version", "confirmed", "mindie 2.2rc1 searches with std::lower_bound"),
    ("hole-and-binary", "confirmed", "its answer came with 24 cached tokens, which are 3 blocks, as the binary search says"),
    ("hole-and-walk", "not matched", "its answer came with 8 cached tokens, which are 1 block, as the walk says"),
    ("hole-and-walk", "not matched", "put the cache of http://127.0.0.1:8000 to the test and found no failure"),
])  # fmt: skip
def test_the_rule_says_what_it_rests_on(sample: str, verdict: str, words: str) -> None:
    (found,) = analysis.analyse([SAMPLES / "prefix-cache" / sample], [rule for rule in rules.load(rules.shipped()) if rule.id == "prefix-block-mismatch"])
    (result,) = found.findings or found.ruled_out
    said = " ".join(says for signal in result.signals for says in signal.says)
    assert (result.verdict.value, words in said) == (verdict, True), said


def test_a_clean_experiment_of_another_engine_is_told_and_does_not_acquit(tmp_path: Path) -> None:
    log = tmp_path / "lookups.log"
    log.write_bytes((SAMPLES / "prefix-cache" / "hole-in-lookup" / "lookups.log").read_bytes())
    (found,) = analysis.analyse([log, SAMPLES / "prefix-cache" / "noise-only" / "repro.json"], [rule for rule in rules.load(rules.shipped()) if rule.id == "prefix-block-mismatch"])
    (result,) = found.findings
    said = {signal.id: signal.says for signal in result.signals}
    assert result.verdict.value == "likely" and said["still_to_be_reproduced"] == ()
    assert "found no failure, which speaks against it" in said["an_experiment_of_something_else"][0] and "may be of another engine" in said["an_experiment_of_something_else"][0]
