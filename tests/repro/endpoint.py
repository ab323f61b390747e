"""A stand-in for an OpenAI-compatible endpoint: a real HTTP server whose every answer a test decides.

`Engine` has a prefix cache of blocks of words with LRU eviction; with `bug=True` it answers from a chain with a hole as if
it were whole, wrongly and for ever, until a restart. What HTTP can do wrong is a function in front of it.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK = 4


@dataclass(frozen=True)
class Response:
    """What goes over the wire."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent as it is, without any head."""
    trickle_s: float | None = None
    """Seconds between single bytes."""
    wait_for: threading.Event | None = None
    """Say nothing before that."""


def answer(status: int = 200, **body: Any) -> Response:
    """JSON."""
    return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def said(text: str, body: Mapping[str, Any], *, prompt_tokens: int = 8, cached: int | None = None, finish: str = "stop", **choice: Any) -> Response:
    """A completion, or a chat answer where messages were asked."""
    usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": 1}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached} if cached else None
    what = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
    return answer(choices=[{"index": 0, **what, "finish_reason": finish, **choice}], usage=usage)


def prompt_of(body: Mapping[str, Any]) -> str:
    """All that was asked."""
    if "messages" in body:
        return "\n".join(str(message["content"]) for message in body["messages"])
    return " ".join(map(str, body["prompt"])) if isinstance(body["prompt"], list) else str(body["prompt"])


@dataclass
class Engine:
    """Deterministic answers, and a cache of `blocks` blocks of BLOCK words each."""

    blocks: int = 40
    bug: bool = False
    heeds_salt: bool = True
    tells_usage: bool = True
    bad: str = ""
    cache: "OrderedDict[str, bool]" = field(default_factory=OrderedDict)
    """Hash of block -> is its content right?"""
    hits: int = 0
    queries: int = 0

    def __call__(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        if path == "/v1/models":
            return answer(data=[{"id": "tiny", "owned_by": "somebody"}])
        if path == "/metrics":
            return Response(200, self.metrics().encode(), {"Content-Type": "text/plain"})
        words = prompt_of(body).split()
        salt = str(body.get("cache_salt", "")) if self.heeds_salt else ""
        cached, is_right = self.look_up(chain(words, salt))
        self.queries += len(words)
        self.hits += cached * BLOCK
        text = good_answer(words) if is_right else self.bad
        return said(text, body, prompt_tokens=len(words), cached=cached * BLOCK if self.tells_usage else None)

    def look_up(self, hashes: list[str]) -> tuple[int, bool]:
        """(blocks that were hit, is what they hold right?); afterwards all of them are cached."""
        known = [name in self.cache for name in hashes]
        if self.bug:  # the last known block: everything before it is taken for known, too
            hit = max((place for place, is_known in enumerate(known, 1) if is_known), default=0)
        else:
            hit = known.index(False) if False in known else len(known)
        for place, name in enumerate(hashes):
            if name not in self.cache:
                self.cache[name] = place >= hit
            self.cache.move_to_end(name)  # the first block is the oldest of its chain: it goes first, and leaves a hole
        is_right = all(self.cache[name] for name in hashes)
        while len(self.cache) > self.blocks:
            self.cache.popitem(last=False)
        return hit, is_right

    def metrics(self) -> str:
        """As vLLM tells it."""
        return (
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self.queries}\nvllm:prefix_cache_hits_total{{engine="0"}} {self.hits}\n'
            f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{self.blocks}",engine="0"}} 1.0\nvllm:kv_cache_usage_perc{{engine="0"}} 0.0\n'
        )


def chain(words: list[str], salt: str) -> list[str]:
    """Hashes of all whole blocks, each over everything before it; the last word is never looked up."""
    found, seed = [], salt
    for start in range(0, (len(words) - 1) // BLOCK * BLOCK, BLOCK):
        seed = hashlib.sha256(" ".join([seed, *words[start : start + BLOCK]]).encode()).hexdigest()
        found.append(seed)
    return found


def good_answer(words: list[str]) -> str:
    """Some sentence that depends on every word of the prompt."""
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    stock = ("river", "stone", "lamp", "harbour", "clerk", "letter", "winter", "bench", "valve", "garden", "signal", "orchard")
    return "The answer is " + " ".join(stock[byte % len(stock)] for byte in digest[:6])


Handler = Callable[[str, Mapping[str, Any], Mapping[str, str]], Response]


@dataclass
class Server:
    """A running endpoint and what it was asked."""

    url: str
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """(path, body, headers in lower case) of every request."""

    @property
    def questions(self) -> list[dict[str, Any]]:
        return [body for path, body, _ in self.asked if "completions" in path]


@contextmanager
def serving(handler: Handler, *, one_at_a_time: bool = True) -> Iterator[Server]:
    """Requests are answered by `handler`, one at a time; waiting and trickling happens outside of it."""
    lock: AbstractContextManager[Any] = threading.Lock() if one_at_a_time else nullcontext()

    class Http(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond({})

        def do_POST(self) -> None:
            self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def respond(self, body: dict[str, Any]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                server.asked.append((self.path, body, headers))
                response = handler(self.path, body, headers)
            if response.wait_for is not None:
                response.wait_for.wait(30)
            with suppress(OSError):  # the other side went away: that is what some tests want
                self.wire(response)

        def wire(self, response: Response) -> None:
            self.close_connection = True
            if response.raw is not None:
                self.wfile.write(response.raw)
                return
            head = {"Content-Length": str(len(response.body)), "Connection": "close", **response.headers}
            lines = [f"HTTP/1.1 {response.status} Whatever", *(f"{name}: {value}" for name, value in head.items()), "", ""]
            data = "\r\n".join(lines).encode() + response.body
            if response.trickle_s is None:
                self.wfile.write(data)
                return
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(response.trickle_s)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Quiet(("127.0.0.1", 0), Http) as httpd:
        server = Server(f"http://127.0.0.1:{httpd.server_address[1]}")
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            httpd.shutdown()
            thread.join()


PROMPTS = (
    {"prompt": "The harbour office keeps one key behind the map and another key under the lamp. The clerk writes every letter down. Who keeps the second key?"},
    {"messages": [
        {"role": "system", "content": "You help engineers of a small factory. Line three makes valves and line four makes pumps."},
        {"role": "user", "content": "Yesterday two pumps leaked badly. Which line made the two pumps that leaked?"},
    ]},
)  # fmt: skip
