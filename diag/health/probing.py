"""One short answer, asked of an engine that says it is idle; and which models a proxy lists.

Only a question that reached the engine and came to nothing counts against it: a server that wants a token, knows no such
model or refuses to queue has proved nothing. The question is one token of prompt and one of answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diag.health.polling import MODELS, Backend
from diag.repro.http_post import Reply, Wire

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NOT_OF_THIS_KIND = frozenset({400, 404, 405, 422, 501})
"""How servers refuse a question of a kind that their model does not take."""
MAX_MODEL_CHARS = 300
MODELS_S = 5.0


@dataclass(frozen=True)
class Asked:
    """How a question ended. `ok` None: it was not sent, or the answer proves nothing about the engine."""

    sent: bool
    ok: bool | None
    seconds: float | None
    """Until the answer, or the end of patience."""
    says: str
    status: int | None = None


@dataclass(frozen=True)
class Models:
    """What /v1/models lists; `problem` instead where there is no list."""

    names: tuple[str, ...]
    problem: str = ""
    outcome: str = "answer"
    status: int | None = None
    seconds: float = 0.0


def ask(wire: Wire, backend: Backend, model: str | None, seconds: float) -> Asked:
    """One question that may take `seconds`; finding out which model there is has a limit of its own. Raises nothing. Never for a proxy."""
    if backend.proxy:
        return Asked(False, None, None, "a proxy is never asked to generate")
    if model is None:
        found = models(wire, backend, min(seconds, MODELS_S))
        if not found.names:
            return Asked(False, None, None, f"which model to ask is not known: {found.problem}; name it with --model")
        model = found.names[0]
    asked = _post(wire, backend, COMPLETIONS, {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}, seconds)
    if asked.status in NOT_OF_THIS_KIND:
        body = {"model": model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0}
        asked = _post(wire, backend, CHAT, body, seconds)
    return _judged(asked, seconds)


def models(wire: Wire, backend: Backend, seconds: float) -> Models:
    """GET /v1/models. Raises nothing."""
    reply = wire.exchange("GET", backend.place, MODELS, backend.headers, None, seconds)
    names: tuple[str, ...] = ()
    if reply.outcome != "answer":
        problem = f"{MODELS}: {reply.detail or reply.outcome}"
    elif reply.status != 200:
        problem = f"{MODELS} answers HTTP {reply.status}"
    else:
        listed = _object(reply.body).get("data")
        entries = listed if isinstance(listed, list) else []
        names = tuple(name for entry in entries if (name := _name(entry)))
        problem = "" if names else f"{MODELS} lists no model"
    return Models(names, problem, reply.outcome, reply.status, reply.seconds)


def _post(wire: Wire, backend: Backend, path: str, body: Mapping[str, object], seconds: float) -> Reply:
    return wire.exchange("POST", backend.place, path, backend.headers, json.dumps(body).encode(), seconds)


def _judged(reply: Reply, allowed_s: float) -> Asked:
    took_s = round(reply.seconds, 3)
    if reply.outcome == "timeout":
        return Asked(True, False, max(took_s, allowed_s), f"one short question was not answered in {allowed_s:g} s")
    if reply.outcome == "reset":
        return Asked(True, False, took_s, f"one short question was cut off: {reply.detail}")
    if reply.outcome != "answer":
        return Asked(reply.outcome != "refused", None, took_s, f"one short question came to nothing: {reply.detail or reply.outcome}")
    if reply.status == 200 and isinstance(_object(reply.body).get("choices"), list):
        return Asked(True, True, took_s, f"one short question was answered in {took_s:.2f} s", 200)
    what = "with no completion" if reply.status == 200 else f"with HTTP {reply.status}"
    return Asked(True, None, took_s, f"one short question was answered {what}: that proves nothing", reply.status)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(entry: object) -> str:
    """Id of a model; "" where there is none that could be sent back."""
    name = entry.get("id") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and len(name) <= MAX_MODEL_CHARS else ""
