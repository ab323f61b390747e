"""vLLM's block hashes: the digests below were computed by vLLM 0.32.0 itself (init_none_hash, hash_block_tokens)."""

import random
from collections.abc import Sequence

import pytest

from diag.lookups import vllm_hashes
from diag.lookups.events import Event
from diag.lookups.hash_check import check

SALT = (("cache_salt", "salt-1"),)
TOKENS = (0, 23, 24, 255, 256, 65535, 65536, 151643, 2**31 - 1, 7, 7, 7)
EXTRAS: Sequence[vllm_hashes.Extra] = (SALT, None, (("mm", "img", -3),))
SEVEN = {
    "sha256": "57cfd20ce97292a667d700097b3f1988b9b9b0f780d2625ebf56fb8789d4911b",
    "sha256_cbor": "20377cec9f51f6bf5ba1fa64649f3b1614e4eee833fd0fc5893f24f6e0accbaf",
}
"""NONE_HASH under PYTHONHASHSEED=7."""
REAL = {
    "sha256": (
        "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
        "154739ec8753896a99acaf9629b8bf9a175b7beb03f9420bad70897f2f785fec",
        "c1815b221a9eb66458f542fe84259716bcfac45ece64c8f343b0c55eb71707c0",
        "8a4c80fa26e4107a5596481b7c3ae74948a6f954764c8d4442d0861cfe9dbd50",
    ),
    "sha256_cbor": (
        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
        "35d344cd26eb45ee2ce25401b127d0dcabcffc87df24aa8314b9b95c6d689159",
        "a455c535083eb9d3e3143b19c6df1d94fbedb298fa670b0fcea07aa5d7c3d366",
        "7803ab4512ff3c45caf8836297e74e748354f04623088873058d99ad415555c2",
    ),
}


@pytest.mark.parametrize("algorithm", REAL)
def test_the_chain_is_that_of_the_engine(algorithm: str) -> None:
    root, *blocks = REAL[algorithm]
    none = vllm_hashes.none_hash(vllm_hashes.DEFAULT_SEED, algorithm)
    assert none.hex() == root
    assert [digest.hex() for digest in vllm_hashes.chain(none, TOKENS, 4, EXTRAS, algorithm)] == blocks
    assert vllm_hashes.none_hash("7", algorithm).hex() == SEVEN[algorithm]


def test_what_does_not_fill_a_block_has_no_hash() -> None:
    root = vllm_hashes.none_hash(vllm_hashes.DEFAULT_SEED)
    assert vllm_hashes.chain(root, TOKENS[:11], 4) == vllm_hashes.chain(root, TOKENS[:8], 4)
    assert vllm_hashes.chain(root, (), 4) == []


@pytest.mark.parametrize(
    ("version", "hash_seed", "seed"),
    [
        ("0.32.0+cpu", None, vllm_hashes.DEFAULT_SEED), ("0.20.2", None, None), ("v0.10.1", None, None), ("0.20.2", "0", "0"),
        (None, None, vllm_hashes.DEFAULT_SEED), ("unknown", None, vllm_hashes.DEFAULT_SEED), ("1.0", None, vllm_hashes.DEFAULT_SEED),
    ],
)  # fmt: skip
def test_the_seed_is_known_per_version(version: str | None, hash_seed: str | None, seed: str | None) -> None:
    assert vllm_hashes.seed_of(version, hash_seed) == seed


@pytest.mark.parametrize("wrong", [1.5, {"a": 1}, 1 << 64])
def test_what_no_key_holds_is_no_hash(wrong: object) -> None:
    with pytest.raises(TypeError):
        vllm_hashes.sha256_cbor((b"", (wrong,), None))


# --- checking what was announced ---


def events(algorithm: str = "sha256", *, as_int: bool = False, blocks: int = 6, seed: str = vllm_hashes.DEFAULT_SEED) -> list[Event]:
    """A chain of stored blocks of four tokens, as an engine announces it."""
    chance = random.Random(blocks)
    tokens = [chance.randrange(150_000) for _ in range(4 * blocks)]
    digests = vllm_hashes.chain(vllm_hashes.none_hash(seed, algorithm), tokens, 4, algorithm=algorithm)
    texts = [str(vllm_hashes.low_64(digest)) if as_int else digest.hex() for digest in digests]
    return [
        Event("stored", f"e:{n}", texts[n], texts[n - 1] if n else None, tuple(tokens[4 * n : 4 * n + 4]), block_size=4)
        for n in range(blocks)
    ]


@pytest.mark.parametrize("algorithm", vllm_hashes.ALGORITHMS)
@pytest.mark.parametrize("as_int", [False, True])
def test_honest_hashes_are_not_reported(algorithm: str, *, as_int: bool) -> None:
    assert list(check(events(algorithm, as_int=as_int))) == []


@pytest.mark.parametrize("as_int", [False, True])
def test_a_block_with_other_tokens_than_its_hash_is_named(*, as_int: bool) -> None:
    told = events(as_int=as_int)
    wrong = told[3]
    told[3] = Event("stored", wrong.source, wrong.block_hash, wrong.parent, (1, 2, 3, 4), block_size=4)
    found = [(item.invariant, item.source, item.benign) for item in check(told)]
    assert found == [("wrong-hash", "e:3", None)]


def test_an_unknown_seed_is_no_finding() -> None:
    """Children can be checked all the same: their parent's digest is in the event."""
    told = events(seed="random")
    assert [item.benign is not None for item in check(told)] == [True]
    wrong = told[4]
    told[4] = Event("stored", wrong.source, wrong.block_hash, wrong.parent, (1, 2, 3, 4), block_size=4)
    assert [(item.source, item.benign is None) for item in check(told)] == [("e:0", False), ("e:4", True)]


def test_another_algorithm_says_nothing() -> None:
    told = [Event("stored", f"e:{n}", f"{n:064x}", f"{n - 1:064x}" if n else None, (n, n, n, n), block_size=4) for n in range(5)]
    assert list(check(told)) == []


def test_keys_with_a_salt_are_built_again() -> None:
    root = vllm_hashes.none_hash(vllm_hashes.DEFAULT_SEED)
    first, second = vllm_hashes.chain(root, TOKENS[:8], 4, (SALT, None))
    told = [
        Event("stored", "e:0", first.hex(), None, TOKENS[:4], block_size=4, extra='["salt-1"]'),
        Event("stored", "e:1", second.hex(), first.hex(), TOKENS[4:8], block_size=4),
    ]
    assert list(check(told)) == []
