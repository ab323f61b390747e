"""Values as LiteLLM's Redis cache stores them: its own Cache class builds key and wrapper, its own ModelResponse the completion."""

from __future__ import annotations

import ast
import base64
import json
import os
from typing import Any

import numpy as np

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or the import asks the network for a price list, three times

import litellm
import words
from dice import Dice
from layouts import Layout
from litellm.caching.caching import Cache

CACHE = Cache(type="local")  # type: ignore[arg-type]
MODELS = ("gpt-4o-mini", "claude-3-5-haiku-20241022", "Qwen/Qwen2.5-7B-Instruct")
EMBEDDING_MODEL = "text-embedding-3-small"


def completion_key(dice: Dice) -> str:
    """sha256 hex of the call's parameters, by LiteLLM itself."""
    messages = [{"role": "user", "content": f"{words.sentence(dice)} {dice.serial()}"}]
    return CACHE.get_cache_key(model=dice.pick(MODELS), messages=messages, temperature=0)


def embedding_key(dice: Dice) -> str:
    """namespace:sha256 hex."""
    return "rag:" + CACHE.get_cache_key(model=EMBEDDING_MODEL, input=f"{words.sentence(dice)} {dice.serial()}")


def completion(content: str | None, dice: Dice, **message: Any) -> Any:
    """A ModelResponse with this answer; with content None a tool call is expected in message."""
    tokens = dice.rnd.randrange(8, 900)
    choice = {"index": 0, "finish_reason": "stop" if content else "tool_calls", "message": {"role": "assistant", "content": content, **message}}
    return litellm.ModelResponse(id=f"chatcmpl-{dice.uuid()}", created=int(dice.created_s()), model=dice.pick(MODELS), choices=[choice],
                                 usage={"prompt_tokens": tokens, "completion_tokens": 40, "total_tokens": tokens + 40})


def tool_call(dice: Dice) -> Any:
    """A completion that answers with a tool call and so has no content: honest, though its content is null."""
    arguments = json.dumps({"city": dice.pick(("Paris", "Oslo", "Kyoto")), "unit": "celsius", "error_mode": None})
    call = {"id": f"call_{dice.hex16()}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return completion(None, dice, tool_calls=[call])


def store(result: Any, dice: Dice) -> bytes:
    """The bytes in Redis: JSON from the async path, str(dict) from the sync path."""
    _, cached, _ = CACHE._add_cache_logic(result=result, cache_key="k")
    cached["timestamp"] = dice.created_s()
    return json.dumps(cached).encode() if dice.chance(0.6) else str(cached).encode()


def load(data: bytes) -> Any:
    """What LiteLLM's reader makes of it: json.loads, else ast.literal_eval; then the response inside."""
    try:
        cached = json.loads(data.decode())
    except ValueError:
        cached = ast.literal_eval(data.decode())
    if isinstance(cached["response"], str):
        cached["response"] = json.loads(cached["response"])
    return cached


def completion_layout() -> Layout:
    """{"timestamp", "response": "<the completion as JSON text>"}."""
    return Layout("LiteLLM completion", lambda obj, dice: store(completion(obj, dice), dice), load,
                  null=lambda dice: store(None, dice) if dice.chance(0.5) else dice.pick((b"null", b"None")),
                  placeholder=lambda dice: store(dice.pick((dice.pick(words.MARKERS), json.dumps({"status": "skipped", "marker": dice.pick(words.MARKERS)}))), dice),
                  error=lambda dice: store(json.dumps(words.error_body(dice)) if dice.chance(0.7) else words.error_text(dice), dice),
                  hollow=lambda dice: store(dice.pick(("", "{}", json.dumps({"id": f"chatcmpl-{dice.uuid()}", "object": "chat.completion", "model": "gpt-4o-mini", "choices": []}))), dice),
                  typed=False)


def half_completion(dice: Dice) -> bytes:
    """The response inside was cut, the wrapper around it is whole."""
    whole = completion(words.text(dice), dice).model_dump_json()
    return store(whole[: dice.rnd.randrange(40, len(whole) - 20)], dice)


def embedding_layout(version: int | None = 2) -> Layout:
    """{"timestamp", "response": CachedEmbedding}; one of ten callers asked for base64, so that is stored."""

    def dumps(obj: Any, dice: Dice) -> bytes:
        vector = obj
        if isinstance(obj, np.ndarray):
            base64_wanted = obj.ndim == 1 and dice.chance(0.1)
            vector = base64.b64encode(obj.astype("<f4").tobytes()).decode() if base64_wanted else obj.astype(float).tolist()
        entry = {"embedding": vector, "index": 0, "object": "embedding", "model": EMBEDDING_MODEL, "prompt_tokens": dice.rnd.randrange(3, 60)}
        if version is not None:
            entry |= {"prompt_tokens_details": None, "format_version": version}
        return store(entry, dice)

    return Layout("LiteLLM embedding", dumps, load, null=lambda dice: dumps(None, dice) if dice.chance(0.5) else store(None, dice),
                  placeholder=lambda dice: dumps(dice.pick(words.MARKERS), dice), error=lambda dice: store(words.error_body(dice), dice),
                  hollow=lambda dice: dumps([], dice), typed=False)
