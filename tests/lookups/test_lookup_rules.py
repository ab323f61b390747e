"""The rules about reused blocks, one fact at a time: what each of them takes for proof, and what acquits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from diag import engine, evidence, rules
from diag.model import RuleResult, SignalResult, SignalState
from tests.conftest import MakeCase

RULES = {rule.id: rule for rule in rules.load(rules.shipped())}
Rows = Mapping[str, Sequence[Mapping[str, object]]]
ALL = ("block_lookups", "kv_events", "tensor_pairs", "tensors", "versions", "host_events")


def judged(make_case: MakeCase, rule: str, *parts: Rows, collected: Sequence[str] = ALL) -> RuleResult:
    rows: dict[str, list[Mapping[str, object]]] = {}
    for part in parts:
        for table, found in part.items():
            rows.setdefault(table, []).extend(found)
    return engine.judge(make_case(rows, collected=collected), RULES[rule], {})


def lookup(flags: str, *, binary: int | None = None, engine: int | None = None, request: str | None = None, name: str = "l") -> Rows:
    """One lookup: what is there per block, how many blocks the logged binary search and the engine counted."""
    rows: list[Mapping[str, object]] = []
    for position, there in enumerate(flags):
        about = {"lookup": name, "request": request, "position": position, "cached": there == "1", "computed": True if there == "1" else None}
        if binary is None or position < binary:
            rows.append({**about, "method": "binary", "hit": None if binary is None else True})
        rows.append({**about, "method": "linear", "hit": there == "1"})
        if engine is not None:
            rows.append({**about, "method": "engine", "hit": position < engine})
    return {"block_lookups": rows}


def blocks(wrong: Mapping[tuple[int, int], str], *, layers: int = 3, of: int = 4, rank: int | None = None, **changes: object) -> Rows:
    """Keys of some layers, four blocks each; `wrong`: (layer, block) -> verdict."""
    rows = []
    for layer in range(layers):
        for block in range(of):
            verdict = wrong.get((layer, block), "same")
            rows.append({
                "good_dump": "good", "bad_dump": "bad", "name": f"layers.{layer}.k_cache", "layer": layer, "block": block, "role": "k", "rank": rank,
                "ord": layer * 10 + block, "verdict": verdict, **(changes if verdict != "same" else {}),
            })  # fmt: skip
    return {"tensor_pairs": rows}


def version(component: str, number: str) -> Rows:
    return {"versions": [{"component": component, "version": number}]}


def tokens(verdict: str) -> Rows:
    return {"tensor_pairs": [{"good_dump": "good", "bad_dump": "bad", "name": "input_ids", "role": "token_ids", "ord": -1, "verdict": verdict}]}


BLOCK_0 = {(layer, 0): "aliased" for layer in range(3)}
DONOR = {"alias_dump": "request-b", "alias_block": 0, "alias_by": "block"}


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        # what the log alone says
        ([lookup("011", binary=3)], "likely"),
        ([lookup("011", binary=3), lookup("101", binary=3, engine=3, name="m")], "confirmed"),
        ([lookup("011", binary=3), lookup("101", binary=3, engine=1, name="m")], "not matched"),
        ([lookup("011", binary=3, engine=3)], "confirmed"),
        ([lookup("011", binary=3, engine=0)], "not matched"),
        ([lookup("011", engine=3)], "confirmed"),
        ([lookup("011")], "not matched"),
        ([lookup("101", binary=1)], "not matched"),
        ([lookup("111", binary=3)], "not matched"),
        ([lookup("011", binary=3), version("mindie", "2.3.0")], "not matched"),
        ([lookup("011", binary=3, engine=3), version("mindie", "2.3.0")], "confirmed"),
        ([lookup("011", binary=3), version("mindie", "2.2.RC1")], "confirmed"),
        # what the dumps alone say
        ([blocks(BLOCK_0)], "likely"),
        ([blocks(BLOCK_0, **DONOR)], "likely"),
        ([blocks(BLOCK_0, **DONOR), version("mindie", "2.2.RC1")], "confirmed"),
        ([blocks(BLOCK_0), version("mindie", "2.2.RC1")], "likely"),
        ([blocks({key: "zero" for key in BLOCK_0}), version("mindie", "2.2.RC1")], "confirmed"),
        ([blocks(BLOCK_0, **DONOR), version("vllm", "0.8.5.post1")], "likely"),
        ([blocks(BLOCK_0, **DONOR), version("mindie", "2.3.0")], "likely"),
        ([blocks(BLOCK_0, doubt="suspicious")], "not matched"),
        ([blocks({(0, 0): "different"})], "not matched"),
        ([blocks({(2, 0): "different"})], "not matched"),
        ([blocks({(layer, 3): "different" for layer in range(3)})], "not matched"),
        ([blocks({(layer, block): "different" for layer in range(3) for block in range(4) if layer or not block})], "not matched"),
        ([blocks(BLOCK_0, rank=0), blocks(BLOCK_0, rank=1)], "likely"),
        ([blocks(BLOCK_0, rank=0), blocks({}, rank=1)], "not matched"),
        ([blocks(BLOCK_0), tokens("different")], "not matched"),
        ([blocks(BLOCK_0), tokens("shape-mismatch")], "likely"),
        # both
        ([blocks(BLOCK_0), lookup("011", binary=3)], "confirmed"),
        ([blocks(BLOCK_0), tokens("different"), lookup("011", binary=3)], "likely"),
        ([blocks(BLOCK_0), lookup("011", binary=3, engine=0)], "likely"),
        ([blocks(BLOCK_0), lookup("00111", binary=5)], "likely"),
        ([blocks(BLOCK_0), lookup("111", binary=3, request="bad")], "likely"),
        ([blocks(BLOCK_0), lookup("000", binary=0, request="bad")], "not matched"),
        ([blocks(BLOCK_0), lookup("000", binary=0, request="another")], "likely"),
        ([blocks(BLOCK_0), lookup("000", binary=0, request="bad"), lookup("011", binary=3, name="m")], "likely"),
        ([blocks(BLOCK_0), lookup("111", binary=3, request="bad"), lookup("011", binary=3, request="bad", name="m")], "confirmed"),
        ([blocks(BLOCK_0, alias_dump="generation-1")], "not matched"),
        ([blocks(BLOCK_0, alias_dump="generation-1"), lookup("011", binary=3)], "confirmed"),
    ],
)  # fmt: skip
def test_prefix_block_mismatch(make_case: MakeCase, parts: Sequence[Rows], verdict: str) -> None:
    found = judged(make_case, "prefix-block-mismatch", *parts)
    assert found.verdict == verdict, [(signal.id, signal.state, signal.says or signal.near) for signal in found.signals]


@pytest.mark.parametrize(
    ("parts", "collected", "verdict"),
    [
        ([lookup("011", binary=3)], ["block_lookups"], "likely"),
        ([lookup("011", binary=3, engine=3)], ["block_lookups"], "confirmed"),
        ([lookup("111", binary=3)], ["block_lookups"], "inconclusive"),
        ([blocks(BLOCK_0)], ["tensor_pairs"], "likely"),
        ([blocks({})], ["tensor_pairs"], "inconclusive"),
        ([], [], "inconclusive"),
    ],
)
def test_what_was_not_handed_in_neither_accuses_nor_acquits(make_case: MakeCase, parts: Sequence[Rows], collected: Sequence[str], verdict: str) -> None:
    assert judged(make_case, "prefix-block-mismatch", *parts, collected=collected).verdict == verdict


def test_the_runbook_says_how_dumps_are_taken_only_where_they_are_missing(make_case: MakeCase) -> None:
    log_only = judged(make_case, "prefix-block-mismatch", lookup("011", binary=3, engine=3)).runbook["confirm"]
    assert "--include-mod=atb_probe" in log_only
    assert "Log both lookups" not in log_only


def test_a_log_that_prints_both_answers_is_asked_which_one_is_used(make_case: MakeCase) -> None:
    found = judged(make_case, "prefix-block-mismatch", lookup("011", binary=3))
    assert "which one the engine follows is not known" in " ".join(says for signal in found.signals for says in signal.says)
    assert "Find out which of the two logged answers" in found.runbook["confirm"] and "Log both lookups" not in found.runbook["confirm"]
    assert found.actions[0].title.startswith("Find out which of the two logged answers the engine uses"), [action.title for action in found.actions]


def test_the_runbook_says_how_lookups_are_logged_only_where_they_are_missing(make_case: MakeCase) -> None:
    dump_only = judged(make_case, "prefix-block-mismatch", blocks(BLOCK_0, **DONOR)).runbook["confirm"]
    assert "--include-mod=atb_probe" not in dump_only
    assert "Log both lookups" in dump_only


def aged(epoch: int, engine: int | None = None) -> Rows:
    return {"block_lookups": [{"lookup": "l", "method": "engine", "position": 0, "hit": True, "cached": True, "epoch": epoch, "engine_epoch": engine}]}


def happened(*events: tuple[str, str]) -> Rows:
    return {"host_events": [{"kind": kind, "detail": detail} for kind, detail in events]}


OLD_BLOCK = blocks(BLOCK_0, alias_dump="dump-before-restart")


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([aged(2, 3)], "confirmed"),
        ([aged(3, 3)], "not matched"),
        ([aged(2, 3), happened(("weights_hash", "a"), ("weights_hash", "a"))], "confirmed"),
        ([aged(2, 3), happened(("weights_hash", "a"), ("weights_hash", "b"))], "not matched"),
        ([OLD_BLOCK], "likely"),
        ([OLD_BLOCK, happened(("generation", "generation 2 begins"))], "confirmed"),
        ([blocks(BLOCK_0, **DONOR), happened(("generation", "generation 2 begins"))], "not matched"),
        ([blocks(BLOCK_0, alias_dump="oxygen-3")], "not matched"),
        ([blocks(BLOCK_0, alias_dump="run.gen_2")], "likely"),
    ],
)
def test_stale_block_reuse(make_case: MakeCase, parts: Sequence[Rows], verdict: str) -> None:
    assert judged(make_case, "stale-block-reuse", *parts).verdict == verdict


def trial(**changes: object) -> Mapping[str, object]:
    plain = {
        "url": "u", "arm": "pressure", "ordinal": 5, "kind": "reask", "prompt": 0, "answer_class": "empty", "suspicious": True, "reproduced": True,
        "hit": True, "cached_tokens": 48, "prompt_tokens": 60, "bypass": False,
    }  # fmt: skip
    return {**plain, **changes}


RIGHT = trial(kind="confirm", ordinal=6, answer_class="same", suspicious=False, reproduced=None, hit=False, cached_tokens=0, bypass=True)


@pytest.mark.parametrize(
    ("trials", "verdict"),
    [
        ([trial(), RIGHT], "confirmed"),
        ([trial()], "likely"),
        ([trial(hit=None, cached_tokens=None), RIGHT], "likely"),
        ([trial(hit=False, cached_tokens=0), RIGHT], "not matched"),
        ([trial(reproduced=False), RIGHT], "not matched"),
        ([trial(reproduced=None), RIGHT], "not matched"),
        ([trial(), trial(ordinal=6, bypass=True, cached_tokens=0, reproduced=None)], "likely"),
        ([trial(prompt=1), {**RIGHT, "prompt": 1}, trial(prompt=2, reproduced=None)], "confirmed"),
    ],
)
def test_kv_hit_corrupt(tmp_path: Path, trials: Sequence[Mapping[str, object]], verdict: str) -> None:
    document = json.dumps({"schema": "llmdiag.repro/1", "url": "u", "verdict": "reproduced", "trials": trials})
    (tmp_path / "repro.json").write_text(document)
    assert engine.judge(evidence.open_paths([tmp_path / "repro.json"]), RULES["kv-hit-corrupt"], {}).verdict == verdict


def pair(ord_: int, name: str, **changes: object) -> Mapping[str, object]:
    plain = {
        "good_dump": "good", "bad_dump": "bad", "name": name, "ord": ord_, "verdict": "same", "bad_nan": 0, "good_nan": 0, "op": "softmax",
        "shape": "4x4", "dtype": "float32", "is_first": False, "follows": False,
    }  # fmt: skip
    return {**plain, **changes}


INPUT, OUTPUT = pair(0, "softmax.input", direction="input"), pair(1, "softmax.output", direction="output", verdict="nan", bad_nan=3)


@pytest.mark.parametrize(
    ("rows", "verdict", "name"),
    [
        ([INPUT, OUTPUT], "confirmed", "softmax.output"),
        ([OUTPUT], "likely", "softmax.output"),
        ([INPUT, {**OUTPUT, "good_nan": 3}], "not matched", ""),
        ([{**INPUT, "bad_nan": 1}, OUTPUT], "likely", "softmax.input"),
        ([INPUT, {**OUTPUT, "op": None}], "likely", "softmax.output"),
        ([pair(7, "later", bad_nan=9, verdict="nan"), INPUT, OUTPUT], "confirmed", "softmax.output"),
    ],
)
def test_nan_origin(make_case: MakeCase, rows: Sequence[Mapping[str, object]], verdict: str, name: str) -> None:
    found = judged(make_case, "nan-origin", {"tensor_pairs": rows})
    assert (found.verdict, found.subject) == (verdict, name)


@pytest.mark.parametrize(("donor", "so"), [
    ({"alias_dump": "gift", "alias_request": "r5", "alias_block": 1}, "Block 1 of the dump bad holds what it left there: its hole is at the same place"),
    (DONOR, "The wrong block 1 of the dump bad may have been put there by it, if it came before: its hole is at the same place"),
    (None, "That shows holes in the cache of the engine it was logged by, and not what happened to the dumped request"),
])  # fmt: skip
def test_what_another_request_left_behind_is_said_as_far_as_it_is_known(make_case: MakeCase, donor: Mapping[str, object] | None, so: str) -> None:
    wrong = {(layer, block): "aliased" for layer in range(3) for block in ((0,) if donor is None else (0, 1))}
    mine, others = lookup("0111", binary=4, engine=4, request="bad"), lookup("101", binary=3, request="r5", name="m")
    found = judged(make_case, "prefix-block-mismatch", blocks(wrong, **(donor or DONOR)), mine, others)
    (said,) = next(signal.says for signal in found.signals if signal.id == "lookups_of_other_requests")
    assert said.startswith("one lookup that meets a missing block is of another request (r5): ") and said.endswith(so), said


def test_inputs_that_were_not_dumped_are_asked_for_and_not_called_dirty(make_case: MakeCase) -> None:
    """Only inputs that are there can be clean or not."""
    def clean(*rows: Mapping[str, object]) -> SignalResult:
        return next(signal for signal in judged(make_case, "nan-origin", {"tensor_pairs": rows}).signals if signal.id == "clean_inputs")

    missing = clean(OUTPUT)
    assert (missing.state, missing.because) == (SignalState.UNSEEN, "the dumps have no input of softmax: dump the input of that module as well")
    assert clean(INPUT, OUTPUT).state == SignalState.HELD
    assert clean({**INPUT, "bad_nan": 1}, OUTPUT).state == SignalState.EMPTY


def test_nan_in_a_single_dump(make_case: MakeCase) -> None:
    rows = [{"dump": "d", "name": name, "ord": n, "nan": nan} for n, (name, nan) in enumerate((("a", 0), ("b", 2), ("c", 5)))]
    found = judged(make_case, "nan-origin", {"tensors": rows})
    assert (found.verdict, found.subject) == ("likely", "b")


FIRST = pair(3, "matmul.output", direction="output", op="matmul", verdict="different", is_first=True, rel_l2=0.9)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([INPUT, FIRST], "confirmed"),
        ([FIRST], "likely"),
        ([INPUT, {**FIRST, "doubt": "capture-artefact"}], "not matched"),
        ([INPUT, {**FIRST, "role": "token_ids"}], "not matched"),
        ([INPUT, pair(3, "matmul.output", verdict="close")], "not matched"),
    ],
)
def test_first_divergence(make_case: MakeCase, rows: Sequence[Mapping[str, object]], verdict: str) -> None:
    assert judged(make_case, "first-divergence", {"tensor_pairs": rows}).verdict == verdict


OTHER_SHAPE = pair(2, "k_cache", role="k", verdict="shape-mismatch", detail="4x8 in the good run, 8x4 in the bad one")


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([{"tensor_pairs": [OTHER_SHAPE]}, version("vllm", "0.32.0"), version("vllm", "0.33.0")], "confirmed"),
        ([{"tensor_pairs": [OTHER_SHAPE]}, version("vllm", "0.32.0"), version("vllm", "0.32.0")], "likely"),
        ([{"tensor_pairs": [OTHER_SHAPE]}, version("python", "3.11.4"), version("python", "3.12.1")], "likely"),
        ([{"tensor_pairs": [{**OTHER_SHAPE, "verdict": "dtype-mismatch"}]}], "likely"),
        ([{"tensor_pairs": [INPUT]}, version("vllm", "0.32.0"), version("vllm", "0.33.0")], "not matched"),
        ([{"tensor_pairs": [OTHER_SHAPE]}, tokens("shape-mismatch")], "not matched"),
    ],
)
def test_layout_change(make_case: MakeCase, parts: Sequence[Rows], verdict: str) -> None:
    assert judged(make_case, "layout-change", *parts).verdict == verdict
