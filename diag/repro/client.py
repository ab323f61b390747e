"""An OpenAI-compatible endpoint: one question, one answer, or what is wrong with it in a sentence."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diag.errors import BadInput, CannotConnect, Garbled, LlmdiagError
from diag.repro.classing import Answer
from diag.repro.counters import Counters, read
from diag.repro.http_post import REDIRECTS, Place, Reply, Wire
from diag.repro.near_ties import Step, steps
from diag.repro.prompts import Prompt

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
METRICS_S = 5.0
METRICS_PATHS = ("/metrics", "/prometheus/metrics")
"""The second is trtllm-serve's: its /metrics is a list that every reader empties."""
TOP = 5
REQUEST_HEADER = "x-request-id"
# cmpl-4f0a…, chatcmpl-…, endpoint_common_8
ID = re.compile(r"[!-~]{1,200}")
# <!doctype html>, <html …>
HTML = re.compile(rb"\s*<(!doctype|html|head|body)\b", re.IGNORECASE)
TAG = re.compile(r"<(title|style|script)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
ABSENT = (404, 405, 501)
UNKNOWN_MODEL = (400, 404, 422)
# The model `x` does not exist. / model x not found / Unknown model: x / invalid model
NO_MODEL = re.compile(r"\bmodel\b.{0,200}?\b(?:not exist|not found|not (?:available|supported)|unknown)|\b(?:no such|unknown|invalid) model\b", re.IGNORECASE | re.DOTALL)
SERVED = 5


@dataclass(frozen=True)
class Spoken:
    """An answer with what the endpoint says of it. None: it does not say."""

    answer: Answer
    prompt_tokens: int | None
    cached_tokens: int | None
    steps: tuple[Step, ...]
    seconds: float
    request: str | None = None
    """Its id: of the answer, else of a header, else the one that was sent."""
    sent: str | None = None
    """The id that was sent with it (`X-Request-Id`)."""


@dataclass(frozen=True)
class Trouble:
    """No answer. `label` is for counting (an HTTP status, or timeout, reset, …); `retry_after` as the server said it."""

    label: str
    says: str
    status: int | None = None
    retry_after: str | None = None
    seconds: float = 0.0
    request: str | None = None
    sent: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """Where to ask and how."""

    place: Place
    wire: Wire
    timeout_s: float
    token: str | None = field(default=None, repr=False)
    metrics_place: Place | None = None
    """Its /metrics, where that is another server; a token is not sent there."""
    metrics_path: str | None = None

    def models(self) -> list[dict[str, Any]]:
        """What /v1/models lists. Raises BadInput, CannotConnect, Garbled."""
        reply = self._exchange("GET", self.place, "/v1/models", None)
        refuse(reply, self.place, "/v1/models", has_token=self.token is not None)
        if reply.status in ABSENT:
            raise BadInput(
                f"{self.place.shown}/v1/models is not there (status {reply.status}): this is no OpenAI-compatible endpoint",
                hint="give the base URL of the engine, http://HOST:PORT; if it only lists no models: --model NAME",
            )
        if reply.status != 200:
            hint = "is that the engine, and well? If only its list of models is broken: --model NAME"
            raise BadInput(f"{self.place.shown}/v1/models answers with status {reply.status}: {_said(reply)}", hint=hint)
        found = _object(reply.body, self.place, "/v1/models").get("data")
        return [item for item in found if isinstance(item, dict) and isinstance(item.get("id"), str)] if isinstance(found, list) else []

    def ask(
        self, prompt: Prompt, settings: Mapping[str, object], *, salt: str | None = None, logprobs: bool = False, name: str | None = None
    ) -> Spoken | Trouble:
        """One question; `name` goes with it as X-Request-Id, by which engines and proxies log it.

        Raises BadInput (token, address), CannotConnect (redirect), Garbled (no JSON where there should be).
        """
        path = PATHS[prompt.kind]
        body = {**settings, **prompt.body(), "stream": False}
        if salt is not None:
            body["cache_salt"] = salt
        if logprobs:
            body |= {"logprobs": TOP} if prompt.kind == "completions" else {"logprobs": True, "top_logprobs": TOP}
        reply = self._exchange("POST", self.place, path, json.dumps(body, ensure_ascii=False).encode(), name=name)
        if reply.outcome != "answer":
            return Trouble(reply.outcome, f"{self.place.shown}: {reply.detail or reply.outcome}", seconds=reply.seconds, request=name, sent=name)
        refuse(reply, self.place, path, has_token=self.token is not None)
        if reply.status in UNKNOWN_MODEL and NO_MODEL.search(_said(reply)):
            raise BadInput(f"{self.place.shown} does not have the model {settings.get('model')}: {_said(reply)}", hint=f"name another one with --model{self._served()}")
        _refuse_path(reply, self.place, path, prompt.kind)
        if reply.status != 200:
            header = named(reply.headers.get(REQUEST_HEADER))
            return Trouble(str(reply.status), _said(reply), reply.status, reply.headers.get("retry-after"), reply.seconds, header or name, name)
        found = _object(reply.body, self.place, path)
        request = named(found.get("id")) or named(reply.headers.get(REQUEST_HEADER)) or name
        return replace(_spoken(found, reply.seconds, self.place, path), request=request, sent=name)

    def _served(self) -> str:
        """`; it serves a, b`, as far as it tells."""
        try:
            names = [str(item["id"]) for item in self.models()]
        except LlmdiagError:
            return ""
        return f"; it serves {', '.join(names[:SERVED])}{f' and {len(names) - SERVED} more' if len(names) > SERVED else ''}" if names else ""

    def counters(self) -> tuple[Counters, str]:
        """The prefix-cache counters, and the path that they came from ("" where there are none). Raises nothing."""
        place = self.metrics_place or Place(self.place.tls, self.place.host, self.place.port)
        for path in METRICS_PATHS if self.metrics_path is None else (self.metrics_path,):
            reply = self._exchange("GET", place, path, None, min(METRICS_S, self.timeout_s))
            if reply.outcome == "answer" and reply.status == 200:
                found = read(reply.body)
                if found.family is not None:
                    return found, path
        return Counters(), ""

    def _exchange(
        self, method: str, place: Place, path: str, body: bytes | None, seconds: float | None = None, name: str | None = None
    ) -> Reply:
        headers = {} if self.token is None or not place.is_same_server(self.place) else {"Authorization": f"Bearer {self.token}"}
        headers |= {} if name is None else {REQUEST_HEADER.title(): name}
        reply = self.wire.exchange(method, place, path, headers, body, self.timeout_s if seconds is None else seconds)
        if self.token is None or self.token.encode() not in reply.body:
            return reply
        return Reply(reply.outcome, reply.status, reply.headers, reply.body.replace(self.token.encode(), b"***"), reply.detail, reply.seconds)


def refuse(reply: Reply, place: Place, path: str, *, has_token: bool = False) -> None:
    """What no further request would change ends it at once, with a sentence. Raises BadInput, CannotConnect, Garbled."""
    where = f"{place.shown}{path}"
    if reply.outcome == "tls":
        raise CannotConnect(f"{where}: {reply.detail}", hint="is it https, and its certificate trusted? --insecure does not check it")
    if reply.outcome != "answer":
        raise CannotConnect(f"{where}: {reply.detail or reply.outcome}", hint="check the address, and that the service is up: llmdiag snapshot PID")
    if reply.status in REDIRECTS:
        target = reply.headers.get("location", "somewhere else").split("?")[0]
        raise CannotConnect(f"{where} redirects to {target}, which is not followed", hint="give that address, if it is the right one")
    if reply.status in (401, 403):
        what = "does not accept the token" if has_token else "wants to know who asks"
        hint = "check the token in LLMDIAG_API_KEY or --api-key-file, and what it may do" if has_token else "set LLMDIAG_API_KEY, or --api-key-file FILE"
        raise BadInput(f"{where} {what} (status {reply.status})", hint=hint)


def _refuse_path(reply: Reply, place: Place, path: str, kind: str) -> None:
    """Nobody answers questions of this kind there. Raises BadInput."""
    if reply.status in ABSENT:
        other = 'an endpoint for chats only wants lines with "messages"' if kind == "completions" else 'an endpoint without chats wants lines with "prompt"'
        raise BadInput(f"{place.shown}{path} is not there (status {reply.status}): {_said(reply)}", hint=f"is it the base URL of the engine? If so: {other}")


def _object(body: bytes, place: Place, path: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        what = "HTML" if HTML.match(body) else "no JSON" if body.strip() else "nothing"
        raise Garbled(f"{place.shown}{path} answers with {what}", hint="give the base URL of the engine, not of its web page: http://HOST:PORT") from error
    if not isinstance(found, dict):
        raise Garbled(f"{place.shown}{path} answers with JSON that is no object", hint="is it an OpenAI-compatible endpoint?")
    return found


def _spoken(found: Mapping[str, Any], seconds: float, place: Place, path: str) -> Spoken:
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Garbled(f"{place.shown}{path} answers without choices: {_message(found)}", hint="is it an OpenAI-compatible endpoint?")
    choice = choices[0]
    usage = found.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    finish = choice.get("finish_reason")
    answer = Answer(_text(choice), finish if isinstance(finish, str) else None)
    return Spoken(answer, _count(usage.get("prompt_tokens")), _count(cached), steps(choice), seconds)


def _text(choice: Mapping[str, Any]) -> str:
    """Of a model that thinks aloud, the thoughts too."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice["text"] if isinstance(choice.get("text"), str) else ""
    parts = [message.get("reasoning_content") or message.get("reasoning"), message.get("content")]
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def named(value: object) -> str | None:
    """What may be the id of a request, as a log would show it: one short word."""
    return value if isinstance(value, str) and ID.fullmatch(value) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _said(reply: Reply) -> str:
    """What an error page says, in one short line."""
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        text = _text_of_html(reply.body.decode("utf-8", "replace")) if HTML.match(reply.body) else reply.body[:2000].decode("utf-8", "replace")
        return " ".join(text.split())[:200] or f"status {reply.status}"
    return _message(found)


def _message(found: object) -> str:
    """`{"error": {"message": …}}`, `{"message": …}`, `{"detail": …}`, else the JSON itself, in one short line."""
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return " ".join(text.split())[:200]


def _text_of_html(text: str) -> str:
    return TAG.sub(" ", text[:20_000])
