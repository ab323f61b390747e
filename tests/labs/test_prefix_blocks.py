"""The block manager of the prefix lab: the hash chain, both lookups, and that holes come about by themselves."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvlab.blocks import Allocator, Lookup, PoolFull, chain, combine

SIZE = 4


def words(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(16, 30_000) for _ in range(count)]


def serve(allocator: Allocator, tokens: list[int], now_s: float, salt: int = 0) -> Lookup:
    """A request from scheduling to its end, without an answer."""
    hashes = chain(tokens, allocator.block_size, salt)
    lookup = allocator.look_up(hashes[: (len(tokens) - 1) // allocator.block_size])
    table = allocator.allocate(hashes, len(tokens))
    allocator.mark_computed()
    allocator.release(table, hashes, now_s)
    return lookup


def test_one_step_of_the_hash_is_that_of_the_published_code() -> None:
    chance = random.Random(1)
    for _ in range(200):
        seed, value = chance.getrandbits(64), chance.randrange(32_768)
        with np.errstate(over="ignore"):
            old = np.uint64(seed)
            expected = old ^ (np.uint64(value) + np.uint64(0x9E3779B97F4A7C15) + (old << np.uint64(6)) + (old >> np.uint64(2)))
        assert combine(seed, value) == int(expected), (seed, value)


def test_a_chain_holds_what_came_before() -> None:
    tokens = words(random.Random(2), 15)
    hashes = chain(tokens, SIZE)
    assert len(hashes) == 3
    changed = [tokens[0] + 1, *tokens[1:]]
    assert all(one != other for one, other in zip(hashes, chain(changed, SIZE), strict=True))
    assert chain(tokens[:8] + words(random.Random(3), 4), SIZE)[:2] == hashes[:2]
    assert not set(hashes) & set(chain(tokens, SIZE, salt=7))


@pytest.mark.parametrize(("mask", "binary", "linear"), [("011", 3, 0), ("101", 1, 1), ("1011", 4, 1), ("110", 2, 2), ("000", 0, 0), ("111", 3, 3), ("", 0, 0)])
def test_both_lookups(mask: str, binary: int, linear: int) -> None:
    allocator = Allocator(16, SIZE)
    tokens = words(random.Random(4), SIZE * len(mask) + 1)
    serve(allocator, tokens, 1e9)
    hashes = chain(tokens, SIZE)
    for flag, item in zip(mask, hashes, strict=True):
        if flag == "0":
            del allocator.cached[item]
    found = allocator.look_up(hashes)
    assert (found.binary, found.linear) == (binary, linear)
    assert "".join(str(int(probe.cached)) for probe in found.probes) == mask


def test_a_block_counts_as_computed_at_the_end_of_the_step() -> None:
    allocator = Allocator(8, SIZE)
    tokens = words(random.Random(5), 9)
    hashes = chain(tokens, SIZE)
    table = allocator.allocate(hashes, len(tokens))
    before = allocator.look_up(hashes)
    assert [(probe.block, probe.computed) for probe in before.probes] == [(table[0], False), (table[1], False)]
    allocator.mark_computed()
    assert allocator.look_up(hashes).linear == 2


def holes(step_s: float, requests: int = 400, blocks: int = 64) -> list[str]:
    """What the lookups of a prompt saw that is asked again and again between variants of it, where the methods disagree."""
    chance, allocator = random.Random(6), Allocator(blocks, 16)
    prompt, seen = words(chance, 100), []
    for number in range(requests):
        tokens = list(prompt)
        if number % 5:
            for _ in range(chance.randrange(1, 12)):
                tokens[chance.randrange(1, len(tokens))] = chance.randrange(16, 30_000)
        found = serve(allocator, tokens, 1_760_000_000 + number * step_s)
        if found.binary != found.linear:
            seen.append("".join(str(int(probe.cached)) for probe in found.probes))
    return seen


def test_holes_come_about_when_the_clock_stands_still() -> None:
    seen = holes(step_s=2)
    assert seen, "no hole in 400 requests"
    assert all("01" in mask for mask in seen), seen


def test_no_holes_when_the_clock_tells_requests_apart() -> None:
    assert holes(step_s=5_000) == []  # more than the tolerance with which times are compared


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 2)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_blocks_are_never_lost_nor_handed_out_twice(requests: list[tuple[int, int, int]]) -> None:
    allocator = Allocator(10, SIZE)
    running: list[tuple[list[int], list[int]]] = []
    for number, (beginning, length, keep) in enumerate(requests):
        tokens = [100 + beginning] * 4 + [number % 7 + 20] * length
        hashes = chain(tokens, SIZE)
        try:
            table = allocator.allocate(hashes, len(tokens))
        except PoolFull:
            table = None
        if table is not None:
            assert len(set(table)) == len(table) and 0 not in table
            running.append((table, hashes))
        allocator.mark_computed()
        while len(running) > keep:
            table, hashes = running.pop(0)
            allocator.release(table, hashes, 1e9 + number)
        held = {block for blocks, _ in running for block in blocks}
        assert allocator.in_use == len(held), (allocator.in_use, held)
        assert len(set(allocator.cached.values())) == len(allocator.cached)
    for table, hashes in running:
        allocator.release(table, hashes, 2e9)
    assert (allocator.in_use, allocator.available) == (0, 10)
