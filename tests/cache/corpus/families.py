"""The key families of the corpus: what their keys look like, what an ordinary value is, and how long it lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import layouts
import lite
import words
from dice import Dice
from layouts import Layout

DAY_S = 86400


@dataclass(frozen=True)
class Put:
    """One key to write: bytes as a string, or a dict as a hash or a sorted set, as kind says. ttl_s None: it never goes away."""

    key: str
    value: Any
    ttl_s: int | None
    kind: str = "string"


@dataclass(frozen=True)
class Planted:
    """A known case: the keys to write, which of them is the case itself (its index; None: all of them), and what it is."""

    puts: tuple[Put, ...]
    label: str
    reason: str
    family: str
    target: int | None = 0

    def __post_init__(self) -> None:
        if self.label not in ("ghost", "soft", "live"):
            raise ValueError(f"no such label: {self.label}")


@dataclass(frozen=True)
class Family:
    """Keys of one shape whose values one writer wrote.

    content: "array" (draw gives an ndarray), "text" (draw gives str) or "object". stale gives key and value of an older version of the
    writer. even_norm: norms hardly differ, so one that does is an outlier.
    """

    name: str
    weight: float
    ttl_s: int | None
    key: Callable[[Dice], str]
    draw: Callable[[Dice], Any]
    layout: Layout
    content: str = "array"
    stale: Callable[[Dice], tuple[str, bytes]] | None = None
    even_norm: bool = True

    def good(self, dice: Dice) -> tuple[Put, ...]:
        """An ordinary key."""
        return (Put(self.key(dice), self.layout.dumps(self.draw(dice), dice), dice.left_s(self.ttl_s)),)


def _caption(dice: Dice) -> dict[str, Any]:
    return {"caption": words.text(dice, 1, 3), "model": "blip2-opt-2.7b", "score": round(dice.rnd.uniform(0.2, 0.99), 4), "error": None}


def _rag_answer(dice: Dice) -> dict[str, Any]:
    sources = [{"doc": dice.uuid(), "page": dice.rnd.randrange(1, 80)} for _ in range(dice.rnd.randrange(1, 5))]
    return {"answer": words.text(dice), "sources": sources, "score": dice.rnd.random(), "cached": True}


def _tokens(dice: Dice) -> list[int]:
    return dice.np.integers(5, 128_000, dice.rnd.randrange(60, 240)).tolist()


def _answer(dice: Dice) -> str:
    return dice.pick(words.SHORT) if dice.chance(0.08) else words.text(dice)


def _old(key: Callable[[Dice], str], layout: Layout, draw: Callable[[Dice], Any]) -> Callable[[Dice], tuple[str, bytes]]:
    return lambda dice: (key(dice), layout.dumps(draw(dice), dice))


def single_families() -> list[Family]:
    """The families whose every key stands alone; see pairs.py for those of two keys."""
    tensor, item, zlib_pickle, msgpack = layouts.torch_pickle(), layouts.cache_item("v2"), layouts.django("zlib"), layouts.aio_msgpack()
    week = 7 * DAY_S
    return [
        Family("clip_pickle", 9, week, lambda d: f"clip-vit-b-32:image:{d.md5()}", lambda d: d.unit(512), layouts.numpy_pickle()),
        Family("torch_pickle", 7, 3 * DAY_S, lambda d: f"mm:v3:qwen2-vl-7b:image:{d.sha256()}", lambda d: d.normal(16, 64, dtype="float16"), tensor,
               stale=_old(lambda d: f"mm:v2:qwen2-vl-7b:image:{d.sha256()}", tensor, lambda d: d.normal(16, 64, dtype="float16"))),
        Family("cache_item", 7, 2 * DAY_S, lambda d: f"vision:v2:image:{d.sha256()}", lambda d: d.unit(256), item,
               stale=lambda d: (f"vision:{d.pick(('v1', 'v2'))}:image:{d.sha256()}", layouts.cache_item("v1").dumps(d.unit(256), d))),
        Family("checked_dict", 5, week, lambda d: f"imgcache:{d.ulid()}", lambda d: d.unit(192), layouts.checked_dict()),
        Family("plain_dict", 5, week, lambda d: f"embed:bge-m3:{d.uuid()}", lambda d: d.unit(256), layouts.plain_dict()),
        Family("np_save", 5, None, lambda d: f"feat:dinov2-base:{d.sha256()}", lambda d: d.normal(4, 96), layouts.np_save()),
        Family("safetensors", 5, 30 * DAY_S, lambda d: f"st/siglip-so400m/{d.uuid()}", lambda d: d.unit(384, dtype="float16"), layouts.safe_tensors()),
        Family("torch_zip", 4, week, lambda d: f"tz:whisper-large-v3:{d.md5()}", lambda d: d.normal(8, 48), layouts.torch_zip()),
        Family("litellm_completion", 8, 3600 * 36, lite.completion_key, words.text, lite.completion_layout(), content="text"),
        Family("litellm_embedding", 6, 3600 * 36, lite.embedding_key, lambda d: d.unit(64), lite.embedding_layout(),
               stale=_old(lite.embedding_key, lite.embedding_layout(None), lambda d: d.unit(64))),
        Family("django_zlib", 5, 5 * DAY_S, lambda d: f"prod:2:clip-text:{d.md5()}", lambda d: d.unit(192), zlib_pickle,
               stale=_old(lambda d: f"prod:1:clip-text:{d.md5()}", zlib_pickle, lambda d: d.unit(192))),
        Family("django_zstd", 3, 5 * DAY_S, lambda d: f"media:1:frame:{d.rnd.randrange(10**9)}", lambda d: d.normal(6, 32, dtype="float16"), layouts.django("zstd")),
        Family("django_lz4", 3, 5 * DAY_S, lambda d: f":1:doc-emb:{d.uuid()}", lambda d: d.unit(160), layouts.django("lz4", "embedding")),
        Family("django_gzip", 3, 5 * DAY_S, lambda d: f"cms:1:summary:{d.rnd.randrange(10**7)}", words.text, layouts.django("gzip"), content="text"),
        Family("django_lzma", 1.5, 5 * DAY_S, lambda d: f"arch:1:page-emb:{d.sha256()}", lambda d: d.unit(128), layouts.django("lzma")),
        Family("django_plain", 2, 5 * DAY_S, lambda d: f"views:1:rerank:{d.md5()}", lambda d: d.unit(96), layouts.django("none")),
        Family("aio_json", 6, DAY_S, lambda d: f"captions:{d.uuid()}", _caption, layouts.aio_json(), content="object"),
        Family("aio_msgpack", 4, DAY_S, lambda d: f"aio:patch:{d.ulid()}", lambda d: d.unit(96), msgpack),
        Family("token_list", 3, DAY_S, lambda d: f"tok:llama-3-8b:{d.sha256()}", _tokens, layouts.token_list(), content="object"),
        Family("cachelib", 5, 3600 * 12, lambda d: f"flask_cache_{d.md5()}", _rag_answer, layouts.cachelib_pickle(), content="object"),
        Family("text_answer", 8, week, lambda d: f"answer:gpt-4o-mini:{d.sha256()}", _answer, layouts.plain_text(), content="text"),
        Family("json_list", 4, week, lambda d: f"emb:bge-small-en:{d.rnd.randrange(10**8)}", lambda d: d.unit(64), layouts.json_list()),
    ]
