"""Families whose entries are two keys (LMCache halves, raw buffers with a partner) or one hash (RedisVL's EmbeddingsCache)."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import evil
import ghosts
import numpy as np
import words
from dice import Dice
from families import DAY_S, Planted, Put
from ghosts import Maker

LAYERS, TOKENS, HIDDEN = 2, 64, 16
KV_2LTD, HALF, BF16 = 1, 1, 3


@dataclass(frozen=True)
class PairFamily:
    """A family that makes its own entries: good ones and, per (label, reason), bad ones."""

    name: str
    weight: float
    good: Callable[[Dice], tuple[Put, ...]]
    makers: dict[tuple[str, str], Maker]


def bf16(arr: np.ndarray) -> bytes:
    """The upper halves of float32 numbers, as bfloat16 is laid out."""
    return (np.ascontiguousarray(arr, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _meta(length: int, shape: tuple[int, ...], fmt: int = KV_2LTD, code: int = BF16) -> bytes:
    return struct.pack("=7i", length, fmt, code, *shape)


def lm_key(dice: Dice, dtype: str = "bfloat16") -> str:
    """model@world_size@worker_id@chunk_hash@dtype, to which LMCache appends metadata or kv_bytes."""
    return f"meta-llama/Llama-3.1-8B-Instruct@2@{dice.rnd.randrange(2)}@{dice.hex16()}@{dtype}"


def lm_halves(key: str, kv: bytes | None, meta: bytes | None) -> tuple[Put, ...]:
    """Both halves, or the one that is not None. LMCache sets no TTL."""
    halves = ((key + "kv_bytes", kv), (key + "metadata", meta))
    return tuple(Put(name, value, None) for name, value in halves if value is not None)


def lm_chunk(dice: Dice, tokens: int = TOKENS) -> tuple[Put, ...]:
    """A whole chunk of so many tokens."""
    kv = bf16(dice.normal(2, LAYERS, tokens, HIDDEN))
    return lm_halves(lm_key(dice), kv, _meta(len(kv), (2, LAYERS, tokens, HIDDEN)))


def _lm_bad(reason: str) -> Callable[[Dice], tuple[tuple[Put, ...], int]]:
    shape = (2, LAYERS, TOKENS, HIDDEN)
    size = 2 * LAYERS * TOKENS * HIDDEN * 2

    def make(dice: Dice) -> tuple[tuple[Put, ...], int]:
        arr = dice.normal(*shape)
        kv, meta, target, key = bf16(arr), _meta(size, shape), 0, lm_key(dice)
        if reason == "empty":
            kv = b""
        elif reason == "truncated":
            kv = kv[: dice.rnd.randrange(100, size - 100) | 1]
        elif reason == "nan-inf":
            share = dice.pick((1.0, 0.5, 0.25))
            arr[..., : int(HIDDEN * share)] = dice.pick((np.nan, np.inf))
            kv = bf16(arr)
        elif reason == "all-zero":
            kv = bytes(size)
        elif reason == "constant":
            kv = bf16(ghosts.constant(arr, dice))
        elif reason == "shape-mismatch":  # the metadata speaks of other dimensions than the bytes have
            meta, target = _meta(size, dice.pick(((2, LAYERS, TOKENS, HIDDEN * 2), (2, LAYERS * 2, TOKENS, HIDDEN), (1, LAYERS, TOKENS, HIDDEN)))), 1
        elif reason == "dtype-mismatch":  # the key says bfloat16; the code says another type, of the same width or not
            code = dice.pick((HALF, 2, 4))
            meta, target = _meta(size, shape, code=code), 1
        elif reason == "corrupt":
            meta, target = dice.pick((dice.rnd.randbytes(28), meta[:4] + dice.rnd.randbytes(24), meta[:8] + b"\xff" * 20)), 1
        elif reason == "missing-half":
            return (lm_halves(key, None, meta) if dice.chance(0.5) else lm_halves(key, kv, None)), 0
        return lm_halves(key, kv, meta), target

    return make


def _pair_maker(name: str, reason: str, make: Callable[[Dice], tuple[tuple[Put, ...], int]], label: str = "ghost") -> Maker:
    def planted(dice: Dice) -> Planted:
        puts, target = make(dice)
        return Planted(puts, label, reason, name, target)

    return planted


def lmcache() -> PairFamily:
    """LMCache's redis:// connector: metadata (native ints) and kv_bytes."""
    reasons = ("empty", "truncated", "nan-inf", "all-zero", "constant", "shape-mismatch", "dtype-mismatch", "corrupt", "missing-half")
    found = {("ghost", reason): _pair_maker("lmcache", reason, _lm_bad(reason)) for reason in reasons}

    def old(dice: Dice) -> tuple[tuple[Put, ...], int]:  # the layout of 2024: one key, no suffix, asked for by no current reader
        return (Put(f"vllm@meta-llama/Llama-3.1-8B-Instruct@2@{dice.rnd.randrange(2)}@{dice.sha256()}", bf16(dice.normal(2, LAYERS, TOKENS, HIDDEN)), None),), 0

    found["soft", "stale-version"] = _pair_maker("lmcache", "stale-version", old, "soft")
    return PairFamily("lmcache", 2.5, lm_chunk, found)


def _semantic(dice: Dice, vector: bytes | None, answer: str | None, ttl_s: int | None) -> tuple[Put, ...]:
    number = dice.rnd.randrange(10**9)
    value = None if answer is None else json.dumps({"answer": answer, "model": "gpt-4o-mini", "ts": dice.created_s()}).encode()
    halves = ((f"embeddings:{number}", vector), (f"values:{number}", value))
    return tuple(Put(key, half, ttl_s) for key, half in halves if half is not None)


def semantic() -> PairFamily:
    """embeddings:<k> is the question's raw float32 vector, values:<k> the answer as JSON: one is useless without the other."""
    ttl_s = 4 * DAY_S

    def good(dice: Dice) -> tuple[Put, ...]:
        return _semantic(dice, dice.unit(96).tobytes(), words.text(dice), dice.left_s(ttl_s))

    def bad(reason: str) -> Callable[[Dice], tuple[tuple[Put, ...], int]]:
        def make(dice: Dice) -> tuple[tuple[Put, ...], int]:
            arr, answer, left = dice.unit(96), words.text(dice), dice.left_s(ttl_s)
            raw: dict[str, Callable[[], bytes]] = {
                "empty": lambda: b"", "truncated": lambda: arr.tobytes()[: dice.rnd.randrange(8, 380) | 1],
                "nan-inf": lambda: ghosts.poisoned(arr, dice).tobytes(), "all-zero": lambda: bytes(384), "constant": lambda: ghosts.constant(arr, dice).tobytes(),
                "shape-mismatch": lambda: dice.unit(dice.pick((48, 64, 192, 128))).tobytes(), "placeholder": lambda: dice.pick(words.MARKERS).encode(),
                "foreign-object": lambda: evil.raw(dice), "null-marker": lambda: dice.pick((b"None", b"null")),
                "norm-outlier": lambda: ghosts.rescaled(arr, dice).tobytes(), "error-cached": lambda: json.dumps(words.error_body(dice)).encode(),
            }
            if reason == "missing-half":
                return (_semantic(dice, arr.tobytes(), None, left) if dice.chance(0.5) else _semantic(dice, None, answer, left)), 0
            return _semantic(dice, raw[reason](), answer, dice.fresh_s(ttl_s) if reason == "null-marker" else left), 0

        return make

    hard = ("empty", "truncated", "nan-inf", "all-zero", "constant", "shape-mismatch", "placeholder", "foreign-object", "null-marker", "error-cached", "missing-half")
    found = {("ghost", reason): _pair_maker("semantic_pair", reason, bad(reason)) for reason in hard}
    found["soft", "norm-outlier"] = _pair_maker("semantic_pair", "norm-outlier", bad("norm-outlier"), "soft")
    return PairFamily("semantic_pair", 2.5, good, found)


def shaped() -> PairFamily:
    """img:<uuid>:data is arr.tobytes(), img:<uuid>:shape says "16,24;float32"."""
    ttl_s = 2 * DAY_S

    def entry(dice: Dice, data: bytes | None, shape: bytes | None) -> tuple[Put, ...]:
        name, left = dice.uuid(), dice.left_s(ttl_s)
        return tuple(Put(f"img:{name}:{half}", value, left) for half, value in (("data", data), ("shape", shape)) if value is not None)

    def bad(reason: str) -> Callable[[Dice], tuple[tuple[Put, ...], int]]:
        def make(dice: Dice) -> tuple[tuple[Put, ...], int]:
            arr, told = dice.normal(8, 24), b"8,24;float32"
            if reason == "missing-half":
                return (entry(dice, arr.tobytes(), None) if dice.chance(0.5) else entry(dice, None, told)), 0
            if reason == "shape-mismatch":
                return entry(dice, dice.normal(8, dice.pick((12, 32))).tobytes(), told), 0
            data = {"truncated": arr.tobytes()[: dice.rnd.randrange(40, 760) | 1], "nan-inf": ghosts.poisoned(arr, dice).tobytes(), "all-zero": bytes(768), "empty": b""}
            return entry(dice, data[reason], told), 0

        return make

    reasons = ("missing-half", "shape-mismatch", "truncated", "nan-inf", "all-zero", "empty")
    return PairFamily("raw_with_shape", 2, lambda dice: entry(dice, dice.normal(8, 24).tobytes(), b"8,24;float32"),
                      {("ghost", reason): _pair_maker("raw_with_shape", reason, bad(reason)) for reason in reasons})


def redisvl() -> PairFamily:
    """RedisVL's EmbeddingsCache: a hash under embedcache:<sha256 of "content:model_name">, its embedding JSON text."""
    ttl_s, model = 6 * DAY_S, "sentence-transformers/all-MiniLM-L6-v2"

    def entry(dice: Dice, embedding: Any, change: Callable[[dict[str, str]], dict[str, str]] = lambda fields: fields) -> tuple[Put, ...]:
        content = f"{words.text(dice, 1, 2)} {dice.serial()}"
        digest = hashlib.sha256(f"{content}:{model}".encode()).hexdigest()
        text = json.dumps(embedding.astype(float).round(7).tolist()) if isinstance(embedding, np.ndarray) else embedding
        fields = {"entry_id": digest, "content": content, "model_name": model, "embedding": text, "inserted_at": str(dice.created_s())}
        return (Put(f"embedcache:{digest}", change(fields), dice.left_s(ttl_s), "hash"),)

    def bad(reason: str) -> Callable[[Dice], tuple[tuple[Put, ...], int]]:
        def make(dice: Dice) -> tuple[tuple[Put, ...], int]:
            arr = dice.unit(64)
            if reason == "checksum-mismatch":  # the key is the digest of content and model: these fields belong to another key
                other = words.text(dice, 1, 2)
                return entry(dice, arr, lambda fields: fields | {"content": other}), 0
            value: dict[str, Any] = {"empty": dice.pick(("", "[]")), "nan-inf": ghosts.poisoned(arr, dice), "all-zero": np.zeros_like(arr),
                                     "constant": ghosts.constant(arr, dice), "shape-mismatch": dice.unit(dice.pick((32, 128, 65))),
                                     "truncated": json.dumps(arr.astype(float).tolist())[: dice.rnd.randrange(40, 900)],
                                     "placeholder": json.dumps(dice.pick(words.MARKERS))}
            return entry(dice, value[reason]), 0

        return make

    reasons = ("checksum-mismatch", "empty", "nan-inf", "all-zero", "constant", "shape-mismatch", "truncated", "placeholder")
    return PairFamily("redisvl_hash", 3, lambda dice: entry(dice, dice.unit(64)),
                      {("ghost", reason): _pair_maker("redisvl_hash", reason, bad(reason)) for reason in reasons})


def pair_families() -> list[PairFamily]:
    """All of them."""
    return [lmcache(), semantic(), shaped(), redisvl()]
