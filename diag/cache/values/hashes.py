"""Redis hashes that hold a cached vector beside its text, as RedisVL, LangChain and GPTCache write them: facts about them.

    embedcache:<sha256 of "content:model_name">   entry_id, content, model_name, embedding = "[0.1, …]", inserted_at
    llmcache:<sha256>                              prompt, response, prompt_vector = raw float32 bytes
"""

import hashlib
from collections.abc import Mapping, Sequence

from diag.cache.values.facts import Facts, describe
from diag.decode import Array, Decoded, Wrapper, decode
from diag.decode.dtypes import build

MAX_FIELDS = 64
MAX_BYTES = 1 << 20
"""Of all fields; a longer hash is not read."""
VECTORS = ("embedding", "prompt_vector", "vector", "content_vector", "emb")
MIN_VECTOR_BYTES = 32
CODEC = "hash"


def facts_of_hash(key: bytes, fields: Mapping[bytes, bytes], *, markers: Sequence[bytes] = ()) -> Facts:
    """Facts about a whole hash: its vector field is the array, its other fields are texts."""
    names = [name.decode("utf-8", "backslashreplace") for name in fields]
    parts = {name: decode(value) for name, value in zip(names, fields.values(), strict=True)}
    vector = next((name for name in VECTORS if name in parts), None)
    inner = None if vector is None else _vector(parts[vector], fields[vector.encode()])
    texts = [text for name, part in parts.items() if name != vector for text in part.texts]
    whole = Decoded(
        CODEC if inner is None else f"{CODEC}+{inner.codec}",
        arrays=() if inner is None else inner.arrays,
        texts=tuple((*texts, *(() if inner is None else inner.texts))[:64]),
        keys=tuple(sorted(names)[:64]),
        wrapper=_own_digest(key, fields),
        foreign=tuple(name for part in parts.values() for name in part.foreign),
        error=None if inner is None else inner.error,
        problem=None if inner is None else inner.problem,
        detail="" if inner is None else inner.detail,
        is_none=inner is not None and inner.is_none,
        is_empty=inner is not None and inner.is_empty,
        root="hash",
    )
    size = sum(len(name) + len(value) for name, value in fields.items())
    marked = next((text.decode("utf-8", "replace") for text in markers if any(text in value for value in fields.values())), None)
    return describe(whole, size, marked=marked)


def _vector(part: Decoded, value: bytes) -> Decoded:
    """A vector field is a JSON list, or the bytes of float32."""
    if part.arrays or part.is_none or part.is_empty or part.problem is not None or len(value) % 4 or len(value) < MIN_VECTOR_BYTES:
        return part
    if part.codec in ("text", "json"):
        return part
    array: Array = build("float32", (len(value) // 4,), value)
    return Decoded("raw", arrays=(array,))


def _own_digest(key: bytes, fields: Mapping[bytes, bytes]) -> Wrapper | None:
    """RedisVL's keys end in the SHA-256 of what they are the embedding of."""
    content, model = fields.get(b"content"), fields.get(b"model_name")
    tail = key[-64:]
    if content is None or model is None or len(tail) < 64 or not all(byte in b"0123456789abcdef" for byte in tail):
        return None
    fits = hashlib.sha256(content + b":" + model).hexdigest().encode() == tail
    return Wrapper("hash", checksum=tail.decode(), checksum_kind="digest" if fits else None, crc_ok=fits)
