"""Honest entries that look like faults: none of them may be called a hard ghost."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import layouts
import lite
import numpy as np
import pairs
import words
from dice import Dice
from families import DAY_S, Planted, Put

Maker = Callable[[Dice], Planted]
WEEK_S = 7 * DAY_S
PICKLE, NPY, TEXT, JSON, MSGPACK = layouts.numpy_pickle(), layouts.np_save(), layouts.plain_text(), layouts.aio_json(), layouts.aio_msgpack()
TENSOR, FLASK, DJANGO = layouts.torch_pickle(), layouts.cachelib_pickle(), layouts.django("zlib")


def _one(reason: str, key: str, value: bytes, ttl_s: int | None, kind: str = "string") -> Planted:
    return Planted((Put(key, value, ttl_s, kind),), "live", reason, f"live_{reason}", None)


def sparse(dice: Dice) -> Planted:
    """SPLADE-like weights: nine numbers of ten are zero; and features after a ReLU, of which some are nearly all zero."""
    if dice.chance(0.5):
        arr = dice.np.random(768, dtype=np.float32) * (dice.np.random(768) > 0.9)
        return _one("sparse", f"splade:v2:{dice.md5()}", PICKLE.dumps(arr.astype(np.float32), dice), dice.left_s(WEEK_S))
    arr = np.maximum(dice.normal(4, 96) - dice.rnd.uniform(0.1, 1.0), 0).astype(np.float32)
    arr[0, 0] = 0.25
    return _one("sparse", f"relu:layer4:{dice.uuid()}", NPY.dumps(arr, dice), dice.left_s(WEEK_S))


def tiny(dice: Dice) -> Planted:
    """One score, one class id (0 is a class), two coordinates."""
    kind = dice.rnd.randrange(3)
    if kind == 0:
        return _one("tiny", f"score:reranker:{dice.uuid()}", PICKLE.dumps(dice.np.random(1, dtype=np.float32), dice), dice.left_s(WEEK_S))
    if kind == 1:
        return _one("tiny", f"class:nsfw:{dice.md5()}", PICKLE.dumps(np.array([dice.pick((0, 0, 0, 1, 2))]), dice), dice.left_s(WEEK_S))
    return _one("tiny", f"focus:point:{dice.md5()}", NPY.dumps(dice.normal(2), dice), dice.left_s(WEEK_S))


def zero_padded(dice: Dice) -> Planted:
    """Log-mel frames padded with zeros to the full window: short sounds are mostly zeros."""
    arr = dice.normal(16, 60)
    arr[:, dice.rnd.randrange(3, 60) :] = 0
    return _one("zero-padded", f"mel:whisper-small:{dice.sha256()}", NPY.dumps(arr, dice), dice.left_s(WEEK_S))


def tail_chunk(dice: Dice) -> Planted:
    """The last chunk of a prompt: fewer rows, everything else as its siblings."""
    if dice.chance(0.35):
        puts = pairs.lm_chunk(dice, tokens=dice.rnd.randrange(1, pairs.TOKENS))
        return Planted(puts, "live", "tail-chunk", "lmcache", None)
    return _one("tail-chunk", _chunk_key(dice), TENSOR.dumps(dice.normal(dice.rnd.randrange(1, 32), 24, dtype="float16"), dice), dice.left_s(DAY_S))


def _chunk_key(dice: Dice) -> str:
    return f"kvchunk:mistral-7b:{dice.sha256()}:{dice.rnd.randrange(40)}"


def full_chunk(dice: Dice) -> Planted:
    """A sibling of the tail chunks: all 32 rows."""
    return _one("tail-chunk", _chunk_key(dice), TENSOR.dumps(dice.normal(32, 24, dtype="float16"), dice), dice.left_s(DAY_S))


def negative_cache(dice: Dice) -> Planted:
    """A marker that lives minutes where data lives days: for what does not exist. In the data's own family, or in one of its own."""
    key, value = dice.pick((
        (f"clip-vit-b-32:image:{dice.md5()}", pickle.dumps(None)),
        (f"answer:gpt-4o-mini:{dice.sha256()}", b"null"),
        (f"captions:{dice.uuid()}", b"null"),
        (f"neg:image:{dice.md5()}", b"404"),
        (f"neg:image:{dice.md5()}", b"1"),
        (f"notfound:doc:{dice.uuid()}", b"__NULL__"),
    ))
    return _one("negative-cache", key, value, dice.short_s())


def old_version(dice: Dice) -> Planted:
    """Honest values that an older model or preprocessing wrote, in its own shape: stale at most."""
    if dice.chance(0.4):
        return _one("old-version", f"mm:v1:qwen2-vl-7b:image:{dice.sha256()}", TENSOR.dumps(dice.normal(8, 64, dtype="float16"), dice), dice.left_s(WEEK_S))
    if dice.chance(0.5):
        return _one("old-version", f"vision:v1:image:{dice.sha256()}", layouts.cache_item("v1").dumps(dice.unit(256), dice), dice.left_s(2 * DAY_S))
    return _one("old-version", f"prod:1:clip-text:{dice.md5()}", DJANGO.dumps(dice.unit(192), dice), dice.left_s(5 * DAY_S))


def error_talk(dice: Dice) -> Planted:
    """Answers and captions about errors, None and placeholders."""
    said = dice.pick(words.ERROR_TALK)
    said = said if dice.chance(0.5) else f"{words.sentence(dice)} {said}" if dice.chance(0.5) else f"{said} {words.text(dice, 1, 3)}"
    kind = dice.rnd.randrange(5)
    if kind < 2:
        return _one("error-talk", f"answer:gpt-4o-mini:{dice.sha256()}", TEXT.dumps(said, dice), dice.left_s(WEEK_S))
    if kind == 2:
        value = {"caption": said, "model": "blip2-opt-2.7b", "score": 0.71, "error": None}
        return _one("error-talk", f"captions:{dice.uuid()}", JSON.dumps(value, dice), dice.left_s(DAY_S))
    if kind == 3:
        return _one("error-talk", lite.completion_key(dice), lite.store(lite.completion(said, dice), dice), dice.left_s(3600 * 36))
    return _one("error-talk", f"flask_cache_{dice.md5()}", FLASK.dumps({"answer": said, "sources": [], "score": 0.4, "cached": True}, dice), dice.left_s(3600 * 12))


def mask(dice: Dice) -> Planted:
    """Attention masks: all ones, or ones and then padding."""
    if dice.chance(0.3):
        return _one("mask", f"boolmask:sam:{dice.uuid()}", NPY.dumps(np.ones((12, 12), bool), dice), dice.left_s(WEEK_S))
    arr = np.ones(128, np.int64)
    if dice.chance(0.3):
        arr[dice.rnd.randrange(20, 128) :] = 0
    return _one("mask", f"mask:llava-1.6:{dice.sha256()}", PICKLE.dumps(arr, dice), dice.left_s(WEEK_S))


def two_dtypes(dice: Dice) -> Planted:
    """Half of the workers store float16, the others float32: both are read."""
    arr = dice.unit(128, dtype=dice.pick(("float16", "float32")))
    if dice.chance(0.5):
        return _one("two-dtypes", f"dual:e5-large:{dice.uuid()}", PICKLE.dumps(arr, dice), dice.left_s(WEEK_S))
    return _one("two-dtypes", f"dualmp:gte-base:{dice.md5()}", MSGPACK.dumps(arr, dice), dice.left_s(WEEK_S))


def two_shapes(dice: Dice) -> Planted:
    """Portrait and landscape crops, or two models behind one prefix."""
    if dice.chance(0.5):
        return _one("two-shapes", f"crop:siglip:{dice.md5()}", NPY.dumps(dice.normal(*dice.pick(((12, 16), (16, 16), (16, 12)))), dice), dice.left_s(WEEK_S))
    arr = dice.unit(256 if dice.chance(0.7) else 384)
    return _one("two-shapes", f"emb:{dice.sha256()}", arr.tobytes(), dice.left_s(WEEK_S))


def black_image(dice: Dice) -> Planted:
    """Thumbnails as uint8, of which some are black (a dark frame) or white (a blank page)."""
    arr = np.full((16, 16, 3), dice.pick((0, 0, 0, 255)), np.uint8)
    return _one("black-image", f"thumb:{dice.rnd.randrange(10**8)}", PICKLE.dumps(arr, dice), dice.left_s(WEEK_S))


def bright_image(dice: Dice) -> Planted:
    """A thumbnail with something on it."""
    return _one("black-image", f"thumb:{dice.rnd.randrange(10**8)}", PICKLE.dumps(dice.np.integers(0, 256, (16, 16, 3), dtype=np.uint8), dice), dice.left_s(WEEK_S))


def counter(dice: Dice) -> Planted:
    """Numbers that INCR counts, 0 among them, and a rate limiter's sorted set."""
    kind = dice.rnd.randrange(3)
    if kind == 0:
        return _one("counter", f"stats:hits:{dice.rnd.randrange(10**7)}", str(dice.pick((0, 1, 7, 420, 99812))).encode(), None)
    if kind == 1:
        return _one("counter", f"ratelimit:user:{dice.uuid()}", str(dice.rnd.randrange(60)).encode(), dice.short_s())
    members = {dice.hex16(): dice.created_s() for _ in range(4)}
    return Planted((Put(f"window:tenant:{dice.rnd.randrange(10**7)}", members, dice.short_s(), "zset"),), "live", "counter", "live_counter", None)


def lock(dice: Dice) -> Planted:
    """SET NX locks: a token or a 1, and minutes to live."""
    if dice.chance(0.7):
        return _one("lock", f"lock:encode:{dice.md5()}", dice.uuid().encode(), dice.short_s())
    return _one("lock", f"inflight:{dice.sha256()}", b"1", dice.short_s())


def long_tail(dice: Dice) -> Planted:
    """Gradient-like features whose norms span four orders of magnitude."""
    arr = dice.normal(96) * np.float32(dice.np.lognormal(0, 2.0))
    return _one("long-tail", f"saliency:vit-l:{dice.uuid()}", PICKLE.dumps(arr.astype(np.float32), dice), dice.left_s(WEEK_S))


def empty_list(dice: Dice) -> Planted:
    """An image without tags, a page without detections, a text without links: a third of these families is empty."""
    kind = dice.rnd.randrange(3)
    if kind == 0:
        return _one("empty-list", f"tags:{dice.uuid()}", b"[]", dice.left_s(WEEK_S))
    if kind == 1:
        return _one("empty-list", f"boxes:yolov8:{dice.md5()}", PICKLE.dumps(np.zeros((0, 4), np.float32), dice), dice.left_s(WEEK_S))
    return _one("empty-list", f"links:{dice.rnd.randrange(10**8)}", DJANGO.dumps([], dice), dice.left_s(WEEK_S))


def full_list(dice: Dice) -> Planted:
    """A sibling that has some; one in three has none."""
    if dice.chance(0.33):
        return empty_list(dice)
    count, kind = dice.rnd.randrange(1, 6), dice.rnd.randrange(3)
    if kind == 0:
        return _one("empty-list", f"tags:{dice.uuid()}", json.dumps([dice.pick(("dog", "street", "chart", "猫", "night")) for _ in range(count)]).encode(), dice.left_s(WEEK_S))
    if kind == 1:
        return _one("empty-list", f"boxes:yolov8:{dice.md5()}", PICKLE.dumps(dice.np.random((count, 4), dtype=np.float32), dice), dice.left_s(WEEK_S))
    return _one("empty-list", f"links:{dice.rnd.randrange(10**8)}", DJANGO.dumps([f"https://docs.example.org/{dice.hex16()}" for _ in range(count)], dice), dice.left_s(WEEK_S))


def tool_call(dice: Dice) -> Planted:
    """A LiteLLM completion that calls a tool: its content is null."""
    return _one("tool-call", lite.completion_key(dice), lite.store(lite.tool_call(dice), dice), dice.left_s(3600 * 36))


def short_answer(dice: Dice) -> Planted:
    """An answer of one word among long ones."""
    return _one("short-answer", f"answer:gpt-4o-mini:{dice.sha256()}", TEXT.dumps(dice.pick(words.SHORT), dice), dice.left_s(WEEK_S))


def small_families(dice: Dice, families: int) -> list[Planted]:
    """Families of five keys each, every one with a model name, a shape and a layout of its own."""
    found: list[Planted] = []
    names = ("resnet", "florence", "paligemma", "internvl", "pixtral", "moondream", "kosmos", "fuyu", "idefics", "minicpm", "aria", "phi-vision", "sam")
    for index in range(families):
        name, width, layout = f"{names[index % len(names)]}-{'abcdefghij'[index // len(names)]}", 40 + 8 * index, (PICKLE, NPY, TENSOR, MSGPACK)[index % 4]
        found += [_one("small-family", f"exp:{name}:{dice.md5()}", layout.dumps(dice.unit(width), dice), dice.left_s(WEEK_S)) for _ in range(5)]
    return found


LOOKALIKES: dict[str, Maker] = {
    "sparse": sparse, "tiny": tiny, "zero-padded": zero_padded, "tail-chunk": tail_chunk, "negative-cache": negative_cache, "old-version": old_version,
    "error-talk": error_talk, "mask": mask, "two-dtypes": two_dtypes, "two-shapes": two_shapes, "black-image": black_image, "counter": counter,
    "lock": lock, "long-tail": long_tail, "empty-list": empty_list, "tool-call": tool_call, "short-answer": short_answer,
}

# What fills the look-alikes' own families beside the labelled ones: (weight, maker). The others live in the families of families.py.
FILL: tuple[tuple[float, Maker], ...] = (
    (3, sparse), (3, tiny), (2, zero_padded), (2, full_chunk), (2, mask), (3, two_dtypes), (3, two_shapes), (3, bright_image), (3, counter), (1, lock),
    (2, long_tail), (4, full_list), (1, tool_call),
)
