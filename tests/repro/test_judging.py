"""Classes of answers, near ties, counters, prompt files, verdicts: everything that decides, without an endpoint."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.errors import BadInput
from diag.repro import prompts, verdict
from diag.repro.baseline import Good
from diag.repro.classing import Answer, classify
from diag.repro.counters import Counters, read
from diag.repro.near_ties import Step, is_near_tie, steps
from diag.repro.record import Cache, Run, Settings, Trial
from tests.conftest import SAMPLES

PROMPT = "You are the operations desk of plant nine. Pump two was replaced in march by another team. The spare key hangs behind a map. Where does the spare key hang?"
GOOD = "The spare key hangs behind the map in the harbour office, next to a lamp."
GOOD_CHINESE = "备用钥匙挂在旧港口办公室的地图后面，旁边有一盏灯。"


@pytest.mark.parametrize(("text", "expected"), [
    (GOOD, "same"),
    (f"  {GOOD}\n", "same"),
    ("", "empty"), (" \n\t", "empty"),
    ("The spare key hangs behind", "cut-short"),
    ("Key.", "cut-short"),
    ("You are the operations desk of plant nine. Pump two was replaced in march", "echo"),
    ("ed in march by another team. The spare key hangs behind a ma", "echo"),
    ("the the the the the the the the the the the the the the the the the the", "garbled"),
    ("The s\ufffd\ufffd\ufffdre k\ufffdy ha\ufffdgs be\ufffd\ufffdnd the map", "garbled"),
    ("\x01\x02\x03 key \x04\x05", "garbled"),
    ("Ключ висит за картой в старой конторе порта рядом с лампой", "garbled"),
    ("The spare key hangs under the carpet in the new harbour office, next to a cat.", "different"),
    ("It is in the office: behind the map you find the spare key, there is a lamp near it.", "different"),
])  # fmt: skip
def test_classes(text: str, expected: str) -> None:
    assert classify(Answer(text, "stop"), [Answer(GOOD, "stop")], PROMPT) == expected


@pytest.mark.parametrize(("text", "good", "prompt", "expected"), [
    ("备用钥匙挂在", GOOD_CHINESE, "钥匙在哪里？", "cut-short"),
    ("你是仓库的助手，请只根据以下内容回答问题。钥匙挂在门后", "钥匙在地图后面。", "你是仓库的助手，请只根据以下内容回答问题。钥匙挂在门后面。钥匙在哪里？", "echo"),
    ("好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好好", GOOD_CHINESE, "钥匙在哪里？", "garbled"),
    ("กุญแจอยู่หลังแผนที่ในสำนักงาน", GOOD_CHINESE, "钥匙在哪里？", "garbled"),
    ("备用钥匙放在新仓库的地毯下面，旁边坐着一只猫，请小心。", GOOD_CHINESE, "钥匙在哪里？", "different"),
])  # fmt: skip
def test_classes_of_other_scripts(text: str, good: str, prompt: str, expected: str) -> None:
    assert classify(Answer(text, "stop"), [Answer(good, "stop")], prompt) == expected


@pytest.mark.parametrize(("text", "good", "why"), [
    ("la la la la la la la la la la la la la la la la la la la la", "la la la la la la la la la la la la la la la la la la lu", "the good answer repeats itself, too"),
    ("\ufffd\ufffda\ufffd", "\ufffd\ufffdb\ufffd", "the good answer is broken, too"),
    ("You are the operations desk of plant nine. Pump two", "You are the operations desk of plant nine. Pump two was", "the good answer is an echo, too"),
])  # fmt: skip
def test_what_the_good_answer_does_too_is_no_failure(text: str, good: str, why: str) -> None:
    found = classify(Answer(text, "length"), [Answer(good, "length")], PROMPT)
    assert found == "different", why


def test_an_answer_that_ran_out_of_tokens_is_not_cut() -> None:
    assert classify(Answer("The spare key", "length"), [Answer(GOOD, "stop")], PROMPT) == "different"


def test_an_empty_good_answer_makes_an_empty_one_right() -> None:
    assert classify(Answer("", "stop"), [Answer("", "stop")], PROMPT) == "same"


def test_without_a_good_answer_only_gross_failures_are_named() -> None:
    assert classify(Answer("whatever it may be", "stop"), [], PROMPT) == "unjudged"
    assert classify(Answer("", "stop"), [], PROMPT) == "empty"


@given(st.text(), st.lists(st.text(), max_size=3), st.text())
def test_any_text_has_a_class(text: str, good: list[str], prompt: str) -> None:
    found = classify(Answer(text), [Answer(item) for item in good], prompt)
    assert found in ("same", "different", "empty", "cut-short", "echo", "garbled", "unjudged")
    assert (found == "same") or text not in good


@pytest.mark.parametrize(("stable", "expect", "text", "suspicious"), [
    (True, None, "Another plausible answer that is not the same at all, as it happens.", True),
    (False, None, "Another plausible answer that is not the same at all, as it happens.", False),
    (False, None, "", True),
    (True, "map", "Look behind the map.", False),
    (True, r"behind (a|the) m\w+", "Look behind a mat.", False),
    (True, "map", "Look under the carpet, dear friend of the harbour office and of its lamps.", True),
])  # fmt: skip
def test_what_is_suspicious(stable: bool, expect: str | None, text: str, suspicious: bool) -> None:
    good = Good((Answer(GOOD, "stop"),), stable, expect=expect, expect_met=None if expect is None else True)
    assert good.judge(Answer(text, "stop"), PROMPT)[1] is suspicious


CHAIN = (Step("The", -0.1, {"The": -0.1, "A": -2.4}), Step(" key", -0.7, {" key": -0.7, " lock": -0.75}), Step(" hangs", -0.2, {" hangs": -0.2, " is": -1.8}))


@pytest.mark.parametrize(("other", "expected"), [
    ("The lock is open", True), ("The key is here", False), ("A key hangs", False), ("The door", False), ("The key hangs", False), ("", False),
])
def test_near_ties(other: str, expected: bool) -> None:
    assert is_near_tie(CHAIN, other) is expected
    assert is_near_tie((), other) is False


def test_log_probabilities_of_both_apis() -> None:
    completions = {"logprobs": {"tokens": ["The", " key"], "token_logprobs": [-0.1, -0.7], "top_logprobs": [{"The": -0.1, "A": -2.4}, {" key": -0.7, " lock": -0.75}]}}
    chat = {"logprobs": {"content": [
        {"token": "The", "logprob": -0.1, "top_logprobs": [{"token": "The", "logprob": -0.1}, {"token": "A", "logprob": -2.4}]},
        {"token": " key", "logprob": -0.7, "top_logprobs": [{"token": " key", "logprob": -0.7}, {"token": " lock", "logprob": -0.75}]},
    ]}}  # fmt: skip
    assert steps(completions) == steps(chat) == CHAIN[:2]
    for odd in ({}, {"logprobs": None}, {"logprobs": {"content": [None, {"token": 3}]}}, {"logprobs": {"tokens": 1}}):
        assert steps(odd) == ()


def test_counters_of_a_real_vllm() -> None:
    found = read((SAMPLES / "vllm-0.32-cpu" / "busy" / "metrics1.txt").read_bytes())
    assert found.family == "vllm"
    assert found.hits is not None and found.queries is not None and found.queries >= found.hits
    assert found.capacity_tokens is not None and found.block_size is not None
    assert found.capacity_tokens % found.block_size == 0
    assert found.usage is not None and 0 <= found.usage <= 1


@pytest.mark.parametrize(("text", "expected"), [
    ('ray_vllm_prefix_cache_hits_total{ReplicaId="a"} 5\nray_vllm_prefix_cache_queries_total{ReplicaId="a"} 9\n', Counters("vllm", 5, 9)),
    ('vllm:gpu_prefix_cache_hits_total{engine="0"} 5\nvllm:gpu_prefix_cache_hits_total{engine="1"} 6\nvllm:gpu_prefix_cache_queries_total{engine="0"} 20\n'
     'vllm:gpu_cache_usage_perc{engine="0"} 0.25\nvllm:gpu_cache_usage_perc{engine="1"} 0.5\n', Counters("vllm", 11, 20, usage=0.5)),
    ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None",engine="0"} 1.0\n', Counters("vllm", block_size=16)),
    ('sglang:cached_tokens_total{cache_source="device"} 3\nsglang:cached_tokens_total{cache_source="host"} 4\nsglang:prompt_tokens_total 50\n'
     'sglang:max_total_num_tokens 1000\nsglang:evicted_tokens_total 7\nsglang:token_usage 0.1\n', Counters("sglang", 7, 50, 7, 1000, 0.1)),
    ('sglang:realtime_tokens_total{mode="prefill_cache"} 3\nsglang:realtime_tokens_total{mode="prefill_compute"} 5\nsglang:realtime_tokens_total{mode="decode"} 9\n',
     Counters("sglang", 3, 8)),
    ("llamacpp:kv_cache_usage_ratio 0.5\n", Counters("llama.cpp", usage=0.5)),
    ('npu_cache_usage_perc{model_name="q"} 0.5\n', Counters("mindie", usage=0.5)),
    ("process_start_time_seconds 5\n", Counters()), ("[]", Counters()), ("<html></html>", Counters()), ("", Counters()), ("\xff\xfe", Counters()),
])  # fmt: skip
def test_counters_of_every_family(text: str, expected: Counters) -> None:
    assert read(text.encode("latin-1")) == expected


@pytest.mark.parametrize(("line", "says"), [
    ("{", "no JSON"), ("[1]", "either prompt or messages"), ('{"prompt": ""}', "not empty"), ('{"prompt": "a", "messages": []}', "either"),
    ('{"prompt": [1, -2]}', "token ids"), ('{"prompt": [true]}', "token ids"), ('{"messages": [{"content": "a"}]}', "role"),
    ('{"messages": [{"role": "user", "content": null}]}', "no message has a text"), ('{"prompt": "a", "tools": []}', "unknown key 'tools'"),
    ('{"prompt": "a", "expect": 3}', "expect"), ('{"prompt": "a", "expect": "f(x"}', "expect is no regular expression"), 
    ('{"prompt": "a", "expect": "(?=a)b"}', "expect is no regular expression: invalid perl operator"), ('{"prompt": "a", "expect": "\\ud800"}', "half a character"),
    ('{"prompt": "\\ud800 a"}', "half a character"), ("[" * 100_000, "no JSON"),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(BadInput) as error:
        prompts.read(path)
    assert f"{path}:3: " in error.value.message
    assert says in error.value.message
    assert error.value.hint


def test_files_that_hold_nothing_to_ask(tmp_path: Path) -> None:
    for name, content, says in (("empty", b"\n", "no prompt"), ("latin", b'{"prompt": "\xe9"}\n', "latin:1: not UTF-8"), ("many", b'{"prompt": "a"}\n' * 201, "201 prompts")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadInput, match=says):
            prompts.read(path)
    with pytest.raises(BadInput, match="cannot read"):
        prompts.read(tmp_path / "none")


def test_prompts_as_they_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    given: list[dict[str, Any]] = [{"prompt": "a b", "expect": "f(x)"}, {"prompt": [5, 0], "id": 7}, {"messages": [{"role": "user", "content": "q", "name": "n"}]}]
    path.write_text("\ufeff" + "\n".join(map(json.dumps, given)))
    found = prompts.read(path)
    assert [item.body() for item in found] == [{"prompt": "a b"}, {"prompt": [5, 0]}, {"messages": given[2]["messages"]}]
    assert [item.kind for item in found] == ["completions", "completions", "chat"]
    assert (found[0].expect, found[1].name) == ("f(x)", "7")
    assert prompts.meets("f(x)", "it is f(x)") and not prompts.meets("f(x)", "it is f")


def test_an_answer_cannot_make_an_expectation_run_for_ever() -> None:
    assert not prompts.meets("(a+)+$", "a" * 100_000 + "!")
    assert prompts.meets("^it is [0-9]+$", "it is 7") and not prompts.meets("^it is [0-9]+$", "it is \ud800 7")


def trial(ordinal: int, **facts: Any) -> Trial:
    return replace(Trial("pressure", ordinal, "reask", 0, "same", False, None, True, 16, 20, False, 0.1, 1.0), **facts)


def run_of(*trials: Trial, **cache: Any) -> Run:
    found = Cache(Counters(), Counters(), 500.0, **cache)
    return Run("http://h", "m", 0.0, 1.0, "limit", "10 requests", Settings(), None, (), found, trials)


def test_stickiness_counts_later_re_asks_of_the_same_prompt() -> None:
    bad = {"answer_class": "empty", "suspicious": True}
    found = verdict.judge(run_of(
        trial(1), trial(2, kind="variant", variant=0), trial(3, reproduced=True, **bad), trial(4, kind="confirm", **bad), trial(5, kind="repeat", **bad),
        trial(6, kind="repeat"), trial(7, **bad), trial(8, prompt=1), trial(9), trial(10, answer_class="error"), trial(11), trial(12, **bad),
    ))  # fmt: skip
    pressure = found.arms[2]
    assert found.verdict == "reproduced" and found.exit_code == 1
    assert (pressure.first_failure, pressure.first_variants, pressure.stickiness, pressure.sticky_at_once) == (3, 1, 0.5, 0.5)
    assert pressure.no_answer == 1


@pytest.mark.parametrize(("arm", "says"), [
    ("baseline", "the cache was bad already before this run; restart the engine"),
    ("control", "most likely the cache was bad already before this run; restart the engine"), ("pressure", ""),
])  # fmt: skip
def test_a_failure_before_any_pressure_is_older_than_the_run(arm: str, says: str) -> None:
    found = verdict.judge(run_of(trial(1, arm=arm, reproduced=True, answer_class="empty", suspicious=True)))
    told = [text for text in found.because if "already before this run" in text]
    assert len(told) == bool(says) and all(says in text for text in told), found.because


@pytest.mark.parametrize(("trials", "cache", "says"), [
    ((trial(1, hit=False, cached_tokens=0),), {"full_by": "x", "evicted": 1}, "no re-ask used cached blocks: is the prefix cache on"),
    ((trial(1, hit=None, cached_tokens=None),), {"full_by": "x"}, "is not known"),
    ((trial(1),), {"hits_when_full": 0}, "ever full"),
    ((trial(1),), {"full_by": "x", "evicted": 0, "hits_when_full": 9}, "no block of the failing prompts was evicted"),
    ((trial(1),), {"full_by": "x", "evicted": 1, "hits_when_full": 4}, "only 4 re-asks used cached blocks after"),
])  # fmt: skip
def test_what_was_not_exercised_is_said(trials: tuple[Trial, ...], cache: dict[str, Any], says: str) -> None:
    found = verdict.judge(run_of(*trials, **cache))
    assert found.verdict == "not-exercised" and found.exit_code == 3
    assert says in " ".join(found.because)


def test_no_failure_is_said_only_after_hits_in_a_full_cache() -> None:
    found = verdict.judge(run_of(trial(1), full_by="the engine counts evictions", evicted=2, hits_when_full=5))
    assert (found.verdict, found.exit_code, found.exercised) == ("no-failure", 0, True)


def test_a_timeline_shows_the_worst_of_what_one_character_stands_for() -> None:
    asked = [trial(number) for number in range(1, 100)]
    asked[10] = trial(11, answer_class="empty", suspicious=True)
    asked[50] = trial(51, answer_class="different", suspicious=True, reproduced=False)
    asked[51] = trial(52, answer_class="different", suspicious=True, reproduced=True)
    asked[52] = trial(53, answer_class="different", suspicious=True)  # once it is known to fail it is not put to the test again
    assert verdict.timeline(asked, 200) == ("." * 10 + "E" + "." * 39 + "~DD" + "." * 46, 1)
    row, step = verdict.timeline(asked, 20)
    assert step == 5 and len(row) == 20
    assert (row.count("E"), row.count("D"), row.count("~")) == (1, 1, 0)
    assert verdict.timeline([], 20) == ("", 1)
