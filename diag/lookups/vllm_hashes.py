"""vLLM's block hashes, computed again from token ids: does a hash belong to the tokens it is said to stand for?

    h[0] = H((NONE_HASH, (t0, ..., t15), extra))      h[i] = H((h[i-1], (t16, ...), extra))

H is SHA-256 over a pickle (vLLM's default since 0.10) or over canonical CBOR. Where the seed of NONE_HASH is random
(vLLM up to 0.20 without PYTHONHASHSEED, and every version with xxhash) only blocks with a parent can be checked.
Pickle is only ever written here.
"""

import hashlib
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Final

DEFAULT_SEED = "vllm-none-hash"
"""Of versions whose NONE_HASH is the same everywhere; PYTHONHASHSEED in the engine's environment wins."""
FIRST_FIXED = (0, 21)
"""Up to 0.20.2 the seed is random unless PYTHONHASHSEED is set; 0.32 has the fixed one. In between it is tried."""
LOW_64: Final = 0xFFFF_FFFF_FFFF_FFFF

Extra = tuple[object, ...] | None
Hash = Callable[[object], bytes]


def sha256(value: object) -> bytes:
    """`--prefix-caching-hash-algo sha256`."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def sha256_cbor(value: object) -> bytes:
    """`--prefix-caching-hash-algo sha256_cbor`. Raises TypeError for what no key holds."""
    return hashlib.sha256(_cbor(value)).digest()


ALGORITHMS: dict[str, Hash] = {"sha256": sha256, "sha256_cbor": sha256_cbor}


def seed_of(version: str | None, hash_seed: str | None = None) -> str | None:
    """The seed of NONE_HASH; None: random in this version, nobody can know it. An unknown version is taken for a new one."""
    if hash_seed is not None:
        return hash_seed
    numbers = re.match(r"v?(\d+)\.(\d+)", version or "")
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < FIRST_FIXED:
        return None
    return DEFAULT_SEED


def none_hash(seed: str, algorithm: str = "sha256") -> bytes:
    """The parent of every first block."""
    return ALGORITHMS[algorithm](seed)


def block_hash(parent: bytes, tokens: Sequence[int], extra: Extra = None, algorithm: str = "sha256") -> bytes:
    """The hash of one full block."""
    return ALGORITHMS[algorithm]((parent, tuple(tokens), extra))


def chain(parent: bytes, tokens: Sequence[int], block_size: int, extras: Sequence[Extra] = (), algorithm: str = "sha256") -> list[bytes]:
    """Hashes of the full blocks of `tokens`, after a block with the hash `parent`. `extras`: one per block, () for none."""
    found = []
    for number in range(len(tokens) // block_size):
        block = tokens[number * block_size : (number + 1) * block_size]
        parent = block_hash(parent, block, extras[number] if extras else None, algorithm)
        found.append(parent)
    return found


def as_text(digest: bytes) -> str:
    """As tables name a hash of bytes: hex."""
    return digest.hex()


def low_64(digest: bytes) -> int:
    """As events name it under VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES: the low 64 bits."""
    return int.from_bytes(digest, "big") & LOW_64


def _cbor(value: object) -> bytes:
    """Canonical CBOR of what a key is made of: integers, bytes, texts, tuples of them, nothing."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    if isinstance(value, tuple | list):
        return _cbor_head(4, len(value)) + b"".join(_cbor(item) for item in value)
    raise TypeError(f"no part of a key is a {type(value).__name__}")


def _cbor_head(major: int, number: int) -> bytes:
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 24:
            return bytes([major << 5 | number])
        if number < 1 << (8 * size):
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise TypeError(f"{number} does not fit 64 bits")
