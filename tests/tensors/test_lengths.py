"""Dumps that were taken after answers of other lengths: token ids and context lengths differ, which explains no block before that."""

from pathlib import Path

import numpy as np

from tests.tensors.world import BLOCK, Run, compared, each, everywhere, pair, verdicts

PROMPT, BEGIN = 42, 32
"""Tokens of the prompt, and the first token that the dumped step computes: the rest was in the cache."""


def answered(one: Run, length: int, seed: int, prompt: int = PROMPT) -> Run:
    """Its request has so many tokens at the end; behind those of the prompt stand those of an answer."""
    ids = np.arange(60)
    ids[prompt:] = np.random.default_rng(seed).integers(1000, 9000, 60 - prompt)
    one.tokens = length
    one.extra["input_ids"], one.extra["positions"] = ids[BEGIN:length], np.arange(BEGIN, length)
    one.extra["slot_mapping"] = np.array([one.table[token // BLOCK] * BLOCK + token % BLOCK for token in range(BEGIN, length)])
    one.extra["layers.0.output"] = np.outer(ids[BEGIN:length], np.linspace(1, 2, 8)).astype(np.float32)
    return one


def noise(block: np.ndarray) -> None:  # type: ignore[type-arg]
    block[:] = np.random.default_rng(5).standard_normal(block.shape)


def test_a_wrong_block_before_the_answers_is_the_first_divergence(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 1, noise)
    found = compared(tmp_path / "w", answered(good, 60, 1), answered(bad, 50, 2))
    assert found.first is not None and (found.first.kind, found.first.result.block) == ("bad-kv", 1), found.first
    assert found.scope is not None and (found.scope.points_at, found.scope.blocks) == ("allocator", (1,)), found.scope
    assert "context_lens, input_ids, positions differ between the two dumps (tokens are the same up to token 42), as after answers of other lengths" in " ".join(found.notes)
    assert {item.name for item in found.results if item.follows} == set()
    assert next(item.verdict for item in found.results if item.name == "layers.0.output") == "same", "the rows of the tokens of the prompt"


def test_answers_of_one_length_are_no_other_input_either(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 0, noise)
    found = compared(tmp_path / "w", answered(good, 60, 1), answered(bad, 60, 2))
    assert found.first is not None and (found.first.kind, found.first.result.block) == ("bad-kv", 0), found.first


def test_a_block_behind_the_place_where_tokens_part_is_not_the_cause(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 2, noise)
    found = compared(tmp_path / "w", answered(good, 60, 1, prompt=40), answered(bad, 50, 2, prompt=40))
    assert found.first is not None and (found.first.kind, found.first.result.name) == ("input", "input_ids"), found.first


def test_other_tokens_from_the_first_on_are_another_input(tmp_path: Path) -> None:
    good, bad = pair()
    each(bad, 1, noise)
    found = compared(tmp_path / "w", answered(good, 60, 1, prompt=0), answered(bad, 50, 2, prompt=0))
    assert found.first is not None and found.first.kind == "input", found.first
    assert found.scope is None


def test_a_length_alone_is_no_other_input(tmp_path: Path) -> None:
    good, bad = pair()
    bad.tokens = 50
    each(bad, 1, noise)
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({1: "different"}) | {("context_lens",): "different"}
    assert found.first is not None and (found.first.kind, found.first.result.block) == ("bad-kv", 1), found.first
    assert "context_lens differs between the two dumps" in " ".join(found.notes)


def test_where_nothing_but_the_length_differs_that_is_said(tmp_path: Path) -> None:
    good, bad = pair()
    bad.tokens = 50
    found = compared(tmp_path / "w", good, bad)
    assert found.first is not None and "differs and nothing else does" in found.first.says, found.first
