"""Whose lookup is it? A log holds many; a finding prefers that of the dumped or failing request, and says so of others."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from diag import analysis, engine, rules
from diag.lookups.ties import Asked, Dumped, Looked, Tie, answered, bears, reason, ties, whom
from diag.model import Diagnosis, RuleResult
from tests.conftest import SAMPLES, MakeCase

INCIDENT = SAMPLES / "prefix-block-mismatch" / "incident"
RULES = rules.load(rules.shipped())
HEAD = "[2026-11-30 15:02:01.000000] [8787] [8787] [llm] [INFO]"
WRONG = frozenset({1})


def wrong(request: str | None, hole: int = 1, **facts: object) -> Looked:
    return Looked(f"log:{request}", request, hole=hole, is_wrong=True, **facts)  # type: ignore[arg-type]


def by_request(looked: Sequence[Looked], dumps: Sequence[Dumped] = (), asked: Sequence[Asked] = ()) -> dict[str | None, Tie]:
    return {tie.lookup.request: tie for tie in ties(looked, dumps, asked)}


@pytest.mark.parametrize(("name", "request_id", "is_borne"), [
    ("cmpl-49", "cmpl-49", True), ("bad-cmpl-49", "cmpl-49", True), ("CMPL-49_step0", "cmpl-49", True), ("cmpl-490", "cmpl-49", False),
    ("r7", "r7", True), ("bad_r7", "r7", True), ("bar7", "r7", False),
    ("dump-4f0a9c1e", "chatcmpl-4f0a9c1e", True), ("bad-49", "cmpl-49", False), ("bad-1", "1", False), ("49", "49", False),
])  # fmt: skip
def test_a_name_bears_an_id_only_whole(name: str, request_id: str, is_borne: bool) -> None:
    assert bears(name, request_id) is is_borne


def test_an_id_in_the_name_is_the_surest_sign() -> None:
    found = by_request([wrong("r3"), wrong("r7"), wrong("r9", hole=2)], [Dumped("bad-r7", WRONG)])
    assert {name: tie.whose for name, tie in found.items()} == {"r3": "other", "r7": "dumped", "r9": "other"}
    assert found["r7"].how == "request id" and found["r3"].dumped_request == "r7"
    assert reason(found["r3"]) == "the dump is of request r7" and whom(found["r3"]) == "request r3 (not the dumped one)"


def test_a_sound_lookup_of_the_dumped_request_makes_the_others_those_of_others() -> None:
    sound = Looked("log:r7", "r7")
    found = by_request([wrong("r3"), sound, Looked("log:r8", "r8")], [Dumped("r7", WRONG)])
    assert (found["r7"].whose, found["r3"].whose) == ("dumped", "other")
    assert "r8" not in found, "a sound lookup of nobody in particular is no evidence"


def test_physical_blocks_tell_which_of_two_with_the_same_hole() -> None:
    dump = Dumped("bad", WRONG, {0: 31, 1: 8, 2: 12, 3: 40})
    found = by_request([wrong("a-x", ids={0: 31, 2: 12, 3: 40}), wrong("a-y", ids={0: 31, 2: 13, 3: 40}), wrong("a-z", ids={0: 31})], [dump])
    assert {name: tie.whose for name, tie in found.items()} == {"a-x": "dumped", "a-y": "other", "a-z": "other"}
    assert found["a-x"].how == "physical blocks"


def test_a_number_ties_only_where_the_hole_is_the_wrong_block() -> None:
    found = by_request([wrong("cmpl-110"), wrong("cmpl-24")], [Dumped("run-110", WRONG)])
    assert (found["cmpl-110"].whose, found["cmpl-110"].how, found["cmpl-24"].whose) == ("dumped", "number", "other")
    elsewhere = by_request([wrong("cmpl-110", hole=0)], [Dumped("run-110", WRONG)])
    assert elsewhere["cmpl-110"].whose == "other" and reason(elsewhere["cmpl-110"]) == "in the dump another block is wrong"


def test_a_hole_ties_the_only_one_and_leaves_two_open() -> None:
    one = by_request([wrong("cmpl-5"), wrong("cmpl-6", hole=0)], [Dumped("bad", WRONG)])
    assert (one["cmpl-5"].whose, one["cmpl-6"].whose) == ("fits", "other")
    two = by_request([wrong("cmpl-5"), wrong("cmpl-6")], [Dumped("bad", WRONG)])
    assert {tie.whose for tie in two.values()} == {"ambiguous"} and "2 lookups have this hole" in reason(two["cmpl-5"])


def test_a_dump_that_bears_another_id_is_of_no_other_request() -> None:
    found = by_request([wrong("cmpl-5")], [Dumped("cmpl-77", WRONG)])
    assert found["cmpl-5"].whose == "other" and reason(found["cmpl-5"]) == "the dump is of request cmpl-77"


def test_a_dump_without_a_wrong_block_says_nothing_of_lookups() -> None:
    assert by_request([wrong("cmpl-5")], [Dumped("bad")])["cmpl-5"].whose == "unknown"
    assert by_request([wrong("cmpl-5")])["cmpl-5"].whose is None


@pytest.mark.parametrize("logged", ["cmpl-llmdiag-ab-7", "cmpl-llmdiag-ab-7-0", "cmpl-llmdiag-ab-7-0-8fa1c3d2", "chatcmpl-llmdiag-ab-7", "llmdiag-ab-7"])
def test_a_question_is_found_under_all_that_engines_make_of_its_id(logged: str) -> None:
    question = Asked(("llmdiag-ab-7",), 100.0, 1.0, "request 7 of the pressure arm", True, "empty")
    found = by_request([wrong(logged), wrong("cmpl-llmdiag-ab-71")], asked=[question])
    assert found[logged].asked == question and found["cmpl-llmdiag-ab-71"].asked is None
    assert answered(found[logged]) == "request 7 of the pressure arm, answered wrongly (empty)"


def test_without_an_id_in_the_log_the_time_tells_where_only_one_was_under_way() -> None:
    asked = [Asked((f"q{n}",), 100.0 + n, 0.5, f"request {n}", False, "same") for n in range(3)]
    at = [Looked(f"log:{n}", None, ts, 0, True) for n, ts in enumerate((101.1, 101.7, 90.0))]
    found = {tie.lookup.lookup: tie.asked for tie in ties(at, (), asked)}
    assert found == {"log:0": asked[1], "log:1": None, "log:2": None}
    crowded = [*asked, Asked(("q9",), 101.0, 0.5, "request 9", False, "same")]
    assert next(ties(at[:1], (), crowded)).asked is None


# --- the rule over the recorded incident, and variants of its log ---


def logged(request: str, flags: str, ids: Sequence[int]) -> str:
    """A lookup in the lines of the patched build: a binary search that counts all blocks, then the walk."""
    lines = [f"[scheduler.cpp:341] : schedule prefill, requestId={request}"]
    allocator = "[prefix_cache_block_allocator.cpp:418] : "
    for flag, block in zip(flags, ids, strict=True):
        lines.append(f"{allocator}二分IsBlockCached: {flag}")
        lines += [f"{allocator}===> PrefixCacheBlockAllocator blockHash={900 + block} blockIDs ={block} is computed:1"] if flag == "1" else []
    walk = flags[: flags.index("0") + 1] if "0" in flags else flags
    lines += [f"{allocator}遍历IsBlockCached: {flag}" for flag in walk]
    lines.append(f"{allocator}二分:{[block for flag, block in zip(flags, ids, strict=True) if flag == '1']}")
    lines.append(f"{allocator}遍历:{list(ids[: walk.count('1')])}")
    return "".join(f"{HEAD} {line}\n" for line in lines)


def without(log: str, request: str) -> str:
    """The log without one request's lookup."""
    kept, leaves = [], False
    for line in log.splitlines(keepends=True):
        if "requestId=" in line:
            leaves = line.rstrip().endswith(f"={request}")
        kept += [] if leaves else [line]
    return "".join(kept)


def incident(folder: Path, log: str, *, dump: str = "bad", experiment: Mapping[str, object] | None = None) -> Diagnosis:
    document = json.loads((INCIDENT / "comparison.json").read_text())
    document["bad"]["name"] = dump
    paths = [folder / "comparison.json", folder / "lookups.log"]
    paths[0].write_text(json.dumps(document))
    paths[1].write_text(log, encoding="utf-8")
    if experiment is not None:
        paths.append(folder / "repro.json")
        paths[2].write_text(json.dumps(experiment))
    (found,) = analysis.analyse(paths, RULES)
    return found


def finding(found: Diagnosis) -> RuleResult:
    assert found.findings, [(r.rule, r.verdict) for r in found.inconclusive]
    assert (found.findings[0].rule, found.findings[0].verdict.value) == ("prefix-block-mismatch", "confirmed")
    return found.findings[0]


def says(result: RuleResult, signal: str) -> tuple[str, ...]:
    return next(item.says for item in result.signals if item.id == signal)


LOG = (INCIDENT / "lookups.log").read_text(encoding="utf-8")
AT = 1796050921.0
"""The time of HEAD, in UTC."""
AT_49 = 1796050949.5
STRANGER = logged("cmpl-29", "1011", (40, 41, 42, 43))


def test_the_recorded_incident_names_the_request() -> None:
    (found,) = analysis.analyse([INCIDENT], RULES)
    result = finding(found)
    assert result.subject == "block 0 of request cmpl-49"
    assert any("repro-prefix" in action.run for action in result.actions)
    (told,) = says(result, "the_same_block_in_lookup_and_dump")
    assert told.startswith("block 0 is both the hole in the lookup of request cmpl-49 and the wrong block of the dump: the dump bad does not say whose it is")
    assert told.endswith("no other lookup has this hole, and its blocks go with those of the dump")
    assert says(result, "a_missing_block_was_reused")[0].endswith("block 0 is wrong in the dump bad: the engine took it for a hit, as the binary search says")
    assert says(result, "lookups_of_other_requests") == ()


def test_the_lookup_of_the_dumped_request_is_the_proof_though_another_disagrees_earlier(tmp_path: Path) -> None:
    result = finding(incident(tmp_path, STRANGER + LOG))
    assert result.subject == "block 0 of request cmpl-49"
    (proof,) = says(result, "a_missing_block_was_reused")
    assert proof.startswith("request cmpl-49: ") and "reuses 3 blocks and a walk 0" in proof
    (other,) = says(result, "lookups_of_other_requests")
    assert "one lookup that meets a missing block is of another request (cmpl-29): in the dump another block is wrong" in other


def test_a_dump_named_after_its_request_ties_it_for_sure(tmp_path: Path) -> None:
    same_hole = logged("cmpl-29", "011", (40, 41, 42))
    result = finding(incident(tmp_path, same_hole + LOG, dump="bad-cmpl-49"))
    assert result.subject == "block 0 of request cmpl-49"
    assert says(result, "a_missing_block_was_reused")[0].startswith("request cmpl-49 (the dumped one): ")
    assert "(cmpl-29): the dump is of request cmpl-49" in says(result, "lookups_of_other_requests")[0]


def test_two_that_fit_are_both_named_and_left_open(tmp_path: Path) -> None:
    result = finding(incident(tmp_path, logged("cmpl-29", "011", (40, 41, 42)) + LOG))
    proof = says(result, "a_missing_block_was_reused")
    assert [line.split(":")[0] for line in proof] == ["request cmpl-29", "request cmpl-49"], "neither is said to be the dumped one"
    assert all("does not say whose it is, and 2 lookups have this hole" in line for line in says(result, "the_same_block_in_lookup_and_dump"))


def test_only_anothers_lookup_is_said_to_be_anothers_and_the_dump_leads(tmp_path: Path) -> None:
    log = logged("cmpl-28", "11", (38, 39)) + STRANGER + without(LOG, "cmpl-49")
    told = experiment(trial(8, "cmpl-28", cached_tokens=32, ts=AT), trial(9, "cmpl-29", cached_tokens=64, ts=AT))
    result = finding(incident(tmp_path, log, experiment=told))
    assert result.subject == "block 0 of dump bad", "not block 1 of that other request"
    assert says(result, "wrong_reuse")[0].startswith("block 0 of the cache holds other content in bad")
    assert says(result, "a_missing_block_was_reused")[0].startswith("request cmpl-29 (not the dumped one): ")
    assert "(cmpl-29)" in says(result, "lookups_of_other_requests")[0]
    (alone,) = incident(tmp_path, log).findings[:1]
    assert (alone.verdict.value, alone.subject) == ("likely", "block 0 of dump bad"), "what another request's log lists twice proves nothing of this one"


def trial(ordinal: int, request: str, **facts: object) -> dict[str, object]:
    return {
        "arm": "pressure", "ordinal": ordinal, "kind": "reask", "prompt": 0, "variant": None, "answer_class": "empty", "suspicious": True, "reproduced": True,
        "hit": True, "cached_tokens": 48, "prompt_tokens": 92, "bypass": False, "seconds": 0.1, "ts": 1796050949.0 + ordinal, "note": None, "request": request,
        "sent": f"llmdiag-ab-{ordinal}", "excerpt": None, **facts,
    }  # fmt: skip


def experiment(*trials: dict[str, object]) -> dict[str, object]:
    return {
        "schema": "llmdiag.repro/1", "verdict": "reproduced", "url": "http://127.0.0.1:8000", "model": "m", "because": ["it failed"], "exercised": True,
        "healed_by_bypass": True, "ended": "reproduced", "seconds": 9.0, "started_at": 1796050940.0, "trials": list(trials), "prompts": [], "arms": [],
    }  # fmt: skip


def test_the_failing_request_of_an_experiment_is_recognised_in_the_log(tmp_path: Path) -> None:
    found = incident(tmp_path, LOG, experiment=experiment(trial(72, "cmpl-49", ts=AT_49)))
    result = finding(found)
    symptom = next(item for item in found.explained if item.rule == "kv-hit-corrupt")
    assert says(symptom, "its_lookup") == ("the log of lookups has request cmpl-49: it reuses block 0, which is not cached",)
    assert says(result, "the_failing_request") == ("the experiment has it: request cmpl-49 is request 72 of the pressure arm, answered wrongly (empty)",)
    assert says(result, "still_to_be_reproduced") == ()
    assert not any("repro-prefix" in action.run for action in result.actions), "it need not be reproduced once more"


@pytest.mark.parametrize(("logged_as", "is_found"), [("cmpl-7", True), ("cmpl-7-0", True), ("cmpl-71", False)])
def test_a_stale_block_names_the_failing_request_it_was_given_to(make_case: MakeCase, logged_as: str, is_found: bool) -> None:
    block = {"lookup": "l", "request": logged_as, "method": "engine", "position": 0, "hit": True, "cached": True, "epoch": 2, "engine_epoch": 3}
    tables = {"block_lookups": [block], "prefix_trials": [{**trial(72, "cmpl-7"), "url": "u", "ts": None}]}
    case = make_case(tables, collected=["block_lookups", "prefix_trials", "prefix_runs", "kv_events", "tensor_pairs", "host_events"])
    result = engine.judge(case, next(rule for rule in RULES if rule.id == "stale-block-reuse"), {})
    assert result.verdict.value == "confirmed"
    told = f"the experiment has it: request {logged_as} is request 72 of the pressure arm, answered wrongly (empty)"
    assert says(result, "the_failing_request") == ((told,) if is_found else ())


def test_among_lookups_without_a_dump_that_of_the_failing_question_leads(tmp_path: Path) -> None:
    log, document = tmp_path / "lookups.log", tmp_path / "repro.json"
    log.write_text(STRANGER + LOG, encoding="utf-8")
    document.write_text(json.dumps(experiment(trial(1, "cmpl-29", answer_class="same", suspicious=False, reproduced=None, cached_tokens=64, ts=AT), trial(72, "cmpl-49", ts=AT_49))))
    (found,) = analysis.analyse([log, document], RULES)
    assert finding(found).subject == "block 0 of request cmpl-49"
    assert [line.split(":")[0] for line in says(finding(found), "a_missing_block_was_reused")] == ["request cmpl-49", "request cmpl-29"]
