"""Variants: deterministic, of any script, and as near to or far from the prompt as their arm wants."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.repro import variants
from diag.repro.prompts import Prompt

ENGLISH = Prompt(1, "You are the operations desk. Pump two was replaced in march. The spare key hangs behind a map. Where does the spare key hang today?")
CHINESE = Prompt(1, "你是一个仓库的助手，请只根据以下内容回答问题。钥匙挂在地图后面。每封信都要读两遍。钥匙挂在哪里？")
THAI = Prompt(1, "กุญแจอยู่หลังแผนที่ พนักงานอ่านจดหมายทุกฉบับสองครั้ง กุญแจอยู่ที่ไหน")
TOKENS = Prompt(1, tokens=tuple(range(100, 164)))
CHAT = Prompt(1, messages=(
    {"role": "system", "content": "You help engineers and never guess. Line three makes valves."},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "One pump leaked. Which line makes pumps?"}]},
))  # fmt: skip
ALL = (ENGLISH, CHINESE, THAI, TOKENS, CHAT)
NAMES = ("english", "chinese", "thai", "tokens", "chat")
every = pytest.mark.parametrize("prompt", ALL, ids=NAMES)


@every
def test_the_same_seed_makes_the_same_variants_and_another_seed_others(prompt: Prompt) -> None:
    for make in (variants.pressure, variants.control):
        one = [make([prompt], number, 5).body() for number in range(60)]
        assert one == [make([prompt], number, 5).body() for number in range(60)]
    assert [variants.pressure([prompt], n, 5).body() for n in range(60)] != [variants.pressure([prompt], n, 6).body() for n in range(60)]


@every
def test_pressure_never_repeats_the_prompt_and_hardly_itself(prompt: Prompt) -> None:
    made = [repr(variants.pressure([prompt], number, 0).body()) for number in range(400)]
    assert repr(prompt.body()) not in made
    assert len(set(made)) > 340, len(set(made))


def shared(before: Prompt, after: Prompt) -> float:
    """How much of the prompt stands unchanged at the beginning of the other."""
    old, new = (str(item.tokens or item.plain()) for item in (before, after))
    same = next((place for place, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), min(len(old), len(new)))
    return same / len(old)


@every
def test_pressure_changes_all_parts_of_a_prompt(prompt: Prompt) -> None:
    """By the share that stays at the beginning: some change the first tenth, some the last third."""
    shares = sorted(shared(prompt, variants.pressure([prompt], number, 0)) for number in range(50))
    assert shares[0] < 0.1 and shares[-1] > 0.66, shares
    assert sum(0.1 <= share <= 0.66 for share in shares) > 10, shares


@every
def test_long_stretches_share_no_block_with_the_prompt(prompt: Prompt) -> None:
    """Variants 50 to 99 and 200 to 399 begin with words of their own."""
    shares = [shared(prompt, variants.pressure([prompt], number, 0)) for number in (*range(50, 100), *range(200, 400))]
    assert max(shares) < 0.1, max(shares)
    assert max(shared(prompt, variants.pressure([prompt], number, 0)) for number in range(100, 200)) > 0.5


@every
def test_control_changes_the_end_only_and_makes_nothing_longer(prompt: Prompt) -> None:
    for number in range(50):
        made = variants.control([prompt], number, 0)
        assert shared(prompt, made) > 0.5, made
        assert len(str(made.body())) <= len(str(prompt.body()))
    assert any(variants.control([prompt], number, 0).body() != prompt.body() for number in range(5))


def test_control_of_a_chat_leaves_everything_but_the_last_question() -> None:
    made = variants.control([CHAT], 3, 0)
    assert made.messages is not None and CHAT.messages is not None
    assert made.messages[0] is CHAT.messages[0]
    assert made.messages[1]["content"][0] == CHAT.messages[1]["content"][0]  # type: ignore[index]
    assert str(made.messages[1]["content"][1]["text"]).startswith("One pump leaked. ")  # type: ignore[index]


def test_roles_and_parts_that_are_no_text_stay() -> None:
    for number in range(100):
        made = variants.pressure([CHAT], number, 1)
        assert [message["role"] for message in made.messages or ()] == ["system", "user"]
        assert made.messages[1]["content"][0]["image_url"] == {"url": "x"}  # type: ignore[index]


def test_prompts_take_turns() -> None:
    made = [variants.pressure([ENGLISH, CHINESE], number, 0) for number in range(4)]
    assert [item.plain().isascii() for item in made] == [True, False, True, False]


@every
def test_a_mark_in_front_is_never_shared(prompt: Prompt) -> None:
    one, two = variants.behind(prompt, "[00ff]"), variants.behind(prompt, "[11ee]")
    assert one.body() != two.body()
    assert shared(one, two) < 0.15
    if prompt.tokens is not None:
        assert set(one.tokens or ()) <= set(prompt.tokens)
        assert (one.tokens or ())[-len(prompt.tokens):] == prompt.tokens
    else:
        assert all(text in one.plain() for text in prompt.plain().split("\n"))


@given(st.text(min_size=1).filter(str.strip), st.integers(0, 500))
def test_any_text_can_be_changed(text: str, number: int) -> None:
    prompt = Prompt(1, text)
    for make in (variants.pressure, variants.control):
        made = make([prompt], number, 0)
        assert isinstance(made.text, str)
        made.text.encode()
    assert variants.pressure([prompt], number, 0).text != text


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=30), st.integers(0, 500))
def test_any_token_ids_can_be_changed(ids: list[int], number: int) -> None:
    prompt = Prompt(1, tokens=tuple(ids))
    made = variants.pressure([prompt], number, 0)
    assert set(made.tokens or ()) <= set(ids)
    assert made.tokens and variants.control([prompt], number, 0).tokens


def test_a_variant_keeps_what_the_line_says_besides() -> None:
    named = dataclasses.replace(ENGLISH, name="harbour", expect="map")
    assert variants.pressure([named], 0, 0).name == "harbour"
